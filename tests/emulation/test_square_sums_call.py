"""square_sums' custom call from end to end without a GPU: its handler's checks and its kernels, emulated, under XLA."""

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import Builder

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src.elementwise import array_kernels, square_sums
from jax_vbgemm._src.elementwise.square_sums import square_sums_p
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.newton_schulz.norms import norms_of

pytestmark = emulated_call.MARKS

ROUNDING = {"float64": 1e-15}  # of sums in float32: 1e-6


@pytest.fixture(scope="module", autouse=True)
def emulated(builder: Builder):
    target = backends.SQUARE_SUMS_TARGET_NAME
    with emulated_call.emulated(
        builder, square_sums_p, square_sums, target, "square_sums", "square_sums", "vbgemm_square_sums"
    ):
        yield


def calls(compiled):
    return compiled.as_text().count('custom_call_target="vbgemm_square_sums_v1"')


@pytest.mark.parametrize("dtype", array_kernels.KERNEL_DTYPES)
def test_values(dtype):
    chunk = _core.ARRAY_CHUNK_BYTES // jnp.dtype(dtype).itemsize
    shapes = [(), (3,), (64, 67), (0, 5), (2, 3, 4), (chunk - 1,), (chunk,), (chunk + 1,), (3, chunk + 7), (0,)]
    xs = [oracle.random(shape, dtype) for shape in shapes]
    compiled = jax.jit(square_sums.square_sums).lower(xs).compile()
    assert calls(compiled) == 1
    sums = compiled(xs)
    expected = [np.sum(oracle.wide(x) ** 2) for x in xs]
    np.testing.assert_allclose(oracle.wide(sums), expected, rtol=ROUNDING.get(dtype, 1e-6))
    np.testing.assert_array_equal(compiled(xs), sums)


@pytest.mark.parametrize("dtype", array_kernels.KERNEL_DTYPES)
def test_sums_of_equal_elements(dtype):
    """The worst case: every rounding of a long sum then goes the same way."""
    x = jnp.full((512, 1024), 0.1, dtype)
    (total,) = jax.jit(square_sums.square_sums)([x])
    np.testing.assert_allclose(oracle.wide(total), np.sum(oracle.wide(x) ** 2), rtol=ROUNDING.get(dtype, 1e-6))


def test_all_empty():
    np.testing.assert_array_equal(square_sums.square_sums([jnp.ones((0, 3), "float32")] * 2), np.zeros(2))


def test_norms_of_newton_schulz():
    xs = [oracle.random(shape, "float32") for shape in [(12, 40), (37, 9), (1, 1), (0, 3)]]
    compiled = jax.jit(lambda xs: norms_of(xs, 2**20)).lower(xs).compile()
    assert calls(compiled) == 1
    np.testing.assert_allclose(compiled(xs), [np.linalg.norm(oracle.wide(x)) for x in xs], rtol=1e-6)
    with vb.target("h100"):
        iterate = jax.jit(lambda xs: vb.newton_schulz(xs, 3)).lower(xs).compile()
    assert calls(iterate) == 1
    for ours, theirs in zip(iterate(xs), vb.newton_schulz(xs, 3, implementation="xla"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def call(operands, results):
    f = jax.ffi.ffi_call(
        backends.SQUARE_SUMS_TARGET_NAME, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    )
    return jax.block_until_ready(jax.jit(f)(*operands))


X = np.ones((2, 3), np.float32)
SUM, TWO = ((1,), "float32"), ((2,), "float32")


def test_untampered_call_is_right():
    np.testing.assert_array_equal(call([X, 2 * X], [TWO, TWO])[0], [6, 24])


@pytest.mark.parametrize(
    ("operands", "results", "message"),
    [
        ([], [SUM, SUM], "expected at least 1 array"),
        ([X, X.astype("float64")], [TWO, TWO], "array 1 must have the dtype of array 0"),
        ([X.astype("int32")], [SUM, SUM], "no kernel sums the squares of this dtype"),
        ([X.astype("complex64")], [SUM, SUM], "no kernel sums the squares of this dtype"),
        ([X], [TWO, TWO], "the sums must have"),
        ([X], [((1,), "float64"), SUM], "the sums must have"),
        ([X.astype("float16")], [((1,), "float16"), SUM], "the sums must have"),
        ([X, X], [TWO, SUM], "the workspace must have the accumulator's dtype and 2 elements"),
        ([np.ones(4097, np.float32)], [SUM, SUM], "the workspace must have the accumulator's dtype and 2 elements"),
        ([X], [SUM, ((2,), "float64")], "the workspace must have the accumulator's dtype and 1 elements"),
        ([X], [SUM], "results"),
    ],
)
def test_calls_that_do_not_fit_their_buffers(operands, results, message):
    with pytest.raises(Exception, match=message):
        call(operands, results)
