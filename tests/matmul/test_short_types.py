"""Operands of a byte: 8-bit floats, also of two types, and int8.

Values, results of other types, scales, derivatives, vmap, bad input.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.native.arithmetic import ARITHMETICS, DTYPES

BYTES = [one for one in ARITHMETICS.values() if one.bytes == 1]
CASES = [(one.lhs, one.rhs, result) for one in BYTES for result in one.results]
FLOATS = [case for case in CASES if case[2] != "int8" and case[0] != "int8"]

on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's planner")
products = st.lists(
    st.tuples(st.integers(0, 70), st.integers(0, 70), st.sampled_from([0, 1, 2, 17, 64, 300, 1027]), st.booleans(),
              st.booleans()),
    min_size=1, max_size=3,
)  # fmt: skip


def random(shape, dtype, seed):
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(np.random.default_rng([seed, *shape]).integers(-128, 128, shape), dtype)
    return oracle.random(shape, dtype, seed)


def operands(sizes, lhs, rhs):
    As = [random((k, m) if ta else (m, k), lhs, i) for i, (m, _, k, ta, _) in enumerate(sizes)]
    Bs = [random((n, k) if tb else (k, n), rhs, 99 + i) for i, (_, n, k, _, tb) in enumerate(sizes)]
    return As, Bs, [ta for *_, ta, _ in sizes], [tb for *_, tb in sizes]


def check(result, truth, scale, dtype):
    """Integers wrap around exactly; floats are the sum, rounded once."""
    assert result.shape == truth.shape
    assert result.dtype == dtype
    if jnp.issubdtype(dtype, jnp.integer):
        np.testing.assert_array_equal(np.asarray(result), truth.astype(np.int64).astype(dtype))
        return
    allowed = oracle.ROUNDING[dtype] * scale + float(jnp.finfo(dtype).smallest_subnormal)
    assert (np.abs(oracle.wide(result) - truth) <= allowed).all()


@pytest.mark.parametrize(("lhs", "rhs", "result"), slow_except(CASES, CASES[::3]))
@settings(max_examples=3)
@given(sizes=products)
def test_values(lhs, rhs, result, sizes):
    As, Bs, ta, tb = operands(sizes, lhs, rhs)
    Cs = vb.batched_matmul(
        As, Bs, transpose_a=ta, transpose_b=tb, preferred_element_type=result, implementation="kernel"
    )
    for c, a, b, *flags in zip(Cs, As, Bs, ta, tb, strict=True):
        check(c, *oracle.matmul(a, b, *flags), result)


@pytest.mark.parametrize(("lhs", "rhs", "result"), slow_except(CASES, CASES[::3]))
def test_sums_of_products(lhs, rhs, result):
    shapes = (50, 40), (50, 3), (3, 50), (1, 1)
    deep = (70, False, False), (9, True, True), (900, False, True)
    of_shapes = [operands([(m, n, *of) for of in deep], lhs, rhs) for m, n in shapes]
    (*_, ta, tb) = of_shapes[0]
    add = functools.partial(vb.batched_matmul_sum, out=[0, 0, 0], transpose_a=ta, transpose_b=tb)
    run = functools.partial(add, preferred_element_type=result, implementation="kernel")
    factors = [(As, Bs) for As, Bs, *_ in of_shapes]
    for (c,), (As, Bs) in zip(jax.jit(lambda pairs: [run(*pair) for pair in pairs])(factors), factors, strict=True):
        terms = [oracle.matmul(a, b, *flags) for a, b, *flags in zip(As, Bs, ta, tb, strict=True)]
        check(c, sum(truth for truth, _ in terms), sum(scale for _, scale in terms), result)


def test_terms_of_a_sum_have_the_same_types():
    a, b, c = random((5, 9), "float8_e4m3fn", 1), random((9, 4), "float8_e4m3fn", 2), random((9, 4), "float8_e5m2", 3)
    with pytest.raises(ValueError, match=r"multiplies float8_e4m3fn x float8_e5m2 but .* float8_e4m3fn: .* one dtype"):
        vb.batched_matmul_sum([a, a], [b, c], out=[0, 0], preferred_element_type="float32")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_ragged_products_are_those_of_xla(dtype):
    rows, weights, sizes = random((12, 9), dtype, 1), random((3, 9, 4), dtype, 2), jnp.array([5, 0, 7])
    wide = DTYPES[dtype].accumulator
    y = vb.ragged_dot(rows, weights, sizes, preferred_element_type=wide)
    truths = [oracle.matmul(rows[:5], weights[0]), oracle.matmul(rows[5:], weights[2])]
    check(y, *(np.concatenate(parts) for parts in zip(*truths, strict=True)), wide)
    with pytest.raises(NotImplementedError, match=f"there is no kernel for {dtype}|has no pipelined kernel"):
        vb.ragged_dot(rows, weights, sizes, preferred_element_type=wide, implementation="kernel")


def in_slices(problems, device, catalogue):
    blocks = []
    for index, p in enumerate(problems):
        parts = itertools.pairwise(sorted({p.k * end // 5 for end in range(6)}))
        for (begin, end), row, col in itertools.product(parts, range(0, p.m, 48), range(0, p.n, 64)):
            blocks.append([vb.Tile(index, 0, row, col, begin, end, "cpu-small")])
    return vb.Plan.from_blocks(problems, device, catalogue, planner="in_slices", blocks=blocks)


@on_cpu
@pytest.mark.parametrize(("lhs", "rhs", "result"), CASES)
def test_split_k(lhs, rhs, result):
    As, Bs, ta, tb = operands([(50, 30, 2000, False, True), (1, 7, 99, True, False)], lhs, rhs)
    Cs = vb.batched_matmul(
        As, Bs, transpose_a=ta, transpose_b=tb, preferred_element_type=result, planner=in_slices,
        implementation="kernel",
    )  # fmt: skip
    for c, a, b, *flags in zip(Cs, As, Bs, ta, tb, strict=True):
        check(c, *oracle.matmul(a, b, *flags), result)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_the_results_dtype_is_that_of_jnp_matmul(dtype):
    a, b = random((5, 30), dtype, 1), random((30, 4), dtype, 2)
    (c,) = vb.batched_matmul([a], [b])
    expected = jnp.matmul(a, b)
    assert c.dtype == expected.dtype == dtype
    # XLA's own dots of short floats may round twice.
    np.testing.assert_allclose(oracle.wide(c), oracle.wide(expected), rtol=2 * oracle.unit_roundoff(dtype), atol=0.2)


@pytest.mark.parametrize(("lhs", "rhs", "result"), slow_except(FLOATS, FLOATS[::4]))
def test_scales(lhs, rhs, result):
    sizes = [(20, 30, 40, False, False), (33, 5, 64, True, False)]
    As, Bs, ta, tb = operands(sizes, lhs, rhs)
    scales = [0.25, -1.7]

    def f(As, Bs, alpha):
        return vb.batched_gemm(
            As, Bs, alpha=alpha, transpose_a=ta, transpose_b=tb, preferred_element_type=result, implementation="kernel"
        )

    for Cs in jax.jit(lambda As, Bs, traced: [f(As, Bs, alpha) for alpha in (scales, traced)])(
        As, Bs, np.array(scales)
    ):
        for c, a, b, alpha, *flags in zip(Cs, As, Bs, scales, ta, tb, strict=True):
            truth, scale = oracle.matmul(a, b, *flags)
            check(c, alpha * truth, abs(alpha) * scale, result)


@pytest.mark.parametrize("result", ["int8", "int32"])
@pytest.mark.parametrize("traced", [False, True])
def test_scales_of_integers(result, traced):
    As, Bs, ta, tb = operands([(20, 30, 40, False, False), (33, 5, 64, True, False)], "int8", "int8")
    Cs = [random((20, 30), result, 7), random((33, 5), result, 8)]
    alpha, beta = [3, -70000], [-2, 5]

    def f(As, Bs, alpha, beta):
        return vb.batched_gemm(
            As, Bs, Cs, alpha=alpha, beta=beta, transpose_a=ta, transpose_b=tb, preferred_element_type=result,
            implementation="kernel",
        )  # fmt: skip

    got = jax.jit(f)(As, Bs, jnp.asarray(alpha), jnp.asarray(beta)) if traced else f(As, Bs, alpha, beta)
    for d, a, b, c, x, y, *flags in zip(got, As, Bs, Cs, alpha, beta, ta, tb, strict=True):
        truth, _ = oracle.matmul(a, b, *flags)
        wrapped = (x * truth.astype(np.int64) + y * np.asarray(c, np.int64)).astype(np.int32).astype(result)
        np.testing.assert_array_equal(d, wrapped)


@pytest.mark.parametrize(("lhs", "rhs", "result"), slow_except(FLOATS, FLOATS[::4]))
def test_gradients(lhs, rhs, result):
    a, b = random((20, 30), lhs, 1), random((30, 12), rhs, 2)
    weights = oracle.random((20, 12), result, 3)

    def loss(a, b):
        (c,) = vb.batched_matmul([a], [b], preferred_element_type=result)
        return jnp.vdot(weights.astype("float32"), c.astype("float32"))

    of_a, of_b = jax.jit(jax.grad(loss, (0, 1)))(a, b)
    check(of_a, *oracle.matmul(weights, b, False, True), lhs)
    check(of_b, *oracle.matmul(a, weights, True, False), rhs)


def test_tangents():
    a, b = random((6, 30), "float8_e4m3fn", 1), random((30, 5), "float8_e5m2", 2)
    da, db = random((6, 30), "float8_e4m3fn", 3), random((30, 5), "float8_e5m2", 4)

    def f(a, b):
        return vb.batched_matmul([a], [b], preferred_element_type="float32")[0]

    _, tangent = jax.jvp(f, (a, b), (da, db))
    (left, left_size), (right, right_size) = oracle.matmul(da, b), oracle.matmul(a, db)
    check(tangent, left + right, left_size + right_size, "float32")


def test_a_float_beside_integers_is_differentiated():
    x = oracle.random((4, 4), "float32", 1)
    a, b = random((4, 9), "int8", 2), random((9, 4), "int8", 3)

    def f(x):
        (c,) = vb.batched_matmul([a], [b], preferred_element_type="int32")
        return jnp.sum(vb.batched_matmul([x], [c.astype("float32")])[0])

    truth, scale = oracle.matmul(np.ones((4, 4)), oracle.matmul(a, b)[0], False, True)
    check(jax.grad(f)(x), truth, np.abs(truth) + 1 + scale, "float32")


@pytest.mark.parametrize(("lhs", "rhs", "result"), [CASES[0], ("float8_e4m3fn", "float8_e5m2", "bfloat16"), CASES[-1]])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_vmap(lhs, rhs, result, axes):
    a = random((3, 7, 20) if axes[0] == 0 else (7, 20), lhs, 1)
    b = random((3, 20, 9) if axes[1] == 0 else (20, 9), rhs, 2)

    def f(a, b):
        return vb.batched_matmul([a], [b], preferred_element_type=result, implementation="kernel")[0]

    check(jax.jit(jax.vmap(f, axes))(a, b), *oracle.matmul(a, b), result)


def test_one_call_mixes_types():
    As = [random((5, 9), dtype, 1) for dtype in ("int8", "float8_e4m3fn", "float8_e5m2", "float32")]
    Bs = [random((9, 4), dtype, 2) for dtype in ("int8", "float8_e4m3fn", "float8_e5m2", "float32")]
    for c, a, b in zip(vb.batched_matmul(As, Bs), As, Bs, strict=True):
        check(c, *oracle.matmul(a, b), a.dtype.name)


@pytest.mark.parametrize(
    ("lhs", "rhs", "result"),
    [("float8_e4m3fn", "float32", "float32"), ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2"),
     ("uint8", "uint8", "int32"), ("int8", "int8", "float32"), ("float8_e4m3b11fnuz", "float8_e4m3b11fnuz", "float32")],
)  # fmt: skip
def test_what_has_no_kernel_is_what_jnp_makes_of_it(lhs, rhs, result):
    a, b = random((5, 9), lhs, 1), random((9, 4), rhs, 2)
    (c,) = vb.batched_matmul([a], [b], preferred_element_type=result)
    expected = jnp.matmul(a, b, preferred_element_type=result)
    assert c.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(c), np.asarray(expected))
    with pytest.raises(NotImplementedError, match=f"there is no kernel for {lhs} x {rhs} -> {result}"):
        vb.batched_matmul([a], [b], preferred_element_type=result, implementation="kernel")


@pytest.mark.parametrize("rhs", ["float8_e5m2", "float32"])
def test_8_bit_floats_promote_with_nothing(rhs):
    a, b = random((5, 9), "float8_e4m3fn", 1), random((9, 4), rhs, 2)
    with pytest.raises(ValueError, match=r"As\[0\] is float8_e4m3fn.*Bs\[0\] is float.*promotion"):
        vb.batched_matmul([a], [b])


def test_integers_have_no_activation_and_no_fractions():
    a, b = random((5, 9), "int8", 1), random((9, 4), "int8", 2)
    with pytest.raises(ValueError, match="it must be real and floating"):
        vb.batched_gemm([a], [b], activation="relu", preferred_element_type="int32")
    with pytest.raises(ValueError, match=r"alpha\[0\] is 0.5, but result\[0\] is int32"):
        vb.batched_gemm([a], [b], alpha=[0.5], preferred_element_type="int32")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_what_is_too_large_or_not_finite_is_converted_as_jax_does(dtype):
    one = jnp.ones((1, 1), dtype)
    for number in (0, 448, 463, 465, 1e5, -57344, 6e4, 1e30, np.inf, -np.inf, np.nan, 2.0**-9, 1e-3, 2e-5):
        (c,) = vb.batched_gemm([one], [one], alpha=jnp.float32(number), implementation="kernel")
        np.testing.assert_array_equal(oracle.wide(c[0, 0]), oracle.wide(jnp.float32(number).astype(dtype)))


@pytest.mark.parametrize("name", DTYPES)
def test_the_table_says_what_numpy_says(name):
    dtype, row = jnp.dtype(name), DTYPES[name]
    assert row.bytes == dtype.itemsize
    assert row.fraction_bits == (jnp.finfo(dtype).nmant if jnp.issubdtype(dtype, jnp.inexact) else 0)
    assert row.accumulator in DTYPES
    assert row.accumulator in row.results
