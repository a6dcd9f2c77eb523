"""Whole networks on the parameters of linen, nnx, equinox and Haiku, against loops over them."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from flax import linen as nn
from flax import nnx
from oracle import assert_same

from jax_vbgemm import networks
from jax_vbgemm._src.matmul.primitive import batched_matmul_p

ROWS, IN = 5, 4
WIDTHS = [(IN, 3), (IN, 6, 2), (IN, 5, 7, 1)]  # different in width and in depth


def network(widths, seed=0, stack=(), biases=True):
    return [
        (
            oracle.random((*stack, m, n), "float64", seed + i),
            oracle.random((*stack, n), "float64", seed) if biases else None,
        )
        for i, (m, n) in enumerate(itertools.pairwise(widths))
    ]


def plain(layers, x, activation, final=lambda x: x):
    """One network, or with jnp.matmul's broadcasting a stack of them, without this package."""
    for i, (kernel, bias) in enumerate(layers):
        y = jnp.matmul(x, kernel)
        if bias is not None:
            y += jnp.broadcast_to(jnp.expand_dims(bias, -2) if kernel.ndim > 2 else bias, y.shape)
        x = final(y) if i == len(layers) - 1 else activation(y)
    return x


def results(f, *args):
    """The values, and the gradients of a loss by all arguments."""

    def loss(*args):
        ys = f(*args)
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(ys)), ys

    return jax.value_and_grad(loss, argnums=tuple(range(len(args))), has_aux=True)(*args)


def assert_equal_programs(ours, theirs, *args, rtol=1e-11):
    assert_same(*jax.jit(lambda *args: (results(ours, *args), results(theirs, *args)))(*args), rtol)


def test_networks_of_different_width_and_depth():
    nets = [network(widths, 10 * i, biases=i != 1) for i, widths in enumerate(WIDTHS)]
    xs = [oracle.random((ROWS + i, IN), "float64", i) for i in range(len(nets))]
    assert_equal_programs(
        lambda nets, xs: networks.apply(nets, xs, jnp.tanh, final_activation="silu"),
        lambda nets, xs: [plain(net, x, jnp.tanh, jax.nn.silu) for net, x in zip(nets, xs, strict=True)],
        nets, xs,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(IN,), (2, ROWS, IN)])
def test_a_dict_of_heads_on_one_input(shape):
    heads = {name: network(widths, 7) for name, widths in zip("bca", WIDTHS, strict=True)}
    assert_equal_programs(
        lambda heads, x: networks.apply(heads, x, jnp.cos),
        lambda heads, x: {name: plain(net, x, jnp.cos) for name, net in heads.items()},
        heads, oracle.random(shape, "float64"),
    )  # fmt: skip


def calls_of(nets, x):
    program = jax.make_jaxpr(functools.partial(networks.apply, activation="relu"))(nets, x)
    return [each for each in program.eqns if each.primitive is batched_matmul_p]


def test_each_depth_is_one_call_that_reads_a_shared_input_once():
    x = oracle.random((ROWS, IN), "float64")
    assert [len(call.outvars) for call in calls_of([network(widths) for widths in WIDTHS], x)] == [1, 2, 3]
    for shared in (x, x[0]):
        first, _ = calls_of([network((IN, width, 1)) for width in (3, 5, 6)], shared)
        assert len(first.invars) == 1 + 3 + 3  # the input, kernels and biases


def test_stacks_beside_single_networks():
    nets = [network((IN, 3, 2), 1, stack=(3,)), network((IN, 5, 1)), network((IN, 2), 2, stack=(3,))]
    x, own = oracle.random((ROWS, IN), "float64"), oracle.random((3, ROWS, IN), "float64", 1)
    assert_equal_programs(
        lambda nets, x, own: networks.apply(nets, [x, x, own], "tanh"),
        lambda nets, x, own: [plain(net, y, jnp.tanh) for net, y in zip(nets, (x, x, own), strict=True)],
        nets, x, own,
    )  # fmt: skip


def test_second_derivatives():
    nets = [network(widths) for widths in WIDTHS[1:]]
    x = oracle.random((2, IN), "float64")

    def energy(nets, x):
        return sum(map(jnp.sum, networks.apply(nets, x, "tanh")))

    oracle.check_grads(jax.grad(energy, 1), (nets, x), order=1, modes=["rev"])


def test_vmap_over_networks_and_inputs():
    nets = [network(widths, stack=(2,)) for widths in WIDTHS[1:]]
    xs = oracle.random((2, ROWS, IN), "float64")
    assert_equal_programs(
        jax.vmap(lambda nets, x: networks.apply(nets, x, "gelu")),
        jax.vmap(lambda nets, x: [plain(net, x, jax.nn.gelu) for net in nets]),
        nets, xs,
    )  # fmt: skip


class MLP(nn.Module):
    widths: tuple[int, ...] = (6, 2)
    dtype: object = None

    @nn.compact
    def __call__(self, x):
        for width in self.widths[:-1]:
            x = nn.silu(nn.Dense(width, dtype=self.dtype)(x))
        return nn.Dense(self.widths[-1], dtype=self.dtype)(x)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_linen(dtype):
    """Parameters of two networks, one with more than ten layers, and of an ensemble by nn.vmap."""
    stack = nn.vmap(MLP, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=3)
    models = [MLP((6,) * 11 + (2,), dtype), stack(dtype=dtype), MLP((2,), dtype)]
    x = oracle.random((ROWS, IN), "float32")
    with jax.numpy_dtype_promotion("standard"):
        parameters = jax.jit(lambda key: [model.init(key, x) for model in models])(jax.random.key(0))
        ours = jax.jit(lambda p, x: networks.apply(p, x, nn.silu, dtype=dtype))(parameters, x)
        theirs = jax.jit(lambda p, x: [model.apply(q, x) for model, q in zip(models, p, strict=True)])(parameters, x)
    assert_same(ours, theirs, 2e-5 if dtype is None else 5e-2)


class WithActivation(eqx.Module):
    """Layers and their activation, as users of Equinox write them."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: object


class Numbered(nnx.Module):
    """Layers in attributes, as users write them."""

    def __init__(self, width, rngs):
        self.linear1 = nnx.Linear(IN, width, rngs=rngs)
        self.linear2 = nnx.Linear(width, 2, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.linear2(nnx.tanh(self.linear1(x)))


def test_nnx():
    """Modules, an nnx.Sequential, the state of a module, and an ensemble by nnx.vmap."""
    rngs = nnx.Rngs(0)
    hidden = [function for _ in range(5) for function in (nnx.tanh, nnx.Linear(3, 3, rngs=rngs))]
    sequential = nnx.Sequential(nnx.Linear(IN, 3, rngs=rngs), *hidden, nnx.tanh, nnx.Linear(3, 1, rngs=rngs))
    ensemble = nnx.vmap(lambda rngs: Numbered(5, rngs))(nnx.Rngs(1).split(3))
    models = nnx.List([Numbered(6, rngs), sequential, ensemble])
    models[0].linear1.dtype, models[0].linear1.precision = jnp.float32, "highest"
    x = oracle.random((ROWS, IN), "float32")

    options = {"dtype": "float32", "precision": jax.lax.Precision.HIGHEST}

    def loop(models, x):
        return [models[0](x), *[models[1](x)] * 2, nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(models[2], x)]

    def ours(models, x):
        return networks.apply([models[0], models[1], nnx.state(models[1]), models[2]], x, nnx.tanh, **options)

    def gradients(f, models, x):
        return nnx.to_pure_dict(nnx.grad(lambda m: sum(jnp.sum(jnp.sin(y)) for y in f(m, x)))(models))

    both = nnx.jit(lambda models, x: [(f(models, x), gradients(f, models, x)) for f in (ours, loop)])(models, x)
    assert_same(*both, 2e-5)


def test_equinox():
    """MLPs with their activations, a Sequential, a single layer, and an ensemble by eqx.filter_vmap."""
    keys = iter(jax.random.split(jax.random.key(0), 9))
    mlps = [eqx.nn.MLP(IN, 2, width, depth, jnp.tanh, key=next(keys)) for width, depth in ((3, 1), (6, 3))]
    sequential = eqx.nn.Sequential(
        [
            eqx.nn.Linear(IN, 3, key=next(keys)),
            eqx.nn.Lambda(jnp.tanh),
            eqx.nn.Linear(3, 1, use_bias=False, key=next(keys)),
        ]
    )
    ensemble = eqx.filter_vmap(lambda key: eqx.nn.MLP(IN, "scalar", 5, 1, jnp.tanh, key=key))(
        jax.random.split(next(keys), 3)
    )
    models = [*mlps, sequential, eqx.nn.Linear(IN, 7, key=next(keys)), ensemble]
    x = oracle.random((ROWS, IN), "float64")

    def loop(models, x):
        single = [jax.vmap(model)(x) for model in models[:-1]]
        return [*single, eqx.filter_vmap(lambda model: jax.vmap(model)(x)[:, None])(models[-1])]

    def gradients(f, models, x):
        return eqx.filter_grad(lambda m: sum(jnp.sum(jnp.sin(y)) for y in f(m, x)))(models)

    def ours(models, x):
        return networks.apply(models, x, jnp.tanh)

    both = eqx.filter_jit(lambda models, x: [(f(models, x), gradients(f, models, x)) for f in (ours, loop)])(models, x)
    assert_same(*(jax.tree.leaves(eqx.filter(each, eqx.is_array)) for each in both), 1e-11)


def test_haiku():
    hk = pytest.importorskip("haiku")
    model = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([6, 3, 2], activation=jax.nn.silu)(x)))
    x = oracle.random((ROWS, IN), "float32")
    parameters = model.init(jax.random.key(0), x)
    assert_same(networks.apply([parameters], x, "silu"), [model.apply(parameters, x)])


# Types

TYPES = np.array([2, 0, -1, 2, 1, 2, 0])


def masked(nets, x, types, activation, final=lambda x: x):
    """Every network on every row, and the own one chosen."""
    ys = jnp.stack([plain(net, x, activation, final) for net in nets])
    own = jnp.expand_dims(types, 0) == jnp.arange(len(nets)).reshape(-1, *[1] * types.ndim)
    return jnp.sum(jnp.where(own[..., None], ys, jnp.zeros((), ys.dtype)), axis=0)


@pytest.mark.parametrize("activation", ["silu", lambda x: jnp.cos(x)], ids=["named", "function"])
def test_networks_of_rows_of_a_type(activation):
    """In any order, with hidden layers of different width; rows without a type are zeros."""
    nets = [network((IN, width, 2), width, biases=width != 5) for width in (3, 5, 4)]
    x = oracle.random((len(TYPES), IN), "float64")
    function = jax.nn.silu if activation == "silu" else activation
    assert_equal_programs(
        lambda nets, x: networks.apply_typed(nets, x, activation, types=TYPES, final_activation=activation),
        lambda nets, x: masked(nets, x, TYPES, function, function),
        nets, x,
    )  # fmt: skip


def test_a_stack_on_rows_that_are_sorted_by_type():
    stack, sizes = network((IN, 3, 2), stack=(3,)), jnp.array([2, 0, 3])
    x = oracle.random((6, IN), "float64")
    types = np.array([0, 0, 2, 2, 2, -1])

    def loop(stack, x):
        nets = [[(kernel[t], bias[t]) for kernel, bias in stack] for t in range(3)]
        return masked(nets, x, types, jnp.tanh)

    assert_equal_programs(lambda stack, x: networks.apply_typed([stack], x, "tanh", group_sizes=sizes), loop, stack, x)


def test_a_stack_is_read_as_it_is_in_equinox_too():
    """No array of the stack's size is made beside its products."""
    stack = eqx.filter_vmap(lambda key: eqx.nn.MLP(IN, 2, 3, 1, key=key))(jax.random.split(jax.random.key(0), 3))
    x = oracle.random((2, len(TYPES), IN), "float64")
    types = jnp.stack([TYPES, TYPES[::-1]])

    def loop(stack, x):
        every = eqx.filter_vmap(lambda model: jax.vmap(jax.vmap(model))(x))(stack)
        own = (types[None] == jnp.arange(3)[:, None, None])[..., None]
        return jnp.sum(jnp.where(own, every, 0.0), axis=0)

    def ours(stack, x):
        return networks.apply_typed([stack], x, "relu", types=types)

    assert_same(*eqx.filter_jit(lambda stack, x: (ours(stack, x), loop(stack, x)))(stack, x))
    program = jax.make_jaxpr(lambda x: ours(stack, x))(x)
    assert not any(each.primitive.name in ("transpose", "concatenate") for each in program.eqns)


def test_no_infinity_of_a_wide_network_reaches_the_rows_of_a_narrow_one():
    nets = [[(jnp.ones((IN, width)), None), (jnp.ones((width, 2)), None)] for width in (2, 5)]
    x = jnp.ones((2, IN)).at[0].set(-jnp.inf)
    types = jnp.array([0, 1])
    assert_same(networks.apply_typed(nets, x, "relu", types=types), masked(nets, x, types, jax.nn.relu))


def test_a_function_sees_no_padding():
    """Softmax combines columns, and a padding of zeros would give sqrt infinite slopes."""
    nets = [network((IN, width, 2), width) for width in (3, 5)]
    nets = jax.tree.map(jnp.abs, nets)
    x, types = jnp.abs(oracle.random((3, IN), "float64")), np.array([1, -1, 0])

    def f(x):
        return jnp.sqrt(jax.nn.softmax(x) * x)

    assert_equal_programs(
        lambda nets, x: networks.apply_typed(nets, x, f, types=types, final_activation=jnp.sqrt),
        lambda nets, x: masked(nets, x, types, f, jnp.sqrt),
        nets, x,
    )  # fmt: skip


def test_one_program_serves_all_types():
    nets = [network((IN, 3, 2), seed) for seed in range(2)]
    x = oracle.random((3, IN), "float64")
    f = jax.jit(lambda types: networks.apply_typed(nets, x, "relu", types=types))
    for types in itertools.islice(itertools.product((-1, 0, 1), repeat=3), 0, 27, 6):
        assert_same(f(jnp.array(types)), masked(nets, x, np.array(types), jax.nn.relu), 1e-11)
    assert f._cache_size() == 1


# Bad input

ONE, X = network((IN, 3, 2)), np.ones((ROWS, IN))
RNGS = nnx.Rngs(0)
LINEAR = nnx.Linear(IN, IN, rngs=RNGS)
TABLE = {
    "no list": (lambda: networks.apply(np.ones((2, 2)), X, None), TypeError, "a list of one"),
    "inner": (
        lambda: networks.apply([ONE, [*ONE, *ONE]], X, None),
        ValueError,
        r"networks\[1\]\[2\] is \(4, 3\) after networks\[1\]\[1\], which is \(3, 2\): 2 features don't fit 4",
    ),
    "input": (
        lambda: networks.apply({"C": ONE}, np.ones((ROWS, 3)), None),
        ValueError,
        r"networks\['C'\] has the input \(5, 3\), but networks\['C'\]\[0\] is \(4, 3\): the last axis must be 4",
    ),
    "keys": (lambda: networks.apply({"C": ONE}, {"H": X}, None), ValueError, "keys"),
    "count": (lambda: networks.apply([ONE], [X, X], None), ValueError, "2 entries but there are 1 networks"),
    "stack": (
        lambda: networks.apply([network((IN, 2), stack=(3,))], np.ones((2, ROWS, IN)), None),
        ValueError,
        "those of the stack",
    ),
    "stacks": (
        lambda: networks.apply([[*network((IN, 2), stack=(3,)), *network((2, 1))]], X, None),
        ValueError,
        "leading axes",
    ),
    "bias": (lambda: networks.apply([[(np.ones((4, 2)), np.ones((3,)))]], X, None), ValueError, r"must be \(2,\)"),
    "array": (
        lambda: networks.apply([[np.ones((4, 2))]], X, None),
        ValueError,
        r"\[0\]\[0\] is an array .*batched_gemm",
    ),
    "vector": (lambda: networks.apply([{"kernel": np.ones(4)}], X, None), ValueError, "no matrix"),
    "number": (lambda: networks.apply([[3.0]], X, None), ValueError, "is 3.0"),
    "empty": (lambda: networks.apply([[]], X, None), ValueError, r"networks\[0\] has no linear layer"),
    "order": (
        lambda: networks.apply([{"up": {"kernel": np.ones((4, 4))}, "down": {"kernel": np.ones((4, 4))}}], X, None),
        ValueError,
        "'down', 'up', whose order is not known",
    ),
    "norm": (
        lambda: networks.apply([{"scale": np.ones(4), "bias": np.ones(4)}], X, None),
        ValueError,
        r"\['scale'\] is an array \(4,\)|\['bias'\] is an array",
    ),
    "conv": (
        lambda: networks.apply([nnx.Conv(IN, 2, (1, 1), rngs=nnx.Rngs(0))], X, None),
        ValueError,
        "a Conv: .*batched_linear",
    ),
    "dtype": (
        lambda: networks.apply([nnx.Linear(IN, 2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))], X, None),
        ValueError,
        "dtype=",
    ),
    "function": (
        lambda: networks.apply([eqx.nn.MLP(IN, 2, 3, 1, jax.nn.gelu, key=jax.random.key(0))], X, "relu"),
        ValueError,
        r"networks\[0\].activation is the function gelu, but the call has activation='relu'",
    ),
    "dropout": (lambda: networks.apply([[ONE, eqx.nn.Dropout()]], X, None), ValueError, r"networks\[0\]\[1\].p is 0.5"),
    "precision": (
        lambda: networks.apply([nnx.Linear(IN, 2, precision="highest", rngs=nnx.Rngs(0))], X, None),
        ValueError,
        r"networks\[0\] has precision='highest': the call must have it",
    ),
    "no dtype": (lambda: networks.apply([ONE], X, None, dtype="float31"), TypeError, "dtype is 'float31'"),
    "unknown": (lambda: networks.apply([ONE], X, "swish"), ValueError, "swish"),
    "depth": (
        lambda: networks.apply_typed([ONE, network((IN, 2))], X, None, types=np.zeros(ROWS, int)),
        ValueError,
        r"networks\[1\] has 1 layers from 4 to 2 features, but networks\[0\] has 2 layers",
    ),
    "neither": (lambda: networks.apply_typed([ONE], X, None), ValueError, "either types"),
    "types": (lambda: networks.apply_typed([ONE], X, None, types=np.zeros(3, int)), ValueError, r"types is \(3,\)"),
    "float types": (lambda: networks.apply_typed([ONE], X, None, types=np.zeros(ROWS)), TypeError, "integers"),
    "sizes": (lambda: networks.apply_typed([ONE], X, None, group_sizes=np.zeros(2, int)), ValueError, "1 networks"),
    "one network": (
        lambda: networks.apply(ONE, X, None),
        ValueError,
        r"networks\[1\] .*\(one network is a list of one",
    ),
    "one typed network": (
        lambda: networks.apply_typed(ONE, X, None, types=np.zeros(ROWS, int)),
        ValueError,
        r"networks\[1\] .*\(one network is a list of one",
    ),
    "typed dict": (
        lambda: networks.apply_typed({"O": ONE, "H": ONE}, X, None, types=np.zeros(ROWS, int)),
        TypeError,
        "networks is a dict: it must be a list",
    ),
    "no types": (lambda: networks.apply_typed([], X, None, types=np.zeros(ROWS, int)), ValueError, "is empty"),
    "narrow x": (
        lambda: networks.apply_typed([ONE], X[:, 1:], None, types=np.zeros(ROWS, int)),
        ValueError,
        "last axis",
    ),
}


MODULES = {
    "einsum": (nnx.Einsum("ab,bc->ac", (IN, IN), rngs=RNGS), "is a Einsum"),
    "general": (nnx.LinearGeneral(IN, IN, axis=0, rngs=RNGS), "is a LinearGeneral"),
    "equinox conv": (eqx.nn.Conv1d(IN, IN, 1, use_bias=False, key=jax.random.key(0)), "is a Conv1d"),
    "nnx norm": (nnx.LayerNorm(IN, use_bias=False, use_scale=False, rngs=RNGS), "LayerNorm"),
    "nnx dropout": (nnx.Dropout(0.5), "Dropout"),
    "norm": (eqx.nn.LayerNorm(IN, use_weight=False, use_bias=False), "LayerNorm"),
    "element type": (nnx.Linear(IN, IN, preferred_element_type=jnp.float32, rngs=RNGS), "preferred_element_type"),
}


@pytest.mark.parametrize("case", MODULES)
def test_modules_that_are_no_linear_layer_are_refused(case):
    module, message = MODULES[case]
    layers = [LINEAR, module, LINEAR]
    for network in (layers, eqx.nn.Sequential(layers) if isinstance(module, eqx.Module) else nnx.Sequential(*layers)):
        with pytest.raises(ValueError, match=message):
            networks.apply([network], X, None)


@pytest.mark.parametrize("case", TABLE)
def test_errors_name_the_network_and_the_rule(case):
    call, kind, message = TABLE[case]
    with pytest.raises(kind, match=message) as found:
        call()
    assert str(found.value).startswith("networks.apply")


def mlp(activation, final):
    return eqx.nn.MLP(IN, 2, 8, 2, activation, final_activation=final, key=jax.random.key(0))


def sequential(*functions):
    """Three linear layers, each followed by one of the lists of functions."""
    keys = jax.random.split(jax.random.key(0), 3)
    nodes = [[eqx.nn.Linear(IN, IN, key=key), *map(eqx.nn.Lambda, fs)] for key, fs in zip(keys, functions, strict=True)]
    return eqx.nn.Sequential([*nodes[0], *nodes[1], *nodes[2]])


SILU = [jax.nn.silu]


@pytest.mark.parametrize(
    ("network", "final", "message"),
    [
        (lambda: mlp(jax.nn.silu, jax.nn.silu), None, r"\.final_activation is the function silu"),
        (lambda: mlp(jnp.tanh, jax.nn.silu), "tanh", r"\.activation is the function tanh"),
        (lambda: mlp(lambda x: x, lambda x: x), None, r"layers\[0\] has no activation after it"),
        (lambda: mlp(jax.nn.silu, lambda x: x), "tanh", r"layers\[2\] has no .* final_activation='tanh'"),
        (lambda: WithActivation(mlp(None, None).layers, lambda x: x), None, r"\.activation is the function <lambda>"),
        (lambda: sequential([], SILU, []), None, r"\.layers\[0\] has no activation after it, .* activation='silu'"),
        (lambda: sequential([], [], []), None, "has no activation after it"),
        (lambda: sequential(SILU, SILU * 2, []), None, r"\.layers\[4\]\.fn is the function silu"),
        (lambda: sequential(SILU, SILU, SILU), None, r"\.layers\[5\]\.fn is the function silu"),
        (lambda: sequential(SILU, SILU, []), "tanh", r"\.layers\[4\] has no activation"),
        (lambda: nnx.Sequential(LINEAR, nnx.silu, LINEAR, LINEAR), None, r"\.layers\[2\] has no activation after it"),
        (lambda: nnx.Sequential(LINEAR, nnx.gelu, LINEAR), None, r"\.layers\[1\] is the function gelu"),
        (lambda: [jax.nn.silu, *ONE], None, r"networks\[0\]\[0\] is the function silu"),
        (lambda: [ONE[0], jax.nn.silu, ONE[1], network((2, 1))[0]], None, r"networks\[0\]\[2\] has no activation"),
    ],
)
def test_functions_of_a_tree_stand_where_the_call_applies_them(network, final, message):
    with pytest.raises(ValueError, match=message):
        networks.apply([network()], X, "silu", final_activation=final)


def test_functions_of_a_tree_that_are_those_of_the_call():
    identity = [eqx.nn.Identity()]
    accepted = [
        (mlp(jax.nn.silu, jnp.tanh), "tanh"),
        (sequential(SILU, identity + SILU, identity), None),
        (sequential(SILU, SILU, [jnp.tanh]), "tanh"),
    ]
    for model, final in accepted:
        assert_same(networks.apply([model], X, "silu", final_activation=final), [jax.vmap(model)(X)])
    layers = mlp(jax.nn.silu, jnp.tanh).layers  # with an activation whose end is not known
    assert_same(
        networks.apply([WithActivation(layers, jax.nn.silu)], X, "silu", final_activation="tanh"),
        networks.apply([mlp(jax.nn.silu, jnp.tanh)], X, "silu", final_activation="tanh"),
    )


def test_a_variable_without_an_array_is_no_bias():
    """As in nnx.Linear of older versions of Flax."""
    linear = nnx.Linear(IN, 2, use_bias=False, rngs=RNGS)
    linear.bias = nnx.Param(None)
    x = X.astype(np.float32)
    assert_same(networks.apply([linear], x, None), [x @ linear.kernel[...]], 1e-6)


def test_no_networks():
    assert networks.apply([], X, "relu") == []
