"""`tall_skinny`: Rivera et al., "ISM2: Optimizing irregular-shaped matrix-matrix multiplication on GPUs"."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.cost_model import step_depth
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tall_skinny_model import Gpu, best_parameters
from jax_vbgemm._src.planner.model.tall_skinny_shape import Shape, shapes_of
from jax_vbgemm._src.planner.papers.options import check_number
from jax_vbgemm._src.planner.papers.sort_split import LEVELS, largest_that_fits
from jax_vbgemm._src.planner.plan.draft import Draft, DraftPlanner
from jax_vbgemm._src.planner.plan.plan import MAX_TILES
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import ceil_div
from jax_vbgemm._src.planner.tiles.shares import in_shares
from jax_vbgemm._src.problem import Problem, Sizes

MIRRORED = (Shape.TSM2_MIRRORED, Shape.ISM2_MIRRORED)
DEEP = (Shape.TSM2, Shape.TSM2_MIRRORED, Shape.REDUCTION)  # K is more than small, and may be split

# The paper splits no K, and no costs are weighed here: a share is at least so many steps deep, that its sums be few
# beside its products.
_STEPS_OF_A_SHARE = 8


@dataclass(frozen=True)
class TallSkinny(DraftPlanner):
    """Tall and skinny problems get the tile that the paper's performance model asks for, one tile a block.

    t2 is the tile's short side and t1 tcf its long one: the model chooses among the short sides there are, then the
    longest tile of that side is taken that is no longer than t1 tcf. On a CPU, which the model does not cover, the
    tile is as narrow as holds the small dimension, and as long as there is. Other problems get the largest square tile
    that fits. Where all blocks together are fewer than `target_blocks` (default: those that the device holds at once),
    K is split, if it is more than small, until they are not; the paper has rows enough for its GPUs.
    """

    target_blocks: float | None = None

    def __post_init__(self) -> None:
        check_number("TallSkinny", "target_blocks", self.target_blocks)

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        sizes = Sizes.of(problems)
        ordinary, replaced = catalogue.resolve(LEVELS)
        strategy = np.array([tile.index for tile in ordinary])[largest_that_fits(sizes, ordinary)]
        shapes = shapes_of(sizes)
        for i in np.flatnonzero((shapes != Shape.ORDINARY) & (shapes != Shape.REDUCTION)).tolist():
            m, n, k, batch = (int(column[i]) for column in (sizes.m, sizes.n, sizes.k, sizes.batch))
            mirrored = shapes[i] in MIRRORED
            if mirrored:
                m, n = n, m
            tile = _tile_for(m, n, k, batch, mirrored, device, catalogue) if batch else None
            strategy[i] = strategy[i] if tile is None else tile.index
        order = np.arange(len(problems))
        draft = Draft.whole_problems(
            problems, device, catalogue, planner="tall_skinny", strategy=strategy, order=order, replaced=replaced
        )
        return draft if device.kind == "cpu" else self._split(draft, shapes)

    def _split(self, draft: Draft, shapes: NDArray[np.int8]) -> Draft:
        """The draft with the K of deep problems in as many shares as bring it to `target_blocks`."""
        runs, device, catalogue = draft.runs, draft.device, draft.catalogue
        deep = np.isin(shapes[runs.problem], DEEP)
        if not deep.any() or runs.num_tiles > MAX_TILES:
            return draft
        tile = catalogue.by_index[int(runs.strategy[deep][0])]
        held = device.units * tile_occupancy(tile, device).blocks
        target = held if self.target_blocks is None else self.target_blocks
        others = int(runs.count[~deep].sum())
        fill = int(max(target - others, 0) // int(runs.count[deep].sum()))
        depth = step_depth(catalogue.columns.k[runs.strategy], catalogue.element_bytes)
        shares = np.where(deep, np.minimum(fill, ceil_div(runs.k_end, depth) // _STEPS_OF_A_SHARE), 1).clip(1)
        if (shares == 1).all():
            return draft
        tiles = runs.expand(catalogue)
        run = np.repeat(np.arange(len(runs)), runs.count)
        return replace(draft, runs=in_shares(tiles, shares[run], depth[run]))


@lru_cache(maxsize=1024)
def _tile_for(
    m: int, n: int, k: int, batch: int, mirrored: bool, device: DeviceSpec, catalogue: Catalogue
) -> TileShape | None:
    """The tile for an m x n output with n small, or for its mirror image; None where none is built."""

    def sides(tile: TileShape) -> tuple[int, int]:
        """The short and the long one."""
        return (tile.m, tile.n) if mirrored else (tile.n, tile.m)

    tiles = [tile for tile in catalogue if tile.name.startswith("skinny-") and sides(tile)[0] < sides(tile)[1]]
    if not tiles:
        return None
    shorts = sorted({sides(tile)[0] for tile in tiles})
    if device.kind == "cpu":
        short, longest = next((side for side in shorts if side >= n), shorts[-1]), m
    else:
        loads = max(16 // catalogue.element_bytes, 1)  # t3: what a thread copies at once
        found = best_parameters(
            Gpu.of(device), catalogue.dtype, m, n, k, batch=batch, t1=tiles[0].threads, t2=shorts, t3=[loads]
        )
        short, longest = found.t2, found.t1 * found.tcf
    of_side = sorted((tile for tile in tiles if sides(tile)[0] == short), key=lambda tile: sides(tile)[1])
    return next((tile for tile in reversed(of_side) if sides(tile)[1] <= longest), of_side[0])
