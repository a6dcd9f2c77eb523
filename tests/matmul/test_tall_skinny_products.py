"""Products with a small dimension or two: values, gradients, and as members of a mixed batch."""

import jax
import jax.numpy as jnp
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb

LONG = st.sampled_from([1, 127, 1023, 1024, 1025, 4099, 20_011])
SMALL = st.one_of(st.sampled_from([3, 5, 7, 12, 24, 31]), st.integers(1, 40))


@st.composite
def skinny(draw):
    """m, n, k and both transposes, with the long dimension in any of the three places."""
    sizes = [draw(LONG), draw(SMALL), draw(SMALL)]
    return (*draw(st.permutations(sizes)), draw(st.booleans()), draw(st.booleans()))


@st.composite
def of_long_rows(draw):
    """As `skinny`, with few columns and a deep K, mostly with an A that is contiguous along K."""
    m = draw(st.one_of(st.sampled_from([15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1025]), st.integers(1, 300)))
    k = draw(st.one_of(st.sampled_from([255, 256, 264, 1023, 1024, 1025, 8192, 33_001]), st.integers(1, 3000)))
    return m, draw(st.integers(1, 17)), k, draw(st.sampled_from([False, False, True])), draw(st.booleans())


def operands(products, dtype):
    As = [oracle.random((k, m) if ta else (m, k), dtype, i) for i, (m, _, k, ta, _) in enumerate(products)]
    Bs = [oracle.random((n, k) if tb else (k, n), dtype, 99 + i) for i, (_, n, k, _, tb) in enumerate(products)]
    return As, Bs, [(ta, tb) for *_, ta, tb in products]


@pytest.mark.parametrize("planner", slow_except(["auto", "tall_skinny"], ["tall_skinny"]))
@pytest.mark.parametrize("dtype", slow_except(["float32", "float64", "bfloat16", "float16"], ["float32", "bfloat16"]))
@given(products=st.lists(st.one_of(skinny(), of_long_rows()), min_size=1, max_size=3))
def test_values(dtype, planner, products):
    As, Bs, flags = operands(products, dtype)
    ta, tb = [a for a, _ in flags], [b for _, b in flags]
    Cs = vb.batched_matmul(As, Bs, transpose_a=ta, transpose_b=tb, precision="highest", planner=planner)
    oracle.check(Cs, As, Bs, flags)


@pytest.mark.parametrize("dtype", slow_except(["float32", "float64"], ["float64"]))
def test_a_mixed_batch_and_its_gradients(dtype):
    """A gradient of a tall and skinny product is its mirror image and a reduction over its long side."""
    products = [(30_011, 12, 7), (64, 48, 80), (9, 20_000, 31), (5, 6, 40_003), (33, 1, 17), (1030, 5, 2001)]
    As, Bs, flags = operands([(*product, False, False) for product in products], dtype)
    weights = [oracle.random((m, n), dtype, 7 + i) for i, (m, n, _) in enumerate(products)]

    @jax.jit
    def value_and_gradients(As, Bs):
        def loss(As, Bs):
            Cs = vb.batched_matmul(As, Bs, precision="highest")
            return sum(jnp.vdot(w, c) for w, c in zip(weights, Cs, strict=True)), Cs

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(As, Bs)

    (_, Cs), (dAs, dBs) = value_and_gradients(As, Bs)
    oracle.check(Cs, As, Bs, flags)
    oracle.check(dAs, weights, Bs, [(False, True)] * len(products))
    oracle.check(dBs, As, weights, [(True, False)] * len(products))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(10**7, 3, 5), (3, 10**7, 5), (3, 5, 10**7), (10**7, 16, 8)])
def test_ten_million(shape):
    As, Bs, flags = operands([(*shape, False, False)], "float32")
    oracle.check(vb.batched_matmul(As, Bs, precision="highest"), As, Bs, flags)
