"""`Scaled`, `quantize`, and `ragged_dot` of scaled factors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.ragged.aligned_groups import aligned_groups, quantized_contraction
from jax_vbgemm._src.scaled.blocks import quantized

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int8", "int4"]
SIZES = jnp.array([5, 0, 9])

# One program, not one for each operation; some tests call vb.quantize outside of jit.
quantize = jax.jit(vb.quantize, static_argnames=("dtype", "block"))


@jax.jit
def widened(*scaled):
    """The numbers of factors in float32."""
    return [x.dequantized() for x in scaled]


def random(shape, seed):
    return oracle.random(shape, "float32", seed)


def blocks_of(x, block):
    """The blocks of a matrix, as NumPy arrays."""
    return [x[i : i + block[0], j : j + block[1]] for i in range(0, x.shape[0], block[0]) for j in range(
        0, x.shape[1], block[1]
    )]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOAT8, *INTEGERS])
@pytest.mark.parametrize("block", [(1, 128), (128, 128), (1, 7), (-1, -1), (1, -1), (4, 1)])
@pytest.mark.parametrize("shape", [(3, 130), (1, 1), (9, 128)])
def test_the_largest_number_of_each_block_is_the_largest_of_the_dtype(dtype, block, shape):
    x = np.asarray(random(shape, 1))
    quantized = quantize(x, dtype, block)
    largest = float(jnp.iinfo(dtype).max if dtype in INTEGERS else jnp.finfo(dtype).max)
    whole = [size if each == -1 else each for size, each in zip(shape, block, strict=True)]
    values = np.asarray(quantized.values).astype(np.float32)
    scales = [np.abs(part).max() / np.float32(largest) for part in blocks_of(x, whole)]
    np.testing.assert_allclose(quantized.scales.ravel(), scales, rtol=1e-6)
    assert all(np.abs(part).max() == largest for part in blocks_of(values, whole))
    step = 0.5 if dtype in INTEGERS else largest * 2.0 ** -(4 if dtype == "float8_e4m3fn" else 3)
    error = np.abs(np.asarray(*widened(quantized)) - x)
    for part, scale in zip(blocks_of(error, whole), scales, strict=True):
        assert part.max() <= 1.001 * step * scale  # half a unit of the largest numbers


@pytest.mark.parametrize("dtype", [*FLOAT8, *INTEGERS])
def test_odd_blocks(dtype):
    x = jnp.array([[0.0, 0.0], [jnp.nan, 1.0], [jnp.inf, 1.0], [1e-42, 0.0], [3e38, -3e38]])
    quantized = vb.quantize(x, dtype, (1, 2)).dequantized()
    assert quantized[0].tolist() == [0, 0]
    assert jnp.isnan(quantized[1:3]).all()
    assert jnp.abs(quantized[3]).max() < 1e-35  # a subnormal may be flushed to zero
    np.testing.assert_allclose(quantized[4], x[4], rtol=1e-6)


def test_given_scales_saturate():
    x = vb.quantize(jnp.array([[1000.0, -1000.0, 1.0]]), block=(1, 3), scales=jnp.ones((1, 1), jnp.float32))
    assert x.values.astype(jnp.float32).tolist() == [[448, -448, 1]]


def test_an_int4_keeps_integers_up_to_7():
    x = jnp.arange(-7.0, 8.0).reshape(1, 15)
    scaled = vb.quantize(8 * x, "int4", (1, -1))
    assert scaled.dtype == jnp.int4
    assert scaled.scales.tolist() == [[8.0]]
    np.testing.assert_array_equal(scaled.dequantized(), 8 * x)
    lowest = vb.Scaled(
        jnp.full((1, 2), -8, jnp.int4), jnp.ones((1, 1), jnp.float32), (1, 2)
    )  # which quantize leaves out
    assert lowest.dequantized().tolist() == [[-8.0, -8.0]]


def test_no_elements():
    assert vb.quantize(jnp.zeros((0, 4)), block=(1, 2)).dequantized().shape == (0, 4)
    assert vb.quantize(jnp.zeros((3, 0)), block=(1, -1)).dequantized().shape == (3, 0)


def test_scaled_is_a_pytree_and_has_a_transpose():
    x = quantize(random((2, 3, 5), 2), block=(2, 3))
    np.testing.assert_array_equal(x.mT.dequantized(), x.dequantized().mT)
    doubled = jax.tree.map(lambda leaf: leaf, x)
    again = jax.jit(lambda x: x.mT.mT)(doubled)
    assert (again.block, again.shape) == (x.block, x.shape)
    np.testing.assert_array_equal(again.dequantized(jnp.bfloat16), x.dequantized(jnp.bfloat16))
    many = jax.vmap(lambda x: vb.quantize(x, block=(2, 3)))(random((4, 2, 3), 3))
    assert (many.shape, many.blocks) == ((4, 2, 3), (4, 1, 1))
    one = vb.quantize(random((4, 2, 3), 3)[1], block=(2, 3))
    np.testing.assert_allclose(many.dequantized()[1], one.dequantized(), rtol=1e-6)


@pytest.mark.parametrize(("lhs_dtype", "rhs_dtype"), [FLOAT8, FLOAT8[::-1], ("int8", "int8")])
@pytest.mark.parametrize(
    ("lhs_block", "rhs_block"), [((1, 128), (128, 128)), ((1, -1), (-1, -1)), ((1, 128), (1, -1)), ((2, 5), (1, 128))]
)
def test_products_are_those_of_the_numbers(lhs_dtype, rhs_dtype, lhs_block, rhs_block):
    lhs = quantize(random((14, 200), 1), lhs_dtype, lhs_block)
    rhs = quantize(random((3, 130, 200), 2), rhs_dtype, rhs_block)
    bias, row_scale = random((3, 130), 3), random((14,), 4)

    def results(lhs, rhs, **options):
        rest = {"bias": bias, "activation": "relu", "row_scale": row_scale}
        forward = [vb.ragged_dot(lhs, rhs, SIZES, transpose_rhs=True, **options, **more) for more in ({}, rest)]
        return *forward, vb.ragged_dot(lhs, rhs.mT, SIZES, **options)

    given = jax.jit(lambda *factors: results(*factors, preferred_element_type=jnp.float32))(lhs, rhs)
    for found, wanted in zip(given, jax.jit(results)(*widened(lhs, rhs)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    assert jax.eval_shape(lambda: vb.ragged_dot(lhs, rhs, SIZES, transpose_rhs=True)).dtype == jnp.bfloat16


def test_gathered_rows_have_their_scales():
    lhs, rhs = quantize(random((4, 256), 1)), quantize(random((3, 8, 256), 2), block=(128, 128))
    gather = jnp.array([3, 3, 0, 1, 2, 2, 0, 1, 3, 0, 0, 1, 2, 2])
    given = vb.ragged_dot(lhs, rhs, SIZES, transpose_rhs=True, gather=gather, preferred_element_type=jnp.float32)
    wanted = vb.ragged_dot(*widened(lhs, rhs), SIZES, transpose_rhs=True, gather=gather)
    np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-4)


def test_a_factor_beside_one_that_is_not_scaled_is_widened():
    lhs, rhs = random((14, 8), 1), quantize(random((3, 8, 6), 2), "int8", (-1, 1))
    np.testing.assert_allclose(vb.ragged_dot(lhs, rhs, SIZES), vb.ragged_dot(lhs, *widened(rhs), SIZES), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "block"), [("float8_e4m3fn", (128, 128)), ("int8", (1, -1))])
def test_gradients_with_respect_to_scales(dtype, block):
    lhs, rhs = quantize(random((14, 8), 1), dtype), quantize(random((3, 6, 8), 2), dtype, block)

    def loss(scales, dense):
        one = vb.Scaled(lhs.values, scales, lhs.block)
        other = rhs.dequantized() if dense else rhs
        product = vb.ragged_dot(
            one.dequantized() if dense else one, other, SIZES, transpose_rhs=True, preferred_element_type=jnp.float32
        )
        return jnp.sum(product**2)

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    np.testing.assert_allclose(*(gradient(lhs.scales, dense) for dense in (False, True)), rtol=1e-4)


@pytest.mark.parametrize("sizes", [[5, 0, 200, 3], [300, 300], [0], [-4, 130, 2**31 - 1, 7], [128, 256]])
def test_the_gradient_of_weights_is_that_of_rounded_rows(sizes):
    m = 260
    x, y, sizes = random((m, 40), 1), random((50, 136), 2), jnp.array(sizes)
    tokens = jnp.arange(m) * 7 % 50

    @jax.jit
    def both(x, y):
        exact, rows = aligned_groups(sizes, m)
        given = (x, FLOAT8[0], rows), (y, FLOAT8[1], jnp.where(rows < 0, -1, tokens[rows]))
        factors = [quantized(kind, x=x[None], index=index, in_rows=False, in_columns=True) for x, kind, index in given]
        blocks_of_rows = [
            vb.quantize(jnp.where(index[:, None] < 0, 0, x[index]), kind, (128, 128)) for x, kind, index in given
        ]
        return rows, exact, quantized_contraction(*factors, exact, jnp.float32, None), blocks_of_rows

    rows, exact, given, (lhs, rhs) = both(x, y)
    assert np.sort(rows[rows >= 0]).tolist() == list(range(sum(exact)))
    (lhs, rhs), begin = map(oracle.wide, widened(lhs, rhs)), 0
    for size, gradient in zip(exact, given, strict=True):
        part = slice(begin, begin + size)
        assert (np.diff(rows[part]) == 1).all()
        magnitude = np.abs(lhs[part]).T @ np.abs(rhs[part])
        # The tensor cores add with about 14 bits.
        assert (np.abs(np.asarray(gradient) - lhs[part].T @ rhs[part]) <= 2.0**-10 * magnitude + 1e-6).all()
        begin += -(-int(size) // 128) * 128
        assert (rows[part.stop : begin] == -1).all()


def shapes_of(shape, dtype, block=(1, 128)):
    return jax.eval_shape(lambda x: vb.quantize(x, dtype, block), jax.ShapeDtypeStruct(shape, jnp.float32))


def kinds_of(lhs, rhs, gpu="h100", **options):
    """The arithmetics of the ragged calls in a program for a GPU."""
    with vb.target(gpu):
        program = export.export(
            jax.jit(lambda lhs, rhs: vb.ragged_dot(lhs, rhs, SIZES, **options)),
            platforms=["cuda"],
            disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS,
        )(lhs, rhs)
    lines = [line for line in program.mlir_module().splitlines() if f"@{backends.RAGGED_TARGET_NAME}(" in line]
    return [list(ARITHMETICS)[int(re.findall(r"kind = (\d+)", line)[0])] for line in lines]


@pytest.mark.parametrize(
    ("lhs_dtype", "rhs_dtype"), [*((lhs, rhs) for lhs in FLOAT8 for rhs in FLOAT8), ("int8", "int8")]
)
def test_an_h100_multiplies_8_bits(lhs_dtype, rhs_dtype):
    lhs = shapes_of((14, 256), lhs_dtype)
    rhs = shapes_of((3, 128, 256), rhs_dtype, (128, 128))
    (kind,) = kinds_of(lhs, rhs, transpose_rhs=True)
    assert (ARITHMETICS[kind].lhs, ARITHMETICS[kind].rhs) == (lhs_dtype, rhs_dtype)
    columns, parts = (shapes_of((3, 128, 256), rhs_dtype, (1, k)) for k in (-1, 128))
    assert kinds_of(lhs, columns, transpose_rhs=True) == [kind]
    assert kinds_of(lhs, parts, transpose_rhs=True) == []  # by XLA: the scales of a column have parts of K
    assert kinds_of(lhs, jax.eval_shape(lambda x: x.mT, rhs)) == ["float32"]  # not along K
    assert kinds_of(lhs, rhs, gpu="a100", transpose_rhs=True) == ["float32"]
    gated = {"transpose_rhs": True, "gated": True, "activation": "silu"}
    assert kinds_of(lhs, shapes_of((3, 512, 256), rhs_dtype, (128, 128)), **gated) == [kind]
    assert kinds_of(lhs, shapes_of((3, 192, 256), rhs_dtype, (128, 128)), **gated) == ["float32"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: vb.quantize(jnp.ones((2, 2), jnp.int32)), TypeError, r"x is int32\(2, 2\): it must be floating"),
        (lambda: vb.quantize(jnp.ones((2, 2)), "float16"), ValueError, "dtype is float16: it must be one of"),
        (lambda: vb.quantize(jnp.ones(2), block=(1, 1)), ValueError, r"block is \(1, 1\) but x is \(2,\)"),
        (lambda: vb.quantize(jnp.ones(2), block=(0,)), TypeError, "block must be a tuple of positive integers and -1"),
        (lambda: vb.quantize(jnp.ones(2), block=2), TypeError, "block must be a tuple"),
        (
            lambda: vb.quantize(jnp.ones((1, 4)), block=(1, 2), scales=jnp.ones((1, 1), jnp.float32)), ValueError,
            r"scales is float32\(1, 1\) but must be float32\(1, 2\)",
        ),
        (lambda: vb.Scaled(jnp.ones((2, 2)), jnp.ones((1, 1)), (2, 2)), ValueError, "values is float"),
        (lambda: vb.Scaled(jnp.ones((2,), jnp.int8), jnp.ones((1,), jnp.float32), (2, 2)), TypeError, "block is"),
        (
            lambda: vb.Scaled(jnp.ones((2, 2), jnp.int8), jnp.ones((2, 1), jnp.float32), (2, 2)), ValueError,
            r"scales must be float32\(1, 1\)",
        ),
    ],
)  # fmt: skip
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_options_of_two_scaled_factors():
    lhs, rhs = quantize(jnp.ones((4, 128)), "int8"), quantize(jnp.ones((1, 16, 128)), "int8", block=(128, 128))

    def product(**options):
        return vb.ragged_dot(lhs, rhs, jnp.array([4]), transpose_rhs=True, **options)

    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert product(preferred_element_type=np.float64).dtype == (np.float64 if x64 else np.float32)
    with pytest.raises(TypeError, match="ragged_dot: preferred_element_type: data type 'float99'"):
        product(preferred_element_type="float99")
    with pytest.raises(ValueError, match="ragged_dot: precision: unknown name 'exact'"):
        product(precision="exact")


def test_dot_algorithms_of_float8():
    """Kernels compute both; other factors, and products that a kernel does not compute, are not meant by them."""
    x, w = random((5, 256), 1), random((1, 16, 256), 2)
    sizes = jnp.array([5])

    def product(precision, dtype="float8_e4m3fn", **options):
        lhs, rhs = quantize(x, dtype, block=(1, -1)), quantize(w, dtype, block=(1, -1))
        return vb.ragged_dot(lhs, rhs, sizes, transpose_rhs=True, precision=precision, **options)

    expected = product(None)
    for name in ("ANY_F8_ANY_F8_F32", "ANY_F8_ANY_F8_F32_FAST_ACCUM"):
        for precision in (name, jax.lax.DotAlgorithmPreset[name]):
            for options in ({}, {"implementation": "xla"}):
                found = product(precision, **options)
                np.testing.assert_allclose(found, expected, rtol=2**-7, atol=2**-7)
    with jax.default_matmul_precision("ANY_F8_ANY_F8_F32_FAST_ACCUM"):
        jaxpr = jax.make_jaxpr(product, static_argnums=0)(None)
        np.testing.assert_allclose(product(None, implementation="xla"), expected, rtol=2**-7, atol=2**-7)
    assert "fast_accumulation=True" in str(jaxpr)
    assert "fast_accumulation=False" in str(jax.make_jaxpr(lambda: product(None))())
    with pytest.raises(
        ValueError, match="ANY_F8_ANY_F8_F32 is for two Scaled 8-bit floats, but lhs is Scaled int8 and rhs Scaled int8"
    ):
        product("ANY_F8_ANY_F8_F32", "int8")


@pytest.mark.parametrize("k", [131056, 131072])
def test_sums_of_int8_at_the_bound_of_int32(k):
    """A tensor core's sum of all of K fits in 32 bits with the first one, and with the second one no longer."""
    lhs, rhs = (
        vb.Scaled(jnp.full(shape, -128, jnp.int8), jnp.ones((*shape[:-1], 1), jnp.float32), block)
        for shape, block in (((2, k), (1, k)), ((1, 16, k), (1, 1, k)))
    )
    y = vb.ragged_dot(lhs, rhs, jnp.array([2]), transpose_rhs=True, preferred_element_type=jnp.float32)
    np.testing.assert_array_equal(y, np.float32(16384 * k))
