"""Split K: the tiles that share one place in C, and where each leaves its sums (csrc/gpu/add_shares.h)."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jax_vbgemm.planner.catalogue import Catalogue
from jax_vbgemm.planner.runs import Ints, Runs, ceil_div, offsets


class Shares(NamedTuple):
    """Of each tile: of how many shares of its place's K it is one, and where its sums begin among the call's.

    `first_tiles` are the first shares of the places that are split, one tile each, in the order of their sums; a place
    that is not split needs none. All need `num_sums` accumulators: each share a whole tile's.
    """

    shares: Ints
    sums: Ints
    first_tiles: Ints
    num_sums: int


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


def in_shares(whole: Runs, shares: Ints, depth: Ints) -> Runs:
    """Each run once for each of the `shares` of its K, which are whole steps of `depth` but for the last."""
    steps, shares = even_shares(ceil_div(whole.k_end, depth), shares)
    run = np.repeat(np.arange(len(whole)), shares)
    runs, each = whole.take(run), (steps * depth)[run]
    share = np.arange(len(run)) - np.searchsorted(run, run)
    return replace(runs, k_begin=share * each, k_end=np.minimum(runs.k_end, (share + 1) * each))
