"""Ragged contractions that are added to an accumulator, and gradients that are."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src import backends

M, K, N, GROUPS = 40, 16, 24, 3
SIZES = jnp.array([21, 0, 15])
NUMBERS = jax.lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "complex64"])


def operands(dtype, *, transposed=False):
    rhs = oracle.random((GROUPS, N, K) if transposed else (GROUPS, K, N), dtype, 2)
    total = oracle.random(rhs.shape, wide(dtype), 3)
    return oracle.random((M, K), dtype, 1), rhs, total


def wide(dtype):
    return "float32" if jnp.dtype(dtype).itemsize == 2 else dtype


def contraction(lhs, dy, sizes=SIZES, **options):
    options = {"preferred_element_type": wide(lhs.dtype), "precision": "highest", **options}
    return vb.ragged_dot_general(lhs, dy, sizes, NUMBERS, **options)


def assert_close(one, other, tolerance=1e-5):
    one, other = oracle.wide(one), oracle.wide(other)
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1, abs(other).max()))


@DTYPES
@pytest.mark.parametrize("offset", [None, 1])
def test_a_contraction_is_added(dtype, offset):
    lhs, _, total = operands(dtype)
    dy = oracle.random((M, N), dtype, 4)
    options = {} if offset is None else {"group_offset": offset, "groups": GROUPS}
    sizes = SIZES if offset is None else jnp.array([5, 21, 0, 10])
    got = jax.jit(lambda total: contraction(lhs, dy, sizes, accumulator=total, **options))(total)
    assert got.dtype == total.dtype
    assert_close(got, total + contraction(lhs, dy, sizes, **options))


def test_matrices_without_rows_keep_their_bits():
    lhs, _, total = operands("bfloat16")
    total = total.at[1].set(-0.0)
    got = contraction(lhs, jnp.ones((M, N), "bfloat16"), accumulator=total)
    np.testing.assert_array_equal(got[1], total[1])


def test_more_dimensions():
    """Batch dimensions, several free ones, and contracted dimensions before the ragged one, which are summed."""
    total = oracle.random((GROUPS, 5, 3, 4), "float32", 3)

    def check(lhs_shape, dy_shape, dot, ragged_dimension, sizes):
        lhs, dy = oracle.random(lhs_shape, "float32", 1), oracle.random(dy_shape, "float32", 2)
        numbers = jax.lax.RaggedDotDimensionNumbers(dot, [ragged_dimension], [])
        product = partial(vb.ragged_dot_general, lhs, dy, sizes, numbers, precision="highest")
        assert_close(product(accumulator=total), total + product())

    check((2, 5, 3, M), (5, 2, M, 4), (([0, 3], [1, 2]), ([1], [0])), 3, jnp.tile(SIZES, (5, 2, 1)))
    check((5, 3, M), (5, M, 4), (([2], [1]), ([0], [0])), 2, jnp.tile(SIZES, (5, 1)))


def test_derivatives_and_vmap_of_the_sum():
    lhs, _, total = operands("float32")
    dy = oracle.random((M, N), "float32", 4)

    def fused(lhs, dy, total):
        return jnp.sin(contraction(lhs, dy, accumulator=total)).sum()

    def plain(lhs, dy, total):
        return jnp.sin(total + contraction(lhs, dy)).sum()

    every = (0, 1, 2)
    second = lambda f: jax.hessian(lambda t: f(lhs * t, dy, total * t))(jnp.float32(0.7))  # noqa: E731
    for of in (lambda f: jax.grad(f, every)(lhs, dy, total), second):
        for one, other in zip(jax.tree.leaves(of(fused)), jax.tree.leaves(of(plain)), strict=True):
            assert_close(one, other, 1e-4)
    for axes in [(0, None, None), (None, None, 0), (0, None, 0)]:
        mapped = [x if axis is None else jnp.stack([x, -x]) for x, axis in zip((lhs, dy, total), axes, strict=True)]
        assert_close(jax.vmap(fused, axes)(*mapped), jax.vmap(plain, axes)(*mapped))
    cotangent = oracle.random(total.shape, "float32", 5)
    (linear,) = jax.linear_transpose(lambda total: contraction(lhs, dy, accumulator=total), total)(cotangent)
    np.testing.assert_array_equal(linear, cotangent)


@DTYPES
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("selection", ["none", "gather", "slots"])
def test_the_gradient_of_rhs_is_added(dtype, transposed, selection):
    lhs, rhs, total = operands(dtype, transposed=transposed)
    options = {"transpose_rhs": transposed, "precision": "highest"}
    index = jnp.asarray(np.random.default_rng(0).permutation(M))
    options |= {"none": {}, "gather": {"gather": index}, "slots": {"gather": (index, jnp.argsort(index)[:, None])}}[
        selection
    ]

    def loss(lhs, rhs, total):
        y = vb.ragged_dot(lhs, rhs, SIZES, rhs_gradient=total, **options)
        return jnp.sin(y).real.astype("float32").sum()

    got = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(lhs, rhs, total)
    of_lhs, of_rhs = jax.grad(loss, argnums=(0, 1))(lhs, rhs, None)
    tolerance = 2e-2 if jnp.dtype(dtype).itemsize == 2 else 1e-5
    assert_close(got[0], of_lhs, tolerance)
    assert not got[1].any()
    assert_close(got[2], total + of_rhs.astype(total.dtype), tolerance)


def test_a_scan_over_micro_batches():
    """The sum of a layer's gradients, as a scan's carry, is that of one batch of all tokens."""
    d, f, experts, batches, tokens = 16, 8, 4, 3, 20
    gate_up, down = oracle.random((experts, d, 2 * f), "bfloat16", 1), oracle.random((experts, f, d), "bfloat16", 2)
    x, logits = (
        oracle.random((batches, tokens, d), "bfloat16", 3),
        oracle.random((batches, tokens, experts), "float32", 4),
    )

    def loss(weights, gradients, x, logits):
        y = vb.moe.expert_mlp(x, *weights, vb.moe.route(logits, 2), gradients=gradients)
        return jnp.sin(y.astype("float32")).sum()

    @jax.jit
    def scanned(x, logits):
        def step(total, batch):
            return jax.grad(loss, argnums=1)((gate_up, down), total, *batch), None

        zeros = jnp.zeros(gate_up.shape, "float32"), jnp.zeros(down.shape, "float32")
        return jax.lax.scan(step, zeros, (x, logits))[0]

    def in_float32(weights):
        return loss(weights, None, x.reshape(-1, d).astype("float32"), logits.reshape(-1, experts))

    expected = jax.grad(in_float32)((gate_up.astype("float32"), down.astype("float32")))
    for one, other in zip(scanned(x, logits), expected, strict=True):
        assert one.dtype == "float32"
        assert_close(one, other, 3e-2)


def test_what_is_wrong_is_named():
    lhs, rhs, total = operands("bfloat16")
    dy = jnp.ones((M, N), "bfloat16")

    def refused(match, **options):
        with pytest.raises(ValueError, match=re.escape(match)):
            vb.ragged_dot(lhs, rhs, SIZES, **options)

    refused("rhs_gradient is (3, 16, 23) but must be the shape of rhs, (3, 16, 24)", rhs_gradient=total[..., 1:])
    refused("rhs_gradient is float64 but rhs is bfloat16: it must be float32", rhs_gradient=total.astype("float64"))
    refused("rhs_gradient is bfloat16 but rhs is bfloat16: it must be float32", rhs_gradient=total.astype("bfloat16"))
    with pytest.raises(ValueError, match="gradients must be a pair"):
        vb.moe.expert_mlp(
            lhs, rhs, jnp.ones((3, 12, 4), "bfloat16"), vb.moe.route(jnp.ones((M, 3)), 2), gradients=total
        )
    refused("rhs_gradient is for products without activation", rhs_gradient=total, activation="relu")
    refused("rhs_gradient is for products without bias", rhs_gradient=total, bias=jnp.ones((GROUPS, N), "bfloat16"))
    with pytest.raises(ValueError, match=re.escape("must have the result's dtype and shape, float32(3, 16, 24)")):
        contraction(lhs, dy, accumulator=total.astype("bfloat16"))
    rows = jax.lax.RaggedDotDimensionNumbers((([1], [1]), ([], [])), [0], [0])
    with pytest.raises(ValueError, match="an accumulator is for ragged contractions"):
        vb.ragged_dot_general(lhs, rhs, SIZES, rows, accumulator=total)


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "in_kernel"),
    [
        ("bfloat16", "float32", True),
        ("float16", "float32", True),
        ("bfloat16", "bfloat16", False),
        ("float32", "float32", False),
    ],
)
def test_the_pipelined_kernel_adds_to_float32(dtype, out_dtype, in_kernel):
    shapes = [((M, K), dtype), ((M, N), dtype), ((GROUPS, K, N), out_dtype)]

    def add(lhs, dy, total):
        return contraction(lhs, dy, accumulator=total, preferred_element_type=out_dtype)

    with vb.target("h100"):
        program = jax.export.export(jax.jit(add), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            *(jax.ShapeDtypeStruct(*shape) for shape in shapes)
        )
    text = program.mlir_module()
    assert backends.RAGGED_TARGET_NAME in text
    assert ("stablehlo.add" not in text) == ("output_operand_alias" in text) == in_kernel


@pytest.mark.gpu
def test_a_gpu_adds_in_place():
    """A donated accumulator is the result's memory, and an accumulator that is needed later keeps its values."""
    lhs, _, total = operands("bfloat16")
    dy = oracle.random((M, N), "bfloat16", 4)
    expected, start = total + contraction(lhs, dy), np.asarray(total)

    def add(total):
        return contraction(lhs, dy, accumulator=total)

    assert_close(jax.jit(add)(total), expected)
    np.testing.assert_array_equal(total, start)
    program = jax.jit(add, donate_argnums=0).lower(total).compile()
    assert program.memory_analysis().alias_size_in_bytes == total.nbytes
    if jax.devices()[0].compute_capability == "9.0":  # elsewhere the contraction is stored, and XLA adds it
        assert program.memory_analysis().temp_size_in_bytes < total.nbytes
    assert_close(program(total), expected)
