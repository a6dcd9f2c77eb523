"""Which problems are tall and skinny: TSM2's, ISM2's, their mirror images and the transposed reduction."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jax_vbgemm.planner.catalogue import SHARED_DEPTH, WHOLE_ROWS, Catalogue, TileShape
from jax_vbgemm.planner.runs import Ints
from jax_vbgemm.problem import Sizes

# A dimension up to this is small. In one pass over A a thread keeps a whole row of C: 32 columns of float64 take 196
# registers beside those of its setup, 64 don't fit. And it is below t2_threshold, where memory is the limit, of every
# GPU in the device table in float32 and float64 (38 at least).
SKINNY = 32

# A dimension from this on is large. Against A with both sides large, B and C then hold at most 1/32 each, which is
# what lets Algorithm 5 count A alone; and one row a thread makes at least eight blocks of 128 threads of a problem.
TALL = 1024

# Fewer rows than these, in all, are worth spreading over a GPU by shorter tiles than those of whole rows.
MANY_ROWS = 1 << 15


# From here on a K is so deep that tiles which share it were the fastest in all that was measured.
VERY_DEEP = 1 << 15


class Shape(IntEnum):
    """How C = A B is tall and skinny, where A is m x k, B is k x n and C is m x n.

    A mirrored problem is computed as C^T = B^T A^T: m and n change places, B^T is the tall operand.
    """

    ORDINARY = 0
    TSM2 = 1  # n small, m large, k more than small: a tall A against a skinny B
    TSM2_MIRRORED = 2  # m small, n large, k more than small
    ISM2 = 3  # k and n small, m large: a tall, skinny A against a small B
    ISM2_MIRRORED = 4  # k and m small, n large
    REDUCTION = 5  # m and n small, k large: rows of C don't fill a device, so k is split


def classify(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> NDArray[np.int8]:
    """The Shape of each problem; m, n and k are integers or arrays of one shape, which the result has too.

    The classes exclude each other. How an operand is stored, and how often the batch repeats it, plays no part. What
    has no products (m, n or k = 0) is ordinary.
    """
    m, n, k = np.asarray(m), np.asarray(n), np.asarray(k)
    skinny_n, skinny_m, skinny_k = n <= SKINNY, m <= SKINNY, k <= SKINNY
    tall, wide, deep = m >= TALL, n >= TALL, k >= TALL
    shape = np.select(
        [
            (m <= 0) | (n <= 0) | (k <= 0),
            tall & skinny_n & skinny_k,
            wide & skinny_m & skinny_k,
            tall & skinny_n,
            wide & skinny_m,
            deep & skinny_m & skinny_n,
        ],
        [
            Shape.ORDINARY,
            Shape.ISM2,
            Shape.ISM2_MIRRORED,
            Shape.TSM2,
            Shape.TSM2_MIRRORED,
            Shape.REDUCTION,
        ],
        Shape.ORDINARY,
    )
    return shape.astype(np.int8)


def shapes_of(sizes: Sizes) -> NDArray[np.int8]:
    """The Shape of each problem of a list."""
    return classify(sizes.m, sizes.n, sizes.k)


def is_tall_skinny(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> NDArray[np.bool_]:
    """Whether each problem is of any Shape but ORDINARY."""
    answer: NDArray[np.bool_] = classify(m, n, k) != Shape.ORDINARY
    return answer


def suits_rows(sizes: Sizes, widest: int) -> NDArray[np.bool_]:
    """Which problems tiles of whole rows are for, of up to `widest` columns: ISM2's, and a little beyond.

    Elsewhere most of their passes are empty, or their B comes piece by piece.
    """
    answer: NDArray[np.bool_] = (sizes.m >= TALL) & (sizes.n <= widest) & (sizes.k <= max(widest, SKINNY))
    return answer


def is_made_for(tile: TileShape, sizes: Sizes) -> bool:
    """Whether a tile may be chosen for such problems, so that its cost for them matters: true of most tiles."""
    if tile.kernel == WHOLE_ROWS:
        return bool(suits_rows(sizes, tile.n).all())
    if tile.kernel == SHARED_DEPTH:
        return bool(_suits_depth(sizes, [tile]).all())
    return True


def families_of(sizes: Sizes, catalogue: Catalogue) -> Ints:
    """Problems of one number have tiles of their own: 3 those that row tiles suit, 2 tiles of shared depth, 1 other
    tall and skinny ones, 0 ordinary ones. Those without products join the lowest there is.
    """
    rows, depth = suits_rows(sizes, _widest(catalogue)), _suits_depth(sizes, catalogue.tiles_of(SHARED_DEPTH))
    families: Ints = np.select([rows, depth, shapes_of(sizes) != Shape.ORDINARY], [3, 2, 1], 0)
    some = sizes.has_products
    families[~some] = families[some].min(initial=3)
    return families


def _widest(catalogue: Catalogue) -> int:
    return max((tile.n for tile in catalogue.tiles_of(WHOLE_ROWS)), default=0)


def worth_trying(catalogue: Catalogue, sizes: Sizes) -> Catalogue:
    """The tiles that are worth looking at for these problems.

    Far longer tiles of tensor cores are for batches of tall and skinny problems alone, and so are those that this
    module is about. Of those of shared depth only the smallest that hold a problem are left, and where K is very deep,
    nothing else. Where row tiles suit, the time is that of the memory, which costs do not show well: A is read once, so
    only the narrowest tiles that hold a problem's columns are left; far longer ones where its sizes are skinny; and of
    those, for up to 16 columns and many rows, the row tiles, which were the fastest in nearly all that was measured
    (benchmarks/NOTES.md). Problems without products don't count.
    """
    sizes = sizes.with_products()
    deep = sorted(catalogue.tiles_of(SHARED_DEPTH), key=lambda tile: tile.m * tile.n)
    if not _suits_depth(sizes, deep).all():
        deep = []
    wanted = {next(tile for tile in deep if tile.m >= m and tile.n >= n) for m, n in _places(sizes) if deep}
    if wanted and (sizes.k >= VERY_DEEP).all():
        return catalogue.only(lambda tile: tile in wanted)
    catalogue = catalogue.only(lambda tile: tile.kernel != SHARED_DEPTH or tile in wanted)
    if not suits_rows(sizes, _widest(catalogue)).all():
        ordinary = not is_tall_skinny(sizes.m, sizes.n, sizes.k).all()
        return catalogue.only(
            lambda tile: tile.kernel != WHOLE_ROWS and not (ordinary and tile.tensor and tile.is_far_longer)
        )
    found = catalogue
    if (shapes_of(sizes) == Shape.ISM2).all():
        rows_alone = (sizes.n <= 16).all() and int(sizes.batch @ sizes.m) >= MANY_ROWS
        found = found.only(lambda tile: tile.m >= 4 * tile.n and (tile.kernel == WHOLE_ROWS or not rows_alone))
    holding = set()
    for kernel in found.kernels:
        widths = np.unique([tile.n for tile in found.tiles_of(kernel)])
        at = np.searchsorted(widths, sizes.n)
        holding |= {(kernel, width) for width in widths[at[at < len(widths)]].tolist()}
    return found.only(lambda tile: (tile.kernel, tile.n) in holding)


def _suits_depth(sizes: Sizes, deep: Sequence[TileShape]) -> NDArray[np.bool_]:
    """Which problems these tiles of shared depth are for: those with a deep K that one of them holds."""
    held = np.zeros(len(sizes.m), bool)
    for tile in deep:
        held |= (sizes.m <= tile.m) & (sizes.n <= tile.n)
    return held & (sizes.k >= TALL)


def _places(sizes: Sizes) -> set[tuple[int, int]]:
    return set(zip(sizes.m.tolist(), sizes.n.tolist(), strict=True))
