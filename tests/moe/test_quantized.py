"""`expert_mlp` with 8-bit products."""

import jax
import jax.numpy as jnp
import oracle
import pytest
from jax import export

import jax_vbgemm as vb
from jax_vbgemm import moe

TOKENS, EXPERTS, K, D, F, N = 40, 4, 2, 160, 128, 96
X, LOGITS, GATE_UP, DOWN = (
    oracle.random(shape, "float32", i) / scale
    for i, (shape, scale) in enumerate(
        [((TOKENS, D), 1), ((TOKENS, EXPERTS), 1), ((EXPERTS, D, 2 * F), D**0.5), ((EXPERTS, F, N), F**0.5)]
    )
)


def loss(x, logits, gate_up, down, **options):
    return jnp.sum(jnp.sin(moe.expert_mlp(x, gate_up, down, moe.route(logits, K), **options)))


def rounded(x, dtype="float8_e4m3fn", block=(1, 128)):
    # Without the barrier XLA leaves out the rounding on GPUs: it takes a narrow type between two wide ones for one that
    # may be wider (xla_allow_excess_precision).
    return jax.lax.optimization_barrier(vb.quantize(x, dtype, block)).dequantized()


@pytest.mark.parametrize("features", [F, 72])  # of 72, a block of 128 columns has some of both halves
@pytest.mark.parametrize("cotangents", ["float8_e5m2", "float8_e4m3fn"])
def test_values_and_gradients_are_those_of_rounded_factors(features, cotangents):
    gate_up, down = GATE_UP[:, :, : 2 * features], DOWN[:, :features]
    weights = [rounded(w, block=(128, 128)) for w in (gate_up, down)]

    @jax.custom_vjp
    def rounds(x):  # tokens or hidden features on their way into a product, whose cotangent passes
        return rounded(x)

    rounds.defvjp(lambda x: (rounded(x), None), lambda _, ct: (ct,))

    @jax.custom_vjp
    def rounds_back(y):  # a product's result, whose cotangent is rounded on its way into products with weights
        return y

    rounds_back.defvjp(lambda y: (y, None), lambda _, ct: (rounded(ct, cotangents),))

    def plain(x, logits):
        routing = moe.route(logits, K)
        rows = moe.dispatch(rounds(x), routing)
        sums = rounds_back(vb.ragged_dot(rows, weights[0], routing.group_sizes))
        gate, up = jnp.split(sums, 2, axis=1)
        scale = routing.probabilities.reshape(-1)[routing.order]
        hidden = rounds(scale[:, None] * (jax.nn.silu(gate) * up))
        y = rounds_back(vb.ragged_dot(hidden, weights[1], routing.group_sizes))
        return jnp.sum(jnp.sin(y[routing.slots].sum(axis=1)))

    def quantized(x, logits):
        return loss(x, logits, gate_up, down, quantized=True, cotangents=cotangents)

    both = [jax.tree.leaves(jax.jit(jax.value_and_grad(f, (0, 1)))(X, LOGITS)) for f in (quantized, plain)]
    for given, wanted in zip(*both, strict=True):
        # The tensor cores add with about 14 bits: a feature or a cotangent may be rounded to another number of 8 bits.
        assert jnp.linalg.norm(given - wanted) < 1e-2 * jnp.linalg.norm(wanted)


def test_the_gradients_of_weights_are_near_those_without_rounding():
    @jax.jit
    def gradients(*weights):
        return [jax.grad(loss, (2, 3))(X, LOGITS, *weights, **options) for options in ({}, {"quantized": True})]

    for exact, given in zip(*gradients(GATE_UP, DOWN), strict=True):
        assert jnp.linalg.norm(given - exact) < 0.15 * jnp.linalg.norm(exact)


@pytest.mark.multidevice(2)
@pytest.mark.parametrize("wgrad", ["float8", "wide"])
def test_weights_that_devices_share_in_shard_map(wgrad):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    data, shared = jax.P("data"), jax.P()

    def layer(x, logits, gate_up, down):
        return moe.expert_mlp(x, gate_up, down, moe.route(logits, K), quantized=True, wgrad=wgrad)

    divided = jax.shard_map(layer, mesh=mesh, in_specs=(data, data, shared, shared), out_specs=data)
    given, wanted = (
        jax.jit(jax.grad(lambda *args, f=f: jnp.sum(jnp.sin(f(*args))), (0, 1, 2, 3)))(X, LOGITS, GATE_UP, DOWN)
        for f in (divided, layer)
    )
    for one, other, rounding in zip(given, wanted, [1e-4, 1e-4, 0.1, 0.1], strict=True):
        # Rows have other neighbours in the blocks of gradients of weights.
        assert jnp.linalg.norm(one - other) < (1e-4 if wgrad == "wide" else rounding) * jnp.linalg.norm(other)


def test_gradients_export_with_a_symbolic_number_of_tokens():
    gradient = jax.jit(jax.grad(lambda *args: loss(*args, GATE_UP, DOWN, quantized=True), (0, 1)))
    (tokens,) = export.symbolic_shape("t")
    shapes = [jax.ShapeDtypeStruct((tokens, x.shape[1]), x.dtype) for x in (X, LOGITS)]
    exported = export.export(gradient, disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*shapes)
    for given, wanted in zip(exported.call(X, LOGITS), gradient(X, LOGITS), strict=True):
        # Another program may round a feature to another number of 8 bits.
        assert jnp.linalg.norm(given - wanted) < 2e-3 * jnp.linalg.norm(wanted)


def test_weights_that_were_quantized_before_are_not_read():
    experts = moe.quantize_experts(GATE_UP, DOWN)
    hidden = [jnp.full(w.shape, jnp.nan, w.dtype) for w in (GATE_UP, DOWN)]
    given = jax.jit(lambda: loss(X, LOGITS, *hidden, quantized=experts))()
    assert given == jax.jit(lambda: loss(X, LOGITS, GATE_UP, DOWN, quantized=True))()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"quantized": "float8"}, TypeError, "quantized must be None, True or a QuantizedExperts, not"),
        ({"quantized": True, "gated": False}, ValueError, "quantized experts are gated, with a named activation"),
        ({"quantized": True, "activation": jnp.sin}, ValueError, "with a named activation"),
        ({"quantized": True, "cotangents": "int8"}, ValueError, "cotangents is 'int8': it must be one of"),
        (
            {"quantized": moe.quantize_experts(GATE_UP[:2], DOWN[:2])}, ValueError,
            r"quantized.gate_up_back is \(2, 160, 256\) but gate_up is \(4, 160, 256\)",
        ),
    ],
)  # fmt: skip
def test_errors(options, error, message):
    down = GATE_UP.mT if options.get("gated") is False else DOWN
    with pytest.raises(error, match=message):
        loss(X, LOGITS, GATE_UP, down, **options)


def test_quantize_experts_refuses_matrices_that_are_not_stacked():
    with pytest.raises(ValueError, match=r"down is \(128, 96\): it must have three dimensions"):
        moe.quantize_experts(GATE_UP, DOWN[0])
