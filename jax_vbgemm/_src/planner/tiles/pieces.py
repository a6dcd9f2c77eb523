"""Pieces: tiles of a sum of products, cut along K where one product of the sum ends and the next one begins.

To the planner such a sum is one problem with a long K, or on a GPU, where its products have equal K, a batch of them.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, offsets


class Pieces(NamedTuple):
    """Single tiles that each belong to one product, in the order of the uncut tiles.

    `tiles` refer to the plan's problems and their whole K, `products` are the same tiles in terms of the rows of the
    problem table and the K of each row. `tile` is the uncut tile of a piece; the pieces of uncut tile i are [first[i],
    first[i + 1]).
    """

    tiles: Runs
    products: Runs
    tile: Ints
    first: Ints

    @property
    def continued(self) -> NDArray[np.bool_]:
        """For each piece, whether the next piece belongs to the same tile."""
        result: NDArray[np.bool_] = np.append(self.tile[1:] == self.tile[:-1], False)
        return result


def sums_of(owner: Ints, depth: Ints, num_problems: int) -> Ints:
    """The K of each problem: the sum of the depths of its products. `owner`: each product's problem, in ascending
    order."""
    return np.bincount(owner, depth, num_problems).astype(np.int64)


def of_sums(tiles: Runs, terms: Ints, depth: Ints) -> Runs:
    """Single tiles over batches of products as tiles over sums of these products: terms[i] successive matrices of
    problem i are the products of a sum, each with K = depth[i]."""
    batch, term = np.divmod(tiles.batch, terms[tiles.problem])
    k_before = term * depth[tiles.problem]
    return replace(tiles, batch=batch, k_begin=tiles.k_begin + k_before, k_end=tiles.k_end + k_before)


def count_pieces(runs: Runs, owner: Ints, depth: Ints, num_problems: int) -> int:
    """The number of pieces into which `cut` would divide all tiles of `runs`."""
    first, last = _products_touched(runs, owner, depth, num_problems)
    return int((runs.count * (last - first + 1)).sum())


def cut(tiles: Runs, owner: Ints, depth: Ints, num_problems: int) -> Pieces:
    """The pieces of single tiles over problems that are sums of products. Product i has K = `depth[i]` and belongs to
    problem `owner[i]`, in ascending order.
    """
    first, last = _products_touched(tiles, owner, depth, num_problems)
    counts = last - first + 1
    tile = np.repeat(np.arange(len(tiles)), counts)
    begins = offsets(counts)
    product = first[tile] + np.arange(len(tile)) - begins[tile]
    whole = tiles.take(tile)
    k_before = _depth_before(owner, depth, num_problems)[product]
    k_begin = np.maximum(whole.k_begin, k_before)
    k_end = np.minimum(whole.k_end, k_before + depth[product])
    return Pieces(
        tiles=replace(whole, k_begin=k_begin, k_end=k_end),
        products=replace(whole, problem=product, k_begin=k_begin - k_before, k_end=k_end - k_before),
        tile=tile,
        first=begins,
    )


def _depth_before(owner: Ints, depth: Ints, num_problems: int) -> Ints:
    """For each product, the total K of the products before it in its problem."""
    ends = np.cumsum(depth)
    of_problems_before = offsets(sums_of(owner, depth, num_problems))[owner]
    k_before: Ints = ends - depth - of_problems_before
    return k_before


def _products_touched(runs: Runs, owner: Ints, depth: Ints, num_problems: int) -> tuple[Ints, Ints]:
    """The first and the last product that the K range of each run's tiles touches."""
    ends = np.cumsum(depth)
    base = offsets(sums_of(owner, depth, num_problems))[runs.problem]
    first = np.searchsorted(ends, base + runs.k_begin, side="right")
    last = np.searchsorted(ends, base + runs.k_end, side="left")
    empty = runs.k_begin == runs.k_end
    alone = np.searchsorted(owner, runs.problem)
    return np.where(empty, alone, first), np.where(empty, alone, last)
