"""Problems, devices and small helpers that the planner tests share."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.planner import Planner, catalogue_for, device_spec
from jax_vbgemm._src.problem import problems_of

DEVICES = ("h100", "v100", "mi210", "cpu")
DTYPES = ("float32", "float64")

# Sizes around the edges of all tiles, primes, and 0.
SIZES = (0, 1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 47, 61, 63, 64, 65, 97, 127, 128, 129, 256, 257)

sizes = st.sampled_from(SIZES)
depths = st.sampled_from((0, 1, 7, 16, 64, 127, 256, 257, 1000))
problems = st.builds(vb.Problem, m=sizes, n=sizes, k=depths, batch=st.sampled_from((0, 1, 1, 1, 2, 3)))
problem_lists = st.lists(problems, max_size=8).map(tuple)

# Problems of every family of tiles (planner/model/tile_families.py), and ordinary ones.
short = st.sampled_from((1, 3, 8, 16, 17, 32, 33))
long = st.sampled_from((1023, 1024, 4099, 32768, 10**6))
rows = st.builds(vb.Problem, m=long, n=short, k=short)
reductions = st.builds(vb.Problem, m=short, n=short, k=long)
tall = st.builds(vb.Problem, m=long, n=short, k=st.sampled_from((100, 257)))
wide = st.builds(vb.Problem, m=short, n=long, k=st.sampled_from((8, 100)))
of_all_families = st.lists(st.one_of(problems, rows, reductions, tall, wide), max_size=8).map(tuple)

huge_problems = st.builds(
    vb.Problem,
    m=st.sampled_from((1, 16, 1000, 65537, 10**7)),
    n=st.sampled_from((1, 16, 257)),
    k=st.sampled_from((0, 1, 16, 10**6)),
    batch=st.sampled_from((1, 2, 7)),
)


def make(planner: Planner, shapes: Sequence, device: str = "h100", dtype: str = "float32") -> vb.Plan:
    spec = device_spec(device)
    return planner(problems_of(shapes), spec, catalogue_for(dtype, spec))


def from_blocks(shapes: Sequence, *blocks: Sequence[vb.Tile]) -> vb.Plan:
    """A plan made by hand, for the H100 and float32."""
    spec = device_spec("h100")
    return vb.Plan.from_blocks(problems_of(shapes), spec, catalogue_for("float32", spec), planner="mine", blocks=blocks)


def ceil_div(a: int, b: int) -> int:
    return (a + b - 1) // b


def num_tiles(problem: vb.Problem, m: int, n: int) -> int:
    return ceil_div(problem.m, m) * ceil_div(problem.n, n) * problem.batch


def names(plan: vb.Plan) -> list[str]:
    return [name for name, _ in plan.choices]


def times_covered(plan: vb.Plan) -> list[np.ndarray]:
    """How often each (batch, row, col, k) of each problem is covered, counted tile by tile; K = 0 counts as one k."""
    counts = [np.zeros((p.batch, p.m, p.n, max(p.k, 1)), int) for p in plan.problems]
    shapes = {tile.index: tile for tile in plan.catalogue}
    tile_id = iter(plan.tile_strategy.tolist())
    for block in plan.blocks:
        for tile in block:
            shape = shapes[next(tile_id)]
            k_end = tile.k_end if plan.problems[tile.problem].k else 1
            counts[tile.problem][
                tile.batch, tile.row : tile.row + shape.m, tile.col : tile.col + shape.n, tile.k_begin : k_end
            ] += 1
    return counts
