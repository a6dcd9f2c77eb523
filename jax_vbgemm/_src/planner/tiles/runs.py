"""Runs: boxes of equal tiles, as plans hold them and kernels read them (TileRun in csrc/descriptor.h)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.problem import ProblemSizes

Ints = NDArray[np.int64]

# A planner may consider far more tiles than a plan can hold (2**31 - 1). Counts saturate here, so that their sums stay
# exact.
_COUNT_LIMIT = 2.0**40


@dataclass(frozen=True, eq=False)
class Runs:
    """Each entry is a run: `tiles_batch` x `tiles_y` x `tiles_x` adjacent tiles of one problem, enumerated in that
    order.

    `tile_id` is the tile's row of the compiled table; `row`, `col` (elements) and `batch` are the run's origin; the
    tiles accumulate over k in [k_begin, k_end). `mirrored` is 1 if each tile is also stored transposed, as its
    mirror image in a symmetric C; by default it is 0.
    """

    problem: Ints
    tile_id: Ints
    row: Ints
    col: Ints
    batch: Ints
    k_begin: Ints
    k_end: Ints
    tiles_y: Ints
    tiles_x: Ints
    tiles_batch: Ints
    mirrored: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        for column in fields(self):
            values = as_integers(f"runs.{column.name}", getattr(self, column.name))
            object.__setattr__(self, column.name, values)
            if len(values) != len(self.problem) and not (column.name == "mirrored" and len(values) == 0):
                raise ValueError(
                    f"plan: runs.{column.name} has {len(values)} entries but runs.problem has {len(self.problem)}: "
                    "one for each run"
                )
        if len(self.mirrored) != len(self.problem):
            object.__setattr__(self, "mirrored", np.zeros_like(self.problem))

    @classmethod
    def whole_problems(cls, sizes: ProblemSizes, tile_id: Ints, catalogue: Catalogue, order: Ints) -> "Runs":
        """One run for each problem, in `order`, that covers it with tile `tile_id`; none where C has no elements."""
        tile = catalogue.columns
        problem = order[(sizes.m[order] > 0) & (sizes.n[order] > 0) & (sizes.batch[order] > 0)]
        tile_id = tile_id[problem]
        zeros = np.zeros_like(problem)
        return cls(
            problem=problem,
            tile_id=tile_id,
            row=zeros,
            col=zeros,
            batch=zeros,
            k_begin=zeros,
            k_end=sizes.k[problem],
            tiles_y=ceil_div(sizes.m[problem], tile.m[tile_id]),
            tiles_x=ceil_div(sizes.n[problem], tile.n[tile_id]),
            tiles_batch=sizes.batch[problem],
        )

    @classmethod
    def single_tiles(cls, tiles: Sequence[tuple[int, ...]]) -> "Runs":
        """One run for each tile, which is given as (problem, tile_id, row, col, batch, k_begin, k_end)."""
        box = np.ones((len(tiles), 3), np.int64)
        try:
            table = np.array(tiles, np.int64).reshape(len(tiles), 7)
        except OverflowError:
            index = next(i for i, tile in enumerate(tiles) if any(abs(value) >= 2**63 for value in tile))
            raise ValueError(f"plan: tile {index} of the plan has a number beyond int64") from None
        return cls(*np.hstack((table, box)).T)

    @classmethod
    def joined(cls, parts: Sequence["Runs"]) -> "Runs":
        """All runs of `parts`, one after another."""
        if not parts:
            return cls.single_tiles([])
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(cls)))

    def __len__(self) -> int:
        return len(self.problem)

    @cached_property
    def count(self) -> Ints:
        """Tiles of each run."""
        return saturating_count(self.tiles_y, self.tiles_x, self.tiles_batch)

    @cached_property
    def first_tile(self) -> Ints:
        """The number of tiles before each run, followed by the number of all tiles: len(self) + 1 entries."""
        return offsets(self.count)

    @property
    def num_tiles(self) -> int:
        return int(self.first_tile[-1])

    def take(self, index: Ints) -> "Runs":
        """The runs at `index`, in that order."""
        return Runs(*(getattr(self, column.name)[index] for column in fields(self)))

    def expand(self, catalogue: Catalogue) -> "Runs":
        """The same tiles in the same order, each a run of its own."""
        if len(self) == self.num_tiles:
            return self
        run = np.repeat(np.arange(len(self)), self.count)
        local = np.arange(self.num_tiles) - self.first_tile[run]
        tiles = self.take(run)
        y = local // tiles.tiles_x
        ones = np.ones_like(run)
        return Runs(
            problem=tiles.problem,
            tile_id=tiles.tile_id,
            row=tiles.row + y % tiles.tiles_y * catalogue.columns.m[tiles.tile_id],
            col=tiles.col + local % tiles.tiles_x * catalogue.columns.n[tiles.tile_id],
            batch=tiles.batch + y // tiles.tiles_y,
            k_begin=tiles.k_begin,
            k_end=tiles.k_end,
            tiles_y=ones,
            tiles_x=ones,
            tiles_batch=ones,
            mirrored=tiles.mirrored,
        )


def tile_counts(sizes: ProblemSizes, tile_m: int, tile_n: int) -> Ints:
    """ceil(M / Tm) * ceil(N / Tn) * batch of each problem, read-only."""
    # Cached, because several planners ask for the same shapes, and several tiles share a shape.
    key = (tile_m, tile_n)
    counts = sizes.tile_counts.get(key)
    if counts is None:
        counts = saturating_count(ceil_div(sizes.m, tile_m), ceil_div(sizes.n, tile_n), sizes.batch)
        counts.flags.writeable = False
        sizes.tile_counts[key] = counts
    return counts


def as_integers(name: str, values: object) -> Ints:
    """A column of numbers as int64; TypeError or ValueError names it."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        return values
    array = np.asarray(values) if isinstance(values, np.ndarray | list | tuple) else None
    if array is None or array.ndim != 1 or not (array.size == 0 or np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"plan: {name} is {values!r}: expected a 1-D array of integers within int64")
    if array.size and array.dtype == np.uint64 and array.max() >= 2**63:
        raise ValueError(f"plan: {name} has {array.max()}, which is beyond int64")
    return array.astype(np.int64)


def saturating_count(tiles_y: Ints, tiles_x: Ints, tiles_batch: Ints) -> Ints:
    product = tiles_y.astype(np.float64) * tiles_x * tiles_batch
    return np.minimum(product, _COUNT_LIMIT).astype(np.int64)  # exact below the limit


def offsets(counts: Ints) -> Ints:
    """The sum of `counts` before each entry, followed by the sum of all: len(counts) + 1 entries."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))


def ceil_div(numerator: Ints, denominator: Ints | int) -> Ints:
    return -(-numerator // denominator)
