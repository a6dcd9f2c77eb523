"""Split K: the tiles that share one place in C, and where their sums meet (csrc/gpu/tile_shares.h)."""

from typing import NamedTuple

import numpy as np

from jax_vbgemm.planner.catalogue import Catalogue
from jax_vbgemm.planner.runs import Ints, Runs, offsets

SLOT_SUMS = 256
"""Accumulators of a slot of the workspace (csrc/catalogue.h)."""


class Shares(NamedTuple):
    """Of each tile: which share of its place's K it is, of how many, and the first slot of the place's shares.

    A place that is not split has one share and needs no slots; `num_slots` is what all others need.
    """

    share: Ints
    shares: Ints
    slot: Ints
    num_slots: int


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
    slots = np.where(counts > 1, counts * catalogue.columns.slots[tiles.strategy[order[first]]], 0)
    first_slot = offsets(slots)

    def in_order(values: Ints) -> Ints:
        found = np.empty_like(values)
        found[order] = values
        return found

    return Shares(
        share=in_order(np.arange(len(order)) - first[place]),
        shares=in_order(counts[place]),
        slot=in_order(np.where(counts > 1, first_slot[:-1], 0)[place]),
        num_slots=int(first_slot[-1]),
    )
