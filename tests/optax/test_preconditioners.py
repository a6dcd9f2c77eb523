"""SOAP and Shampoo beside the plain loops over matrices of their papers' reference implementations, in float64."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

optax = pytest.importorskip("optax")

from optax.contrib import MuonDimensionNumbers as Numbers  # noqa: E402

from jax_vbgemm.optax import pack_tree, scale_by_soap, shampoo, soap  # noqa: E402

pytestmark = pytest.mark.usefixtures("standard_promotion")


# A rectangular gradient leaves a null space, in which SOAP's bases are arbitrary: "long" has a left factor alone.
SHAPES = {"square": (6, 6), "long": (5, 9), "bias": (6,), "scale": ()}
MOST = 6


def gradients(params, step):
    """The gradient of sum cos(x + noise), which depends on the earlier steps of an optimizer."""
    return {k: -np.sin(p + np.asarray(oracle.random(p.shape, "float64", 100 + step))) for k, p in params.items()}


def start():
    return {name: np.asarray(oracle.random(shape, "float64", 7)) for name, shape in SHAPES.items()}


def trained(optimizer, params, steps):
    @jax.jit
    def step(gradients, state, params):
        updates, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    params, state = jax.jit(lambda params: (params, optimizer.init(params)))(params)
    for number in range(steps):
        params, state = step(gradients(params, number), state, params)
    return params, state


def plain_soap(params, steps, lr, b1=0.95, b2=0.95, eps=1e-8, decay=0.0, every=10, correct=True, most=MOST):
    """soap.py of Vyas et al., one parameter after another."""
    params = dict(params)
    bases, factors, means, squares = {}, {}, {}, {}

    def moved(x, q, back):
        for axis, basis in enumerate(q):
            if basis is not None:
                x = np.moveaxis(np.tensordot(x, basis, axes=(axis, 1 if back else 0)), -1, axis)
        return x

    for step in range(steps):
        for name, g in gradients(params, step).items():
            shape = g.shape if g.ndim == 2 else ()
            if step == 0:
                factors[name] = [np.zeros((n, n)) if n <= most else None for n in shape]
                means[name], squares[name] = np.zeros(g.shape), np.zeros(g.shape)
            else:
                q = bases[name]
                projected = moved(g, q, False)
                means[name] = b1 * means[name] + (1 - b1) * projected
                squares[name] = b2 * squares[name] + (1 - b2) * projected**2
                rate = lr * (np.sqrt(1 - b2**step) / (1 - b1**step) if correct else 1)
                u = moved(means[name] / (np.sqrt(squares[name]) + eps), q, True)
                params[name] = params[name] - rate * u - lr * decay * params[name]
            products = [g @ g.T, g.T @ g] if shape else []
            factors[name] = [
                None if f is None else b2 * f + (1 - b2) * p for f, p in zip(factors[name], products, strict=True)
            ]
            if step == 0:
                bases[name] = [None if f is None else np.linalg.eigh(f)[1][:, ::-1] for f in factors[name]]
            elif step % every == 0:
                new = []
                back = moved(means[name], bases[name], True)
                for axis, (f, q) in enumerate(zip(factors[name], bases[name], strict=True)):
                    if f is not None:
                        order = np.argsort(-np.diag(q.T @ f @ q))
                        squares[name] = np.take(squares[name], order, axis)
                    new.append(None if f is None else np.linalg.qr(f @ q[:, order])[0])
                bases[name], means[name] = new, moved(back, new, False)
    return params


def plain_shampoo(params, steps, lr, graft="sgd", beta1=0.9, beta2=0.999, first=5, every=1, decay=0.0, nesterov=True):
    """Google's distributed_shampoo with its defaults, inverse roots by eigenvalues."""
    params = dict(params)
    factors, roots, diagonal, momenta = {}, {}, {}, {}

    def root(f, p):
        values, vectors = np.linalg.eigh(f)
        return vectors @ np.diag((values + 1e-6 * max(values[-1], 1e-6)) ** (-1 / p)) @ vectors.T

    for step in range(steps):
        for name, g in gradients(params, step).items():
            if step == 0:
                shape = g.shape if g.ndim == 2 else ()
                factors[name] = [1e-6 * np.eye(n) if n <= MOST else None for n in shape]
                diagonal[name], momenta[name] = np.zeros(g.shape), [np.zeros(g.shape)] * 2
            products = [g @ g.T, g.T @ g] if factors[name] else []
            factors[name] = [
                None if f is None else beta2 * f + (1 - beta2 or 1) * p
                for f, p in zip(factors[name], products, strict=True)
            ]
            count = sum(f is not None for f in factors[name])
            if step % every == 0:
                roots[name] = [None if f is None else root(f, 2 * count) for f in factors[name]]
            x = step_of_graft = g
            if graft != "sgd":
                old, new = (1, 1) if graft == "adagrad" else (beta2, 1 - beta2)
                diagonal[name] = old * diagonal[name] + new * g**2
                step_of_graft = g / (np.sqrt(diagonal[name]) + 1e-10)
            if count:
                x = x if roots[name][0] is None else roots[name][0] @ x
                x = x if roots[name][1] is None else x @ roots[name][1]
                x = x * np.linalg.norm(step_of_graft) / (np.linalg.norm(x) + 1e-16)
            else:
                x = step_of_graft
            moves = [y + decay * params[name] for y in (x, step_of_graft)]
            momenta[name] = [beta1 * m + y for m, y in zip(momenta[name], moves, strict=True)]
            which = 0 if step >= first else 1
            total = momenta[name][which]
            params[name] = params[name] - lr * (moves[which] + beta1 * total if nesterov else total)
    return params


def assert_close(ours, theirs, tolerance):
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        (
            {"precondition_frequency": 3, "b1": 0.8, "b2": 0.9, "weight_decay": 0.1, "eps": 1e-4},
            {"every": 3, "b1": 0.8, "b2": 0.9, "decay": 0.1, "eps": 1e-4},
        ),
        ({"max_precond_dim": 5, "correct_bias": False}, {"most": 5, "correct": False}),
    ],
    ids=["default", "options", "max_precond_dim"],
)
def test_soap(ours, theirs):
    found, state = trained(soap(0.02, **{"max_precond_dim": MOST} | ours), start(), 14)
    assert_close(found, plain_soap(start(), 14, 0.02, **theirs), 1e-7)
    assert all(np.abs(found[name] - x).max() > 1e-2 for name, x in start().items())
    factors = jax.tree.map(lambda tree: tree["square"], state[0].Q, is_leaf=lambda x: isinstance(x, dict))
    assert (factors.left is None) == (factors.right is None) == (ours.get("max_precond_dim") == 5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        (
            {"graft_type": "rmsprop", "beta2": 0.9, "start_preconditioning_step": 2, "weight_decay": 0.1,
             "preconditioning_compute_steps": 3, "nesterov": False},
            {"graft": "rmsprop", "beta2": 0.9, "first": 2, "decay": 0.1, "every": 3, "nesterov": False},
        ),
        ({"graft_type": "adagrad", "beta2": 1.0}, {"graft": "adagrad", "beta2": 1.0}),
    ],
    ids=["default", "rmsprop", "adagrad"],
)  # fmt: skip
def test_shampoo(ours, theirs):
    found, _ = trained(shampoo(0.02, max_precond_dim=MOST, **ours), start(), 9)
    assert_close(found, plain_shampoo(start(), 9, 0.02, **theirs), 1e-6)


@pytest.mark.parametrize("make", [soap, shampoo])
def test_a_step_is_a_few_calls_whatever_the_number_of_matrices(make):
    params = {f"w{n}": oracle.random((4 + n, 6), "float32") for n in range(6)}
    optimizer = make(0.1)
    text = jax.jit(optimizer.update).lower(params, jax.eval_shape(optimizer.init, params), params).as_text()
    # SOAP: factors, two projections, and in an update of the bases the power and two rotations. Shampoo: factors, the
    # largest eigenvalue, two squares and both products of an iteration, the preconditioning.
    assert text.count("custom_call @vbgemm_v2") == {soap: 1 + 4 + 1 + 4, shampoo: 1 + 1 + 2 + 1 + 2}[make]
    assert "dot_general" not in text


@pytest.mark.parametrize("make", slow_except([soap, shampoo], [shampoo]))
def test_convolutions_are_folded_and_stacks_are_batches(make):
    """As the matrices they stand for, in bfloat16 with statistics in float32."""
    kernel, stack = (oracle.random(s, "bfloat16") for s in [(3, 2, 5), (2, 4, 3)])
    params = {"kernel": kernel, "stack": stack}
    numbers = {"kernel": Numbers((0, 1), 2), "stack": Numbers(-2, -1)}
    flat = {"kernel": kernel.reshape(6, 5), "first": stack[0], "second": stack[1]}
    optimizer, other = make(0.1, weight_dimension_numbers=numbers), make(0.1)
    state, flat_state = jax.jit(lambda *of: (optimizer.init(of[0]), other.init(of[1])))(params, flat)
    assert jax.tree.leaves(state[0])[1].dtype == jnp.float32
    for _ in range(2):
        updates, state = jax.jit(optimizer.update)(params, state, params)
        expected, flat_state = jax.jit(other.update)(flat, flat_state, flat)
    assert updates["kernel"].dtype == jnp.bfloat16
    np.testing.assert_allclose(oracle.wide(updates["kernel"]).reshape(6, 5), oracle.wide(expected["kernel"]), rtol=1e-2)
    for found, name in zip(updates["stack"], ("first", "second"), strict=True):
        np.testing.assert_allclose(oracle.wide(found), oracle.wide(expected[name]), rtol=1e-2)


@pytest.mark.parametrize("make", slow_except([soap, shampoo], [shampoo]))
@pytest.mark.parametrize("params", [{}, {"b": jnp.ones(3)}, {"w": jnp.ones((0, 3)), "v": jnp.zeros((2, 2)), "n": None}])
def test_trees_without_matrices_and_zeros(make, params):
    optimizer = make(0.1)

    @jax.jit
    def two(params):
        _, state = optimizer.update(params, optimizer.init(params), params)
        return optimizer.update(params, state, params)[0]

    updates = two(params)
    assert jax.tree.map(jnp.shape, updates) == jax.tree.map(jnp.shape, params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(updates))


def test_a_donated_scan():
    optimizer = scale_by_soap(precondition_frequency=2)
    params = {"w": oracle.random((4, 4), "float32"), "b": jnp.ones(3, "float32")}

    def body(state, _):
        updates, state = optimizer.update(params, state)
        return state, updates["b"][0]

    run = jax.jit(lambda state: jax.lax.scan(body, state, length=4), donate_argnums=0)
    state, first = run(optimizer.init(params))
    assert int(state.count) == 4
    np.testing.assert_allclose(first, [0, 1, 1, 1], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "static"), [(soap, ("max_precond_dim",)), (shampoo, ("exponent_override", "max_precond_dim"))]
)
@pytest.mark.parametrize("decay", slow_except([0.0, 0.1], []))
def test_injected_hyperparameters(make, static, decay):
    plain = make(0.1, weight_decay=decay)
    injected = optax.inject_hyperparams(make, static_args=static)(0.1, weight_decay=decay)
    params = start()
    state, other = jax.jit(lambda params: (plain.init(params), injected.init(params)))(params)
    for step in range(7):
        updates, state = jax.jit(plain.update)(gradients(params, step), state, params)
        found, other = jax.jit(injected.update)(gradients(params, step), other, params)
        assert_close(found, updates, 1e-4)
    with pytest.raises(TypeError, match=f"{static[0]} is traced, and must be known at trace time"):
        jax.jit(lambda g: optax.inject_hyperparams(make)(0.1).init(g))(params)


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (soap, {"b1": 1.5}, r"soap: b1 = 1.5 must be in \[0, 1\)"),
        (soap, {"b2": -0.1}, "soap: b2 = -0.1 must be"),
        (soap, {"shampoo_beta": 1}, "soap: shampoo_beta = 1 must be"),
        (soap, {"eps": -1e-8}, "soap: eps = -1e-08 must be at least 0"),
        (soap, {"weight_decay": -1}, "soap: weight_decay = -1 must be at least 0"),
        (soap, {"precondition_frequency": 0}, "soap: precondition_frequency = 0 must be at least 1"),
        (soap, {"precondition_frequency": 2.5}, "soap: precondition_frequency = 2.5 must be an integer"),
        (soap, {"max_precond_dim": 0}, "soap: max_precond_dim = 0 must be at least 1"),
        (shampoo, {"beta1": -1}, "shampoo: beta1 = -1 must be"),
        (shampoo, {"beta2": 1.5}, "shampoo: beta2 = 1.5 must be"),
        (shampoo, {"matrix_epsilon": float("nan")}, "shampoo: matrix_epsilon = nan must be at least 0"),
        (shampoo, {"diagonal_epsilon": -1}, "shampoo: diagonal_epsilon = -1 must be at least 0"),
        (shampoo, {"max_precond_dim": 0}, "shampoo: max_precond_dim = 0 must be at least 1"),
        (shampoo, {"exponent_override": 0.5}, "shampoo: exponent_override = 0.5 must be an integer"),
        (shampoo, {"graft_type": "lion"}, "shampoo: graft_type = 'lion' is unknown"),
    ],
)
def test_wrong_hyperparameters_are_named(make, wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(0.1, **wrong)


@pytest.mark.parametrize("make", [soap, shampoo])
@pytest.mark.parametrize(
    ("param", "gradient"),
    slow_except([("float32", "bfloat16"), ("bfloat16", "float32")], [("float32", "bfloat16")]),
)
def test_updates_have_the_dtype_that_adam_gives_them(make, param, gradient):
    params = {"w": jnp.ones((3, 2), param), "b": jnp.ones(2, param)}
    gradients = jax.tree.map(lambda x: x.astype(gradient), params)
    for optimizer, state_dtype in ((make(0.1), {"float32"}), (optax.adam(0.1), None)):
        state = optimizer.init(params)
        updates, new = jax.eval_shape(optimizer.update, gradients, state, params)
        assert {x.dtype.name for x in jax.tree.leaves(updates)} == {"float32"}
        if state_dtype:
            assert {x.dtype.name for x in jax.tree.leaves(new) if x.ndim} == state_dtype
            assert jax.tree.map(lambda x: x.dtype, new) == jax.tree.map(lambda x: x.dtype, state)


def test_soap_corrects_the_bias_in_the_dtype_of_the_moments():
    """A vector is left to Adam, whose moments are exact in float64 after three equal gradients."""
    g, b1, b2 = np.array([1.0, -2.0, 0.5]), 0.9, 0.9999
    optimizer = scale_by_soap(b1=b1, b2=b2)
    state = optimizer.init(jnp.zeros(3))
    for _ in range(4):  # the first step finds the bases
        updates, state = optimizer.update(jnp.asarray(g), state)
    np.testing.assert_allclose(updates, g / (np.abs(g) + 1e-8 / np.sqrt(1 - b2**3)), rtol=1e-12)


@pytest.mark.parametrize("number", slow_except([np.float64, jnp.asarray], [np.float64]))
def test_a_matrix_epsilon_in_float64(number):
    params = {"w": oracle.random((4, 3), "float32")}

    def update(epsilon):
        optimizer = shampoo(0.1, matrix_epsilon=epsilon, start_preconditioning_step=0)
        updates, state = jax.jit(lambda params: optimizer.update(params, optimizer.init(params), params))(params)
        assert {x.dtype.name for x in jax.tree.leaves((updates, state)) if x.ndim} == {"float32"}
        return updates

    assert_close(update(number(1e-2)), update(1e-2), 1e-6)


@pytest.mark.multidevice(8)
@pytest.mark.parametrize("make", slow_except([soap, shampoo], []))
def test_parameters_on_an_explicit_mesh(make):
    """The statistics are replicated, and updates are sharded like the parameters."""
    params = {"w": oracle.random((8, 6), "float64"), "t": oracle.random((2, 8, 3), "float64"), "b": jnp.ones(8)}
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    specs = {"w": P("d"), "t": P(None, "d"), "b": P("d")}
    sharded = {k: jax.device_put(x, NamedSharding(mesh, specs[k])) for k, x in params.items()}
    optimizer = make(0.1, weight_decay=0.1)

    def two(params):
        state = optimizer.init(params)
        for _ in range(2):
            updates, state = optimizer.update(params, state, params)
        return updates

    expected = jax.jit(two)(params)
    with jax.set_mesh(mesh):
        found = jax.jit(two)(sharded)
    assert {k: x.sharding.spec for k, x in found.items()} == {"w": P("d", None), "t": P(None, "d", None), "b": P("d")}
    assert_close(found, expected, 1e-12)


@pytest.mark.multidevice(8)
@pytest.mark.parametrize("where", slow_except(["jit", "explicit", "shard_map"], ["shard_map"]))
@pytest.mark.parametrize("make", [functools.partial(soap, precondition_frequency=1), shampoo])
def test_decompositions_are_divided(make, where):
    """Three steps, of which SOAP's first one has eigendecompositions and the later ones QR decompositions."""
    shapes = {"w": (4, 3), "t": (5, 3, 2), "v": (4, 3), "long": (3, 20), "b": (4,)}
    params = {name: oracle.random(shape, "float64", seed) for seed, (name, shape) in enumerate(shapes.items())}
    kind = jax.sharding.AxisType.Explicit if where == "explicit" else jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,), devices=jax.devices()[:2])

    def three(params, **options):
        optimizer = make(0.1, max_precond_dim=10, **options)
        state = optimizer.init(params)
        for number in range(3):
            gradients = jax.tree.map(lambda x, shift=number: jnp.cos(x + shift), params)
            updates, state = optimizer.update(gradients, state, params)
        return updates

    divided = functools.partial(three, mesh_axis="d", mesh=mesh)
    if where == "shard_map":
        divided = jax.shard_map(divided, mesh=mesh, in_specs=P(), out_specs=P())
    with jax.set_mesh(mesh) if where == "explicit" else contextlib.nullcontext():
        assert "axis_index" in str(jax.make_jaxpr(divided)(params))
        found = jax.jit(divided)(params)
    assert_close(jax.device_get(found), jax.jit(three)(params), 1e-9)


@pytest.mark.multidevice(8)
@pytest.mark.parametrize("make", [soap, shampoo])
def test_slices_inside_shard_map_are_refused(make):
    """A parameter without factors may be a slice."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    optimizer = make(0.1, mesh_axis="d")

    def traced(specs):
        step = jax.shard_map(
            lambda x: optimizer.update(x, optimizer.init(x), x)[0], mesh=mesh, in_specs=(specs,), out_specs=specs
        )
        return jax.eval_shape(step, {"w": jnp.ones((4, 3)), "b": jnp.ones(4)})

    assert traced({"w": P(), "b": P("d")})["w"].shape == (4, 3)
    with pytest.raises(ValueError, match=rf"{make.__name__}: updates\['w'\] varies over the mesh axis 'd', .*jax.jit"):
        traced({"w": P("d"), "b": P()})


@pytest.mark.parametrize("make", slow_except([soap, shampoo], [shampoo]))
def test_in_an_nnx_optimizer(make):
    """Three steps, which equal those of the functional style."""
    nnx = pytest.importorskip("flax.nnx")
    transformation = make(0.1)
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    x = oracle.random((2, 4), "float32")

    def loss(model):
        return jnp.sum(model(x) ** 2)

    graph, params = nnx.split(model)
    params = jax.tree.map(jnp.copy, params)  # the model's own variables change in place
    state = transformation.init(params)
    optimizer = nnx.Optimizer(model, transformation, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(loss)(model))

    @jax.jit
    def functional(params, state):
        gradients = jax.grad(lambda params: loss(nnx.merge(graph, params)))(params)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(3):
        step(model, optimizer)
        params, state = functional(params, state)
    for ours, theirs in ((nnx.split(model)[1], params), (optimizer.opt_state, state)):
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [soap, shampoo])
def test_a_gradient_of_another_shape_is_named(make):
    optimizer = make(0.1)
    state = optimizer.init({"w": jnp.ones((2, 3))})
    with pytest.raises(
        ValueError, match=rf"{make.__name__}: updates\['w'\] is \(3, 2\) where init's parameter was \(2, 3\)"
    ):
        optimizer.update({"w": jnp.ones((3, 2))}, state)


def test_bad_input_is_named():
    matrix = {"w": jnp.ones((2, 3))}
    with pytest.raises(TypeError, match=r"soap: params\['n'\] is int32: it must be floating"):
        soap().init({"n": jnp.ones(3, "int32")})
    with pytest.raises(TypeError, match="soap: params are packed"):
        soap().init(pack_tree(matrix))
    decaying = shampoo(0.1, weight_decay=0.1)
    with pytest.raises(ValueError, match="shampoo: update needs params"):
        decaying.update(matrix, decaying.init(matrix))
