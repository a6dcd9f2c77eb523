"""quantize's custom call from end to end without a GPU: its handler's checks and its kernel, emulated, under XLA."""

from functools import partial

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import Builder

import jax_vbgemm as vb
from jax_vbgemm._src import backends
from jax_vbgemm._src.scaled import blocks

pytestmark = emulated_call.MARKS

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(scope="module", autouse=True)
def emulated(builder: Builder):
    with emulated_call.emulated(
        builder, blocks.quantize_p, blocks, backends.QUANTIZE_TARGET_NAME, "quantize", "quantize"
    ):
        yield


def compiled(f, *operands):
    program = jax.jit(f).lower(*operands).compile()
    assert program.as_text().count('custom_call_target="vbgemm_quantize_v1"') == 1
    return program(*operands)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(*(np.asarray(x.astype(jnp.float32)) for x in (one, other)))


def odd(shape, dtype):
    """Numbers of many magnitudes, with blocks of zeros, of tiny numbers, and with a NaN and an infinity."""
    x = np.array(oracle.random(shape, "float32")) * np.exp2(np.arange(shape[-1]) % 20 - 10, dtype=np.float32)
    x[0, :2] = 0
    x[0, -1, -1], x[-1, -1, 0] = np.nan, np.inf
    x[-1, 0, :8] = 1e-41 if dtype == "float32" else 1e-6
    return jnp.asarray(x, dtype)


@pytest.mark.parametrize("kind", FLOAT8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_and_blocks_are_those_of_the_definition(dtype, kind):
    x = odd((2, 136, 272), dtype)
    for outputs in ({"of_rows": True}, {}, {"in_columns": True}, {"in_rows": False, "in_columns": True}):
        params = {"of_rows": False, "in_rows": True, "in_columns": False, "kind": kind} | outputs
        assert_equal(compiled(partial(blocks.quantized, **params), x), jax.jit(partial(blocks._xla_form, **params))(x))


@pytest.mark.parametrize("of_rows", [True, False])
def test_rows_by_index(of_rows):
    x, index = odd((1, 40, 136), "float32"), np.random.default_rng(0).integers(-1, 40, 144, dtype=np.int32)
    params = {"kind": "float8_e4m3fn", "of_rows": of_rows, "in_rows": of_rows, "in_columns": not of_rows}
    found = compiled(lambda x, index: blocks.quantized(x, index=index, **params), x, index)
    assert_equal(found, jax.jit(partial(blocks._xla_form, **params))(index, x))


def test_quantize_is_the_kernel():
    x = oracle.random((3, 5, 264), "bfloat16")
    for block in ((1, 128), (128,), (128, 128)):
        found = compiled(partial(vb.quantize, block=block), x)
        whole = (1,) * (3 - len(block)) + block
        scales = blocks.scales_of(x, "float8_e4m3fn", whole)
        assert_equal((found.values, found.scales), (blocks.values_of(x, "float8_e4m3fn", whole, scales), scales))


X, INDEX, NONE = np.ones((1, 8, 16), np.float32), np.zeros(16, np.int32), ((0,), "float8_e4m3fn")
VALUES, TRANSPOSED, SCALES = ((1, 8, 16), "float8_e4m3fn"), ((1, 16, 8), "float8_e4m3fn"), ((1, 1, 1), "float32")


def call(operands, results, of_rows=False):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    f = jax.ffi.ffi_call(backends.QUANTIZE_TARGET_NAME, shapes)
    return jax.block_until_ready(jax.jit(partial(f, of_rows=np.bool_(of_rows)))(*operands))


def test_an_untampered_call_is_right():
    values, transposed, scales = call([X, INDEX[:0]], [VALUES, TRANSPOSED, SCALES])
    assert float(scales[0, 0, 0]) == np.float32(1 / 448)
    assert (values.astype(jnp.float32) == 448).all()
    assert (transposed.astype(jnp.float32) == 448).all()


@pytest.mark.parametrize(
    ("operands", "results", "of_rows", "message"),
    [
        ([X.astype("int32"), INDEX[:0]], [VALUES, NONE, SCALES], False, "x must be float32, bfloat16 or float16"),
        ([X[0], INDEX[:0]], [VALUES, NONE, SCALES], False, "x must have three dimensions"),
        ([X, INDEX[:, None]], [VALUES, NONE, SCALES], False, r"index must be int32 \(rows,\)"),
        ([X, INDEX], [VALUES, NONE, SCALES], False, "values must have x's shape with the rows of index"),
        ([X, INDEX[:0]], [NONE, NONE, SCALES], False, "values or transposed must be wanted"),
        ([X, INDEX[:0]], [((1, 8, 16), "int8"), NONE, SCALES], False, "the results must be float8_e4m3fn or"),
        ([X, INDEX[:0]], [NONE, VALUES, SCALES], False, "transposed must have the transposed shape"),
        ([X, INDEX[:0]], [VALUES, ((1, 16, 8), "float8_e5m2"), SCALES], False, "and the dtype of values"),
        ([X, INDEX[:0]], [NONE, TRANSPOSED, ((1, 1, 8), "float32")], True, "scales of rows are for values alone"),
        ([X[..., :9], INDEX[:0]], [((1, 8, 9), "float8_e4m3fn"), NONE, SCALES], False, "must be multiples of 8"),
        ([X, INDEX[:0]], [VALUES, NONE, ((1, 2, 1), "float32")], False, "scales must be float32, one for each block"),
        ([X, INDEX[:0]], [VALUES, NONE, SCALES], True, "scales must be float32, one for each block"),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit(operands, results, of_rows, message):
    with pytest.raises(Exception, match=message):
        call(operands, results, of_rows)
