"""Products by the pipelined tile, whose operands TMA copies: every layout, alignment and epilogue."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb

TILE = vb.Uniform("mma-128x256")
# Just before, at and after a half tile, a tile and a K step; rows that TMA copies, and rows that it cannot.
SIZES = [
    (1, 1, 1),
    (128, 256, 64),
    (129, 264, 72),
    (127, 248, 56),
    (64, 8, 8),
    (65, 255, 65),
    (300, 520, 200),
    (7, 300, 129),
]


def has_pipelined_tile() -> bool:
    return any(tile.name == "mma-128x256" for tile in vb.plan([(1, 1, 1)], dtype="bfloat16").catalogue)


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_pipelined_tile(), reason="needs a GPU with TMA and warpgroup products"),
]


def operands(dtype, transpose_a=False, transpose_b=False):
    As = [oracle.random((k, m) if transpose_a else (m, k), dtype, i) for i, (m, _, k) in enumerate(SIZES)]
    Bs = [oracle.random((n, k) if transpose_b else (k, n), dtype, 50 + i) for i, (_, n, k) in enumerate(SIZES)]
    return As, Bs


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_every_layout(dtype, transpose_a, transpose_b):
    As, Bs = operands(dtype, transpose_a, transpose_b)
    Cs = jax.jit(lambda a, b: vb.batched_matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, planner=TILE))(
        As, Bs
    )
    oracle.check(Cs, As, Bs, [(transpose_a, transpose_b)] * len(As))


def test_results_in_float32():
    As, Bs = operands("bfloat16")
    Cs = jax.jit(lambda a, b: vb.batched_matmul(a, b, preferred_element_type=jnp.float32, planner=TILE))(As, Bs)
    for a, b, c in zip(As, Bs, Cs, strict=True):
        truth, scale = oracle.matmul(a, b)
        assert c.dtype == jnp.float32
        np.testing.assert_array_less(np.abs(oracle.wide(c) - truth), 1e-5 * scale + 1e-30)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_epilogues(activation):
    As, Bs = operands("bfloat16")
    Cs = [oracle.random((m, n), "bfloat16", 90 + i) for i, (m, n, _) in enumerate(SIZES)]
    bias = [oracle.random((n,), "bfloat16", 70 + i) for i, (_, n, _) in enumerate(SIZES)]

    def f(planner):
        return jax.jit(
            lambda: vb.batched_gemm(As, Bs, Cs, alpha=0.5, beta=-1.5, bias=bias, activation=activation, planner=planner)
        )()

    for found, wanted in zip(f(TILE), f("uniform"), strict=True):
        np.testing.assert_allclose(oracle.wide(found), oracle.wide(wanted), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("transpose_b", [False, True])
def test_batch_dimensions(transpose_b):
    As = [oracle.random((2, 3, 200, 136), "bfloat16", 1), oracle.random((4, 130, 72), "bfloat16", 2)]
    Bs = [oracle.random((2, 3, 264, 136) if transpose_b else (2, 3, 136, 264), "bfloat16", 3)]
    Bs += [oracle.random((264, 72) if transpose_b else (72, 264), "bfloat16", 4)]
    Cs = jax.jit(lambda a, b: vb.batched_matmul(a, b, transpose_b=transpose_b, planner=TILE))(As, Bs)
    oracle.check(Cs, As, Bs, [(False, transpose_b)] * 2)


def test_windows_of_one_buffer_with_and_without_alignment():
    rows, cols, depth = 200, 272, 96
    x = oracle.random((2 * rows * 300 + 5,), "bfloat16", 1)
    y = oracle.random((depth, cols), "bfloat16", 2)

    def f(x, y):
        aligned = vb.View(x, (rows, depth), (304 - 8, 1), 8)
        odd = vb.View(x, (rows, depth), (299, 1), 3)
        return vb.batched_matmul([aligned, odd], [y, y], planner=TILE)

    Cs = jax.jit(f)(x, y)
    for c, stride, offset in zip(Cs, (296, 299), (8, 3), strict=True):
        a = np.lib.stride_tricks.as_strided(oracle.wide(x)[offset:], (rows, depth), (stride * 8, 8))
        oracle.check([c], [jnp.asarray(a, "bfloat16")], [y])


def test_nothing_of_other_rows_reaches_a_result():
    """NaN beside a window, also in the rest of the boxes that TMA copies."""
    x = jnp.full((300, 400), jnp.nan, jnp.bfloat16).at[8:137, 16:88].set(1)
    y = jnp.ones((72, 264), jnp.bfloat16)
    view = vb.View(x.reshape(-1), (129, 72), (400, 1), 8 * 400 + 16)
    (c,) = jax.jit(lambda v, y: vb.batched_matmul([v], [y], planner=TILE))(view, y)
    np.testing.assert_array_equal(oracle.wide(c), 72.0)


def test_the_same_bits_in_every_run_and_with_a_large_batch():
    As = [oracle.random((512, 640), "bfloat16", i) for i in range(40)]
    Bs = [oracle.random((640, 768), "bfloat16", 60 + i) for i in range(40)]
    f = jax.jit(lambda a, b: vb.batched_matmul(a, b, planner=TILE))
    first = f(As, Bs)
    oracle.check(first, As, Bs)
    for _ in range(3):
        for c, again in zip(first, f(As, Bs), strict=True):
            np.testing.assert_array_equal(oracle.wide(c), oracle.wide(again))


def test_sums_of_products_and_their_gradients():
    As = [oracle.random((256, k), "bfloat16", i) for i, k in enumerate((64, 200, 72))]
    Bs = [oracle.random((k, 264), "bfloat16", 9 + i) for i, k in enumerate((64, 200, 72))]

    def f(As, Bs):
        return vb.batched_matmul_sum(As, Bs, [0, 0, 0], planner=TILE)[0].astype(jnp.float32).sum()

    def plain(As, Bs):
        return sum(a.astype(jnp.float32) @ b.astype(jnp.float32) for a, b in zip(As, Bs, strict=True)).sum()

    found, wanted = jax.jit(jax.grad(f, (0, 1)))(As, Bs), jax.grad(plain, (0, 1))(As, Bs)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(oracle.wide(x), oracle.wide(y), rtol=0.02, atol=0.3)


def test_large_products_take_it():
    plan = vb.plan([(2048, 2048, 2048)] * 4, dtype="bfloat16")
    assert {tile.name for tile in plan.tiles_used} == {"mma-128x256"}
