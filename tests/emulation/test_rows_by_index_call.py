"""rows_by_index's custom call without a GPU: its handler's checks and its kernel, emulated, under XLA."""

from functools import partial

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import Builder

from jax_vbgemm._src.native import backends
from jax_vbgemm._src.ragged import select_rows

pytestmark = emulated_call.MARKS

ROWS, COPIES = 37, 5 * 37  # copies are more than a thread block takes


@pytest.fixture(scope="module", autouse=True)
def emulated(builder: Builder):
    target, name = backends.ROWS_BY_INDEX_TARGET_NAME, "rows_by_index"
    with (
        emulated_call.emulated(
            builder, select_rows.select_rows_p, select_rows, target, name, name, symbol=f"vbgemm_{name}"
        ),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(select_rows, "LEAST_BYTES", 0)
        yield


def selection(seed):
    """An index (copies,) with each row as often, and where each row's copies are, (rows, copies of each)."""
    index = np.random.default_rng(seed).permutation(COPIES) % ROWS
    return index.astype(np.int32), np.argsort(index, kind="stable").reshape(ROWS, -1).astype(np.int32)


def run(function, *operands, calls=1):
    program = jax.jit(function).lower(*operands).compile()
    assert program.as_text().count(f'custom_call_target="{backends.ROWS_BY_INDEX_TARGET_NAME}"') == calls
    return program(*operands)


# Vectors of 16 bytes: one, a slab of columns, one more, and two slabs less one.
@pytest.mark.parametrize(("dtype", "columns"), [("float32", 4), ("bfloat16", 128), ("float16", 136), ("float64", 62)])
def test_values(dtype, columns):
    x, (index, back) = oracle.random((ROWS, columns), dtype), selection(1)
    found = run(lambda x: select_rows.select_rows(x, index[:, None], back), x)
    np.testing.assert_array_equal(found, np.asarray(x)[index])


def test_indices_that_select_zeros():
    x, (index, back) = oracle.random((ROWS, 8), "float32"), selection(2)
    index[::3] = ROWS
    found = run(lambda x: select_rows.select_rows(x, index[:, None], back, fills=True), x)
    np.testing.assert_array_equal(
        found, np.where(index[:, None] == ROWS, 0, np.asarray(x)[np.minimum(index, ROWS - 1)])
    )


def test_gradient_is_the_sum_of_copies():
    x, (index, back) = oracle.random((ROWS, 8), "float32"), selection(3)
    cotangent = np.asarray(oracle.random((COPIES, 8), "float32", 1))

    def vjp(x, cotangent):
        y, transposed = jax.vjp(lambda x: select_rows.select_rows(x, index[:, None], back), x)
        # The transpose of the transpose is the copy again.
        again = jax.linear_transpose(lambda y: transposed(y)[0], cotangent)(-x)[0]
        return y, transposed(cotangent)[0], again

    y, of_x, again = run(vjp, x, cotangent, calls=2)
    np.testing.assert_array_equal(y, np.asarray(x)[index])
    np.testing.assert_array_equal(again, -y)
    np.testing.assert_allclose(of_x, cotangent[back].sum(axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fills", [False, True])
def test_vmap_is_one_call(fills):
    indices, backs = (jnp.stack(parts) for parts in zip(selection(4), selection(5), strict=True))
    if fills:
        indices = indices.at[:, 7].set(ROWS)
    x = oracle.random((2, ROWS, 8), "float32")
    form = partial(select_rows.select_rows, fills=fills)
    found = run(jax.vmap(lambda x, index, back: form(x, index[:, None], back)), x, indices, backs)
    for one, rows, index in zip(found, np.asarray(x), np.asarray(indices), strict=True):
        expected = np.where(index[:, None] == ROWS, 0, rows[np.minimum(index, ROWS - 1)])
        np.testing.assert_array_equal(one, expected)


def test_an_index_out_of_bounds_reads_no_other_memory():
    x, (index, back) = oracle.random((ROWS, 8), "float32"), selection(6)
    index[:4] = [-(2**31), -5, ROWS + 1, 2**31 - 1]
    function = jax.vmap(lambda x: select_rows.select_rows(x, index[:, None], back))
    found = run(function, x[None])[0]
    np.testing.assert_array_equal(found, np.asarray(x)[np.clip(index, 0, ROWS - 1)])


def call(x, index, shape=(2, 4), dtype="float32"):
    f = jax.ffi.ffi_call(backends.ROWS_BY_INDEX_TARGET_NAME, jax.ShapeDtypeStruct(shape, dtype))
    return jax.block_until_ready(jax.jit(f)(x, index))


X, INDEX = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([2, 0], np.int32)


def test_untampered_call_is_right():
    np.testing.assert_array_equal(call(X, INDEX), X[INDEX])
    np.testing.assert_array_equal(call(X, np.array([3, -1], np.int32)), np.zeros((2, 4)))
    assert call(X, INDEX[:0], (0, 4)).shape == (0, 4)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((X[0], INDEX), "x must have two dimensions"),
        ((X, INDEX[None]), "index one"),
        ((X, INDEX.astype("float32")), "index must be int32"),
        ((X, INDEX, (3, 4)), r"the result must have x's dtype and be \(2, 4\)"),
        ((X, INDEX, (2, 4), "int32"), "the result must have x's dtype"),
        ((X[:, :3], INDEX, (2, 3)), "a multiple of 16 bytes"),
        ((X.astype(bool), INDEX, (2, 4), "bool"), "no kernel copies rows of this dtype"),
    ],
)
def test_calls_that_do_not_fit_their_buffers(operands, message):
    with pytest.raises(Exception, match=message):
        call(*operands)
