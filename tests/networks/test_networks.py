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
from small_networks import IN, ROWS, network

from jax_vbgemm import networks
from jax_vbgemm._src.matmul.primitive import batched_matmul_p

WIDTHS = [(IN, 3), (IN, 6, 2), (IN, 5, 7, 1)]  # different in width and in depth


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
    parameters = jax.jit(model.init)(jax.random.key(0), x)

    @jax.jit
    def both(parameters, x):
        return networks.apply([parameters], x, "silu"), [model.apply(parameters, x)]

    assert_same(*both(parameters, x))


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
    nets = [[(np.ones((IN, width)), None), (np.ones((width, 2)), None)] for width in (2, 5)]
    x, types = np.array([[-np.inf] * IN, [1.0] * IN]), np.array([0, 1])

    @jax.jit
    def both(nets, x, types):
        return networks.apply_typed(nets, x, "relu", types=types), masked(nets, x, types, jax.nn.relu)

    assert_same(*both(nets, x, types))


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
    expected = jax.jit(lambda types: masked(nets, x, types, jax.nn.relu))
    for types in map(np.array, itertools.islice(itertools.product((-1, 0, 1), repeat=3), 0, 27, 6)):
        assert_same(f(types), expected(types), 1e-11)
    assert f._cache_size() == 1
