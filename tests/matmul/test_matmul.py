"""Values: every dtype, transpose, broadcast and odd size against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb

# 0, 1, primes, tile edges and their neighbours
SIZES = st.sampled_from([0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97, 127, 128, 129, 131])
PAIRS = st.tuples(SIZES, SIZES, SIZES, st.booleans(), st.booleans())


def operands(pairs, dtype):
    As = [oracle.random((k, m) if ta else (m, k), dtype, i) for i, (m, _, k, ta, _) in enumerate(pairs)]
    Bs = [oracle.random((n, k) if tb else (k, n), dtype, 99 + i) for i, (_, n, k, _, tb) in enumerate(pairs)]
    return As, Bs, [(ta, tb) for *_, ta, tb in pairs]


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@given(pairs=st.lists(PAIRS, max_size=8))
def test_values(dtype, pairs):
    As, Bs, flags = operands(pairs, dtype)
    ta, tb = [a for a, _ in flags], [b for _, b in flags]
    Cs = jax.jit(lambda As, Bs: vb.batched_matmul(As, Bs, transpose_a=ta, transpose_b=tb))(As, Bs)
    assert all(c.dtype == dtype for c in Cs)
    oracle.check(Cs, As, Bs, flags)


@given(pairs=st.lists(PAIRS, min_size=1, max_size=5))
@example(pairs=[(2, 97, 2, False, True)])  # pieces of one column
def test_every_planner_gives_the_same_bits(pairs):
    """k is summed in one order whatever the tiles are."""
    As, Bs, flags = operands(pairs, "float32")
    ta, tb = [a for a, _ in flags], [b for _, b in flags]
    planners = "auto", "uniform", "coordinated", "sort_split", "load_balanced"
    multiply = functools.partial(vb.batched_matmul, transpose_a=ta, transpose_b=tb)
    expected, *others = jax.jit(lambda As, Bs: [multiply(As, Bs, planner=planner) for planner in planners])(As, Bs)
    oracle.check(expected, As, Bs, flags)
    for Cs in others:
        for c, e in zip(Cs, expected, strict=True):
            np.testing.assert_array_equal(c, e)


@given(
    lead_a=st.lists(st.sampled_from([1, 2, 3]), max_size=4),
    drop=st.integers(0, 3),
    ones=st.lists(st.booleans(), min_size=8, max_size=8),
    sizes=st.tuples(*[st.sampled_from([1, 2, 5, 17])] * 3),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_leading_dimensions_broadcast_as_in_jnp_matmul(lead_a, drop, ones, sizes, flags):
    m, n, k = sizes
    lead_b = [1 if one else size for size, one in zip(lead_a, ones, strict=False)][min(drop, len(lead_a)) :]
    lead_a = [1 if one else size for size, one in zip(lead_a, ones[4:], strict=False)]
    a = oracle.random((*lead_a, *((k, m) if flags[0] else (m, k))), "float64", 1)
    b = oracle.random((*lead_b, *((n, k) if flags[1] else (k, n))), "float64", 2)
    turned = np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2)

    def multiply(x, y, flags):
        return vb.batched_matmul([x], [y], transpose_a=flags[0], transpose_b=flags[1])

    one, other = jax.jit(lambda *args: (multiply(*args[:2], flags), multiply(*args[2:], flags[::-1])))(a, b, *turned)
    oracle.check(one, [a], [b], [flags])
    oracle.check(other, turned[:1], turned[1:], [flags[::-1]])


def test_deep_broadcasts():
    """Three levels of strides don't fit a descriptor and are broadcast in memory."""
    a = oracle.random((2, 1, 3, 1, 2, 4, 5), "float32", 1)
    b = oracle.random((1, 3, 1, 2, 2, 5, 6), "float32", 2)
    oracle.check(vb.batched_matmul([a], [b]), [a], [b])


@pytest.mark.parametrize(
    "shape", [(10**6, 3, 2), (3, 10**6, 2), (2, 3, 10**6), (1, 1, 1), (4099, 1, 4099), (1, 70001, 1)]
)
@pytest.mark.parametrize("dtype", slow_except(["float32", "float64", "bfloat16"], ["float32", "bfloat16"]))
def test_extreme_aspects(shape, dtype):
    m, n, k = shape
    a, b = oracle.random((m, k), dtype, 1), oracle.random((k, n), dtype, 2)
    at, bt = jax.device_put([np.asarray(a).T, np.asarray(b).T])

    @jax.jit
    def both(a, b, at, bt):
        return vb.batched_matmul([a], [b]), vb.batched_matmul([at], [bt], transpose_a=True, transpose_b=True)

    plain, turned = both(a, b, at, bt)
    oracle.check(plain, [a], [b])
    oracle.check(turned, [at], [bt], [(True, True)])


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_nan_and_inf_propagate_and_stay_in_their_rows(dtype):
    As, Bs = (
        [oracle.random((19, 21), dtype, i) for i in range(2)],
        [oracle.random((21, 35), dtype, 9 + i) for i in range(2)],
    )
    As[0] = As[0].at[3, 4].set(np.nan)
    Bs[1] = Bs[1].at[7, 11].set(np.inf)
    Cs = vb.batched_matmul(As, Bs)
    for c, a, b in zip(Cs, As, Bs, strict=True):
        with np.errstate(invalid="ignore"):
            truth, _ = oracle.matmul(a, b)
        np.testing.assert_array_equal(np.isfinite(oracle.wide(c)), np.isfinite(truth))


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_empty_sums_are_zero(dtype):
    (c,) = vb.batched_matmul([jnp.zeros((3, 0), dtype)], [jnp.zeros((0, 5), dtype)])
    assert c.shape == (3, 5)
    assert c.dtype == dtype
    assert not np.asarray(c).any()


def test_subnormals_and_extreme_values_round_like_numpy():
    for dtype in ("bfloat16", "float16"):
        tiny = jnp.asarray([[2.0**-24, 65504.0, 2.0**-14, -1.0]], jnp.float64).astype(dtype)
        one = jnp.ones((1, 1), dtype)
        (c,) = vb.batched_matmul([jnp.swapaxes(tiny, 0, 1)], [one])
        np.testing.assert_array_equal(np.asarray(c), np.asarray(jnp.swapaxes(tiny, 0, 1)))


def test_mixed_dtypes_in_one_call():
    As = [oracle.random((5, 7), d, i) for i, d in enumerate(oracle.DTYPES)]
    Bs = [oracle.random((7, 9), d, i + 50) for i, d in enumerate(oracle.DTYPES)]
    Cs = vb.batched_matmul(As, Bs)
    assert [c.dtype.name for c in Cs] == list(oracle.DTYPES)
    oracle.check(Cs, As, Bs)


def test_integers_go_through_xla():
    a, b = np.arange(6).reshape(2, 3), np.arange(12).reshape(3, 4)
    (c,) = vb.batched_matmul([a], [b])
    np.testing.assert_array_equal(c, a @ b)
    assert c.dtype == np.int64


def test_pairs_promote_as_in_jnp_matmul():
    a, b = oracle.random((3, 4), "bfloat16"), oracle.random((4, 5), "float32")
    with jax.numpy_dtype_promotion("standard"):
        (c,) = vb.batched_matmul([a], [b])
        assert c.dtype == jnp.matmul(a, b).dtype == jnp.float32
    oracle.check([c], [a.astype("float32")], [b])


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("bfloat16", "bfloat16")],
)
def test_preferred_element_type(dtype, preferred):
    a, b = oracle.random((20, 30), dtype), oracle.random((30, 40), dtype, 1)
    (c,) = vb.batched_matmul([a], [b], preferred_element_type=preferred)
    assert c.dtype == preferred
    truth, scale = oracle.matmul(a, b)
    # float32 to float64 is XLA's work, which on a GPU sums in float32.
    summed_in = dtype if (dtype, jax.default_backend()) == ("float32", "gpu") else preferred
    assert (abs(oracle.wide(c) - truth) <= oracle.ROUNDING[summed_in] * scale).all()


def test_16_bit_products_are_accumulated_in_float32():
    ones = jnp.ones((1, 4096), jnp.bfloat16)
    (c,) = vb.batched_matmul([ones], [jnp.swapaxes(ones, 0, 1)])
    assert float(c[0, 0]) == 4096.0  # a bfloat16 sum would stop at 256


@pytest.mark.parametrize("implementation", [None, "kernel", "xla"])
def test_precisions_and_implementations(implementation):
    if implementation == "kernel" and jax.default_backend() == "tpu":
        pytest.skip("no kernel on a TPU")
    a, b = oracle.random((20, 30), "float64"), oracle.random((30, 40), "float64", 1)
    precisions = None, "default", "high", "highest", jax.lax.Precision.HIGHEST, ("high", "highest")
    multiply = functools.partial(vb.batched_matmul, implementation=implementation)
    for Cs in jax.jit(lambda a, b: [multiply([a], [b], precision=precision) for precision in precisions])(a, b):
        oracle.check(Cs, [a], [b])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_outer_products_of_both_implementations_have_the_same_bits(dtype):
    As = [oracle.random((m, 1), dtype, m) for m in (1, 5, 300)]
    Bs = [oracle.random((1, n), dtype, n) for n in (3, 1, 700)]
    kernel, xla = (vb.batched_matmul(As, Bs, implementation=name, precision="highest") for name in ("kernel", "xla"))
    for ours, theirs in zip(kernel, xla, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_a_shared_operand_is_one_operand():
    x = oracle.random((40, 20), "float32")
    ws = [oracle.random((20, n), "float32", n) for n in (5, 64, 17)]
    jaxpr = jax.make_jaxpr(lambda x, ws: vb.batched_matmul([x] * 3, ws))(x, ws)
    (eqn,) = jaxpr.eqns
    assert len(eqn.invars) == 4
    oracle.check(vb.batched_matmul([x] * 3, ws), [x] * 3, ws)


@pytest.mark.parametrize("count", slow_except([1, 100, 1500], [1, 100]))
def test_many_problems(count):
    rng = np.random.default_rng(count)
    sizes = rng.integers(1, 12, (count, 3))
    As = [oracle.random((m, k), "float32", i) for i, (m, _, k) in enumerate(sizes)]
    Bs = [oracle.random((k, n), "float32", i) for i, (_, n, k) in enumerate(sizes)]
    oracle.check(jax.jit(vb.batched_matmul)(As, Bs), As, Bs)
