"""Nothing outside of a result is written, and nothing beside an operand is read, whoever plans the products.

Windows of every width from 1 to 24, and of as many columns beyond a tile, lie in longer rows: behind a row of a result
is a pattern that must stay, behind a row of an operand is NaN.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.native.backends import default_device
from jax_vbgemm._src.planner import catalogue_for, kind_of
from jax_vbgemm._src.planner.registry import REGISTERED

PATTERN, ROWS, DEPTH = 7, (1, 3, 129), 16
ALL_PROBLEMS = [(ROWS[i % 3], n, DEPTH + i) for i, n in enumerate([*range(1, 25), *range(257, 281)])]
DTYPES = ["bfloat16", "float16", "float32"]


def all_tiles(dtype):
    return [
        vb.Uniform(tile=tile.key)
        for tile in catalogue_for(kind_of(dtype, "default", default_device()), default_device())
    ]


def buffer(fill, rows, cols, dtype):
    """Rows that begin at multiples of 16 bytes in a longer buffer, and the window of all their elements."""
    pitch = -(-cols // 8) * 8 + 8
    return np.full(rows * pitch + 8, fill, dtype), ((rows, cols), (pitch, 1), 0)


def case(problems, dtype):
    """The buffers, and the windows of each problem's operands and result in them."""
    rng, buffers, windows = np.random.default_rng(0), [], []
    for m, n, k in problems:
        for fill, rows, cols in ((np.nan, m, k), (np.nan, k, n), (PATTERN, m, n)):
            array, window = buffer(fill, rows, cols, jnp.dtype(dtype))
            if fill is np.nan:
                steps = tuple(stride * array.itemsize for stride in window[1])
                np.lib.stride_tricks.as_strided(array, window[0], steps)[...] = rng.integers(-4, 5, window[0])
            buffers.append(array)
            windows.append(window)
    return buffers, windows


# On a CPU all dtypes have the code of these tests' windows in common.
@pytest.mark.parametrize("dtype", slow_except(DTYPES, ["bfloat16"] if jax.default_backend() == "cpu" else DTYPES))
@pytest.mark.slow
def test_guards_around_windows(dtype, tmp_path, monkeypatch):
    # On a CPU each program takes seconds to compile, and no kernel stores more than the elements of its result.
    problems = ALL_PROBLEMS[::9] if jax.default_backend() == "cpu" else ALL_PROBLEMS
    buffers, windows = case(problems, dtype)

    def results(planner):
        @jax.jit
        def call(arrays):
            views = [vb.View(array, *window) for array, window in zip(arrays, windows, strict=True)]
            done = vb.batched_matmul(views[0::3], views[1::3], into=views[2::3], planner=planner, precision="default")
            return [view.buffer for view in done]

        return call(jax.device_put(buffers))

    expected = [np.array(array, np.float64) for array in buffers]
    for i in range(len(problems)):
        a, b, c = (
            np.lib.stride_tricks.as_strided(x, window[0], tuple(8 * stride for stride in window[1]))
            for x, window in zip(expected[3 * i : 3 * i + 3], windows[3 * i : 3 * i + 3], strict=True)
        )
        c[...] = a @ b
    planners = ["auto", *(one.name for one in REGISTERED), *all_tiles(dtype)]
    monkeypatch.setenv("VBGEMM_CACHE", str(tmp_path / "tuned.json"))
    for planner in [*planners, "tuned"]:
        if planner == "tuned":
            vb.autotune(problems, dtype=dtype, precision="default", rounds=1)
        for i, found in enumerate(results("auto" if planner == "tuned" else planner)):
            # Small integers: sums are exact, and rounded once.
            right = expected[3 * i + 2].astype(jnp.dtype(dtype)).astype(np.float64)
            wrong = np.flatnonzero(np.asarray(found, np.float64) != right)
            assert not wrong.size, (
                f"{planner}: {problems[i]} in rows of {windows[3 * i + 2][1][0]}: {wrong[:9]} changed"
            )
