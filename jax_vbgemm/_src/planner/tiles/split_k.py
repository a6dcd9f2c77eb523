"""Split-K: places in C whose K is divided into slices, whose partial sums csrc/gpu/tile/add_partial_sums.h reduces.

A place is what one tile without split K would compute. Its slices are tiles of the same shape, row and column.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.pieces import Pieces
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, ceil_div, offsets

# The number of slice counts that are tried: usually one of the first few fills the device, or none does.
_MAX_TRIED = 256

# From this many rounds on the fill of the last round matters little, because blocks no longer end at the same time.
_ROUNDS_ENOUGH = 3


class KSlices(NamedTuple):
    """For each tile, `number`: the number of slices of its place in C; `sums`: the offset of its partial sums in the
    workspace.

    `first_tiles` are the tiles that are the first slice of a split place, in the order of their partial sums; a place
    that is not split has no partial sums. The workspace has `num_sums` accumulators: a whole tile's for each slice.
    """

    number: Ints
    sums: Ints
    first_tiles: Ints
    num_sums: int

    def of_pieces(self, pieces: Pieces) -> "KSlices":
        """The slices of the pieces of these tiles: all pieces of a slice add to the same partial sums."""
        return self._replace(
            number=self.number[pieces.tile], sums=self.sums[pieces.tile], first_tiles=pieces.first[self.first_tiles]
        )


def slices_of(tiles: Runs, catalogue: Catalogue) -> KSlices:
    """The slices of runs of one tile each, which cover their problems.

    Raises ValueError if the K slices of an element belong to tiles of different shapes or places.
    """
    # Sorted by place, and by k within a place: a tile that does not begin at k = 0 has to continue the tile before it.
    order = np.lexsort((tiles.k_begin, tiles.tile_id, tiles.col, tiles.row, tiles.batch, tiles.problem))
    begin = tiles.k_begin[order]
    starts = begin == 0
    continued = np.flatnonzero(~starts)
    fields = (tiles.problem, tiles.batch, tiles.row, tiles.col, tiles.tile_id)
    fits = np.all([field[order[continued]] == field[order[continued - 1]] for field in fields], axis=0)
    fits &= (continued > 0) & (begin[continued] == tiles.k_end[order[continued - 1]])
    if not fits.all():
        tile = order[continued[np.argmin(fits)]]
        raise ValueError(
            f"plan: the tile of problems[{tiles.problem[tile]}] at row {tiles.row[tile]}, col {tiles.col[tile]} from k "
            f"{tiles.k_begin[tile]} on continues no tile that ends there: the K ranges of a split tile must be "
            "contiguous and use one tile shape"
        )
    first = np.flatnonzero(starts)
    place = np.cumsum(starts) - 1
    counts = np.diff(np.append(first, len(order)))
    each = (catalogue.columns.m * catalogue.columns.n)[tiles.tile_id[order[first]]]
    first_sums = offsets(np.where(counts > 1, counts * each, 0))

    def in_order(values: Ints) -> Ints:
        found = np.empty_like(values)
        found[order] = values
        return found

    return KSlices(
        number=in_order(counts[place]),
        sums=in_order(first_sums[:-1][place] + (np.arange(len(order)) - first[place]) * each[place]),
        first_tiles=order[first[counts > 1]],
        num_sums=int(first_sums[-1]),
    )


def even_slices(steps: Ints, slices: Ints) -> tuple[Ints, Ints]:
    """Divides K steps into about `slices` slices. Returns the steps of each slice but the last, and the number of
    non-empty slices."""
    each = ceil_div(steps, slices.clip(1)).clip(1)
    return each, ceil_div(steps, each).clip(1)


def fewest_filling_slices(
    steps: Ints, tiles: Ints, slots: int, fewest_steps: int, filled: float, most_steps: int | None = None
) -> Ints:
    """For problems with this many tiles of this many K steps, the fewest slices that keep `slots` busy for the fraction
    `filled` of the time, if all steps take equally long; where no number does, the one with the largest fraction.

    There must be a tile. All slices of a split problem but the last have at least `fewest_steps`, and all tiles fit the
    descriptor constant (planner/tiles/descriptor_size.py). If problems have more than `most_steps`, slices have at
    most this many, and `_ROUNDS_ENOUGH` rounds count as full.
    """
    steps = steps.clip(1)
    work, best, fullest = float((steps * tiles).sum()), np.ones_like(steps), 0.0
    most = max(int(steps.max()) // fewest_steps, 1)
    # With fewer slices, too many slots would be idle or one block would take too long.
    short_enough = 1 if most_steps is None else int(ceil_div(steps.max(), most_steps))
    least = max(int(filled * slots / tiles.sum()), int(filled * slots * steps.max() / work), short_enough, 1)
    least = min(least, most)
    for parts in range(least, min(most, least + _MAX_TRIED) + 1):
        longest = ceil_div(steps.max(), parts)
        each, slices = even_slices(steps, ceil_div(steps, longest))
        blocks = float((slices * tiles).sum())
        if ready_bytes(blocks, float(tiles[slices > 1].sum())) > MAX_BYTES:
            break
        full = work / slots / max(float(each.max()), math.ceil(blocks / slots) * work / blocks)
        enough = full >= filled or (short_enough > 1 and blocks >= _ROUNDS_ENOUGH * slots)
        if full > fullest or enough:
            best, fullest = slices, full
        if enough:
            break
    return best


def in_slices(whole: Runs, slices: Ints, depth: Ints) -> Runs:
    """Each run once for each of the `slices` of its K; all slices but the last are whole steps of `depth`."""
    steps, slices = even_slices(ceil_div(whole.k_end, depth), slices)
    run = np.repeat(np.arange(len(whole)), slices)
    runs, each = whole.take(run), (steps * depth)[run]
    index = np.arange(len(run)) - np.searchsorted(run, run)
    return replace(runs, k_begin=index * each, k_end=np.minimum(runs.k_end, (index + 1) * each))
