"""averages' custom call from end to end without a GPU: its handler's checks and its kernels, emulated, under XLA."""

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import Builder
from slow_cases import slow_except

from jax_vbgemm import _core
from jax_vbgemm._src.elementwise import array_kernels, averages
from jax_vbgemm._src.native import backends

pytestmark = emulated_call.MARKS


@pytest.fixture(scope="module", autouse=True)
def emulated(builder: Builder):
    primitive, target = averages.averages_p, backends.AVERAGES_TARGET_NAME
    call = emulated_call.emulated(
        builder, primitive, averages, target, "square_sums", "square_sums", symbol="vbgemm_averages"
    )
    with call:
        yield


def calls(compiled):
    return compiled.as_text().count('custom_call_target="vbgemm_averages_v1"')


@pytest.mark.parametrize("dtype", slow_except(array_kernels.KERNEL_DTYPES, ["float32", "bfloat16"]))
@pytest.mark.parametrize("donate", [(), (1,)])
def test_values(dtype, donate):
    chunk = _core.ARRAY_CHUNK_BYTES // jnp.dtype(dtype).itemsize
    shapes = [(), (3,), (64, 67), (2, 3, 4), (0, 5), (chunk - 1,), (chunk + 1,), (3, chunk + 7)]
    xs, ys = ([oracle.random(shape, dtype, seed + index) for index, shape in enumerate(shapes)] for seed in (0, 100))

    def f(xs, ys, alpha, gamma):
        return averages.averages(xs, ys, alpha, 0.75, gamma, 1.5)

    compiled = jax.jit(f, donate_argnums=donate).lower(xs, ys, 0.25, 0.5).compile()
    assert calls(compiled) == 1
    tolerance = {"float64": 1e-15, "float32": 4e-7, "bfloat16": 2e-2, "float16": 2e-3}[dtype]
    found, ahead, sums = compiled(*(jax.tree.map(jnp.copy, values) for values in (xs, ys)), 0.25, 0.5)
    for x, y, average, next_one, total in zip(xs, ys, found, ahead, sums, strict=True):
        expected = 0.25 * oracle.wide(x) + 0.75 * oracle.wide(y)
        np.testing.assert_allclose(oracle.wide(average), expected, rtol=0, atol=2 * tolerance)
        expected = 0.5 * oracle.wide(x) + 1.5 * oracle.wide(average)
        np.testing.assert_allclose(oracle.wide(next_one), expected, rtol=0, atol=4 * tolerance)
        np.testing.assert_allclose(
            total, np.sum(oracle.wide(next_one) ** 2), rtol=2e-6 if dtype != "float64" else 1e-14
        )


def test_values_that_are_needed_later():
    """XLA keeps a y that is read after the call, and one array may be both x and y."""
    x, y = (oracle.random((40, 7), "float32", seed) for seed in (1, 2))

    def f(x, y):
        found, ahead, _ = averages.averages([x, y], [y, y], 0.5, 0.5, 1, 1)
        return found[0] + y, ahead[1]

    total, ahead = jax.jit(f)(x, y)
    np.testing.assert_allclose(total, (x + y) / 2 + y, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ahead, 2 * y, rtol=1e-6)


def test_nan_and_infinity():
    ys = [jnp.array(values, "float32") for values in ([1, jnp.nan], [jnp.inf, 2], [1e30, 1])]
    sums = averages.averages([jnp.zeros(2, "float32")] * 3, ys, 1.0, 1.0, 0.0, 1.0)[2]
    np.testing.assert_array_equal(sums, [jnp.nan, jnp.nan, jnp.inf])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_infinite_gradient_without_nesterov(dtype):
    """gamma is 0, and 0 times Inf is NaN: x is left out."""
    x, y = (jnp.array(values, dtype) for values in ([jnp.inf, -jnp.inf, jnp.nan, 1], [1, 2, 3, 4]))
    (found,), (ahead,), _ = jax.jit(lambda x, y, gamma: averages.averages([x], [y], 0.5, 0.5, gamma, 2))(x, y, 0)
    np.testing.assert_array_equal(oracle.wide(found), [jnp.inf, -jnp.inf, jnp.nan, 2.5])
    np.testing.assert_array_equal(oracle.wide(ahead), [jnp.inf, -jnp.inf, jnp.nan, 5])


def call(scales, operands, results):
    f = jax.ffi.ffi_call(
        backends.AVERAGES_TARGET_NAME, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    )
    return jax.block_until_ready(jax.jit(f)(scales, *operands))


X, SCALES = np.ones((2, 3), np.float32), np.ones(4, np.float32)
ARRAY, SUM = ((2, 3), "float32"), ((1,), "float32")


def test_untampered_call_is_right():
    found, ahead, sums, _ = call(SCALES, [X, 2 * X], [ARRAY, ARRAY, SUM, SUM])
    np.testing.assert_array_equal(found, 3 * X)
    np.testing.assert_array_equal(ahead, 4 * X)
    np.testing.assert_array_equal(sums, [6 * 16])


@pytest.mark.parametrize(
    ("scales", "operands", "results", "message"),
    [
        (SCALES, [X], [ARRAY, ARRAY, SUM, SUM], "expected x and y and two results for each member"),
        (SCALES, [X, X], [ARRAY, ARRAY, SUM], "expected x and y and two results for each member"),
        (SCALES, [X.astype("int32")] * 2, [ARRAY, ARRAY, SUM, SUM], "no kernel averages arrays of this dtype"),
        (SCALES, [X, X[:1]], [ARRAY, ARRAY, SUM, SUM], "the arrays of member 0 must have"),
        (SCALES, [X, X], [ARRAY, ((2, 3), "float64"), SUM, SUM], "the arrays of member 0 must have"),
        (SCALES[:3], [X, X], [ARRAY, ARRAY, SUM, SUM], "the scales must have"),
        (SCALES.astype("float64"), [X, X], [ARRAY, ARRAY, SUM, SUM], "the scales must have"),
        (SCALES, [X, X], [ARRAY, ARRAY, ((2,), "float32"), SUM], "the sums must have"),
        (SCALES, [X, X], [ARRAY, ARRAY, SUM, ((0,), "float32")], "the workspace must have .* 1 elements"),
    ],
)
def test_calls_that_do_not_fit_their_buffers(scales, operands, results, message):
    with pytest.raises(Exception, match=message):
        call(scales, operands, results)
