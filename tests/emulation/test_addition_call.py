"""add_scaled's custom call from end to end without a GPU: its handler's checks and its kernels, emulated, under XLA."""

from functools import partial

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import Builder
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.elementwise import addition, array_kernels
from jax_vbgemm._src.elementwise.addition import add_scaled, add_scaled_p
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.arithmetic import DTYPES

pytestmark = emulated_call.MARKS


@pytest.fixture(scope="module", autouse=True)
def emulated(builder: Builder):
    target = backends.ADD_TARGET_NAME
    with emulated_call.emulated(builder, add_scaled_p, addition, target, "addition", "add_scaled", "vbgemm_add_scaled"):
        yield


def arrays(dtype, seed=0):
    shapes = [(), (3,), (64, 67), (5000,), (2, 3, 4), (1, 1)]
    return [oracle.random(shape, dtype, seed + index) for index, shape in enumerate(shapes)]


def calls(compiled):
    return compiled.as_text().count('custom_call_target="vbgemm_add_v2"')


@pytest.mark.parametrize("dtype", slow_except(array_kernels.KERNEL_DTYPES, ["float32", "bfloat16"]))
@pytest.mark.parametrize("donate", [(), (1,)])
def test_values(dtype, donate):
    xs, ys = arrays(dtype), arrays(dtype, 100)
    beta = np.linspace(-1, 1, len(xs))

    def f(xs, ys, alpha, beta):
        return add_scaled(xs, ys, alpha, beta)

    expected = [0.3 * oracle.wide(x) + b * oracle.wide(y) for x, y, b in zip(xs, ys, beta, strict=True)]
    compiled = jax.jit(f, donate_argnums=donate).lower(xs, ys, 0.3, beta).compile()
    assert calls(compiled) == 1
    tolerance = {"float64": 1e-15, "float32": 3e-7, "bfloat16": 1e-2, "float16": 1e-3}[dtype]
    given = [jax.tree.map(jnp.copy, values) for values in (xs, ys)]
    for total, truth in zip(compiled(*given, 0.3, beta), expected, strict=True):
        np.testing.assert_allclose(oracle.wide(total), truth, rtol=0, atol=2 * tolerance)


def test_loops_and_values_that_are_needed_later():
    """In place or not, XLA keeps values that are read afterwards."""
    xs = arrays("float32")

    def step(carry, scale):
        xs, ys = carry
        new = add_scaled(xs, ys, 1.0, scale)
        more = add_scaled(xs, new, scale, 1.0, in_place=False)
        return (more, new), [jnp.sum(y) for y in ys]

    def plain(carry, scale):
        xs, ys = carry
        new = [x + scale * y for x, y in zip(xs, ys, strict=True)]
        return ([scale * x + n for x, n in zip(xs, new, strict=True)], new), [jnp.sum(y) for y in ys]

    scales = jnp.array([0.5, 0.0, -1.0], "float32")
    ours, theirs = (jax.jit(lambda c, f=f: jax.lax.scan(f, c, scales))((xs, xs)) for f in (step, plain))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), ours, theirs)


def test_a_step_of_muon():
    optax = pytest.importorskip("optax")
    theirs = pytest.importorskip("optax.contrib").muon
    from jax_vbgemm.optax import apply_updates, muon

    params = [oracle.random(shape, "float32") for shape in [(12, 20), (20, 12), (7, 7)]] + [jnp.ones(5, "float32")]
    grads = jax.tree.map(lambda x: oracle.random(x.shape, "float32", 3), params)

    def train(make, apply, params):
        optimizer = make(0.1, weight_decay=0.1)
        state = optimizer.init(params)
        for _ in range(3):
            updates, state = optimizer.update(grads, state, params)
            params = apply(params, updates)
        return params, state

    with jax.numpy_dtype_promotion("standard"), vb.target("h100"):
        ours = jax.jit(partial(train, muon, apply_updates)).lower(params).compile()
        assert calls(ours) == 3 * 2  # weight decay and parameters
        expected = jax.jit(partial(train, theirs, optax.apply_updates))(params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), ours(params), expected)


@pytest.mark.parametrize(("dtype", "rounded"), sorted(addition._ROUNDINGS))
def test_results_of_another_dtype(dtype, rounded):
    """Bit for bit what XLA rounds."""
    xs = arrays(dtype)
    alpha = np.linspace(0.1, 2, len(xs)).astype("float32")
    compiled = jax.jit(lambda xs, alpha: add_scaled(xs, xs, alpha, 0, dtype=rounded)).lower(xs, alpha).compile()
    assert calls(compiled) == 1
    for total, x, factor in zip(compiled(xs, alpha), xs, alpha, strict=True):
        assert total.dtype == rounded
        np.testing.assert_array_equal(total, (factor * x.astype("float32")).astype(rounded))


def call(scales, operands, results):
    f = jax.ffi.ffi_call(backends.ADD_TARGET_NAME, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results])
    return jax.block_until_ready(jax.jit(f)(scales, *operands))


X, ONE, TWO = (np.ones(shape, np.float32) for shape in [(2, 3), (2,), (4,)])  # scales of one and of two members
RESULT = ((2, 3), "float32")


def test_untampered_call_is_right():
    np.testing.assert_array_equal(call(ONE, [X, X], [RESULT])[0], 2 * X)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_handler_has_kernels_for_the_dtypes_that_are_lowered_to_it(dtype):
    x, one = np.ones((2, 3), dtype), np.ones(2, DTYPES[dtype].accumulator)
    if dtype in array_kernels.KERNEL_DTYPES:
        np.testing.assert_array_equal(call(one, [x, x], [((2, 3), dtype)])[0], x + x)
    else:
        with pytest.raises(Exception, match="no kernel adds arrays of this dtype"):
            call(one, [x, x], [((2, 3), dtype)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ONE, [X], [RESULT]), "expected 2 operands for each result, got 1 operands for 1 results"),
        ((ONE, [X, X, X], [RESULT]), "expected 2 operands for each result, got 3 operands for 1 results"),
        ((TWO, [X, X, X, X], [RESULT, ((2, 3), "float64")]), "result 1 must have the dtype of result 0"),
        ((ONE, [X, X], [((2, 3), "int32")]), "to results of that dtype"),
        ((ONE, [X, X], [((2, 3), "float64")]), "to results of that dtype"),
        ((ONE, [X, X], [((2, 4), "float32")]), "x 0 must have the dtype of x 0 and its result's number"),
        ((TWO, [X, X, X, X[:1]], [RESULT, RESULT]), "y 1 must have the dtype of x 0 and its result's number"),
        ((ONE, [X, X.astype("float64")], [RESULT]), "y 0 must have the dtype of x 0 and its result's number"),
        ((TWO, [X, X], [RESULT]), "the scales must have"),
        ((ONE.astype("float64"), [X, X], [RESULT]), "the scales must have"),
        ((ONE[:1], [X, X], [RESULT]), "the scales must have"),
    ],
)
def test_calls_that_do_not_fit_their_buffers(arguments, message):
    with pytest.raises(Exception, match=message):
        call(*arguments)
