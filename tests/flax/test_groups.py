"""Layers whose group sizes are data, of nnx and linen, against einsums over all groups with the same parameters."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import linen as nn
from flax import nnx
from oracle import assert_same
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.flax.adapters import adapted
from jax_vbgemm.flax import linen as vbl
from jax_vbgemm.flax import nnx as vbx

D, F, EXPERTS, K = 6, 3, 5, 2
INIT = nnx.initializers.lecun_normal(batch_axis=(0,))


def wide(dtype):
    return jnp.float32 if dtype == jnp.bfloat16 else dtype


def mixture(x, logits, gate_up, down, k, dtype):
    """Every token times every expert, weighted by the probabilities of the chosen ones."""
    chosen = jax.nn.one_hot(jax.lax.top_k(logits, k)[1], logits.shape[-1], dtype=logits.dtype).sum(-2)
    weights = jax.nn.softmax(logits, -1) * chosen
    weights = (weights / weights.sum(-1, keepdims=True)).astype(dtype)
    gate, up = jnp.split(jnp.einsum("...d,edf->...ef", x.astype(dtype), gate_up.astype(dtype)), 2, axis=-1)
    return jnp.einsum("...e,...ef,efn->...n", weights, jax.nn.silu(gate) * up, down.astype(dtype))


def swiglu(both):
    gate, up = jnp.split(both, 2, axis=-1)
    return jax.nn.silu(gate) * up


class PlainMixture(nnx.Module):
    """The mixture as a user would write it without this package."""

    def __init__(self, d, f, *, experts, k, shared_features=None, dtype=jnp.float32, param_dtype=jnp.float32, rngs):
        options = {"use_bias": False, "param_dtype": param_dtype, "rngs": rngs}
        self.router = nnx.Linear(d, experts, dtype=wide(dtype), **options)
        self.gate_up = nnx.Param(INIT(rngs.params(), (experts, d, 2 * f), param_dtype))
        self.down = nnx.Param(INIT(rngs.params(), (experts, f, d), param_dtype))
        self.shared = shared_features
        if shared_features:
            self.shared_gate_up = nnx.Linear(d, 2 * shared_features, dtype=dtype, **options)
            self.shared_down = nnx.Linear(shared_features, d, dtype=dtype, **options)
        self.k, self.dtype = k, dtype

    def __call__(self, x):
        y = mixture(x, self.router(x), self.gate_up[...], self.down[...], self.k, self.dtype)
        return y + self.shared_down(swiglu(self.shared_gate_up(x))) if self.shared else y


class PlainLinenMixture(nn.Module):
    f: int
    experts: int
    k: int
    shared_features: int | None = None
    dtype: object = jnp.float32
    param_dtype: object = jnp.float32

    @nn.compact
    def __call__(self, x):
        d, options = x.shape[-1], {"use_bias": False, "param_dtype": self.param_dtype}
        logits = nn.Dense(self.experts, dtype=wide(self.dtype), name="router", **options)(x)
        gate_up = self.param("gate_up", INIT, (self.experts, d, 2 * self.f), self.param_dtype)
        down = self.param("down", INIT, (self.experts, self.f, d), self.param_dtype)
        y = mixture(x, logits, gate_up, down, self.k, self.dtype)
        if self.shared_features:
            both = nn.Dense(2 * self.shared_features, dtype=self.dtype, name="shared_gate_up", **options)(x)
            y += nn.Dense(d, dtype=self.dtype, name="shared_down", **options)(swiglu(both))
        return y


def state(model):
    return nnx.to_pure_dict(nnx.state(model))


WIDE = {"dtype": jnp.float64, "param_dtype": jnp.float64}
OPTIONS = [
    ({}, 2e-5), (WIDE, 1e-11), (WIDE | {"shared_features": 4}, 1e-11), ({"dtype": jnp.bfloat16}, 4e-2),
    ({"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16, "shared_features": 4}, 6e-2),
]  # fmt: skip


@pytest.mark.parametrize(("options", "rtol"), slow_except(OPTIONS, OPTIONS[2:3]), ids=range(len(OPTIONS)))
def test_mixtures_of_nnx(options, rtol):
    ours, plain = (
        kind(D, F, experts=EXPERTS, k=K, rngs=nnx.Rngs(1), **options) for kind in (vbx.MixtureOfExperts, PlainMixture)
    )
    jax.tree.map(np.testing.assert_array_equal, state(ours), state(plain))  # equal seeds give equal parameters
    x = oracle.random((2, 7, D), options.get("dtype", "float32"))

    def results(model, x):
        def loss(model, x):
            y = model(x)
            return jnp.sum(jnp.sin(y.astype(wide(y.dtype)))), y

        (_, y), gradients = nnx.value_and_grad(loss, argnums=(0, 1), has_aux=True)(model, x)
        return y, nnx.to_pure_dict(gradients[0]), gradients[1]

    both = nnx.jit(lambda ours, plain, x: (results(ours, x), results(plain, x)))
    assert_same(*both(ours, plain, x), rtol)


@pytest.mark.parametrize(
    ("options", "rtol"), [pytest.param(*OPTIONS[2], marks=pytest.mark.slow), OPTIONS[3]], ids=["shared", "bfloat16"]
)
def test_mixtures_of_linen(options, rtol):
    ours, plain = vbl.MixtureOfExperts(F, EXPERTS, K, **options), PlainLinenMixture(F, EXPERTS, K, **options)
    x = oracle.random((2, 7, D), options["dtype"])
    variables, expected = jax.jit(lambda key: [model.init(key, x) for model in (ours, plain)])(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, variables, expected)

    def results(model, variables, x):
        def loss(variables, x):
            return jnp.sum(jnp.sin(model.apply(variables, x).astype(wide(x.dtype))))

        return model.apply(variables, x), jax.grad(loss, (0, 1))(variables, x)

    found, truth = jax.jit(lambda *args: [results(model, *args) for model in (ours, plain)])(variables, x)
    assert_same(found, truth, rtol)
    # Linen's parameters are those of nnx, by name and shape.
    other = vbx.MixtureOfExperts(D, F, experts=EXPERTS, k=K, rngs=nnx.Rngs(3), **options)
    nnx.update(other, variables["params"])
    assert_same(found[0], nnx.jit(lambda m, x: m(x))(other, x), rtol)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["ours to plain", "plain to ours"])
def test_a_checkpoint_of_one_loads_into_the_other(direction, tmp_path):
    checkpointing = pytest.importorskip("orbax.checkpoint")
    models = [
        kind(D, F, experts=EXPERTS, k=K, shared_features=4, rngs=nnx.Rngs(seed))
        for seed, kind in enumerate((vbx.MixtureOfExperts, PlainMixture))
    ]
    source, target = models if direction == "ours to plain" else models[::-1]
    with checkpointing.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(source))
        checkpointer.wait_until_finished()
        nnx.update(target, checkpointer.restore(tmp_path / "state", nnx.state(target)))
    x = oracle.random((9, D), "float32")
    assert_same(*nnx.jit(lambda models, x: [model(x) for model in models])((source, target), x), 2e-5)


def test_auxiliary_losses_train_the_router():
    model = vbx.MixtureOfExperts(D, F, experts=EXPERTS, k=1, rngs=nnx.Rngs(0), router_init=nnx.initializers.ones)
    x = oracle.random((4, 8, D), "float32") + 1
    model.router.kernel[...] = model.router.kernel[...].at[:, 3].add(1)  # all tokens to one expert
    run = nnx.jit(lambda model, x: model(x, auxiliary=True))
    _, before = run(model, x)
    assert before.group_sizes.tolist() == [0, 0, 0, 32, 0]

    @nnx.jit
    def step(model):
        def loss(model):
            losses = model(x, auxiliary=True)[1]
            return losses.load_balance + 1e-3 * losses.router_z

        gradients = nnx.grad(loss)(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients))

    for _ in range(5):
        step(model)
    _, after = run(model, x)
    assert after.load_balance < before.load_balance
    linen = vbl.MixtureOfExperts(F, EXPERTS, 1)
    y, losses = jax.jit(lambda params, x: linen.apply({"params": params}, x, auxiliary=True))(state(model), x)
    assert y.shape == x.shape
    np.testing.assert_allclose(losses.load_balance, after.load_balance, rtol=1e-6)


@pytest.mark.parametrize("lib", slow_except([vbx, vbl], [vbl]))
def test_routers_masks_and_given_experts(lib):
    """The layer with each option is the layer's parts by hand."""
    options = {"scores": "sigmoid", "groups": (2, 1), "scale": 2.5}
    experts, shape = 6, (2, 7)
    model = vbx.MixtureOfExperts(D, F, experts=experts, k=K, rngs=nnx.Rngs(1), **WIDE, **options)
    x, bias = oracle.random((*shape, D), "float64"), oracle.random((experts,), "float64", 8)
    mask = np.arange(14).reshape(shape) % 4 != 0
    chosen = np.arange(28).reshape(*shape, K) % (experts + 1) - 1
    p = oracle.random((*shape, K), "float64", 3)

    def ours(x, **given):
        if lib is vbx:
            return model(x, auxiliary=True, **given)
        linen = vbl.MixtureOfExperts(F, experts, K, **WIDE, **options)
        return linen.apply({"params": state(model)}, x, auxiliary=True, **given)

    def parts(x, **given):
        logits = model.router(x).reshape(-1, experts)
        flat = {name: value if name == "bias" else value.reshape(14, *value.shape[2:]) for name, value in given.items()}
        rule = {} if "probabilities" in given else {"scores": "sigmoid", "scale": 2.5}
        choice = {} if "experts" in given else {"k": K, "groups": (2, 1)}
        routing = vb.moe.route(logits, **rule, **choice, **flat)
        y = vb.moe.expert_mlp(x.reshape(-1, D), model.gate_up[...], model.down[...], routing)
        balance = vb.moe.load_balance_loss(logits, routing, scores="sigmoid")
        return y.reshape(x.shape), (balance, vb.moe.router_z_loss(logits, routing), routing.group_sizes)

    cases = {}, {"bias": bias}, {"mask": mask}, {"experts": chosen}, {"experts": chosen, "probabilities": p}
    results = jax.jit(lambda x, cases: [(ours(x, **given), parts(x, **given)) for given in cases])(x, cases)
    for (y, auxiliary), (expected, losses) in results:
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), tuple(auxiliary), losses)
    with pytest.raises(ValueError, match=r"MixtureOfExperts: mask is \(14,\) but inputs have tokens \(2, 7\)"):
        ours(x, mask=mask.reshape(-1))
    with pytest.raises(ValueError, match="bias is given with experts"):
        ours(x, experts=chosen, bias=bias)
    with pytest.raises(ValueError, match="MixtureOfExperts: scores is 'tanh'"):
        vbx.MixtureOfExperts(D, F, experts=experts, k=K, scores="tanh", rngs=nnx.Rngs(1))
    with pytest.raises(ValueError, match="MixtureOfExperts: groups"):
        vbx.MixtureOfExperts(D, F, experts=experts, k=K, groups=(4, 1), rngs=nnx.Rngs(1))


@pytest.mark.parametrize("lib", slow_except([vbx, vbl], [vbl]))
def test_adapters_are_computed_in_the_dtype_of_the_layer(lib):
    model = vbx.MixtureOfExperts(D, F, experts=EXPERTS, k=K, dtype="bfloat16", rngs=nnx.Rngs(1))
    linen = vbl.MixtureOfExperts(F, EXPERTS, K, dtype="bfloat16")
    shapes = ((EXPERTS, D, 2), (EXPERTS, 2, 2 * F)), ((EXPERTS, F, 3), (EXPERTS, 3, D))
    lora = jax.tree.map(lambda shape: oracle.random(shape, "float32"), shapes, is_leaf=lambda s: isinstance(s[0], int))
    x = oracle.random((2, 4, D), "float32", 4)

    @jax.jit
    def both(x, lora):
        layer = model if lib is vbx else functools.partial(linen.apply, {"params": state(model)})
        y = layer(x, lora=lora, lora_scale=0.5)
        routing = vb.moe.route(model.router(x).reshape(-1, EXPERTS), K)
        flat, *weights = (a.astype("bfloat16") for a in (x.reshape(-1, D), model.gate_up[...], model.down[...]))
        narrow = jax.tree.map(lambda a: a.astype("bfloat16"), lora)
        return y, vb.moe.expert_mlp(flat, *weights, routing, lora=narrow, lora_scale=0.5).reshape(y.shape)

    y, expected = both(x, lora)
    assert y.dtype == "bfloat16"
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("lib", slow_except([vbx, vbl], [vbl]))
def test_experts_in_8_bits(lib):
    model = vbx.MixtureOfExperts(D, F, experts=EXPERTS, k=K, rngs=nnx.Rngs(1))
    linen = vbl.MixtureOfExperts(F, EXPERTS, K)
    x = oracle.random((2, 4, D), "float32", 4)

    @jax.jit
    def both(x):
        layer = model if lib is vbx else functools.partial(linen.apply, {"params": state(model)})
        routing = vb.moe.route(model.router(x).reshape(-1, EXPERTS), K)
        weights = [a[...] for a in (model.gate_up, model.down)]
        y = vb.moe.expert_mlp(x.reshape(-1, D), *weights, routing, quantized=True)
        return layer(x, quantized=vb.moe.quantize_experts(*weights)), y.reshape(x.shape)

    np.testing.assert_array_equal(*both(x))


@pytest.mark.multidevice(2)
@pytest.mark.parametrize("lib", slow_except([vbx, vbl], [vbl]))
def test_experts_divided_among_devices(lib):
    mesh = jax.make_mesh((2,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = vbx.MixtureOfExperts(D, F, experts=4, k=K, rngs=nnx.Rngs(1), **WIDE)
    over = {"mesh_axis": "expert", "exchange": "ragged_all_to_all", "chunks": 2}
    divided = vbx.MixtureOfExperts(D, F, experts=4, k=K, rngs=nnx.Rngs(1), **over, **WIDE)
    linen = vbl.MixtureOfExperts(F, 4, K, **over, **WIDE)
    x, P = oracle.random((8, D), "float64"), jax.P("expert")
    params = state(whole)

    def on_device(params, x):
        if lib is vbl:
            return linen.apply({"params": params}, x)
        graph, own = nnx.split(divided)
        nnx.replace_by_pure_dict(own, params)
        return nnx.merge(graph, own)(x)

    specs = {name: jax.tree.map(lambda _, name=name: jax.P() if name == "router" else P, leaf) for name, leaf in
             params.items()}  # fmt: skip
    spread = jax.shard_map(on_device, mesh=mesh, in_specs=(specs, P), out_specs=P)

    def alone(params, x):
        return vbl.MixtureOfExperts(F, 4, K, **WIDE).apply({"params": params}, x)

    losses = [lambda params, x, f=f: jnp.sum(jnp.sin(f(params, x))) for f in (spread, alone)]
    values = jax.jit(lambda *args: [jax.value_and_grad(loss, (0, 1))(*args) for loss in losses])(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), *values)


@pytest.mark.parametrize("lib", slow_except([vbx, vbl], [vbl]))
def test_gradients_are_added_to_sums(lib):
    """In bfloat16 with parameters of float32, over two micro-batches."""
    model = vbx.MixtureOfExperts(D, F, experts=EXPERTS, k=K, dtype="bfloat16", rngs=nnx.Rngs(1))
    graph, params = nnx.split(model)
    linen = vbl.MixtureOfExperts(F, EXPERTS, K, dtype="bfloat16")
    xs = oracle.random((2, 8, D), "float32", 4)

    def loss(params, x, sums=None):
        if lib is vbx:
            y = nnx.merge(graph, params)(x, gradients=sums)
        else:
            y = linen.apply({"params": state(nnx.merge(graph, params))}, x, gradients=sums)
        return jnp.sin(y.astype("float32")).sum()

    sums = tuple(jax.new_ref(jnp.ones_like(w[...])) for w in (model.gate_up, model.down))
    for x in xs:
        jax.jit(jax.grad(loss))(params, x, sums)
    gradient = jax.jit(jax.grad(loss))
    expected = [gradient(params, x) for x in xs]
    for name, total in zip(("gate_up", "down"), sums, strict=True):
        found = total[...] - 1
        np.testing.assert_allclose(found, sum(one[name][...] for one in expected), rtol=2e-2, atol=2e-2)
        assert jnp.abs(found).max() > 0.1


SIZES = [(3, 0, 5), (0, 0, 0), (8, 0, 0), (1, 2, 3), (2, 9, 4)]


def lora_of(lib, x, sizes):
    """One set of adapters as a function of group_sizes, which may be numbers or data."""
    if lib == "nnx":
        rngs = nnx.Rngs(3)
        base = nnx.Linear(6, 7, rngs=rngs)
        model = vbx.MultiLoRA(6, [1, 4, 8], 7, base_module=base, rngs=rngs, b_initializer=nnx.initializers.normal())
        graph, parameters = nnx.split(model)
        return lambda parameters, x, sizes: nnx.merge(graph, parameters)(x, sizes), parameters
    model = vbl.MultiLoRA([1, 4, 8], 7, base_module=nn.Dense(7), b_initializer=nn.initializers.normal())
    forms = sizes, jnp.array(sizes)
    variables, others = jax.jit(lambda key: [model.init(key, x, form) for form in forms])(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, variables, others)
    return model.apply, variables


@pytest.mark.parametrize(
    ("lib", "target"),
    slow_except([("nnx", "cpu"), ("linen", "cpu"), ("nnx", "h100")], [("nnx", "h100")]),
)
def test_adapters_with_sizes_as_data_are_those_with_numbers(lib, target):
    x = oracle.random((8, 2, 6), "float32")
    call, parameters = lora_of(lib, x, SIZES[0])
    traces = []

    def results(parameters, x, sizes):
        traces.append(1)
        loss = lambda p, x: jnp.sum(jnp.sin(call(p, x, sizes)))  # noqa: E731
        return call(parameters, x, sizes), jax.grad(loss, (0, 1))(parameters, x)

    at_run_time = jax.jit(results)
    for sizes in ((3, 0, 5), (8, 0, 0)):
        with vb.target(target):  # for GPUs ranks are padded to multiples of 16 bytes
            got = at_run_time(parameters, x, jnp.array(sizes))
        assert_same(got, jax.jit(functools.partial(results, sizes=sizes))(parameters, x), 2e-5)
    assert len(traces) == 3  # one program for sizes that are data, and two for sizes that are numbers


@pytest.mark.parametrize("lib", slow_except(["nnx", "linen"], ["nnx"]))
def test_tokens_behind_the_last_adapter_have_the_base_alone(lib):
    x = oracle.random((8, 6), "float32")
    call, parameters = lora_of(lib, x, SIZES[0])
    some, none = (np.asarray(jax.jit(call)(parameters, x, np.array(sizes))) for sizes in ((3, 0, 2), (0, 0, 0)))
    np.testing.assert_array_equal(some[5:], none[5:])
    assert (np.abs(some[:5] - none[:5]).max(-1) > 0).all()


@pytest.mark.parametrize("target", slow_except(["cpu", "h100"], ["cpu"]))
def test_padded_ranks_reach_no_result(target):
    """The adapter of rank 1 maps an infinite row to infinite numbers; infinity times a 0 of the padding is NaN."""
    x, ct = np.ones((4, 3)), np.ones((4, 2))
    x[0, 1] = ct[1, 0] = np.inf
    downs, ups = [[np.ones(shape) for shape in shapes] for shapes in ([(3, 1), (3, 4)], [(1, 2), (4, 2)])]

    @jax.jit
    def results(x, downs, ups, ct):
        y, pull = jax.vjp(lambda *args: adapted("test", *args, jnp.array([2, 2])), x, downs, ups)
        return y, pull(ct)

    with vb.target(target):
        y, (d_x, d_downs, d_ups) = jax.tree.map(np.asarray, results(x, downs, ups, ct))
    np.testing.assert_array_equal(y, [[np.inf] * 2, [3] * 2, [12] * 2, [12] * 2])
    np.testing.assert_array_equal(d_x, [[2] * 3, [np.inf] * 3, [8] * 3, [8] * 3])
    np.testing.assert_array_equal(d_downs[0][:, 0], [np.inf] * 3)
    np.testing.assert_array_equal(d_ups[0], [[np.inf] * 2])
    np.testing.assert_array_equal(d_downs[1], np.full((3, 4), 4))
    np.testing.assert_array_equal(d_ups[1], np.full((4, 2), 6))


def hetero(lib, x, **options):
    if lib == "nnx":
        model = vbx.HeteroLinear(4, 7, 3, rngs=nnx.Rngs(0), bias_init=nnx.initializers.normal(), **options)
        graph, parameters = nnx.split(model)
        return lambda parameters, x, sizes: nnx.merge(graph, parameters)(x, sizes), nnx.to_pure_dict(parameters)
    model = vbl.HeteroLinear(7, 3, bias_init=nn.initializers.normal(), **options)
    parameters = jax.jit(model.init)(jax.random.key(0), x, np.zeros(3, int))["params"]
    return lambda parameters, x, sizes: model.apply({"params": parameters}, x, sizes), parameters


@pytest.mark.parametrize(
    ("lib", "activation"),
    slow_except(
        itertools.product(["nnx", "linen"], [None, "relu", jax.nn.softplus]),
        [("nnx", None), ("linen", "relu"), ("nnx", jax.nn.softplus)],
    ),
)
def test_typed_linear(lib, activation):
    x = oracle.random((8, 4), "float64")
    call, parameters = hetero(lib, x, activation=activation, **WIDE)
    function = {None: lambda y: y, "relu": jax.nn.relu}.get(activation, activation)

    def plain(parameters, x, sizes):
        # Rows behind the last type have the type 3, of which one_hot makes zeros.
        types = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(8), side="right")
        of_type = jax.nn.one_hot(types, 3, dtype="float64")
        y = jnp.einsum("rt,ri,tio->ro", of_type, x, parameters["kernel"]) + of_type @ parameters["bias"]
        return jnp.where(types[:, None] < 3, function(y), 0)

    @jax.jit
    def both(parameters, x, sizes):
        losses = [lambda p, x, f=f: jnp.sum(jnp.sin(f(p, x, sizes))) for f in (call, plain)]
        return [jax.value_and_grad(loss, (0, 1))(parameters, x) for loss in losses]

    for sizes in SIZES[:4]:
        assert_same(*both(parameters, x, np.array(sizes)), 1e-11)
    assert both._cache_size() == 1


def test_typed_linear_in_mixed_precision_and_without_bias():
    x = oracle.random((8, 4), "bfloat16")
    call, parameters = hetero("nnx", x, use_bias=False, dtype=jnp.bfloat16)
    assert set(parameters) == {"kernel"}
    assert jax.jit(call)(parameters, x, np.array([1, 2, 5])).dtype == jnp.bfloat16


X = jnp.ones((2, D), jnp.float32)
MOE = functools.partial(vbx.MixtureOfExperts, D, F, rngs=nnx.Rngs(0))
HETERO = functools.partial(vbx.HeteroLinear, rngs=nnx.Rngs(0))
KEY = jax.random.key(0)
ERRORS = [
    (lambda: MOE(experts=4, k=5), ValueError, "MixtureOfExperts: k is 5 but experts is 4"),
    (lambda: MOE(experts=4, k=0), ValueError, "MixtureOfExperts: k is 0"),
    (lambda: MOE(experts=0, k=1), ValueError, "MixtureOfExperts: experts is 0"),
    (lambda: MOE(experts=2, k=1, shared_features=0), ValueError, "shared_features is 0"),
    (lambda: MOE(experts=2, k=1, activation=None), ValueError, "activation must be a function or a name"),
    (lambda: MOE(experts=2, k=1, activation="swish"), ValueError, "activation must be None, a function, or one of"),
    (lambda: MOE(experts=2, k=1)(X[:, 1:]), ValueError, "Incompatible input dimension, got 5 but module expects 6"),
    (lambda: vbl.MixtureOfExperts(F, 2, 3).init(KEY, X), ValueError, "k is 3 but experts is 2"),
    (lambda: HETERO(D, F, 0), ValueError, "HeteroLinear: types is 0"),
    (lambda: HETERO(D, F, 2, activation="x"), ValueError, "HeteroLinear: activation must"),
    (lambda: HETERO(D, F, 2)(X, jnp.ones(3, int)), ValueError, r"group_sizes is \(3,\) but there are 2 types"),
    (lambda: HETERO(D, F, 2)(X, jnp.ones(2)), TypeError, "group_sizes is float64"),
    (lambda: HETERO(D, F, 2)(X[None], jnp.ones(2, int)), ValueError, r"inputs has shape \(1, 2, 6\)"),
    (lambda: vbl.HeteroLinear(3, 0).init(KEY, X, jnp.ones(0, int)), ValueError, "HeteroLinear: types is 0"),
    (lambda: vbx.MultiLoRA(D, [1, 2], 3, rngs=nnx.Rngs(0))(X, jnp.ones(3, int)), ValueError,
     r"MultiLoRA: group_sizes is \(3,\) but there are 2 adapters"),
    (lambda: vbx.MultiLoRA(D, [1, 2], 3, rngs=nnx.Rngs(0))(X, jnp.ones(2)), TypeError, "group_sizes is float64"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_argument(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("layer", slow_except(["MixtureOfExperts", "MultiLoRA"], ["MultiLoRA"]))
def test_a_symbolic_number_of_tokens_exports(layer):
    tokens, inner = jax.export.symbolic_shape("t, i")
    if layer == "MixtureOfExperts":
        model = vbx.MixtureOfExperts(D, F, experts=EXPERTS, k=K, rngs=nnx.Rngs(0))
        call = functools.partial(model, auxiliary=True)
    else:
        model = vbx.MultiLoRA(D, (2, 3), D, b_initializer=nnx.initializers.normal(), rngs=nnx.Rngs(0))
        call = functools.partial(model, group_sizes=jnp.array([2, 300], jnp.int16))
    program = jax.export.export(jax.jit(call), disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
        jax.ShapeDtypeStruct((tokens, inner, D), jnp.float32)
    )
    x = oracle.random((7, 2, D), "float32")
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, program.call(x), jax.jit(call)(x))
