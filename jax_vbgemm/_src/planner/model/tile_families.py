"""Families of tiles for certain problems: the tiles of each family, its problems, and the tiles tried for those
problems.

Tiles of no family are for any problem. Measurements decide for which problems a family is (tables/rules.py); on a
device without measurements its tiles are not tried. LONG is the exception: its problems are those of the papers
(tall_skinny_shape.py).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.tall_skinny_shape import SKINNY, TALL, Shape, is_tall_skinny, shapes_of
from jax_vbgemm._src.planner.tables.catalogue import (
    DOT_PRODUCTS,
    PIPELINED,
    SHARED_DEPTH,
    WHOLE_ROWS,
    Catalogue,
    TileShape,
)
from jax_vbgemm._src.planner.tables.rules import Rules
from jax_vbgemm._src.planner.tiles.runs import Ints
from jax_vbgemm._src.problem import ProblemSizes

# Streaming kernels: they read long rows, or few columns of many rows, faster than other kernels.
STREAMING = (*DOT_PRODUCTS, *WHOLE_ROWS)


class Family(NamedTuple):
    """Tiles for certain problems.

    `has`: whether a tile belongs to the family. `is_for`: for which problems the catalogue's tiles of the family are. A
    batch suits the family where all its problems do; otherwise tiles of the family are not tried. `keeps`: for a batch
    that suits, which tiles of the catalogue, inside or outside of the family, are worth trying. `last`: for such a
    batch, no later family is asked. `measured`: `is_for` and `keeps` need the device's rules.
    """

    has: Callable[[TileShape], bool]
    is_for: Callable[[ProblemSizes, Catalogue], NDArray[np.bool_]]
    keeps: Callable[[ProblemSizes, Catalogue], Callable[[TileShape], bool]]
    last: bool = False
    measured: bool = True

    def is_tried(self, catalogue: Catalogue) -> bool:
        return not self.measured or catalogue.rules is not None

    def suits(self, sizes: ProblemSizes, catalogue: Catalogue) -> NDArray[np.bool_]:
        """Which problems suit the catalogue's tiles of the family; none if that was not measured."""
        return self.is_for(sizes, catalogue) if self.is_tried(catalogue) else np.zeros(len(sizes.m), bool)

    def tiles_of(self, catalogue: Catalogue) -> Iterator[TileShape]:
        return filter(self.has, catalogue)

    def widest_of(self, catalogue: Catalogue) -> int:
        """The largest shorter side of the family's tiles, 0 if the catalogue has none of them."""
        return max((min(tile.m, tile.n) for tile in self.tiles_of(catalogue)), default=0)


def _rules(catalogue: Catalogue) -> Rules:
    """The rules of a catalogue whose device has rules."""
    assert catalogue.rules is not None, "without rules no problem suits a family that needs them"
    return catalogue.rules


def _are_deep_and_fit(sizes: ProblemSizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which problems have a deep K, and a result that fits one tile of DEEP."""
    held = np.zeros(len(sizes.m), bool)
    for tile in DEEP.tiles_of(catalogue):
        held |= (sizes.m <= tile.m) & (sizes.n <= tile.n)
    return held & (sizes.k >= TALL)


def _smallest_that_hold(sizes: ProblemSizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """The smallest tile of DEEP that holds each problem; no other tiles if every K is very deep."""
    tiles = sorted(DEEP.tiles_of(catalogue), key=lambda tile: tile.m * tile.n)
    outputs = set(zip(sizes.m.tolist(), sizes.n.tolist(), strict=True))
    wanted = {next(tile for tile in tiles if tile.m >= m and tile.n >= n) for m, n in outputs}
    others = not (sizes.k >= _rules(catalogue).very_deep).all()
    return lambda tile: tile in wanted if DEEP.has(tile) else others


def _have_few_columns(sizes: ProblemSizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which problems suit row tiles.

    Those of ISM2 and slightly larger ones: for larger dimensions, most passes of the tiles would be empty, or B would
    be loaded in several pieces. In float32 also those of TSM2 whose A is stored transposed, as no other tile reads
    single elements of A as fast.
    """
    rules = _rules(catalogue)
    answer = (sizes.m >= TALL) & _are_streamed(sizes.n, sizes.k, ROWS.widest_of(catalogue), rules)
    # The two kinds of problem would need different tiles in one launch.
    both = bool((answer & sizes.has_products).any())
    if not both and catalogue.dtype == "float32":
        widest = max((tile.n for tile in catalogue if _is_short_row_tile(tile, rules)), default=0)
        large = (sizes.m >= TALL) & (sizes.k >= TALL) & (sizes.m * sizes.k >= rules.many_transposed_elements)
        answer |= ~sizes.rows_along & large & (sizes.n <= widest) & (sizes.n > 0)
    return answer


def _are_streamed(short_side: Ints, k: Ints, widest: int, rules: Rules) -> NDArray[np.bool_]:
    """Whether problems of depth `k`, whose result has a side of length `short_side`, suit row (or column) tiles whose
    shorter side is at most `widest`."""
    deepest = np.where(short_side <= rules.narrow, max(widest, rules.streamed_steps), max(widest, SKINNY))
    answer: NDArray[np.bool_] = (short_side <= widest) & (k <= deepest)
    return answer


def has_two_rows_a_thread(tile: TileShape) -> bool:
    """Whether it is a row tile with two rows per thread; with a deep K, split-K makes enough blocks of such tiles."""
    return ROWS.has(tile) and tile.m == 2 * tile.threads


def _is_short_row_tile(tile: TileShape, rules: Rules) -> bool:
    """Whether it is the row tile for a deep K and few columns."""
    return has_two_rows_a_thread(tile) and tile.n <= rules.few_columns


def _narrowest_that_hold(sizes: ProblemSizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """For few columns and many rows, row tiles only; for other problems of ISM2, skinny tiles only; with a deep K, the
    short row tiles only. Only the narrowest tiles that hold a problem are kept.
    """
    if (sizes.k >= TALL).all():
        rules = _rules(catalogue)
        catalogue = catalogue.only(lambda tile: _is_short_row_tile(tile, rules))
    elif alone := _alone(ROWS, sizes.n, sizes.m, sizes, catalogue):
        catalogue = alone
    elif (shapes_of(sizes) == Shape.ISM2).all():
        catalogue = catalogue.only(lambda tile: tile.is_far_longer and tile.m > tile.n)
    catalogue = without_overlong(ROWS, sizes.n, sizes, catalogue)
    return _narrowest(sizes.n, lambda tile: tile.n, ROWS, catalogue)


def _alone(
    family: Family, short_side: Ints, long_side: Ints, sizes: ProblemSizes, catalogue: Catalogue
) -> Catalogue | None:
    """The tiles of the family that are to be tried exclusively, or None.

    For few columns these are all its tiles; for more columns those on tensor cores, or with very few K elements those
    on ordinary units.
    """
    rules, rows = _rules(catalogue), int(sizes.batch @ long_side)
    if (short_side <= rules.few_columns).all():
        return catalogue.only(family.has) if are_many(rows, catalogue) else None
    wide = [tile for tile in family.tiles_of(catalogue) if min(tile.m, tile.n) >= short_side.max(initial=0)]
    if rows < rules.many_rows or (short_side <= rules.few_columns).any() or not any(tile.tensor for tile in wide):
        return None
    ordinary = [tile for tile in wide if not tile.tensor]
    on_tensor_cores = not ordinary or bool((sizes.k >= rules.few_steps).any())
    return catalogue.only(lambda tile: tile in wide and tile.tensor == on_tensor_cores)


def are_many(rows: int, catalogue: Catalogue) -> bool:
    """Whether row tiles were measured to be the fastest for this many rows of few columns."""
    if catalogue.rules is None:
        return False
    many = catalogue.rules.many_rows
    return rows >= (many if catalogue.element_bytes > 4 else many // 4)


def without_overlong(family: Family, short_side: Ints, sizes: ProblemSizes, catalogue: Catalogue) -> Catalogue:
    """The catalogue without long tiles of the family whose blocks would move too many bytes, if shorter ones are as
    wide."""
    largest_block = _rules(catalogue).largest_block
    line_bytes = int((sizes.k + short_side).max(initial=0)) * catalogue.element_bytes
    shortest: dict[int, int] = {}
    for tile in family.tiles_of(catalogue):
        width, lines = sorted((tile.m, tile.n))
        shortest[width] = min(lines, shortest.get(width, lines))

    def is_wanted(tile: TileShape) -> bool:
        width, lines = sorted((tile.m, tile.n))
        moves_too_much = lines >= TALL and lines * line_bytes > largest_block * tile.shared_bytes
        return not (family.has(tile) and moves_too_much and lines > shortest[width])

    return catalogue.only(is_wanted)


def _narrowest(
    short_side: Ints, side_of: Callable[[TileShape], int], family: Family, catalogue: Catalogue
) -> Callable[[TileShape], bool]:
    """The tiles of the family, and of the other tiles of each kernel, whose shorter side, `side_of(tile)`, is the
    smallest that holds the problem's.

    Memory limits these problems, which the cost model does not show well; such tiles read the long operand once.
    """

    def group(tile: TileShape) -> str:
        return "" if family.has(tile) else tile.kernel

    holding = set()
    for one in {group(tile) for tile in catalogue}:
        widths = np.unique([side_of(tile) for tile in catalogue if group(tile) == one])
        at = np.searchsorted(widths, short_side)
        holding |= {(one, width) for width in widths[at[at < len(widths)]].tolist()}
    kept = {tile for tile in catalogue if (group(tile), side_of(tile)) in holding}
    return lambda tile: tile in kept


def _have_few_rows(sizes: ProblemSizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which problems suit column tiles: ISM2's problems with rows and columns exchanged, and slightly larger ones."""
    return (sizes.n >= TALL) & _are_streamed(sizes.m, sizes.k, COLUMNS.widest_of(catalogue), _rules(catalogue))


def _lowest_that_hold(sizes: ProblemSizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """For few rows and many columns, column tiles only; up to SKINNY rows otherwise, skinny tiles only."""
    if alone := _alone(COLUMNS, sizes.m, sizes.n, sizes, catalogue):
        catalogue = alone
    elif (sizes.m <= SKINNY).all():
        catalogue = catalogue.only(lambda tile: tile.is_far_longer and tile.n > tile.m)
    if (sizes.m <= _rules(catalogue).few_columns).all():  # with more rows, the longer tiles were measured to be as fast
        catalogue = without_overlong(COLUMNS, sizes.m, sizes, catalogue)
    return _narrowest(sizes.m, lambda tile: tile.m, COLUMNS, catalogue)


def _have_long_rows(sizes: ProblemSizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which problems suit dot products: few columns, and a deep K along which A is contiguous.

    In 16-bit types K must be a multiple of 8, a whole vector load: otherwise elements would be read one by one, and
    tiles that shift unaligned vectors are faster.
    """
    rules = _rules(catalogue)
    long_rows = sizes.rows_along & (sizes.k >= rules.long_rows) & (sizes.n > 0)
    if catalogue.element_bytes == 2:
        long_rows &= sizes.k % 8 == 0
    enough_rows: NDArray[np.bool_] = np.zeros(len(sizes.m), bool)
    # the narrowest tile that holds the columns decides
    for tile in sorted(DOTS.tiles_of(catalogue), key=lambda tile: -tile.n):
        enough_rows = np.where(sizes.n <= tile.n, sizes.m >= tile.m // rules.fewest_filled, enough_rows)
    return enough_rows & long_rows


def _narrowest_dots(sizes: ProblemSizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """Which tiles to consider: of DOTS the narrowest that hold each problem's columns; of the others all but DEEP, and
    none if every K is deep and every A is large."""
    tiles = sorted(DOTS.tiles_of(catalogue), key=lambda tile: tile.n)
    wanted = {next(tile for tile in tiles if tile.n >= n) for n in set(sizes.n.tolist())}
    others = not ((sizes.k >= TALL) & (sizes.m * sizes.k >= _rules(catalogue).many_elements)).all()
    return lambda tile: tile in wanted if DOTS.has(tile) else others and not DEEP.has(tile)


def are_copied_by_tma(sizes: ProblemSizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which problems TMA can copy: those whose rows are aligned."""
    aligned = sizes.aligned(catalogue.element_bytes) & (sizes.result_line * catalogue.element_bytes % 16 == 0)
    answer: NDArray[np.bool_] = aligned
    return answer


def _are_large(sizes: ProblemSizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which problems suit pipelined tiles, if the catalogue has any: TMA can copy them, and most of a tile lies inside
    the problem."""
    enough = np.zeros(len(sizes.m), bool)
    for tile in LARGE.tiles_of(catalogue):
        enough |= (2 * sizes.m >= tile.m) & (2 * sizes.n >= tile.n)
    answer: NDArray[np.bool_] = enough & are_copied_by_tma(sizes, catalogue)
    return answer


DOTS = Family(lambda tile: tile.kernel in DOT_PRODUCTS, _have_long_rows, _narrowest_dots, last=True)
DEEP = Family(lambda tile: tile.kernel == SHARED_DEPTH, _are_deep_and_fit, _smallest_that_hold)
ROWS = Family(
    lambda tile: tile.kernel in WHOLE_ROWS and tile.m > tile.n, _have_few_columns, _narrowest_that_hold, last=True
)
COLUMNS = Family(
    lambda tile: tile.kernel in WHOLE_ROWS and tile.n > tile.m, _have_few_rows, _lowest_that_hold, last=True
)
# Skinny tiles on tensor cores: for tall and skinny problems, beside all other tiles.
LONG = Family(
    lambda tile: tile.tensor and tile.is_far_longer and tile.kernel not in STREAMING,
    lambda sizes, _: is_tall_skinny(sizes.m, sizes.n, sizes.k),
    lambda *_: lambda _: True,
    measured=False,
)
# Pipelined tiles: for problems that TMA can copy and that are not much smaller than a tile, in addition to all other
# tiles.
LARGE = Family(
    lambda tile: tile.kernel in PIPELINED, lambda sizes, catalogue: _are_large(sizes, catalogue),
    lambda *_: lambda _: True, measured=False,
)  # fmt: skip
FAMILIES = (DOTS, DEEP, ROWS, COLUMNS, LONG, LARGE)  # in the order in which `worth_trying` checks them
# Numbered from 1; a problem that suits several families gets the last one's number.
_NUMBERED = (LONG, DEEP, DOTS, ROWS, COLUMNS, LARGE)


def worth_trying(catalogue: Catalogue, sizes: ProblemSizes) -> Catalogue:
    """The tiles that are worth trying for these problems. Problems without products don't count."""
    sizes = sizes.with_products()
    for family in FAMILIES:
        if family.is_tried(catalogue) and family.suits(sizes, catalogue).all():
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


def families_of(sizes: ProblemSizes, catalogue: Catalogue) -> Ints:
    """The number of the family that each problem suits: 6 pipelined tiles, 5 column tiles, 4 row tiles, 3 dot-product
    tiles, 2 deep tiles, 1 skinny tiles, 0 no family.

    A problem without products gets the smallest number that occurs.
    """
    families: Ints = np.zeros(len(sizes.m), np.int64)
    for number, family in enumerate(_NUMBERED, 1):
        families[family.suits(sizes, catalogue)] = number
    some = sizes.has_products
    families[~some] = families[some].min(initial=len(FAMILIES))
    return families


def are_of(family: Family, families: Ints) -> NDArray[np.bool_]:
    """Which problems belong to this family, by the family numbers that `families_of` gives."""
    answer: NDArray[np.bool_] = families == _NUMBERED.index(family) + 1
    return answer


def are_read_fastest(families: Ints, sizes: ProblemSizes, rules: Rules | None) -> NDArray[np.bool_]:
    """Which problems' operands are read faster by streaming tiles than by other tiles, by the numbers of
    `families_of`."""
    few = 0 if rules is None else rules.few_columns
    few_columns = are_of(ROWS, families) & (sizes.n <= few)
    few_rows = are_of(COLUMNS, families) & (sizes.m <= few)
    return are_of(DOTS, families) | few_columns | few_rows


def streams_deep_k(tile: TileShape, sizes: ProblemSizes) -> bool:
    """Whether a tile reads operands with a deep K at the memory's bandwidth, so that only the number of blocks
    matters."""
    return DOTS.has(tile) or (ROWS.has(tile) and bool((sizes.k >= TALL).all()))


def is_made_for(tile: TileShape, sizes: ProblemSizes, catalogue: Catalogue) -> bool:
    """Whether a tile may be chosen for these problems, so that its measured cost for them matters; true for most tiles.

    Skinny tiles are built like tiles of no family, and their costs hold for all problems. Tiles of the other
    families are never chosen on a device without rules.
    """
    alone = catalogue.only(lambda other: other == tile)
    return all(family.suits(sizes, alone).all() for family in FAMILIES[:-1] if family.has(tile))
