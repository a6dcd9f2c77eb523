"""Products whose K is split among the CPU's cores: values, epilogues, gradients, bits."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_vbgemm as vb

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the CPU's planner")


def in_slices(problems, device, catalogue):
    """Every problem with up to nine K slices, as on a machine with many cores."""
    blocks = []
    for index, p in enumerate(problems):
        slices = itertools.pairwise(sorted({p.k * end // 9 for end in range(10)}))
        for (begin, end), row, col in itertools.product(slices, range(0, p.m, 48), range(0, p.n, 64)):
            blocks.append([vb.Tile(index, 0, row, col, begin, end, "cpu-small")])
    return vb.Plan.from_blocks(problems, device, catalogue, planner="in_slices", blocks=blocks)


deep = st.tuples(
    st.integers(1, 70), st.integers(1, 70), st.sampled_from([1, 2, 10, 300, 1027, 5000]), st.booleans(), st.booleans()
)


def operands(products, dtype):
    As = [oracle.random((k, m) if ta else (m, k), dtype, i) for i, (m, _, k, ta, _) in enumerate(products)]
    Bs = [oracle.random((n, k) if tb else (k, n), dtype, 99 + i) for i, (_, n, k, _, tb) in enumerate(products)]
    return As, Bs, [ta for *_, ta, _ in products], [tb for *_, tb in products]


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@settings(max_examples=4)
@given(products=st.lists(deep, min_size=1, max_size=3))
def test_values(dtype, products):
    As, Bs, ta, tb = operands(products, dtype)
    Cs = vb.batched_matmul(As, Bs, transpose_a=ta, transpose_b=tb, planner=in_slices)
    oracle.check(Cs, As, Bs, list(zip(ta, tb, strict=True)))


@pytest.mark.parametrize("dtype", ["float32", "complex128", "bfloat16"])
@pytest.mark.parametrize("beta", [0, 0.5])
def test_epilogues_are_applied_once_to_the_whole_sum(dtype, beta):
    As, Bs, ta, tb = operands([(17, 9, 6000, True, False), (3, 40, 3000, False, True)], dtype)
    Cs = [oracle.random((17, 9), dtype, 5), oracle.random((3, 40), dtype, 6)]
    bias = [oracle.random((9,), dtype, 7), oracle.random((40,), dtype, 8)]
    activation = None if dtype.startswith("complex") else "tanh"

    def both(implementation, planner):
        return vb.batched_gemm(
            As, Bs, Cs, alpha=jnp.asarray([1e-2, 3e-2]), beta=beta, bias=bias, activation=activation,
            transpose_a=ta, transpose_b=tb, implementation=implementation, planner=planner,
        )  # fmt: skip

    for ours, truth in zip(both("kernel", in_slices), both("xla", "auto"), strict=True):
        tolerance = 2e-2 if dtype == "bfloat16" else 1e-4
        np.testing.assert_allclose(oracle.wide(ours), oracle.wide(truth), rtol=tolerance, atol=tolerance)


def test_the_gradient_of_a_tall_layer():
    x, w = oracle.random((5000, 12), "float64", 1), oracle.random((12, 7), "float64", 2)
    y = oracle.random((5000, 7), "float64", 3)

    def loss(w):
        return jnp.vdot(y, vb.batched_matmul([x], [w], planner=in_slices)[0])

    oracle.check([jax.jit(jax.grad(loss))(w)], [x], [y], [(True, False)])


def test_the_same_bits_whatever_threads_do():
    As, Bs, ta, tb = operands([(16, 16, 9999, True, False), (31, 7, 5000, False, False)], "float32")
    function = jax.jit(lambda As, Bs: vb.batched_matmul(As, Bs, transpose_a=ta, transpose_b=tb, planner=in_slices))
    first = [np.asarray(c).tobytes() for c in function(As, Bs)]
    with ThreadPoolExecutor(8) as pool:
        for again in pool.map(lambda _: [np.asarray(c).tobytes() for c in function(As, Bs)], range(50)):
            assert again == first


def test_an_infinity_in_one_slice_reaches_what_it_should():
    a, b = oracle.random((4, 8000), "float32", 1), oracle.random((8000, 3), "float32", 2)
    a = a.at[2, 7001].set(jnp.inf)
    (c,) = vb.batched_matmul([a], [b], planner=in_slices)
    np.testing.assert_array_equal(np.isfinite(c), np.arange(4)[:, None] != np.full((4, 3), 2))
