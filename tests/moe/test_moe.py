"""jax_vbgemm.moe against a plain implementation, which multiplies every token by every expert."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.experimental import checkify
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm import moe

TOKENS, EXPERTS, K, D, F, N = 11, 5, 2, 4, 3, 6

LOADS = {
    "any": oracle.random((TOKENS, EXPERTS), "float64", 5),
    "all to one": jax.device_put(np.tile([0, 0, 0, 9.0, 0], (TOKENS, 1))),
    "none to most": jax.device_put(np.tile([-9.0, 2.0, -9.0, 1.0, -9.0], (TOKENS, 1))),
    "all equal": jnp.zeros((TOKENS, EXPERTS)),
}


def operands(tokens: int = TOKENS, dtype: Any = "float64") -> dict[str, jax.Array]:
    shapes = {"x": (tokens, D), "gate_up": (EXPERTS, D, 2 * F), "down": (EXPERTS, F, N)}
    return {name: oracle.random(shape, dtype, i) for i, (name, shape) in enumerate(shapes.items())}


def plain(x: Any, gate_up: Any, down: Any, logits: Any, k: int, normalize: bool = True) -> jax.Array:
    """Every token times every expert, and a mask."""
    chosen = jax.nn.one_hot(jax.lax.top_k(logits, k)[1], logits.shape[1], dtype=logits.dtype).sum(1)
    weights = jax.nn.softmax(logits, -1) * chosen
    weights = weights / weights.sum(-1, keepdims=True) if normalize else weights
    gate, up = jnp.split(jnp.einsum("td,edf->tef", x, gate_up), 2, axis=-1)
    return jnp.einsum("te,tef,efn->tn", weights, jax.nn.silu(gate) * up, down)


def ours(x: Any, gate_up: Any, down: Any, logits: Any, k: int, normalize: bool = True) -> jax.Array:
    return moe.expert_mlp(x, gate_up, down, moe.route(logits, k, normalize=normalize))


def assert_close(a: Any, b: Any, tolerance: float = 1e-11) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


def scalar(f: Any, *options: Any) -> Any:
    return lambda moving: jnp.sum(jnp.sin(f(**moving, k=options[0], normalize=options[1])))


CASES = [("any", 1, True), ("any", EXPERTS, False), *((load, K, load != "all to one") for load in LOADS)]


@pytest.mark.parametrize(("load", "k", "normalize"), slow_except(CASES, CASES[::2]))
def test_values_and_gradients(load, k, normalize):
    moving = operands() | {"logits": LOADS[load]}
    values = [jax.jit(jax.value_and_grad(scalar(f, k, normalize)))(moving) for f in (ours, plain)]
    assert_close(*values)


@pytest.mark.slow
def test_second_derivatives_in_every_order_of_modes():
    moving = operands() | {"logits": LOADS["any"]}
    dx = jax.tree.map(lambda a: oracle.random(a.shape, "float64", 9), moving)
    for transform in (
        lambda f: lambda x: jax.grad(lambda y: jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, jax.grad(f)(y), dx)))(x),
        lambda f: lambda x: jax.grad(lambda y: jax.jvp(f, [y], [dx])[1])(x),
        lambda f: lambda x: jax.jvp(jax.grad(f), [x], [dx])[1],
        lambda f: lambda x: jax.jvp(lambda y: jax.jvp(f, [y], [dx])[1], [x], [dx])[1],
    ):
        assert_close(*(jax.jit(transform(scalar(f, K, True)))(moving) for f in (ours, plain)))


@pytest.mark.parametrize(
    "axes", [(1, 0), *(pytest.param(axes, marks=pytest.mark.slow) for axes in [(0, None), (None, 0)])], ids=str
)
def test_vmap(axes):
    weights = operands()
    x, logits = weights.pop("x"), LOADS["any"]
    if axes[0] is not None:
        x = jnp.stack([x, 2 * x, -x], axes[0])
    if axes[1] is not None:
        logits = jnp.stack([logits, -logits, logits[::-1]])
    values = []
    for f in (ours, plain):
        gradient = jax.value_and_grad(
            lambda x, logits, f=f: jnp.sum(jnp.sin(f(x=x, logits=logits, k=K, **weights))), (0, 1)
        )
        values.append(jax.jit(jax.vmap(gradient, in_axes=axes))(x, logits))
    assert_close(*values)


def test_one_program_serves_all_loads_and_gives_the_same_bits():
    traces = []

    @jax.jit
    def step(moving):
        traces.append(1)
        return jax.value_and_grad(scalar(ours, K, True))(moving)

    expected = jax.jit(jax.value_and_grad(scalar(plain, K, True)))
    for logits in LOADS.values():
        moving = operands() | {"logits": logits}
        first, again = step(moving), step(moving)
        jax.tree.map(np.testing.assert_array_equal, first, again)
        assert_close(first, expected(moving))
    assert len(traces) == 1


@pytest.mark.parametrize("load", LOADS)
def test_what_a_routing_holds(load):
    routing = jax.jit(moe.route, static_argnums=1)(LOADS[load], K)
    experts = np.argsort(-np.asarray(LOADS[load]), axis=-1, kind="stable")[:, :K]
    np.testing.assert_array_equal(routing.experts, experts)
    np.testing.assert_array_equal(routing.group_sizes, np.bincount(experts.ravel(), minlength=EXPERTS))
    np.testing.assert_array_equal(routing.order, np.argsort(experts.ravel(), kind="stable"))
    np.testing.assert_array_equal(routing.slots.ravel(), np.argsort(routing.order))
    np.testing.assert_array_equal(routing.rows, routing.order // K)
    np.testing.assert_allclose(routing.probabilities.sum(-1), 1)
    assert {a.dtype for a in routing if a is not routing.probabilities} == {np.dtype("int32")}
    assert routing.clamped == 0


@pytest.mark.slow
def test_no_scatter_adds_numbers():
    """On a GPU a scatter adds in any order; what a routing needs of it writes each place once."""
    chosen = jnp.array([[0, 1], [3, 3]])  # one expert twice

    def given(x: Any, gate_up: Any, down: Any, logits: Any, k: int, normalize: bool) -> jax.Array:
        return moe.expert_mlp(x, gate_up, down, moe.route(logits, experts=chosen[:, :k], normalize=normalize))

    for f, tokens in ((ours, TOKENS), (given, 2)):
        for normalize in (False, True):
            moving = operands(tokens) | {"logits": LOADS["any"][:tokens]}
            text = jax.jit(jax.grad(scalar(f, K, normalize))).lower(moving).as_text()
            scatters = re.findall(r'"stablehlo.scatter"\((.*?)\}\) : \((.*?)\)', text, re.DOTALL)
            floating = [attributes for attributes, operands in scatters if "f64" in operands]
            assert len(floating) == 1  # the gradient of the chosen logits
            assert "unique_indices = true" in floating[0]


def test_the_same_expert_twice():
    logits, chosen = LOADS["any"][:2], jnp.array([[4, 0, 4], [2, 2, 2]])
    weights = oracle.random(chosen.shape, "float64", 8)

    def plain(logits: Any, normalize: bool) -> jax.Array:
        selected = jnp.take_along_axis(logits if normalize else jax.nn.softmax(logits), chosen, axis=1)
        return jax.nn.softmax(selected) if normalize else selected

    for n in (False, True):
        ours = lambda x, n=n: jnp.sum(weights * moe.route(x, experts=chosen, normalize=n).probabilities)  # noqa: E731
        theirs = lambda x, n=n: jnp.sum(weights * plain(x, n))  # noqa: E731
        assert_close(*(jax.jit(jax.value_and_grad(f))(logits) for f in (ours, theirs)))


@pytest.mark.parametrize("gap", slow_except([0.0, 87.0, 120.0, 1e4], [120.0]))
def test_probabilities_of_given_experts_far_below_the_largest_logit(gap):
    logits, chosen = np.array([[0, -gap, -gap - 1]], "float32"), np.array([[1, 2]])
    f = lambda x: moe.route(x, experts=chosen).probabilities[0]  # noqa: E731
    right = np.exp([0.0, -1.0]) / np.exp([0.0, -1.0]).sum()
    np.testing.assert_allclose(jax.jit(f)(logits), right, rtol=2e-6)
    slope = right[0] * right[1]
    np.testing.assert_allclose(
        jax.jit(jax.jacrev(f))(logits)[:, 0], [[0, slope, -slope], [0, -slope, slope]], rtol=2e-6
    )


def test_a_single_choice_keeps_its_probability_and_its_gradient():
    @jax.jit
    def probabilities(logits: Any) -> Any:
        single = lambda x: moe.route(x, 1).probabilities  # noqa: E731
        given = moe.route(logits, experts=jnp.full((TOKENS, 1), 2))
        gradient = jax.grad(lambda x: single(x).sum())(logits)
        return single(logits)[:, 0], given.probabilities[:, 0], moe.route(logits, K).probabilities.sum(-1), gradient

    *found, gradient = probabilities(LOADS["any"])
    p = np.exp(LOADS["any"]) / np.exp(LOADS["any"]).sum(-1, keepdims=True)
    assert_close(found, [p.max(-1), p[:, 2], np.ones(TOKENS)])
    assert np.abs(gradient).max() > 0.01


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU's sort takes memory of its own")
def test_routing_takes_little_memory():
    logits, experts = jax.ShapeDtypeStruct((1024, 512), np.float32), jax.ShapeDtypeStruct((1024, 8), np.int32)
    for f in (lambda x, e: moe.route(x, 8, normalize=False), lambda x, e: moe.route(x, experts=e, normalize=False)):
        for g in (f, jax.grad(lambda x, e, f=f: (f(x, e).probabilities ** 2).sum())):
            memory = jax.jit(g).lower(logits, experts).compile().memory_analysis()
            assert memory.temp_size_in_bytes < 2 * 4 * 1024 * 512


def test_given_experts_and_gather():
    logits = LOADS["any"]
    x, gate_up, down = operands().values()
    chosen = jax.lax.top_k(logits, K)[1]
    expected = jax.jit(moe.route, static_argnums=1)(logits, K)
    for dtype in ("int32", "int8", "uint32", "int64"):
        routing = jax.jit(lambda chosen: moe.route(logits, experts=chosen))(np.asarray(chosen, dtype))
        jax.tree.map(np.testing.assert_array_equal, routing, expected)

    def gathered(x: Any) -> jax.Array:
        hidden = moe.gated_dot(x, gate_up, routing.group_sizes, gather=routing.rows)
        return moe.combine(vb.ragged_dot(hidden, down, routing.group_sizes), routing)

    values = [jax.jit(jax.value_and_grad(lambda x, f=f: jnp.sum(jnp.sin(f(x)))))(x) for f in
              (gathered, lambda x: plain(x, gate_up, down, logits, K))]  # fmt: skip
    assert_close(*values)


def test_indices_out_of_range_are_clamped_counted_and_reported():
    logits = LOADS["any"]
    experts = jnp.array([[-7, 4]] * 5 + [[5, 1 << 30]] * 3 + [[0, 1]] * 3)
    routing = jax.jit(lambda experts: moe.route(logits, experts=experts))(experts)
    assert routing.clamped == 5 + 6
    np.testing.assert_array_equal(routing.experts, np.clip(experts, 0, 4))
    assert routing.group_sizes.sum() == 2 * TOKENS
    error, _ = jax.jit(checkify.checkify(lambda e: moe.route(logits, experts=e), errors=checkify.user_checks))(experts)
    assert r"route: 11 of experts are outside [0, 5): they are clamped" in error.get()

    lhs, rhs, rows = oracle.random((3, D), "float64"), operands()["down"][:, :1], jnp.array([-1, 0, 3, 2])
    lhs = lhs[:, :1]
    sizes = jnp.array([1, 1, 0, 2, 0])
    checked = checkify.checkify(lambda rows: vb.ragged_dot(lhs, rhs, sizes, gather=rows), errors=checkify.user_checks)
    error, result = jax.jit(checked)(rows)
    assert "ragged_dot: 2 of gather are outside [0, 3)" in error.get()
    assert_close(result, vb.ragged_dot(lhs[np.array([0, 0, 2, 2])], rhs, sizes))
    assert jax.jit(checked)(np.array([0, 1, 2, 0]))[0].get() is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_narrow_dtypes(dtype):
    logits = LOADS["any"].astype("float32")
    narrow = operands(dtype=dtype)
    routing = jax.jit(moe.route, static_argnums=1)(logits.astype(dtype), K)
    assert routing.probabilities.dtype == jnp.float32
    result = jax.jit(moe.expert_mlp)(**narrow, routing=routing)
    assert result.dtype == dtype
    wide = jax.tree.map(oracle.wide, narrow)
    truth = jax.jit(plain, static_argnames="k")(**wide, logits=oracle.wide(logits.astype(dtype)), k=K)
    np.testing.assert_allclose(oracle.wide(result), truth, atol=1e-6 if dtype == "float32" else 5e-2)


def test_no_tokens():
    moving = operands(0) | {"logits": jnp.zeros((0, EXPERTS))}
    value, gradients = jax.jit(jax.value_and_grad(scalar(ours, K, True)))(moving)
    assert value == 0
    assert all((g == 0).all() for g in jax.tree.leaves(gradients))
    assert jax.jit(lambda logits: moe.load_balance_loss(logits, moe.route(logits, K)))(moving["logits"]) == 0
    assert jax.jit(moe.router_z_loss)(moving["logits"]) == 0


def test_gated_dot_options():
    x, rhs = operands()["x"], operands()["gate_up"]
    sizes = jnp.array([3, 0, 5, 1, 0])  # two rows behind the last group
    scale, bias = oracle.random((TOKENS,), "float64", 3), oracle.random((EXPERTS, 2 * F), "float64", 4)

    @jax.jit
    def plain(x, rhs):
        both = vb.ragged_dot(x, rhs, sizes, bias=bias)
        named = scale[:, None] * jax.nn.gelu(both[:, :F]) * both[:, F:]
        both = vb.ragged_dot(x, rhs, sizes)
        return named, jnp.sin(both[:, :F]) * both[:, F:]

    @jax.jit
    def ours(x, rhs):
        options = {"transpose_rhs": True, "bias": bias, "row_scale": scale, "activation": "gelu"}
        named = moe.gated_dot(x, rhs.swapaxes(1, 2), sizes, **options)
        return named, moe.gated_dot(x, rhs, sizes, activation=jnp.sin)

    assert_close(ours(x, rhs), plain(x, rhs))


def test_gated_dot_with_a_function_has_zeros_after_the_last_group():
    x, rhs, sizes = np.ones((3, 2)), np.ones((2, 2, 4)), np.array([1, 1])
    scale = np.array([1, 2, np.nan])
    reciprocal = lambda x: 1 / x  # noqa: E731
    f = lambda x, rhs: moe.gated_dot(x, rhs, sizes, activation=reciprocal, row_scale=scale)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(f)(x, rhs), [[1, 1], [2, 2], [0, 0]])
    for gradient in jax.jit(jax.grad(lambda *a: f(*a).sum(), (0, 1)))(x, rhs):
        assert jnp.isfinite(gradient).all()
    # The second of three groups is the only one with weights.
    window = jax.jit(lambda *a: moe.gated_dot(*a, activation=reciprocal, group_offset=1))
    np.testing.assert_array_equal(window(x, rhs[:1], np.array([1, 1, 1])), [[0, 0], [1, 1], [0, 0]])


def test_losses():
    logits = LOADS["any"]
    routing = jax.jit(moe.route, static_argnums=1)(logits, K)
    chosen = np.bincount(np.asarray(routing.experts).ravel(), minlength=EXPERTS) / (K * TOKENS)
    truth = lambda x: EXPERTS * jnp.sum(chosen * jax.nn.softmax(x, -1).mean(0))  # noqa: E731
    ours = lambda x: moe.load_balance_loss(x, moe.route(x, K))  # noqa: E731
    assert_close(*(jax.jit(jax.value_and_grad(f))(logits) for f in (ours, truth)))
    loss = jax.jit(lambda x, k: moe.load_balance_loss(x, moe.route(x, k)), static_argnums=1)
    assert_close(loss(LOADS["all equal"], EXPERTS), 1.0)
    assert loss(LOADS["all to one"], 1) > 4.9
    assert_close(jax.jit(moe.router_z_loss)(logits), np.mean(np.log(np.exp(logits).sum(-1)) ** 2))


X, L = jnp.ones((3, D)), jnp.zeros((3, EXPERTS))
W, V = jnp.ones((EXPERTS, D, 2 * F)), jnp.ones((EXPERTS, F, N))
SYMBOLIC = jax.ShapeDtypeStruct(jax.export.symbolic_shape("4, e"), np.float32)
ONES, R = jnp.ones(EXPERTS, int), jax.jit(moe.route, static_argnums=1)(L, K)
ERRORS = [
    (lambda: moe.route(L, 6), ValueError, r"route: k is 6 but logits is \(3, 5\): k must be in \[1, 5\]"),
    (lambda: moe.route(L, 0), ValueError, "route: k is 0"),
    (lambda: moe.route(L, 1.0), TypeError, "route: k must be an integer, not 1.0"),
    (lambda: moe.route(L, True), TypeError, "route: k must be an integer"),
    (lambda: moe.route(L), ValueError, "route: give either k or experts"),
    (lambda: moe.route(L, 2, experts=jnp.zeros((3, 2), int)), ValueError, "route: give either k or experts"),
    (lambda: moe.route(L[0], 2), ValueError, r"route: logits is \(5,\)"),
    (lambda: moe.route(L.astype(int), 2), TypeError, "route: logits is int64"),
    (lambda: moe.route(L, 2, normalize=1), TypeError, "normalize must be a bool or None"),
    (lambda: moe.route(L, experts=jnp.zeros((2, 2), int)), ValueError, r"route: experts is \(2, 2\) but logits"),
    (lambda: moe.route(L, experts=jnp.zeros((3, 2))), TypeError, "route: experts is float64"),
    (lambda: jax.eval_shape(lambda x: moe.route(x, 2), SYMBOLIC), ValueError, "number of experts must be static"),
    (lambda: moe.dispatch(X[:2], R), ValueError, r"dispatch: x is \(2, 4\) but routing is of 3 tokens"),
    (lambda: moe.combine(X, R), ValueError, r"combine: y is \(3, 4\) but .* must be \(6, n\)"),
    (lambda: moe.gated_dot(X, W[..., 1:], jnp.ones(EXPERTS, int)), ValueError, "gated_dot: rhs .* 5 is odd"),
    (lambda: moe.gated_dot(X, W, jnp.ones(EXPERTS, int), activation=None), ValueError, "gated_dot: activation"),
    (lambda: moe.gated_dot(X, W, jnp.ones(EXPERTS, int), activation="swish"), ValueError, "gated_dot: activation must"),
    (lambda: moe.gated_dot(X, W, jnp.ones(EXPERTS, int), row_scale=X), ValueError, "ragged_dot: row_scale is"),
    (lambda: moe.gated_dot(X, W, ONES, activation="relu", gated=True), TypeError, "gated_dot: gated is no option"),
    (lambda: moe.gated_dot(X, W, ONES, activation=jnp.sin, row_scale=X[0]), ValueError, "gated_dot: row_scale is"),
    (lambda: moe.gated_dot(X, W, ONES, activation=jnp.sin, row_scale=jnp.ones(3, "c16")), ValueError, "not promote"),
    (lambda: moe.gated_dot(X.astype(int), W.astype(int), ONES, activation=jnp.sin), ValueError, "maps int64.* to f"),
    (lambda: moe.gated_dot(X, W, ONES, activation=jnp.sum), ValueError, r"activation maps float64\(3, 3\) to .*\(\)"),
    (lambda: moe.expert_mlp(X, W[1:], V, R), ValueError, "expert_mlp: gate_up .* routing is of 5 experts"),
    (lambda: moe.expert_mlp(X, W, V[:, 1:], R), ValueError, "expert_mlp: gate_up is .* but down is"),
    (lambda: moe.load_balance_loss(L[:, 1:], R), ValueError, "load_balance_loss: logits is"),
    (lambda: moe.router_z_loss(L[0]), ValueError, "router_z_loss: logits is"),
    (lambda: vb.ragged_dot(X, W, jnp.ones(EXPERTS, int), gather=jnp.ones(3)), TypeError, "ragged_dot: gather is float"),
    (lambda: vb.ragged_dot(X, W, jnp.ones(EXPERTS, int), gather=jnp.ones((3, 1), int)), ValueError, "gather is"),
    (lambda: vb.ragged_dot(X[:0], W, jnp.ones(EXPERTS, int), gather=jnp.zeros(3, int)), ValueError, "no row"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_argument(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.multidevice(2)
@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_tokens_divided_among_devices(check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    moving = operands(8) | {"logits": LOADS["any"][:8]}
    P = jax.P
    specs = {"x": P("data"), "gate_up": P(), "down": P(), "logits": P("data")}

    def local(moving):
        return ours(**moving, k=K)

    sharded = jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=P("data"), check_vma=check_vma)
    values = [
        jax.jit(jax.value_and_grad(lambda m, f=f: jnp.sum(jnp.sin(f(m)))))(moving)
        for f in (sharded, lambda m: plain(**m, k=K))
    ]
    assert_close(*values)


@pytest.mark.multidevice(2)
def test_explicit_axes_are_refused_by_name():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    x, gate_up, down = operands(8).values()
    logits = LOADS["any"][:8]
    routing = moe.route(logits, K)
    with jax.set_mesh(mesh):
        sharded = {name: jax.device_put(a, jax.NamedSharding(mesh, jax.P("data"))) for name, a in
                   {"x": x, "logits": logits, "experts": routing.experts}.items()}  # fmt: skip
        calls = {
            "route: logits": lambda: moe.route(sharded["logits"], K),
            "route: experts": lambda: moe.route(logits, experts=sharded["experts"]),
            "dispatch: x": lambda: moe.dispatch(sharded["x"], routing),
            "combine: y": lambda: moe.combine(jax.device_put(jnp.ones((16, 3)), sharded["x"].sharding), routing),
            "expert_mlp: x": lambda: moe.expert_mlp(sharded["x"], gate_up, down, routing),
        }
        for what, call in calls.items():
            with pytest.raises(ValueError, match=f"{what} is sharded over the explicit mesh axes 'data'"):
                call()


@pytest.mark.slow
def test_a_symbolic_number_of_tokens_exports():
    (tokens,) = jax.export.symbolic_shape("t")
    given = operands() | {"logits": LOADS["any"]}
    shapes = {
        name: jax.ShapeDtypeStruct((tokens, *x.shape[1:]) if name in ("x", "logits") else x.shape, x.dtype)
        for name, x in given.items()
    }
    layer = jax.jit(lambda given: ours(**given, k=K))
    exported = jax.export.export(layer, disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(shapes)
    for count in (1, TOKENS):
        some = {name: x[:count] if name in ("x", "logits") else x for name, x in given.items()}
        assert_close(exported.call(some), layer(some))
