"""Families of tiles that are for some problems only: of each, its tiles, its problems, and what is tried for those.

All other tiles are for any problem. For which problems a family is, was measured (tables/rules.py): where nothing was,
its tiles are not tried, but for LONG, whose problems are those of papers (tall_skinny_shape.py).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.tall_skinny_shape import SKINNY, TALL, Shape, is_tall_skinny, shapes_of
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS, SHARED_DEPTH, WHOLE_ROWS, Catalogue, TileShape
from jax_vbgemm._src.planner.tables.rules import Rules
from jax_vbgemm._src.planner.tiles.runs import Ints
from jax_vbgemm._src.problem import Sizes

# Kernels that read long rows, or few columns and many rows, faster than others.
STREAMING = (*DOT_PRODUCTS, *WHOLE_ROWS)


class Family(NamedTuple):
    """Tiles that are for some problems only.

    `has`: is a tile one of them? `is_for`: which problems the catalogue's tiles of the family are for. `keeps`: where
    they are for all problems of a batch, whether a tile of the catalogue, of this family or none, is worth looking at;
    elsewhere the family's are not. `last`: no later family has a say then. `measured`: both need the device's rules.
    """

    has: Callable[[TileShape], bool]
    is_for: Callable[[Sizes, Catalogue], NDArray[np.bool_]]
    keeps: Callable[[Sizes, Catalogue], Callable[[TileShape], bool]]
    last: bool = False
    measured: bool = True

    def is_tried(self, catalogue: Catalogue) -> bool:
        return not self.measured or catalogue.rules is not None

    def suits(self, sizes: Sizes, catalogue: Catalogue) -> NDArray[np.bool_]:
        """Which problems the catalogue's tiles of the family are for; none where that was not measured."""
        return self.is_for(sizes, catalogue) if self.is_tried(catalogue) else np.zeros(len(sizes.m), bool)

    def tiles_of(self, catalogue: Catalogue) -> Iterator[TileShape]:
        return filter(self.has, catalogue)

    def widest_of(self, catalogue: Catalogue) -> int:
        """The shorter side of its widest tile, 0 where the catalogue has none."""
        return max((min(tile.m, tile.n) for tile in self.tiles_of(catalogue)), default=0)


def _rules(catalogue: Catalogue) -> Rules:
    """Of a catalogue whose device has some."""
    assert catalogue.rules is not None, "without rules no problem suits a family that needs them"
    return catalogue.rules


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
    others = not (sizes.k >= _rules(catalogue).very_deep).all()
    return lambda tile: tile in wanted if DEEP.has(tile) else others


def _have_few_columns(sizes: Sizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """ISM2's problems, and a little beyond: elsewhere most passes of the tiles are empty, or B comes piece by piece.
    And TSM2's of which A is stored transposed, in float32: no other tile reads single elements of it so fast.
    """
    rules = _rules(catalogue)
    answer = (sizes.m >= TALL) & _are_streamed(sizes.n, sizes.k, ROWS.widest_of(catalogue), rules)
    both = bool((answer & sizes.has_products).any())  # in one launch would want different tiles
    if not both and catalogue.dtype == "float32":
        widest = max((tile.n for tile in catalogue if _is_short_row_tile(tile, rules)), default=0)
        large = (sizes.m >= TALL) & (sizes.k >= TALL) & (sizes.m * sizes.k >= rules.many_transposed_elements)
        answer |= ~sizes.rows_along & large & (sizes.n <= widest) & (sizes.n > 0)
    return answer


def _are_streamed(few: Ints, k: Ints, widest: int, rules: Rules) -> NDArray[np.bool_]:
    """Whether so few columns, or rows, and such a K suit tiles of whole rows that are up to `widest` wide."""
    deepest = np.where(few <= rules.narrow, max(widest, rules.streamed_steps), max(widest, SKINNY))
    answer: NDArray[np.bool_] = (few <= widest) & (k <= deepest)
    return answer


def _is_short_row_tile(tile: TileShape, rules: Rules) -> bool:
    """Of two rows a thread, and not for a million: where K is deep its shares make blocks enough."""
    return ROWS.has(tile) and tile.m == 2 * tile.threads and tile.n <= rules.few_columns


def _narrowest_that_hold(sizes: Sizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """For few columns and many rows row tiles alone, and for ISM2's other problems far longer tiles; of a deep K the
    shorter row tiles.
    """
    if (sizes.k >= TALL).all():
        rules = _rules(catalogue)
        catalogue = catalogue.only(lambda tile: _is_short_row_tile(tile, rules))
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
    rules, rows = _rules(catalogue), int(sizes.batch @ many)
    if (few <= rules.few_columns).all():
        return catalogue.only(family.has) if are_many(rows, catalogue) else None
    wide = [tile for tile in family.tiles_of(catalogue) if min(tile.m, tile.n) >= few.max(initial=0)]
    if rows < rules.many_rows or (few <= rules.few_columns).any() or not any(tile.tensor for tile in wide):
        return None
    ordinary = [tile for tile in wide if not tile.tensor]
    on_tensor_cores = not ordinary or bool((sizes.k >= rules.few_steps).any())
    return catalogue.only(lambda tile: tile in wide and tile.tensor == on_tensor_cores)


def are_many(rows: int, catalogue: Catalogue) -> bool:
    """Whether for so many rows of few columns tiles of whole rows were measured to be the fastest."""
    if catalogue.rules is None:
        return False
    many = catalogue.rules.many_rows
    return rows >= (many if catalogue.element_bytes > 4 else many // 4)


def without_too_long(family: Family, few: Ints, sizes: Sizes, catalogue: Catalogue) -> Catalogue:
    """Without the family's longer tiles whose blocks would move too many bytes, where shorter ones are as wide."""
    largest_block = _rules(catalogue).largest_block
    line_bytes = int((sizes.k + few).max(initial=0)) * catalogue.element_bytes
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
    return (sizes.n >= TALL) & _are_streamed(sizes.m, sizes.k, COLUMNS.widest_of(catalogue), _rules(catalogue))


def _lowest_that_hold(sizes: Sizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """Up to SKINNY rows far longer tiles alone, and for few rows and many columns those of whole columns alone."""
    if alone := _alone(COLUMNS, sizes.m, sizes.n, sizes, catalogue):
        catalogue = alone
    elif (sizes.m <= SKINNY).all():
        catalogue = catalogue.only(lambda tile: tile.is_far_longer and tile.n > tile.m)
    if (sizes.m <= _rules(catalogue).few_columns).all():  # of more the longer tiles were as fast
        catalogue = without_too_long(COLUMNS, sizes.m, sizes, catalogue)
    return _narrowest(sizes.m, lambda tile: tile.m, COLUMNS, catalogue)


def _have_long_rows(sizes: Sizes, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Few columns, and a deep K that lies along A's rows, which of elements of 16 bits are whole vectors: others would
    be read one by one, and are left to tiles that shift them.
    """
    rules = _rules(catalogue)
    long_rows = sizes.rows_along & (sizes.k >= rules.long_rows) & (sizes.n > 0)
    if catalogue.element_bytes == 2:
        long_rows &= sizes.k % 8 == 0
    enough_rows: NDArray[np.bool_] = np.zeros(len(sizes.m), bool)
    for tile in sorted(DOTS.tiles_of(catalogue), key=lambda tile: -tile.n):  # the narrowest has the last word
        enough_rows = np.where(sizes.n <= tile.n, sizes.m >= tile.m // rules.fewest_filled, enough_rows)
    return enough_rows & long_rows


def _narrowest_dots(sizes: Sizes, catalogue: Catalogue) -> Callable[[TileShape], bool]:
    """The narrowest of the family that hold a problem's columns, and where all K are deep and A large, nothing else."""
    tiles = sorted(DOTS.tiles_of(catalogue), key=lambda tile: tile.n)
    wanted = {next(tile for tile in tiles if tile.n >= n) for n in set(sizes.n.tolist())}
    others = not ((sizes.k >= TALL) & (sizes.m * sizes.k >= _rules(catalogue).many_elements)).all()
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
    measured=False,
)
FAMILIES = (DOTS, DEEP, ROWS, COLUMNS, LONG)  # in the order in which they have a say
_NUMBERED = (LONG, DEEP, DOTS, ROWS, COLUMNS)  # from 1 on; a problem that suits several has the last


def worth_trying(catalogue: Catalogue, sizes: Sizes) -> Catalogue:
    """The tiles that are worth looking at for these problems. Those without products don't count."""
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


def are_read_fastest(families: Ints, sizes: Sizes, rules: Rules | None) -> NDArray[np.bool_]:
    """Of `families_of`: which problems' operands tiles of STREAMING read faster than others do."""
    few = 0 if rules is None else rules.few_columns
    few_columns = are_of(ROWS, families) & (sizes.n <= few)
    few_rows = are_of(COLUMNS, families) & (sizes.m <= few)
    return are_of(DOTS, families) | few_columns | few_rows


def stream_deep(tile: TileShape, sizes: Sizes) -> bool:
    """Whether tiles read a deep K as fast as the memory gives it, so that only the number of their blocks matters."""
    return DOTS.has(tile) or (ROWS.has(tile) and bool((sizes.k >= TALL).all()))


def is_made_for(tile: TileShape, sizes: Sizes, catalogue: Catalogue) -> bool:
    """Whether a tile may be chosen for such problems, so that its cost for them matters: true of most tiles.

    Far longer tiles are made as others are, and their costs hold for all problems. Without rules none of the other
    families' tiles is chosen.
    """
    alone = catalogue.only(lambda other: other == tile)
    return all(family.suits(sizes, alone).all() for family in FAMILIES[:-1] if family.has(tile))
