"""`sort_split`: Wang et al., "A high-performance batched matrix multiplication framework for GPUs under unbalanced
input distribution", J. Supercomput. 78 (2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from jax_vbgemm._src.planner.papers.options import check_choice, check_number
from jax_vbgemm._src.planner.papers.paper_planner import PaperPlanner
from jax_vbgemm._src.planner.plan.draft import Draft
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints, tile_counts
from jax_vbgemm._src.problem import Problem, ProblemSizes

LEVELS: tuple[TileKey, ...] = (("small", 128), ("medium", 128), ("large", 128))
TENSOR_LEVELS: tuple[TileKey, ...] = (("mma-16x32", 128), ("mma-32x32", 128), ("mma-64x64", 128))


@dataclass(frozen=True)
class SortSplit(PaperPlanner):
    """The planner "sort_split", of Wang et al., "A high-performance batched matrix multiplication framework for GPUs
    under unbalanced input distribution", J. Supercomput. 78 (2022).

    Problems get tiles by their size and are sorted, heavy problems first; then light problems are split into smaller
    tiles until there are enough blocks to fill the device. Each block has one tile.

    Unknown values and negative numbers raise ValueError; an option that must be a number and is not raises TypeError.

    `target_blocks`: the number of blocks that fills the device; None: the device's split factor times its units
    (multiprocessors).

    The paper describes the steps "sort-up" and "split-down" without formulas, and each can be read in two ways.

    `sort_by`: the first sort key of sort-up, descending; the other key is the second one.

    - "k" (default): K, which the paper calls the workload of a workgroup, as it determines the inner loop; the paper
      calls the tile shape (its "tile strategy") secondary.
    - "tile": the tile's area, as in the authors' later code.

    `passes`: how often split-down walks from the last problem to the first.

    - "repeat" (default): until there are enough blocks or all tiles are the smallest. The split factor is the number of
      blocks that keeps all SIMDs of a unit busy, and shrinking by one level may not reach it.
    - "one": once, so that each problem shrinks one level at most, as in the authors' later code.

    On an H100 the defaults were measured to be the fastest: "tile" is 0.93 times, "one" 0.99 times and both together
    0.97 times as fast (72 workloads, float32; docs/experiments.md).

    `tensor`: whether plans use tensor-core tiles of the paper's shapes. None (default): for float32 at JAX's default
    precision and for 16-bit floats, but not for float32 at "highest" and for float64.
    """

    name: ClassVar[str] = "sort_split"
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (LEVELS,)
    tensor_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (TENSOR_LEVELS,)

    target_blocks: float | None = None
    sort_by: Literal["k", "tile"] = "k"
    passes: Literal["repeat", "one"] = "repeat"
    tensor: bool | None = None

    def __post_init__(self) -> None:
        check_number("SortSplit", "target_blocks", self.target_blocks)
        check_choice("SortSplit", "sort_by", self.sort_by, ("k", "tile"))
        check_choice("SortSplit", "passes", self.passes, ("repeat", "one"))
        check_choice("SortSplit", "tensor", self.tensor, (None, True, False))

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        target = device.split_factor * device.units if self.target_blocks is None else self.target_blocks
        (levels,) = self.sets_for(catalogue)
        tiles, replaced = catalogue.resolve(levels)
        sizes = ProblemSizes.of(problems)
        level = largest_that_fits(sizes, tiles)
        area = np.array([tile.m * tile.n for tile in tiles])[level]
        keys = (-area, -sizes.k) if self.sort_by == "k" else (-sizes.k, -area)
        # stable; the last key is the primary one; problems are not sorted again after the split
        order = np.lexsort(keys)
        level = _split_down(sizes, tiles, level, order, target, self.passes == "repeat")
        return Draft.whole_problems(
            problems,
            device,
            catalogue,
            planner=self.name,
            tile_id=np.array([tile.index for tile in tiles])[level],
            order=order,
            replaced=replaced,
        )


def largest_that_fits(sizes: ProblemSizes, tiles: tuple[TileShape, ...]) -> Ints:
    level = np.zeros(len(sizes.m), np.int64)
    for index, tile in enumerate(tiles):
        level[(tile.m <= sizes.m) & (tile.n <= sizes.n)] = index
    return level


def _split_down(
    sizes: ProblemSizes, tiles: tuple[TileShape, ...], level: Ints, order: Ints, target: float, repeat: bool
) -> Ints:
    """Shrinks the tiles of problems by one level, from the last in `order` to the first, until there are `target`
    blocks; with `repeat` in several passes.
    """
    blocks = np.array([tile_counts(sizes, tile.m, tile.n) for tile in tiles])
    problem = np.arange(len(level))
    backwards = order[::-1]
    while (total := int(blocks[level, problem].sum())) < target and (level > 0).any():
        shrinking = backwards[level[backwards] > 0]
        gain = blocks[level[shrinking] - 1, shrinking] - blocks[level[shrinking], shrinking]
        blocks_before = total + np.cumsum(gain) - gain  # blocks when a problem's turn comes
        level = level.copy()
        level[shrinking[blocks_before < target]] -= 1
        if not repeat:
            break
    return level
