"""Families of tiles that are for some problems only: of each, its tiles, its problems, and what is tried for those.

All other tiles are for any problem.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.tall_skinny_shape import SKINNY, TALL, Shape, is_tall_skinny, shapes_of
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS, SHARED_DEPTH, WHOLE_ROWS, Catalogue, TileShape
from jax_vbgemm._src.planner.tiles.runs import Ints
from jax_vbgemm._src.problem import Sizes

# Kernels that read long rows, or few columns and many rows, faster than others.
STREAMING = (*DOT_PRODUCTS, *WHOLE_ROWS)

# Of so many rows or more, in all, tiles of whole rows were the fastest in nearly all that was measured
# (docs/design, T23): up to so many columns all of them, and of elements narrower than float64 from a quarter of
# those rows on; of more columns those on tensor cores.
MANY_ROWS = 1 << 15
FEW_COLUMNS = 16

# Below so many steps of K tensor cores would be given zeros for the most part: there ordinary row tiles were faster.
FEW_STEPS = 8

# A block of them that reads and writes more bytes than so many times its shared memory was slower than those of shorter
# tiles: there are too few of them, then.
LONGEST = 3.3

# Up to NARROW columns their waves stream rows of so many steps of K in every dtype.
NARROW = 8
STREAMED = 40

# From here on a K is so deep that tiles which share it were the fastest in all that was measured.
VERY_DEEP = 1 << 15

# Dot products of rows of A with columns of B are for a K from here on, and where rows fill at least such a part of a
# tile: fewer are left to tiles that share depth. Of A's elements from here on they were the fastest in all that was
# measured.
LONG_ROWS = 256
FEWEST_FILLED = 4
MANY_ELEMENTS = 1 << 19

# The same of row tiles where A is stored transposed.
MORE_ELEMENTS = 1 << 22


class Family(NamedTuple):
    """Tiles that are for some problems only.

    `has`: is a tile one of them? `suits`: which problems the catalogue's tiles of the family are for. `keeps`: where
    they are for all problems of a batch, whether a tile of the catalogue, of this family or none, is worth looking at;
    elsewhere the family's are not. `last`: no later family has a say then.
    """

    has: Callable[[TileShape], bool]
    suits: Callable[[Sizes, Catalogue], NDArray[np.bool_]]
    keeps: Callable[[Sizes, Catalogue], Callable[[TileShape], bool]]
    last: bool = False

    def tiles_of(self, catalogue: Catalogue) -> Iterator[TileShape]:
        return filter(self.has, catalogue)

    def widest_of(self, catalogue: Catalogue) -> int:
        """The shorter side of its widest tile, 0 where the catalogue has none."""
        return max((min(tile.m, tile.n) for tile in self.tiles_of(catalogue)), default=0)


def _are_deep_and_held(sizes: Sizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """A deep K, and an output that one of the tiles holds."""
    held = np.zeros(len(sizes.m), bool)
    for tile in DEEP.tiles_of(catalogue):
        held |= (sizes.m <= tile.m) & (sizes.n <= tile.n)
    return held & (sizes.k >= TALL)


def _smallest_that_hold(sizes: Sizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """Of the family only the smallest tiles that hold a problem, and where all K are very deep, nothing else."""
    tiles = sorted(DEEP.tiles_of(catalogue), key=lambda tile: tile.m * tile.n)
    outputs = set(zip(sizes.m.tolist(), sizes.n.tolist(), strict=True))
    wanted = {next(tile for tile in tiles if tile.m >= m and tile.n >= n) for m, n in outputs}
    others = not (sizes.k >= VERY_DEEP).all()
    return lambda tile: tile in wanted if DEEP.has(tile) else others


def _have_few_columns(sizes: Sizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """ISM2's problems, and a little beyond: elsewhere most passes of the tiles are empty, or B comes piece by piece.
    And TSM2's of which A is stored transposed, in float32: no other tile reads single elements of it so fast.
    """
    answer = (sizes.m >= TALL) & _are_streamed(sizes.n, sizes.k, ROWS.widest_of(catalogue))
    both = bool((answer & sizes.has_products).any())  # in one launch would want different tiles
    if not both and catalogue.dtype == "float32":
        widest = max((tile.n for tile in filter(_is_short_row_tile, catalogue)), default=0)
        large = (sizes.m >= TALL) & (sizes.k >= TALL) & (sizes.m * sizes.k >= MORE_ELEMENTS)
        answer |= ~sizes.rows_along & large & (sizes.n <= widest) & (sizes.n > 0)
    return answer


def _are_streamed(few: Ints, k: Ints, widest: int) -> NDArray[np.bool_]:
    """Whether so few columns, or rows, and such a K suit tiles of whole rows that are up to `widest` wide."""
    deepest = np.where(few <= NARROW, max(widest, STREAMED), max(widest, SKINNY))
    answer: NDArray[np.bool_] = (few <= widest) & (k <= deepest)
    return answer


def _is_short_row_tile(tile: TileShape) -> bool:
    """Of two rows a thread, and not for a million: where K is deep its shares make blocks enough."""
    return ROWS.has(tile) and tile.m == 2 * tile.threads and tile.n <= FEW_COLUMNS


def _narrowest_that_hold(sizes: Sizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """For few columns and many rows row tiles alone, and for ISM2's other problems far longer tiles; of a deep K the
    shorter row tiles.
    """
    if (sizes.k >= TALL).all():
        catalogue = catalogue.only(_is_short_row_tile)
    elif alone := _alone(ROWS, sizes.n, sizes.m, sizes, catalogue):
        catalogue = alone
    elif (shapes_of(sizes) == Shape.ISM2).all():
        catalogue = catalogue.only(lambda tile: tile.is_far_longer and tile.m > tile.n)
    catalogue = without_too_long(ROWS, sizes.n, sizes, catalogue)
    return _narrowest(sizes.n, lambda tile: tile.n, ROWS, catalogue)


def _alone(family: Family, few: Ints, many: Ints, sizes: Sizes, catalogue: Catalogue) -> Catalogue | None:
    """The family's tiles, where they alone are worth a look: for few columns all, for more those on tensor cores, but
    for the fewest steps of K.
    """
    rows = int(sizes.batch @ many)
    if (few <= FEW_COLUMNS).all():
        return catalogue.only(family.has) if rows >= many_rows(catalogue) else None
    wide = [tile for tile in family.tiles_of(catalogue) if min(tile.m, tile.n) >= few.max(initial=0)]
    if rows < MANY_ROWS or (few <= FEW_COLUMNS).any() or not any(tile.tensor for tile in wide):
        return None
    ordinary = [tile for tile in wide if not tile.tensor]
    on_tensor_cores = not ordinary or bool((sizes.k >= FEW_STEPS).any())
    return catalogue.only(lambda tile: tile in wide and tile.tensor == on_tensor_cores)


def many_rows(catalogue: Catalogue) -> int:
    """From so many rows of few columns on tiles of whole rows were the fastest."""
    return MANY_ROWS if catalogue.element_bytes > 4 else MANY_ROWS // 4


def without_too_long(family: Family, few: Ints, sizes: Sizes, catalogue: Catalogue) -> Catalogue:
    """Without the family's longer tiles whose blocks would move too many bytes, where shorter ones are as wide."""
    line_bytes = int((sizes.k + few).max(initial=0)) * catalogue.element_bytes
    shortest: dict[int, int] = {}
    for tile in family.tiles_of(catalogue):
        width, lines = sorted((tile.m, tile.n))
        shortest[width] = min(lines, shortest.get(width, lines))

    def is_wanted(tile: TileShape) -> bool:
        width, lines = sorted((tile.m, tile.n))
        moves_too_much = lines >= TALL and lines * line_bytes > LONGEST * tile.shared_bytes
        return not (family.has(tile) and moves_too_much and lines > shortest[width])

    return catalogue.only(is_wanted)


def _narrowest(
    few: Ints, short: Callable[[TileShape], int], family: Family, catalogue: Catalogue
) -> Callable[[TileShape], bool]:
    """Of the family, and of each kernel's other tiles, those whose `short` side is the smallest that holds the `few`
    rows or columns of a problem: the time is that of the memory, which costs do not show well, and these read the long
    operand once.
    """

    def group(tile: TileShape) -> str:
        return "" if family.has(tile) else tile.kernel

    holding = set()
    for one in {group(tile) for tile in catalogue}:
        widths = np.unique([short(tile) for tile in catalogue if group(tile) == one])
        at = np.searchsorted(widths, few)
        holding |= {(one, width) for width in widths[at[at < len(widths)]].tolist()}
    kept = {tile for tile in catalogue if (group(tile), short(tile)) in holding}
    return lambda tile: tile in kept


def _have_few_rows(sizes: Sizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """ISM2's mirror images, and a little beyond."""
    return (sizes.n >= TALL) & _are_streamed(sizes.m, sizes.k, COLUMNS.widest_of(catalogue))


def _lowest_that_hold(sizes: Sizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """Up to SKINNY rows far longer tiles alone, and for few rows and many columns those of whole columns alone."""
    if alone := _alone(COLUMNS, sizes.m, sizes.n, sizes, catalogue):
        catalogue = alone
    elif (sizes.m <= SKINNY).all():
        catalogue = catalogue.only(lambda tile: tile.is_far_longer and tile.n > tile.m)
    if (sizes.m <= FEW_COLUMNS).all():  # of more the longer tiles were as fast
        catalogue = without_too_long(COLUMNS, sizes.m, sizes, catalogue)
    return _narrowest(sizes.m, lambda tile: tile.m, COLUMNS, catalogue)


def _have_long_rows(sizes: Sizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Few columns, and a deep K that lies along A's rows, which of elements of 16 bits are whole vectors: others would
    be read one by one, and are left to tiles that shift them.
    """
    long_rows = sizes.rows_along & (sizes.k >= LONG_ROWS) & (sizes.n > 0)
    if catalogue.element_bytes == 2:
        long_rows &= sizes.k % 8 == 0
    enough_rows: NDArray[np.bool_] = np.zeros(len(sizes.m), bool)
    for tile in sorted(DOTS.tiles_of(catalogue), key=lambda tile: -tile.n):  # the narrowest has the last word
        enough_rows = np.where(sizes.n <= tile.n, sizes.m >= tile.m // FEWEST_FILLED, enough_rows)
    return enough_rows & long_rows


def _narrowest_dots(sizes: Sizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """The narrowest of the family that hold a problem's columns, and where all K are deep and A large, nothing else."""
    tiles = sorted(DOTS.tiles_of(catalogue), key=lambda tile: tile.n)
    wanted = {next(tile for tile in tiles if tile.n >= n) for n in set(sizes.n.tolist())}
    others = not ((sizes.k >= TALL) & (sizes.m * sizes.k >= MANY_ELEMENTS)).all()
    return lambda tile: tile in wanted if DOTS.has(tile) else others and not DEEP.has(tile)


DOTS = Family(lambda tile: tile.kernel in DOT_PRODUCTS, _have_long_rows, _narrowest_dots, last=True)
DEEP = Family(lambda tile: tile.kernel == SHARED_DEPTH, _are_deep_and_held, _smallest_that_hold)
ROWS = Family(
    lambda tile: tile.kernel in WHOLE_ROWS and tile.m > tile.n, _have_few_columns, _narrowest_that_hold, last=True
)
COLUMNS = Family(
    lambda tile: tile.kernel in WHOLE_ROWS and tile.n > tile.m, _have_few_rows, _lowest_that_hold, last=True
)
# Far longer tiles of tensor cores: for tall and skinny problems, among all others.
LONG = Family(
    lambda tile: tile.tensor and tile.is_far_longer and tile.kernel not in STREAMING,
    lambda sizes, _: is_tall_skinny(sizes.m, sizes.n, sizes.k),
    lambda *_: lambda _: True,
)
FAMILIES = (DOTS, DEEP, ROWS, COLUMNS, LONG)  # in the order in which they have a say
_NUMBERED = (LONG, DEEP, DOTS, ROWS, COLUMNS)  # from 1 on; a problem that suits several has the last


def worth_trying(catalogue: Catalogue, sizes: Sizes) -> Catalogue:
    """The tiles that are worth looking at for these problems. Those without products don't count."""
    sizes = sizes.with_products()
    for family in FAMILIES:
        if family.suits(sizes, catalogue).all():
            catalogue = catalogue.only(family.keeps(sizes, catalogue))
            if family.last:
                break
        else:
            catalogue = _without(family, catalogue)
    return catalogue


def without_dot_products(catalogue: Catalogue) -> Catalogue:
    return _without(DOTS, catalogue)


def _without(family: Family, catalogue: Catalogue) -> Catalogue:
    return catalogue.only(lambda tile: not family.has(tile))


def families_of(sizes: Sizes, catalogue: Catalogue) -> Ints:
    """Problems of one number have tiles of their own: 5 whole columns, 4 whole rows, 3 dot products, 2 shared depth, 1
    far longer ones, 0 none of these.

    Those without products join the lowest there is.
    """
    families: Ints = np.zeros(len(sizes.m), np.int64)
    for number, family in enumerate(_NUMBERED, 1):
        families[family.suits(sizes, catalogue)] = number
    some = sizes.has_products
    families[~some] = families[some].min(initial=len(FAMILIES))
    return families


def are_of(family: Family, families: Ints) -> NDArray[np.bool_]:
    """Of `families_of`: which problems are this family's."""
    answer: NDArray[np.bool_] = families == _NUMBERED.index(family) + 1
    return answer


def are_read_fastest(families: Ints, sizes: Sizes) -> NDArray[np.bool_]:
    """Of `families_of`: which problems' operands tiles of STREAMING read faster than others do."""
    few_columns = are_of(ROWS, families) & (sizes.n <= FEW_COLUMNS)
    few_rows = are_of(COLUMNS, families) & (sizes.m <= FEW_COLUMNS)
    return are_of(DOTS, families) | few_columns | few_rows


def stream_deep(tile: TileShape, sizes: Sizes) -> bool:
    """Whether tiles read a deep K as fast as the memory gives it, so that only the number of their blocks matters."""
    return DOTS.has(tile) or (ROWS.has(tile) and bool((sizes.k >= TALL).all()))


def is_made_for(tile: TileShape, sizes: Sizes, catalogue: Catalogue) -> bool:
    """Whether a tile may be chosen for such problems, so that its cost for them matters: true of most tiles.

    Far longer tiles are made as others are, and their costs hold for all problems.
    """
    alone = catalogue.only(lambda other: other == tile)
    return all(family.suits(sizes, alone).all() for family in FAMILIES[:-1] if family.has(tile))
