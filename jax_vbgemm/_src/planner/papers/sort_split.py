"""`sort_split`: Wang et al., "A high-performance batched matrix multiplication framework for GPUs under unbalanced
input distribution", J. Supercomput. 78 (2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jax_vbgemm._src.planner.papers.options import check_number
from jax_vbgemm._src.planner.plan.draft import Draft, DraftPlanner
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints, tile_counts
from jax_vbgemm._src.problem import Problem, Sizes

LEVELS = (("small", 128), ("medium", 128), ("large", 128))


@dataclass(frozen=True)
class SortSplit(DraftPlanner):
    """Flexible tiles, heavy problems first, and the light ones split until the device is full. One tile a block.

    `target_blocks`: blocks that fill the device; default: its split factor times its units.
    """

    name: ClassVar[str] = "sort_split"
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (LEVELS,)

    target_blocks: float | None = None

    def __post_init__(self) -> None:
        check_number("SortSplit", "target_blocks", self.target_blocks)

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        target = device.split_factor * device.units if self.target_blocks is None else self.target_blocks
        tiles, replaced = catalogue.resolve(LEVELS)
        sizes = Sizes.of(problems)
        level = largest_that_fits(sizes, tiles)
        area = np.array([tile.m * tile.n for tile in tiles])[level]
        order = np.lexsort((-area, -sizes.k))  # stable, by K first; not sorted again after the split
        level = _split_down(sizes, tiles, level, order, target)
        return Draft.whole_problems(
            problems,
            device,
            catalogue,
            planner=self.name,
            strategy=np.array([tile.index for tile in tiles])[level],
            order=order,
            replaced=replaced,
        )


def largest_that_fits(sizes: Sizes, tiles: tuple[TileShape, ...]) -> Ints:
    level = np.zeros(len(sizes.m), np.int64)
    for index, tile in enumerate(tiles):
        level[(tile.m <= sizes.m) & (tile.n <= sizes.n)] = index
    return level


def _split_down(sizes: Sizes, tiles: tuple[TileShape, ...], level: Ints, order: Ints, target: float) -> Ints:
    """Shrinks problems by a level, from the last in `order` to the first, in passes, up to `target` blocks."""
    blocks = np.array([tile_counts(sizes, tile.m, tile.n) for tile in tiles])
    problem = np.arange(len(level))
    backwards = order[::-1]
    while (total := int(blocks[level, problem].sum())) < target and (level > 0).any():
        shrinking = backwards[level[backwards] > 0]
        gain = blocks[level[shrinking] - 1, shrinking] - blocks[level[shrinking], shrinking]
        before = total + np.cumsum(gain) - gain  # blocks when a problem's turn comes
        level = level.copy()
        level[shrinking[before < target]] -= 1
    return level
