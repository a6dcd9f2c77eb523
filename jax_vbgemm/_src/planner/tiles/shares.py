"""Split K: the tiles that share one place in C, and where each leaves its sums (csrc/gpu/tile/add_shares.h)."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.pieces import Pieces
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, ceil_div, offsets

# Numbers of shares that are looked at: the first few as a rule fill the device, or none does.
_TRIED = 256

# From so many on it matters little how full the last one is, as blocks have drifted apart.
_ROUNDS_ENOUGH = 3


class Shares(NamedTuple):
    """Of each tile: of how many shares of its place's K it is one, and where its sums begin among the call's.

    `first_tiles` are the first shares of the places that are split, one tile each, in the order of their sums; a place
    that is not split needs none. All need `num_sums` accumulators: each share a whole tile's.
    """

    shares: Ints
    sums: Ints
    first_tiles: Ints
    num_sums: int

    def of_pieces(self, pieces: Pieces) -> "Shares":
        """The same of the pieces of these tiles: all of a share's leave their sum in one place."""
        return self._replace(
            shares=self.shares[pieces.tile], sums=self.sums[pieces.tile], first_tiles=pieces.first[self.first_tiles]
        )


def shares_of(tiles: Runs, catalogue: Catalogue) -> Shares:
    """Shares of runs of one tile each, which cover their problems.

    Raises ValueError where tiles of different shapes share the K of an element.
    """
    # K rises within a place, and a tile that does not begin at 0 continues the one before it.
    order = np.lexsort((tiles.k_begin, tiles.strategy, tiles.col, tiles.row, tiles.batch, tiles.problem))
    begin = tiles.k_begin[order]
    starts = begin == 0
    continued = np.flatnonzero(~starts)
    fields = (tiles.problem, tiles.batch, tiles.row, tiles.col, tiles.strategy)
    fits = np.all([field[order[continued]] == field[order[continued - 1]] for field in fields], axis=0)
    fits &= (continued > 0) & (begin[continued] == tiles.k_end[order[continued - 1]])
    if not fits.all():
        tile = order[continued[np.argmin(fits)]]
        raise ValueError(
            f"plan: the tile of problems[{tiles.problem[tile]}] at row {tiles.row[tile]}, col {tiles.col[tile]} from k "
            f"{tiles.k_begin[tile]} on has no fellow of its shape and place that ends there: all of a place's K must "
            "be cut into tiles of one shape"
        )
    first = np.flatnonzero(starts)
    place = np.cumsum(starts) - 1
    counts = np.diff(np.append(first, len(order)))
    each = (catalogue.columns.m * catalogue.columns.n)[tiles.strategy[order[first]]]
    first_sums = offsets(np.where(counts > 1, counts * each, 0))

    def in_order(values: Ints) -> Ints:
        found = np.empty_like(values)
        found[order] = values
        return found

    return Shares(
        shares=in_order(counts[place]),
        sums=in_order(first_sums[:-1][place] + (np.arange(len(order)) - first[place]) * each[place]),
        first_tiles=order[first[counts > 1]],
        num_sums=int(first_sums[-1]),
    )


def even_shares(steps: Ints, shares: Ints) -> tuple[Ints, Ints]:
    """Of so many steps along K, cut into about `shares` parts: steps of each but the last, and how many, none empty."""
    each = ceil_div(steps, shares.clip(1)).clip(1)
    return each, ceil_div(steps, each).clip(1)


def fewest_filling_shares(
    steps: Ints, tiles: Ints, slots: int, fewest_steps: int, filled: float, most_steps: int | None = None
) -> Ints:
    """Of problems with so many tiles, each so many steps along K: the fewest shares by which the tiles keep a device of
    `slots` busy for the part `filled` of its time, were all steps equally long; the fullest where none does.

    There is a tile. All shares of a split problem but its last have `fewest_steps` or more, and a descriptor constant
    (planner/descriptor_size.py) holds them. Where whole problems have more than `most_steps`, shares have no more, and
    `_ROUNDS_ENOUGH` of them do.
    """
    steps = steps.clip(1)
    work, best, fullest = float((steps * tiles).sum()), np.ones_like(steps), 0.0
    most = max(int(steps.max()) // fewest_steps, 1)
    # Fewer leave too many idle, or one block at work for too long.
    short_enough = 1 if most_steps is None else int(ceil_div(steps.max(), most_steps))
    least = max(int(filled * slots / tiles.sum()), int(filled * slots * steps.max() / work), short_enough, 1)
    least = min(least, most)
    for parts in range(least, min(most, least + _TRIED) + 1):
        longest = ceil_div(steps.max(), parts)
        each, shares = even_shares(steps, ceil_div(steps, longest))
        blocks = float((shares * tiles).sum())
        if ready_bytes(blocks, float(tiles[shares > 1].sum())) > MAX_BYTES:
            break
        full = work / slots / max(float(each.max()), math.ceil(blocks / slots) * work / blocks)
        enough = full >= filled or (short_enough > 1 and blocks >= _ROUNDS_ENOUGH * slots)
        if full > fullest or enough:
            best, fullest = shares, full
        if enough:
            break
    return best


def in_shares(whole: Runs, shares: Ints, depth: Ints) -> Runs:
    """Each run once for each of the `shares` of its K, which are whole steps of `depth` but for the last."""
    steps, shares = even_shares(ceil_div(whole.k_end, depth), shares)
    run = np.repeat(np.arange(len(whole)), shares)
    runs, each = whole.take(run), (steps * depth)[run]
    share = np.arange(len(run)) - np.searchsorted(run, run)
    return replace(runs, k_begin=share * each, k_end=np.minimum(runs.k_end, (share + 1) * each))
