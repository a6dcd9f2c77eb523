"""Mixtures whose experts are divided among devices: the results and gradients of one device that has all experts."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except
from undefined_rest import undefined_rows_are_nan  # noqa: F401

import jax_vbgemm as vb
from jax_vbgemm._src.exchange.choice import EXCHANGES

pytestmark = [pytest.mark.multidevice(8), pytest.mark.usefixtures("undefined_rows_are_nan")]
TOKENS, EXPERTS, D, F, CHOICES = 24, 8, 5, 4, 3


def mesh(*sizes):
    names = ("x", "y", "z")[: len(sizes)]
    return jax.make_mesh(
        sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(sizes), devices=jax.devices()[: np.prod(sizes)]
    )


class Divided:
    """A mesh and what lies along its axes: experts along one or more, tokens along these and others, features of
    experts along a further one."""

    def __init__(self, sizes, experts, tokens, features=None):
        self.sizes, self.experts, self.features = sizes, experts, features
        # x, gate, up, down, logits, experts of tokens
        gate, down = P(experts, None, features), P(experts, features)
        self.specs = P(tokens), gate, gate, down, P(tokens), P(tokens)

    def mixture(self, exchange, chunks=1, implementation=None, **options):
        """The mixture as a function of whole arrays."""

        def on_device(*operands):
            y = layer(
                *operands, mesh_axis=self.experts, exchange=exchange, chunks=chunks, implementation=implementation
            )
            return y if self.features is None else jax.lax.psum(y, self.features)

        return jax.shard_map(on_device, mesh=mesh(*self.sizes), in_specs=self.specs, out_specs=self.specs[0], **options)


DIVIDED = {
    "one axis": Divided((4,), "x", "x"),
    "two axes as one": Divided((4, 2), ("x", "y"), ("x", "y")),
    "data parallel beside": Divided((2, 4), "y", ("x", "y")),
    "features beside": Divided((4, 2), "x", "x", "y"),
    "data and features": Divided((2, 2, 2), "y", ("x", "y"), "z"),
}


def layer(x, gate, up, down, logits, experts, **options):
    return vb.moe.expert_mlp(x, (gate, up), down, vb.moe.route(logits, experts=experts), **options)


def operands(dtype="float64"):
    """x, gate, up, down, logits."""
    shapes = (TOKENS, D), (EXPERTS, D, F), (EXPERTS, D, F), (EXPERTS, F, D), (TOKENS, EXPERTS)
    return tuple(oracle.random(shape, dtype, seed) for seed, shape in enumerate(shapes))


def routings():
    """The experts of each token: random ones, some tokens without any; all tokens with one; those of one device only;
    none at all."""
    rng = np.random.default_rng(0)
    any_of = np.stack([rng.permutation(EXPERTS)[:CHOICES] for _ in range(TOKENS)]).astype(np.int32)
    some = np.where(rng.random(any_of.shape) < 0.3, -1, any_of)
    return [some, np.full_like(some, 5), any_of % 2, np.full_like(some, -1)]


def gradient(function):
    def loss(*args):
        return jnp.sum(jnp.sin(function(*args)))

    return jax.value_and_grad(loss, tuple(range(5)))


def assert_same(functions, arguments, rtol=1e-11):
    """Asserts that functions agree with the last one, in one program for all arguments."""
    together = jax.jit(lambda *args: [function(*args) for function in functions])
    for args in arguments:
        *ours, theirs = together(*args)
        for each in ours:
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol), each, theirs)


@pytest.mark.parametrize(
    ("case", "check_vma"),
    slow_except(list(itertools.product(DIVIDED, [True, False])), [("one axis", True), ("data and features", True)]),
)
def test_gradients_by_every_exchange(case, check_vma):
    functions = [DIVIDED[case].mixture(exchange, check_vma=check_vma) for exchange in EXCHANGES]
    assert_same([gradient(f) for f in (*functions, layer)], [(*operands(), experts) for experts in routings()])


@pytest.mark.parametrize("exchange", slow_except(EXCHANGES, ["ragged_all_to_all"]))
def test_chunks(exchange):
    """Of unequal length, and more than there are tokens, so that some are empty."""
    arguments = [(*operands(), experts) for experts in routings()[:2]]
    four, seven = (DIVIDED["one axis"].mixture(exchange, chunks) for chunks in (4, 7))
    assert_same([gradient(f) for f in (four, layer)], arguments)
    assert_same([seven, layer], arguments[:1])


@pytest.mark.slow
def test_biases():
    """Results of experts are then multiplied by their probabilities after the second product."""
    biases = oracle.random((EXPERTS, F), "float64", 7), oracle.random((EXPERTS, D), "float64", 8)

    def biased(x, gate, up, down, logits, first, second, **options):
        routing, bias = vb.moe.route(logits, CHOICES), ((first, -first), second)
        return vb.moe.expert_mlp(x, (gate, up), down, routing, bias=bias, **options)

    divided = [functools.partial(biased, mesh_axis="x", exchange=exchange, chunks=2) for exchange in EXCHANGES]
    ours = [jax.shard_map(f, mesh=mesh(4), in_specs=P("x"), out_specs=P("x")) for f in divided]
    assert_same([gradient(f) for f in (*ours, biased)], [(*operands(), *biases)])


def test_parameters_of_functions_and_scales_of_adapters():
    """Their gradients are sums over rows, of which those of other devices' experts are undefined."""
    a, b = oracle.random((EXPERTS, D, 2), "float64", 7), oracle.random((EXPERTS, 2, F), "float64", 8)
    c, d = oracle.random((EXPERTS, F, 2), "float64", 9), oracle.random((EXPERTS, 2, D), "float64", 10)

    def mixtures(x, gate, up, down, logits, a, b, c, d, slope, **options):
        routing = vb.moe.route(logits, CHOICES)

        def swish(y):
            return y * jax.nn.sigmoid(slope * y)

        gates = {"gate": lambda y, z: swish(y) * z}, {"activation": swish}, {"lora": ((None, (a, b)), (c, d))}
        others = {"activation": swish}, {"activation": None, "lora": ((a, b), None)}
        some = {**options, "lora_scale": slope}
        return sum(
            [vb.moe.expert_mlp(x, (gate, up), down, routing, **some, **each) for each in gates]
            + [vb.moe.expert_mlp(x, gate, down, routing, gated=False, **some, **each) for each in others]
        )

    divided = functools.partial(mixtures, mesh_axis="x", exchange="all_to_all")
    ours = jax.shard_map(divided, mesh=mesh(2), in_specs=(*[P("x")] * 9, P()), out_specs=P("x"))

    def of_parameters(function):
        return jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), tuple(range(10)))

    assert_same([of_parameters(f) for f in (ours, mixtures)], [(*operands(), a, b, c, d, jnp.asarray(1.5))])


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_second_derivatives(exchange):
    experts = routings()[0]

    def hessian_vector(function):
        return lambda *args: jax.jvp(gradient(lambda *args: function(*args, experts)), args, args)[1]

    assert_same([hessian_vector(f) for f in (DIVIDED["one axis"].mixture(exchange, 2), layer)], [operands()])


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_shard_map_over_some_axes_only(exchange):
    """XLA divides features among devices of the other axis, if it likes."""
    partly = Divided((4, 2), "x", "x").mixture(exchange, implementation="xla", axis_names={"x"})
    assert_same([gradient(f) for f in (partly, layer)], [(*operands(), experts) for experts in routings()[:2]])


def test_rounding_of_short_floats():
    """Each exchange is as near to exact sums as one device, which rounds the results of experts, too."""
    short = [*(x.astype("bfloat16") for x in operands()[:4]), operands("float32")[4], routings()[0]]
    wide = jax.jit(layer)(*(oracle.wide(x) for x in short[:5]), routings()[0])
    functions = [DIVIDED["two axes as one"].mixture(exchange) for exchange in EXCHANGES]
    *ours, alone = jax.jit(lambda *args: [f(*args) for f in (*functions, layer)])(*short)
    errors = [np.abs(oracle.wide(y) - wide).max() for y in (*ours, alone)]
    assert {y.dtype.name for y in ours} == {"bfloat16"}
    assert max(errors) < 2 * errors[-1]
    assert errors[-1] < 2**-6 * np.abs(wide).max()


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_experts_in_8_bits(exchange):
    d, f = 128, 128
    shapes = (8, d), (4, d, 2 * f), (4, f, d), (8, 4)
    args = [oracle.random(shape, "float32", seed) for seed, shape in enumerate(shapes)]

    def quantized(x, gate_up, down, logits, **options):
        return vb.moe.expert_mlp(x, gate_up, down, vb.moe.route(logits, 2), quantized=True, wgrad="wide", **options)

    divided = functools.partial(quantized, mesh_axis="x", exchange=exchange, chunks=2)
    ours = jax.shard_map(divided, mesh=mesh(2), in_specs=P("x"), out_specs=P("x"))
    # Equal cotangents: others might be rounded to different 8-bit numbers.
    value = lambda f: jax.value_and_grad(lambda *args: jnp.vdot(args[0], f(*args)), (0, 1, 2, 3))  # noqa: E731
    assert_same([value(f) for f in (ours, quantized)], [args], rtol=1e-3)


@pytest.mark.parametrize("kind", ["int4", "float8_e4m3fn"])
def test_weights_alone_are_narrow(kind):
    """Dtypes that promote with no other one: Scaled, and in int4 as they are."""
    shapes = (4, 32, 8), (4, 8, 16)
    quantize = jax.jit(lambda x: vb.quantize(x, kind, block=(1, -1)))
    scaled = [quantize(oracle.random(shape, "float32", 1)) for shape in shapes]
    x, logits = oracle.random((8, 8), "bfloat16", 2), oracle.random((8, 4), "float32", 3)

    def mixture(x, gate_up, down, logits, **options):
        return vb.moe.expert_mlp(x, gate_up, down, vb.moe.route(logits, 2), transpose_rhs=True, **options)

    divided = functools.partial(mixture, mesh_axis="x", exchange="all_to_all")
    ours = jax.shard_map(divided, mesh=mesh(2), in_specs=P("x"), out_specs=P("x"))
    for weights in (scaled, *([[w.values for w in scaled]] if kind == "int4" else [])):
        found, expected = (jax.jit(function)(x, *weights, logits) for function in (ours, mixture))
        assert found.dtype == expected.dtype == jnp.bfloat16
        largest = np.abs(oracle.wide(expected)).max()
        np.testing.assert_allclose(oracle.wide(found), oracle.wide(expected), rtol=0, atol=0.02 * largest)


def test_what_is_wrong_is_named():
    def run(axes=(2,), mesh_axis="x", **options):
        specs = (P("x"), P(), P(), P(), P("x"), P("x"))
        function = functools.partial(layer, mesh_axis=mesh_axis, **options)
        divided = jax.shard_map(function, mesh=mesh(*axes), in_specs=specs, out_specs=P("x"))
        jax.eval_shape(divided, *operands(), routings()[0])

    with pytest.raises(
        ValueError, match=r"expert_mlp: mesh_axis: the mesh axis 'x' has 3 devices, which don't divide 8"
    ):
        run((3,))
    with pytest.raises(ValueError, match=r"gate_up\[0\] is \(8, 5, 4\) but routing is of 4 experts on each of 2"):
        run()
    with pytest.raises(ValueError, match=r"exchange is 'psum': it must be None or one of all_gather, all_to_all, ragg"):
        run(exchange="psum")
    with pytest.raises(ValueError, match=r"exchange is 'all_gather' and chunks is 1, but without mesh_axis nothing is"):
        run(mesh_axis=None, exchange="all_gather")
    with pytest.raises(ValueError, match=r"chunks is 0: it must be at least 1"):
        run(chunks=0)
    with pytest.raises(TypeError, match=r"chunks must be an integer, not 2.0"):
        run(chunks=2.0)
