"""Products larger than the caches: tall and narrow results, written by non-temporal stores, and few columns of a deep
K."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb

BYTES_OF_CACHES = 24 << 20  # as in csrc/cpu/walk.cc
pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="of the CPU kernel")


def rows_for(n: int, dtype: str) -> int:
    return BYTES_OF_CACHES // (n * np.dtype(dtype).itemsize) + 1


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 67), st.sampled_from(["float32", "float64"]))
@pytest.mark.slow
def test_tall_products(n: int, k: int, more: int, dtype: str):
    with jax.enable_x64(True):
        rng = np.random.default_rng(n * 41 + k)
        A = rng.uniform(-1, 1, (rows_for(n, dtype) + more, k)).astype(dtype)
        B = rng.uniform(-1, 1, (k, n)).astype(dtype)
        [C] = jax.jit(vb.batched_matmul)([A], [B])
        truth = A.astype(np.float64) @ B.astype(np.float64)
        assert np.abs(np.asarray(C) - truth).max() <= 2 * (k + 1) * np.finfo(dtype).eps * max(k, 1)


@pytest.mark.parametrize("n", slow_except([3, 8, 12, 16], [3]))
def test_an_epilogue_and_the_bits_of_a_smaller_product(n: int):
    """The way in which results are written does not change their bits."""
    m, k = rows_for(n, "float32"), 16
    rng = np.random.default_rng(0)
    A, B, C = (jnp.asarray(rng.uniform(-1, 1, s), "float32") for s in ((m, k), (k, n), (m, n)))
    bias = jnp.asarray(rng.uniform(-1, 1, n), "float32")

    def gemm(A: jax.Array, C: jax.Array) -> jax.Array:
        return vb.batched_gemm([A], [B], [C], alpha=2.0, beta=0.5, bias=[bias], activation="relu")[0]

    whole = jax.jit(gemm)(A, C)
    assert whole.nbytes >= BYTES_OF_CACHES
    for rows in (slice(0, 997), slice(m - 1009, m)):
        np.testing.assert_array_equal(whole[rows], jax.jit(gemm)(A[rows], C[rows]))
        product, part = (jax.jit(vb.batched_matmul)([x], [B])[0] for x in (A, A[rows]))
        np.testing.assert_array_equal(product[rows], part)
    sums = 2.0 * np.asarray(A, np.float64) @ np.asarray(B, np.float64)
    truth = np.maximum(sums + 0.5 * np.asarray(C) + np.asarray(bias), 0)
    np.testing.assert_allclose(whole, truth, atol=1e-5)


def test_a_batch_that_is_large_together():
    rng = np.random.default_rng(1)
    sizes = [(70_001 + 13 * i, 5 + i, 7 + i) for i in range(9)]
    As = [rng.uniform(-1, 1, (m, k)).astype("float32") for m, _, k in sizes]
    Bs = [rng.uniform(-1, 1, (k, n)).astype("float32") for _, n, k in sizes]
    Cs = jax.jit(vb.batched_matmul)(As, Bs)
    assert sum(x.nbytes for x in (*As, *Cs)) >= BYTES_OF_CACHES
    for A, B, C in zip(As, Bs, Cs, strict=True):
        np.testing.assert_allclose(C, A.astype(np.float64) @ B, atol=1e-5)


@pytest.mark.parametrize("dtype", slow_except(["float32", "float64", "complex64"], ["float32"]))
@pytest.mark.parametrize(("m", "n", "k"), [(61, 16, 20_011), (137, 3, 9973), (100, 31, 12_289), (33, 70, 8209)])
def test_a_deep_k_by_some_rows_and_some_of_it_at_a_time(m: int, n: int, k: int, dtype: str):
    """B's part of K is more than the level-2 cache keeps; few rows alone are less than what is cut up, and the same."""
    with jax.enable_x64(True):
        A, B = (oracle.random(shape, dtype) for shape in [(m, k), (k, n)])
        multiply = jax.jit(lambda As: vb.batched_matmul(As, [B] * len(As), planner="uniform"))  # which splits no K
        [C] = multiply([A])
        truth = oracle.wide(A) @ oracle.wide(B)
        assert np.abs(oracle.wide(C) - truth).max() <= 4 * np.finfo(dtype).eps * k**0.5 * np.abs(truth).max()
        rows = [slice(0, 3), slice(m - 2, m), slice(17, 21)]
        for part, result in zip(rows, multiply([A[part] for part in rows]), strict=True):
            np.testing.assert_array_equal(C[part], result)
