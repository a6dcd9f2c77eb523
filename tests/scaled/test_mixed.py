"""Rows of 16 bits times weights of 8 or 4 bits, which have scales: `ragged_dot` and `expert_mlp`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.ragged.choice import FactorDtypes, LoweredProgram, choose
from jax_vbgemm._src.ragged.primitive import Ragged

GROUPS, ROWS, K, N = 3, 21, 272, 144
SIZES = jnp.array([9, 0, 7])  # 5 rows have no group
BLOCKS = {"columns": (1, -1), "columns of 128": (1, 128), "128 x 128": (128, 128), "matrices": (-1, -1)}


# One program, not one for each operation.
quantize = jax.jit(vb.quantize, static_argnames=("dtype", "block"))
ragged_dot = jax.jit(vb.ragged_dot, static_argnames=("transpose_rhs", "gated", "activation"))


def drawn(shape, dtype=np.float32, seed=0):
    return jax.device_put(np.random.default_rng(seed).normal(size=shape).astype(dtype))


@partial(jax.jit, static_argnums=1)
def widened(weights, dtype=np.float32):
    return weights.dequantized(dtype)


def expected(lhs, weights, gated=False):
    """In float64, of the quantized weights."""
    factor = oracle.wide(widened(weights))
    result, begin = np.zeros((ROWS, N)), 0
    for group, size in enumerate(np.asarray(SIZES)):
        result[begin : begin + size] = oracle.wide(lhs)[begin : begin + size] @ factor[group].T
        begin += size
    if gated:
        gate, up = np.split(result, 2, axis=1)
        result = gate / (1 + np.exp(-gate)) * up
    return result


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["int8", "int4", "float8_e4m3fn"])
def test_values(kind, dtype):
    lhs = drawn((ROWS, K), dtype)
    for block in BLOCKS.values():
        weights = quantize(drawn((GROUPS, N, K), seed=1) / 16, kind, block=block)
        for gated in (False, True):
            found = ragged_dot(
                lhs, weights, SIZES, transpose_rhs=True, gated=gated, activation="silu" if gated else None
            )
            assert found.dtype == lhs.dtype
            # On a CPU, scaled weights are rounded to the rows' dtype.
            truth = expected(lhs, weights, gated)
            tolerance = 2 * float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(
                oracle.wide(found), truth, rtol=8 * tolerance, atol=tolerance * np.abs(truth).max()
            )


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_gradient_of_the_rows(kind):
    lhs, weights = drawn((ROWS, K), jnp.bfloat16), quantize(drawn((GROUPS, N, K), seed=1), kind, block=(1, -1))
    factor = drawn((ROWS, N), seed=2)

    def loss(lhs, weights):
        return (factor * vb.ragged_dot(lhs, weights, SIZES, transpose_rhs=True).astype(np.float32)).sum()

    gradient = jax.jit(jax.grad(loss))
    found, truth = (gradient(lhs, w) for w in (weights, widened(weights, jnp.bfloat16)))
    np.testing.assert_array_equal(oracle.wide(found), oracle.wide(truth))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_transpose_in_the_scales(kind):
    lhs, weights = drawn((ROWS, K), jnp.bfloat16), quantize(drawn((GROUPS, N, K), seed=1), kind, block=(1, -1))
    cotangent = drawn((ROWS, N), jnp.bfloat16, seed=2)

    def product(scales):
        return vb.ragged_dot(lhs, vb.Scaled(weights.values, scales, weights.block), SIZES, transpose_rhs=True)

    (found,) = jax.jit(jax.linear_transpose(product, weights.scales))(cotangent)
    (expected,) = jax.jit(lambda y: jax.vjp(product, weights.scales)[1](y))(cotangent)
    np.testing.assert_array_equal(found, expected)
    assert np.any(expected)


def test_a_layer_of_experts():
    x, routing = drawn((12, 128), jnp.bfloat16), vb.moe.route(drawn((12, 4), seed=3), 2)
    gate_up, down = (quantize(drawn(s, seed=4) / 8, "int8", block=(1, 128)) for s in ((4, 512, 128), (4, 128, 256)))
    wide = [widened(w, jnp.bfloat16) for w in (gate_up, down)]

    @jax.jit
    def layer(gate_up, down):
        return vb.moe.expert_mlp(x, gate_up, down, routing, transpose_rhs=True)

    truth = oracle.wide(layer(*wide))
    halves = tuple(
        vb.Scaled(*parts, (1, 128))
        for parts in zip(*(jnp.split(a, 2, axis=1) for a in (gate_up.values, gate_up.scales)), strict=True)
    )
    for weights in (gate_up, halves):
        found = layer(weights, down)
        np.testing.assert_allclose(oracle.wide(found), truth, atol=0.02 * np.abs(truth).max())


def chosen(rows, dtypes=(jnp.bfloat16, np.int8), k=256, hint=None, blocks=(512, 2), **form):
    shapes = [(rows, k), (8, 512, k), (8,), (8, *blocks)]
    ragged = Ragged(np.dtype(dtypes[0]), 8, transpose_rhs=True, extras=("rhs_scale",), hint=hint, **form)
    with vb.target("h100"):
        return choose(LoweredProgram("cuda", True), FactorDtypes(*map(np.dtype, dtypes)), shapes, ragged)


def test_weights_stay_narrow_where_groups_have_few_rows():
    few, many = chosen(8 * 4), chosen(8 * 400)
    assert few.parts == {}
    assert few.plan.shape == "wide"
    assert "so many rows" in many.parts["scales"]
    assert chosen(8 * 400, hint=4).parts == {}
    assert "multiples of 16" in chosen(8 * 4, k=264).parts["scales"]
    assert "multiples of 32" in chosen(8 * 4, dtypes=(jnp.bfloat16, jnp.int4), k=272).parts["scales"]
    assert chosen(8 * 4, dtypes=(np.float16, jnp.int4), k=288).parts == {}
    assert "scales" in chosen(8 * 4, dtypes=(np.float32, np.int8)).parts


def test_bad_partners_of_scaled_weights():
    weights = quantize(drawn((GROUPS, N, K)), "int8", block=(1, -1))
    with pytest.raises(ValueError, match="lhs is int32 beside a Scaled"):
        vb.ragged_dot(jnp.ones((ROWS, K), np.int32), weights, SIZES, transpose_rhs=True)
    with pytest.raises(ValueError, match="lhs is float8_e4m3fn beside a Scaled"):
        vb.ragged_dot(jnp.ones((ROWS, K), jnp.float8_e4m3fn), weights, SIZES, transpose_rhs=True)
    with pytest.raises(TypeError, match="a pair with a Scaled"):
        vb.ragged_dot(jnp.ones((ROWS, K)), (weights, weights), SIZES, transpose_rhs=True)


@pytest.mark.parametrize("block", [(1, -1), (1, 32)])
def test_scaled_weights_have_no_sums_of_gradients(block):
    weights = quantize(drawn((GROUPS, N, K)), "int8", block=block)
    sums = jax.new_ref(jnp.zeros((GROUPS, N, K)))
    with pytest.raises(ValueError, match="rhs is Scaled"):
        vb.ragged_dot(drawn((ROWS, K)), weights, SIZES, transpose_rhs=True, rhs_gradient=sums)
    x, routing = drawn((6, K)), vb.moe.route(drawn((6, GROUPS)), 1)
    with pytest.raises(ValueError, match="Scaled already"):
        vb.moe.expert_mlp(x, weights, weights.mT, routing, transpose_rhs=True, quantized=True, gated=False)
    narrow = quantize(drawn((GROUPS, K, 8)), "float8_e4m3fn")
    refs = tuple(jax.new_ref(jnp.zeros(shape)) for shape in ((GROUPS, K, 8), (GROUPS, 8, K)))
    with pytest.raises(ValueError, match=r"gradients\[0\] is for weights that have a gradient, but gate_up is Scaled"):
        vb.moe.expert_mlp(x, narrow, narrow.mT, routing, gradients=refs, gated=False)
