"""Plan: the tiles that are computed, in which blocks and order, as a planner returns it and print() shows it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.cost_model import Prediction, predict, weighted_sum
from jax_vbgemm._src.planner.model.occupancy import Occupancy, kernel_step, tile_occupancy, work_per_thread
from jax_vbgemm._src.planner.model.tile_time import computed_extents
from jax_vbgemm._src.planner.plan import picture, report
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, Replacement, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.coverage import check_coverage
from jax_vbgemm._src.planner.tiles.launches import Launch, check_launches, launch_form
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, as_integers, offsets
from jax_vbgemm._src.planner.tiles.split_k import slices_of
from jax_vbgemm._src.planner.tiles.symmetric import fold, stores_mirrored
from jax_vbgemm._src.problem import Problem, ProblemSizes
from jax_vbgemm._src.util.integers import is_integer

MAX_TILES = 2**31 - 1  # descriptors number tiles in int32


class Tile(NamedTuple):
    """A part of one problem's C: batch entry `batch`, from element (row, col) on, summed over k in [k_begin, k_end).

    `name` is the tile's name in the catalogue. Given to `Plan.from_blocks` it may be (name, threads) as well; the name
    alone means the version with the most threads.
    """

    problem: int
    batch: int
    row: int
    col: int
    k_begin: int
    k_end: int
    name: str | TileKey


@dataclass(frozen=True, eq=False)
class Plan:
    """The decision of a planner: which tile computes which part of which result, in which block and order.

    `print(plan)` explains it. `jax_vbgemm.plan` makes the plan of a call, and planners build one by `from_choices` or
    `from_blocks`.

    Attributes:
      problems, device, planner: what was planned, for which device, and the name of the planner.
      catalogue: the tiles that the planner could choose from.
      runs: the tiles, as boxes, in the planner's order.
      block_first: block i holds the tiles [block_first[i], block_first[i + 1]); None: each block has one tile.
      choices: (tile name, threads) for each problem; None if several tile shapes cover a problem.
      order: the indices of the problems in scheduling order.
      tlp: the number of threads that the planner counts (Li 2019, Eq. 1, or Zhang 2025, Eq. 4).
      replaced: the tiles of the planner that are not built, and those that replace them.
      notes: remarks of the planner, which `print` shows.
    """

    problems: tuple[Problem, ...]
    device: DeviceSpec
    catalogue: Catalogue
    planner: str
    runs: Runs
    block_first: Ints | None
    choices: tuple[TileKey | None, ...]
    order: tuple[int, ...]
    tlp: int
    replaced: tuple[Replacement, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.runs, Runs):
            raise TypeError(f"plan: runs is {self.runs!r}: expected Runs")
        if self.block_first is not None:
            first = as_integers("block_first", self.block_first)
            if len(first) == 0:
                raise ValueError("plan: block_first is empty: it has an entry for each block, and the number of tiles")
            object.__setattr__(self, "block_first", first)
        if not is_integer(self.tlp):
            raise TypeError(f"plan: tlp is {self.tlp!r}: expected an integer")
        if self.num_tiles > MAX_TILES:
            raise ValueError(f"plan: {self.num_tiles} tiles are more than the 2**31 - 1 that a plan can hold")
        if self.device.note and self.device.note not in self.notes:
            object.__setattr__(self, "notes", (self.device.note, *self.notes))

    @classmethod
    def from_choices(
        cls,
        problems: Sequence[Problem],
        device: DeviceSpec,
        catalogue: Catalogue,
        *,
        planner: str,
        tiles: Sequence[TileShape],
        order: Sequence[int] | None = None,
        tlp: int | None = None,
        replaced: Sequence[Replacement] = (),
        notes: Sequence[str] = (),
    ) -> "Plan":
        """A plan that covers problem i with the tile shape `tiles[i]`, with one tile in each block.

        Blocks are scheduled in the order of problems that `order` gives, by default that of `problems`. Of a symmetric
        problem only about half of the tiles are computed, and stored twice, where the kernel can do so.

        Raises:
          TypeError: an entry of `tiles` is not a TileShape, or one of `order` is not an integer.
          ValueError: there is not one tile of the catalogue for each problem, or `order` does not name each problem
            once.
        """
        by = f"(planner {planner!r})"
        if len(tiles) != len(problems):
            raise ValueError(f"plan: {len(tiles)} tiles were chosen for {len(problems)} problems {by}")
        for index, tile in enumerate(tiles):
            if not isinstance(tile, TileShape):
                raise TypeError(f"plan: tiles[{index}] is {tile!r}: expected a TileShape of the catalogue {by}")
            if tile.index not in catalogue.by_index:
                raise ValueError(f"plan: tiles[{index}] = {tile.key} is not in the catalogue of {catalogue.kind} {by}")
        if order is None:
            order = range(len(problems))
        elif sorted(as_integers("order", list(order)).tolist()) != list(range(len(problems))):
            raise ValueError(f"plan: order = {list(order)} must name each of {len(problems)} problems once {by}")
        tile_id = np.fromiter((tile.index for tile in tiles), np.int64, len(tiles))
        runs = Runs.whole_problems(ProblemSizes.of(problems), tile_id, catalogue, np.asarray(order, np.int64))
        runs = fold(runs, problems, device, catalogue)
        choices = [tile.key for tile in tiles]
        return cls.of_runs(
            problems, device, catalogue, planner=planner, runs=runs, choices=choices, order=order, tlp=tlp,
            replaced=replaced, notes=notes,
        )  # fmt: skip

    @classmethod
    def of_runs(
        cls,
        problems: Sequence[Problem],
        device: DeviceSpec,
        catalogue: Catalogue,
        *,
        planner: str,
        runs: Runs,
        choices: Sequence[TileKey | None],
        order: Sequence[int],
        block_first: Ints | None = None,
        tlp: int | None = None,
        replaced: Sequence[Replacement] = (),
        notes: Sequence[str] = (),
    ) -> "Plan":
        """A plan of these runs. By default each block has one tile, and the TLP is the number of threads of all
        tiles."""
        return cls(
            problems=tuple(problems), device=device, catalogue=catalogue, planner=planner, runs=runs,
            block_first=block_first, choices=tuple(choices), order=tuple(order),
            tlp=_threads(runs, catalogue) if tlp is None else tlp, replaced=tuple(replaced), notes=tuple(notes),
        )  # fmt: skip

    @classmethod
    def from_blocks(
        cls,
        problems: Sequence[Problem],
        device: DeviceSpec,
        catalogue: Catalogue,
        *,
        planner: str,
        blocks: Sequence[Sequence[Tile]],
        notes: Sequence[str] = (),
    ) -> "Plan":
        """A plan of any blocks of any tiles.

        A kernel launch computes whole blocks: a block whose tiles belong to several kernels becomes a block of each of
        them (`launch_form`).

        Raises:
          TypeError: an entry is not a Tile, or has a non-integer number or an impossible name.
          ValueError: a block has no tiles, or a tile isn't in the catalogue. `validate` checks the rest.
        """
        shapes = _shapes_of_blocks(blocks, catalogue, planner)
        rows = [
            (tile.problem, shapes[tile.name].index, tile.row, tile.col, tile.batch, tile.k_begin, tile.k_end)
            for block in blocks
            for tile in block
        ]
        runs = Runs.single_tiles(rows)
        block_first = (
            None if len(rows) == len(blocks) else offsets(np.array([len(block) for block in blocks], np.int64))
        )
        used: list[set[TileKey]] = [set() for _ in problems]
        for tile in (tile for block in blocks for tile in block):
            if 0 <= tile.problem < len(problems):  # validate() reports other indices
                used[tile.problem].add(shapes[tile.name].key)
        return cls(
            problems=tuple(problems),
            device=device,
            catalogue=catalogue,
            planner=planner,
            runs=runs,
            block_first=block_first,
            choices=tuple(next(iter(keys)) if len(keys) == 1 else None for keys in used),
            order=tuple(range(len(problems))),
            tlp=_threads(runs, catalogue),
            notes=tuple(notes),
        )

    def validate(self) -> None:
        """Raises ValueError, naming problem and element, unless the plan is valid.

        Each element of each C must be covered exactly once for each k. If K is split, the tiles of one place must
        have one shape. The plan may need at most four kernels.
        """
        try:
            self._validate()
        except ValueError as error:
            raise ValueError(f"{error} (planner {self.planner!r})") from None

    def _validate(self) -> None:
        if len(self.choices) != len(self.problems) or sorted(self.order) != list(range(len(self.problems))):
            raise ValueError(f"plan: choices and order must have one entry for each of {len(self.problems)} problems")
        check_coverage(self.problems, self.catalogue, self.runs)
        split = np.isin(self.runs.problem, self.runs.problem[self.runs.k_begin > 0])
        if split.any():
            slices_of(self.runs.take(np.flatnonzero(split)).expand(self.catalogue), self.catalogue)
        mirrored = self.runs.mirrored != 0
        unable = np.flatnonzero(mirrored & ~stores_mirrored(self.device, self.catalogue)[self.runs.tile_id])
        if len(unable):
            tile = self.catalogue.by_index[int(self.runs.tile_id[unable[0]])]
            raise ValueError(
                f"plan: a tile of problems[{self.runs.problem[unable[0]]}] is mirrored, but on {self.device.name} "
                f"{tile.name!r} is not stored twice"
            )
        check_launches(self.catalogue, self.runs, self.block_first)

    def launch_form(self) -> tuple[Runs, Ints | None, tuple[Launch, ...]]:
        """Runs and block_first in the order of launches: the blocks of each kernel together, in the planner's order."""
        return launch_form(self.catalogue, self.runs, self.block_first)

    def __str__(self) -> str:
        return report.describe(self)

    def plot(self, file: Any = None) -> Any:
        """A picture of the plan: a row for each multiprocessor (or core), a box for each block over the time that the
        cost model predicts, its colour the tile shape, its grey part the multiply-adds outside of results.

        Args:
          file: where to save the picture, a path or an open file, in the format of its suffix; None: the figure is
            one of matplotlib.pyplot, which a notebook shows.

        Returns:
          A matplotlib figure.

        Raises:
          ImportError: matplotlib is not installed.
        """
        return picture.draw(self, file)

    # Arrays with one entry for each tile or block. The five arrays of Li 2019, Fig. 6, are block_start ("Tile" in the
    # paper), tile_problem ("GEMM"), tile_strategy, tile_row and tile_col (in elements); a batch index and a K range are
    # added here.

    @property
    def dtype(self) -> str:
        """The dtype of the operands."""
        return self.catalogue.dtype

    @property
    def kind(self) -> str:
        """The arithmetic (how products are formed): that of the dtype, or "tf32" or "tf32x3"."""
        return self.catalogue.kind

    @property
    def num_tiles(self) -> int:
        """The number of tiles of all blocks."""
        return self.runs.num_tiles

    @property
    def num_blocks(self) -> int:
        """The number of thread blocks (CTAs); on a CPU, of units of work that threads take."""
        return self.num_tiles if self.block_first is None else len(self.block_first) - 1

    @cached_property
    def single_tiles(self) -> Runs:
        """The tiles in order, each as a separate run."""
        return self.runs.expand(self.catalogue)

    @cached_property
    def blocks(self) -> list[list[Tile]]:
        """The blocks in order, each a list of Tile."""
        single = self.single_tiles
        names = [self.catalogue.by_index[row].name for row in single.tile_id.tolist()]
        columns = (single.problem, single.batch, single.row, single.col, single.k_begin, single.k_end)
        tiles = [Tile(*tile) for tile in zip(*(column.tolist() for column in columns), names, strict=True)]
        first = self.block_start.tolist()
        return [tiles[begin:end] for begin, end in itertools.pairwise(first)]

    @cached_property
    def block_start(self) -> NDArray[np.int32]:
        """The first tile of each block, followed by the number of tiles: blocks + 1 entries."""
        first = np.arange(self.num_tiles + 1) if self.block_first is None else self.block_first
        return first.astype(np.int32)

    @cached_property
    def tile_problem(self) -> NDArray[np.int32]:
        """The index of each tile's problem."""
        return self.single_tiles.problem.astype(np.int32)

    @cached_property
    def tile_strategy(self) -> NDArray[np.int32]:
        """The id of each tile's shape: its row in the compiled table of tiles."""
        return self.single_tiles.tile_id.astype(np.int32)

    @cached_property
    def tile_row(self) -> NDArray[np.int32]:
        """The first row of C of each tile."""
        return self.single_tiles.row.astype(np.int32)

    @cached_property
    def tile_col(self) -> NDArray[np.int32]:
        """The first column of C of each tile."""
        return self.single_tiles.col.astype(np.int32)

    @cached_property
    def tile_batch(self) -> NDArray[np.int32]:
        """The batch entry of each tile."""
        return self.single_tiles.batch.astype(np.int32)

    @cached_property
    def tile_k_begin(self) -> NDArray[np.int32]:
        """The first k over which each tile sums."""
        return self.single_tiles.k_begin.astype(np.int32)

    @cached_property
    def tile_k_end(self) -> NDArray[np.int32]:
        """The end (exclusive) of the range of k over which each tile sums."""
        return self.single_tiles.k_end.astype(np.int32)

    # Figures.

    @cached_property
    def tiles_used(self) -> tuple[TileShape, ...]:
        """The tile shapes that occur in the plan, in the catalogue's order."""
        return tuple(self.catalogue.by_index[row] for row in np.unique(self.runs.tile_id).tolist())

    @cached_property
    def tile_occupancies(self) -> Mapping[TileKey, Occupancy]:
        """Occupancy of each tile used, by (name, threads), with the limit of every resource (Zhang 2025, Eq. 5-9)."""
        return {tile.key: tile_occupancy(tile, self.device) for tile in self.tiles_used}

    @cached_property
    def occupancy(self) -> Mapping[TileKey, float]:
        """The fraction of a multiprocessor's warps that each tile's kernel can keep active, by (name, threads)."""
        return {key: occupancy.fraction for key, occupancy in self.tile_occupancies.items()}

    @cached_property
    def active_waves(self) -> Mapping[TileKey, int]:
        """WF (Zhang 2025, Eq. 9): the number of warps of each tile's kernel that one multiprocessor runs at once, by
        (name, threads)."""
        return {key: occupancy.waves for key, occupancy in self.tile_occupancies.items()}

    @cached_property
    def work_per_thread(self) -> Mapping[TileKey, tuple[float, float]]:
        """(W_CP, W_DL) of each tile used: elements that a thread computes, and moves (Zhang 2025, Eq. 1 and 2).

        Tk is the K step of the compiled kernel in elements of the dtype. In the paper Tk is 16 for all tiles:
        `load_balanced.table_3`.
        """
        kind = self.catalogue.kind
        return {
            tile.key: work_per_thread(tile.m, tile.n, kernel_step(tile, self.device, kind), tile.threads)
            for tile in self.tiles_used
        }

    @cached_property
    def prediction(self) -> Prediction:
        """The cost model's prediction: `seconds`, `waves` and `balance`."""
        return predict(ProblemSizes.of(self.problems), self.runs, self.block_first, self.catalogue, self.device)

    @property
    def predicted_seconds(self) -> float:
        """The cost model's makespan of the whole call, in seconds: the time at which the last block ends."""
        return self.prediction.seconds

    @property
    def waves(self) -> float:
        """The number of waves of thread blocks: blocks / (multiprocessors * resident blocks of each), summed over
        kernels."""
        return self.prediction.waves

    @property
    def balance(self) -> float:
        """The mean predicted time of a block divided by that of the longest block: 1 is perfectly even."""
        return self.prediction.balance

    @cached_property
    def padding_waste(self) -> float:
        """Computed multiply-adds divided by those that the problems have; 1 if they have none.

        A GPU computes whole tiles; a CPU core computes only the part of an edge tile that lies in C, in whole vectors.
        The problems' multiply-adds include both halves of a symmetric C: where one half is computed and stored twice,
        the figure may be below 1.
        """
        rows, cols = computed_extents(ProblemSizes.of(self.problems), self.runs, self.catalogue, self.device)
        computed = weighted_sum(self.runs.count * rows * cols, self.runs.k_end - self.runs.k_begin)
        useful = float(sum(p.m * p.n * p.k * p.batch for p in self.problems))
        return computed / useful if useful else 1.0


def _shapes_of_blocks(
    blocks: Sequence[Sequence[Tile]], catalogue: Catalogue, planner: str
) -> Mapping[str | TileKey, TileShape]:
    """The tile shapes by the names that the tiles of `blocks` have; raises as `Plan.from_blocks` does."""
    by = f"(planner {planner!r})"
    shapes: dict[str | TileKey, TileShape] = {}
    for index, block in enumerate(blocks):
        if not isinstance(block, Sequence) or isinstance(block, Tile | str):
            raise TypeError(f"plan: blocks[{index}] is {block!r}: expected a list of Tile {by}")
        if len(block) == 0:
            raise ValueError(f"plan: blocks[{index}] has no tiles {by}")
        for at, tile in enumerate(block):
            if not isinstance(tile, Tile):
                raise TypeError(f"plan: blocks[{index}][{at}] is {tile!r}: expected a Tile {by}")
            for field, value in zip(Tile._fields[:-1], tile, strict=False):
                if type(value) is not int and not is_integer(value):
                    raise TypeError(f"plan: blocks[{index}][{at}].{field} = {value!r} must be an integer {by}")
            match tile.name:
                case str():
                    key: tuple[str, int | None] = (tile.name, None)
                case (str(name), int(threads)):
                    key = (name, threads)
                case _:
                    raise TypeError(
                        f"plan: blocks[{index}][{at}].name = {tile.name!r} must be a name or (name, threads) {by}"
                    )
            if tile.name not in shapes:
                try:
                    shapes[tile.name] = catalogue.find(*key)
                except ValueError as error:
                    raise ValueError(f"plan: blocks[{index}][{at}].name: {error} {by}") from None
    return shapes


def _threads(runs: Runs, catalogue: Catalogue) -> int:
    """TLP (Li 2019, Eq. 1): the threads of all tiles."""
    return int(runs.count @ catalogue.columns.threads[runs.tile_id])
