"""`tall_skinny`: Rivera et al., "ISM2: Optimizing irregular-shaped matrix-matrix multiplication on GPUs"."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tall_skinny_model import Gpu, Kernel, best_kernel
from jax_vbgemm._src.planner.model.tall_skinny_shape import Shape, shapes_of
from jax_vbgemm._src.planner.model.tile_families import (
    COLUMNS,
    DEEP,
    DOTS,
    FAMILIES,
    LONG,
    ROWS,
    STREAMING,
    are_many,
    has_two_rows_a_thread,
    without_overlong,
)
from jax_vbgemm._src.planner.model.tile_time import step_depth
from jax_vbgemm._src.planner.papers.options import check_choice, check_count, check_number
from jax_vbgemm._src.planner.papers.paper_planner import PaperPlanner
from jax_vbgemm._src.planner.papers.sort_split import LEVELS, TENSOR_LEVELS, largest_that_fits
from jax_vbgemm._src.planner.plan.draft import Draft, joined
from jax_vbgemm._src.planner.plan.plan import MAX_TILES
from jax_vbgemm._src.planner.search.makespan import by_one_tile
from jax_vbgemm._src.planner.tables.catalogue import SHARED_DEPTH, WHOLE_ROWS, Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.launches import MAX_SEARCHED
from jax_vbgemm._src.planner.tiles.runs import Ints, ceil_div
from jax_vbgemm._src.planner.tiles.split_k import in_slices
from jax_vbgemm._src.problem import Problem, ProblemSizes

MIRRORED = (Shape.TSM2_MIRRORED, Shape.ISM2_MIRRORED)
DEEP_SHAPES = (Shape.TSM2, Shape.TSM2_MIRRORED, Shape.REDUCTION)  # K is more than small, and may be split

# Minimum K steps of a split-K slice if the number of slices is a heuristic; keeps the reduction of partial sums cheap.
_STEPS_OF_A_SLICE = 8

# Prefetch depth of row tiles: the elements that a thread loads of each of its rows before it multiplies (all of them
# for a small K) (csrc/gpu/simt/row_tile.h).
_ROWS_AHEAD = 32


@dataclass(frozen=True)
class TallSkinny(PaperPlanner):
    """The planner "tall_skinny", of Rivera et al., "ISM2: Optimizing irregular-shaped matrix-matrix multiplication on
    GPUs".

    Tall and skinny problems get the tile that the paper's performance model chooses. Each block has one tile. The paper
    calls a large A times a matrix of few columns TSM2 (K is large) or ISM2 (K is small as well).

    Options that are negative or infinite raise ValueError; options that are not numbers raise TypeError.

    Which kernels correspond to the paper's depends on how the tall operand A is stored: the paper assumes column-major
    storage, and JAX has row-major arrays. For ISM2 they are the row tiles (`rows-*`), whose threads compute whole rows
    of C (Algorithm 6: one row of A a thread, tcf rows in turn), in either storage. For TSM2 they are the row tiles
    where A is stored as k x m, and the dot-product tiles (`dots-*`), whose warps read along K, where A is contiguous
    along K. If the device's measurements say that other tiles are faster, and for problems with few rows and many
    columns, they are the skinny tiles (`skinny-*`); on a device without measurements the paper's model alone decides.
    Reductions (few rows, few columns and a deep K), which the paper does not treat, get the smallest deep tile
    (`deep-*`) that holds their result. Other problems get the largest square tile that fits, and tall and skinny ones
    of a dtype without such tiles the smallest square tile that holds the small dimension.

    t2 is the tile's short side, t3 the number of elements of A that a thread loads in a step, t1 tcf the long side;
    MaxOccup_SM comes from the compiler's report (`Kernel`). The model chooses among all tiles of the kernels named
    above (`best_kernel`: Algorithm 5, and `predicted_seconds` for t1 and tcf, which the paper profiles). On a CPU,
    which the paper does not cover, the tile is the longest of the narrowest that hold the small dimension.

    The paper does not split K, as its problems have enough rows for its GPUs. `target_blocks`: K of deep problems is
    split until there are this many blocks of all problems; 0 splits none. By default, K is split until the device is
    full; for tiles whose family has a kernel of its own, in the way that was measured to be fastest
    (planner/search/makespan.py).

    `memory_latency`, `product_latency`: seconds from a load, and from a multiply-add, to its use; default: the device
    table's. `tcf`: rows of C that a thread of ISM2 computes one after another, where a row tile of this kind holds the
    problem's columns (otherwise a note of the plan says so); default: the model's.
    `python -m jax_vbgemm profile` measures all three on the device at hand.

    `tensor`: whether skinny and square tiles are those of tensor cores. None (default): for float32 at JAX's default
    precision and for 16-bit floats, but not for float32 at "highest" and for float64. Row and dot-product tiles, whose
    limit is memory, are chosen by the model from both kinds of units. False excludes all tiles on tensor cores.
    """

    name: ClassVar[str] = "tall_skinny"
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (LEVELS,)
    tensor_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (TENSOR_LEVELS,)

    target_blocks: float | None = None
    memory_latency: float | None = None
    product_latency: float | None = None
    tcf: float | None = None
    tensor: bool | None = None

    def __post_init__(self) -> None:
        for name in ("target_blocks", "memory_latency", "product_latency"):
            check_number("TallSkinny", name, getattr(self, name))
        check_count("TallSkinny", "tcf", self.tcf)
        check_choice("TallSkinny", "tensor", self.tensor, (None, True, False))

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        draft = self._draft(problems, device, catalogue)
        if self.tcf is None:
            return draft
        ism2 = np.flatnonzero(np.isin(shapes_of(ProblemSizes.of(problems)), (Shape.ISM2, Shape.ISM2_MIRRORED)))
        tiles = [catalogue.by_index[index] for index in draft.tile_id[ism2].tolist()]
        others = sum(_walked_rows(tile) != self.tcf for tile in tiles)
        if others == 0:
            return draft
        note = f"tcf = {self.tcf:g}: no tile for {others} of {len(tiles)} problems of ISM2; they have the model's tcf"
        return replace(draft, notes=(*draft.notes, note))

    def _draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        sizes = ProblemSizes.of(problems)
        (levels,) = self.sets_for(catalogue)
        ordinary, replaced = catalogue.resolve(levels)
        with_tensor = levels == TENSOR_LEVELS
        shapes = shapes_of(sizes)
        level = np.where(
            shapes == Shape.ORDINARY, largest_that_fits(sizes, ordinary), _smallest_levels(sizes, shapes, ordinary)
        )
        squares = np.array([tile.index for tile in ordinary])[level]
        profiled = self._profiled(device)

        to_choose_from = catalogue if self.tensor is not False else catalogue.only(lambda tile: not tile.tensor)

        def chosen(streaming: NDArray[np.bool_]) -> Ints:
            """Each problem's tile; problems that are not `streaming` get a tile of an ordinary kernel."""
            tile_id = squares.copy()
            for i in np.flatnonzero((shapes != Shape.ORDINARY) & sizes.has_products).tolist():
                one = replace(problems[i], symmetric=False)
                tile = _tile_for(
                    one, Shape(shapes[i]), profiled, to_choose_from, self.tcf, bool(streaming[i]), with_tensor
                )
                tile_id[i] = tile_id[i] if tile is None else tile.index
            return tile_id

        tile_id = _within_launches(chosen, sizes, catalogue)
        order = np.arange(len(problems))
        draft = Draft.whole_problems(
            problems, device, catalogue, planner=self.name, tile_id=tile_id, order=order, replaced=replaced
        )
        if device.device_type == "cpu":
            return draft
        if self.target_blocks is not None:
            return self._split(draft, shapes, self.target_blocks)
        own = np.isin(tile_id, [tile.index for tile in catalogue if _is_of_one_family(tile.kernel)])
        if not own.any():
            return self._split(draft, shapes, None)
        parts = []
        for index in np.unique(tile_id[own]).tolist():
            members = np.flatnonzero(own & (tile_id == index))
            group = tuple(problems[i] for i in members.tolist())
            parts.append((members, by_one_tile(group, device, catalogue, catalogue.by_index[index])))
        if not own.all():
            rest = np.flatnonzero(~own)
            others = tuple(problems[i] for i in rest.tolist())
            whole = Draft.whole_problems(others, device, catalogue, planner="", tile_id=tile_id[rest])
            parts.append((rest, self._split(whole, shapes[rest], None)))
        return replace(joined(problems, parts), planner=self.name, replaced=replaced)

    def _profiled(self, device: DeviceSpec) -> DeviceSpec:
        """The device with the latencies given as options."""
        memory, product = self.memory_latency, self.product_latency
        return replace(
            device,
            step_latency=device.step_latency if memory is None else memory,
            product_latency=device.product_latency if product is None else product,
        )

    def _split(self, draft: Draft, shapes: NDArray[np.int8], target: float | None) -> Draft:
        """The draft with the K of deep problems cut into slices until there are `target` blocks; None: as many as the
        device holds at once.
        """
        runs, device, catalogue = draft.runs, draft.device, draft.catalogue
        deep = np.isin(shapes[runs.problem], DEEP_SHAPES)
        if not deep.any() or runs.num_tiles > MAX_TILES:
            return draft
        if target is None:
            tile = catalogue.by_index[int(runs.tile_id[deep][0])]
            target = device.units * tile_occupancy(tile, device).blocks
        others = int(runs.count[~deep].sum())
        fill = int(max(target - others, 0) // int(runs.count[deep].sum()))
        depth = step_depth(catalogue.columns.k[runs.tile_id], catalogue.element_bytes)
        slices = np.where(deep, np.minimum(fill, ceil_div(runs.k_end, depth) // _STEPS_OF_A_SLICE), 1).clip(1)
        if (slices == 1).all():
            return draft
        tiles = runs.expand(catalogue)
        run = np.repeat(np.arange(len(runs)), runs.count)
        return replace(draft, runs=in_slices(tiles, slices[run], depth[run]))


def _within_launches(chosen: Callable[[NDArray[np.bool_]], Ints], sizes: ProblemSizes, catalogue: Catalogue) -> Ints:
    """Each problem's tile, with at most MAX_SEARCHED kernels: while there are more, the kernel whose problems have the
    fewest elements to read gives its problems to ordinary kernels.
    """
    streaming = np.ones(len(sizes.m), bool)
    elements = sizes.elements() * sizes.batch
    while True:
        tile_id = chosen(streaming)
        kernel = catalogue.columns.kernel[tile_id]
        launched = np.unique(kernel[sizes.has_products])
        own = [index for index in launched.tolist() if _is_dispensable(catalogue.kernels[index], catalogue)]
        if len(launched) <= MAX_SEARCHED or not own:
            return tile_id
        least = min(own, key=lambda index: float(elements[kernel == index].sum()))
        streaming &= kernel != least


def _is_dispensable(kernel: str, catalogue: Catalogue) -> bool:
    """Whether a kernel only gets tall and skinny problems, which ordinary kernels can compute as well."""
    return _is_of_one_family(kernel) or LONG.has(catalogue.any_tile_of(kernel))


def _is_of_one_family(kernel: str) -> bool:
    """Whether a kernel holds tiles of one family only; ordinary and skinny tiles share theirs."""
    return kernel in (*STREAMING, SHARED_DEPTH)


@lru_cache(maxsize=1024)
def _tile_for(
    problem: Problem,
    shape: Shape,
    device: DeviceSpec,
    catalogue: Catalogue,
    tcf: float | None,
    streaming: bool,
    with_tensor: bool,
) -> TileShape | None:
    """The tile for a tall and skinny problem; None if none is built. `with_tensor`: skinny tiles may be on tensor
    cores."""
    if shape == Shape.REDUCTION:
        return _smallest_that_holds(problem, catalogue) if streaming and device.device_type == "gpu" else None
    mirrored = shape in MIRRORED
    m, n = (problem.n, problem.m) if mirrored else (problem.m, problem.n)

    def sides(tile: TileShape) -> tuple[int, int]:
        """The short and the long side."""
        return (tile.m, tile.n) if mirrored else (tile.n, tile.m)

    kernels_of_paper = streaming and device.device_type == "gpu"
    tiles = _streaming(problem, shape, catalogue) if kernels_of_paper else []
    held = [tile for tile in tiles if sides(tile)[0] >= n]  # other tiles may be shorter but are not used
    shortest = min((sides(tile)[1] for tile in held), default=0)
    if shortest == 0 or (shape not in DEEP_SHAPES and problem.batch * -(-m // shortest) < device.units):
        # shorter tiles may leave fewer units idle; for a deep K, split-K fills the units instead
        tiles += _skinny(catalogue, mirrored, with_tensor and streaming)
    if tcf is not None and kernels_of_paper and shape in (Shape.ISM2, Shape.ISM2_MIRRORED):
        family = COLUMNS if mirrored else ROWS
        asked = [tile for tile in family.tiles_of(catalogue) if _walked_rows(tile) == tcf and sides(tile)[0] >= n]
        tiles = asked or tiles
    if not tiles:
        return None

    if device.device_type == "cpu":
        return min(tiles, key=lambda tile: (sides(tile)[0] < n, abs(sides(tile)[0] - n), -sides(tile)[1]))
    kernels = [kernel_of(tile, *sides(tile), problem.k, device, catalogue) for tile in tiles]
    index, _ = best_kernel(Gpu.of(device), catalogue.dtype, m, n, problem.k, kernels, batch=problem.batch)
    return tiles[index]


def kernel_of(tile: TileShape, short: int, long: int, k: int, device: DeviceSpec, catalogue: Catalogue) -> Kernel:
    """A tile as a kernel of the paper's model, for a problem of depth `k`."""
    step = int(step_depth(np.asarray(tile.k), catalogue.element_bytes))
    depth = min(_ROWS_AHEAD if tile.kernel in WHOLE_ROWS else step, k)
    return Kernel(
        t1=tile.threads,
        t2=short,
        t3=max(depth * min(long, tile.threads) // tile.threads, 1),
        tcf=_rows_of_thread(tile, long),
        threads=tile_occupancy(tile, device).blocks * tile.threads,
        peak_rate=device.tensor_rate(catalogue.kind) if tile.tensor else device.peak_rate(catalogue.dtype),
    )


def _walked_rows(tile: TileShape) -> int:
    """The rows of C that a thread computes one after another: tcf, 0 for a tile whose threads share rows."""
    return _rows_of_thread(tile, max(tile.m, tile.n)) if tile.kernel in WHOLE_ROWS else 0


def _rows_of_thread(tile: TileShape, long: int) -> int:
    """tcf of a tile whose long side is `long`."""
    return max(long // tile.threads, 1)


def _skinny(catalogue: Catalogue, mirrored: bool, with_tensor: bool) -> list[TileShape]:
    """The skinny tiles: those far longer than wide, or wider than long, that belong to no family; `with_tensor`: and
    those of LONG, on tensor cores.

    A CPU walks the same ones as a GPU; the tiles that only it has are of one thread, and don't count.
    """
    others = [family for family in FAMILIES if not (with_tensor and family is LONG)]
    tiles = (tile for tile in catalogue if tile.is_far_longer and tile.threads > 1)
    return [tile for tile in tiles if (tile.n > tile.m) == mirrored and not any(family.has(tile) for family in others)]


def _streaming(problem: Problem, shape: Shape, catalogue: Catalogue) -> list[TileShape]:
    """The tiles that are the paper's kernels for this problem: where the device was measured, without those that were
    slower than others; else all, among which the paper's model chooses."""
    one, measured = ProblemSizes.of((problem,)), catalogue.rules
    if shape in (Shape.ISM2, Shape.ISM2_MIRRORED):
        family, few, many = (ROWS, one.n, problem.m) if shape == Shape.ISM2 else (COLUMNS, one.m, problem.n)
        if measured is None:
            return list(family.tiles_of(catalogue))
        if not are_many(problem.batch * many, catalogue):
            return []
        # tcf is profiled offline (section 5.2): blocks of too many bytes were slower.
        return list(family.tiles_of(without_overlong(family, few, one, catalogue)))
    if shape != Shape.TSM2:
        return []
    if bool(one.rows_along.all()) if measured is None else DOTS.suits(one, catalogue).all():
        return list(DOTS.tiles_of(catalogue))
    if problem.transpose_a and (measured is None or ROWS.suits(one, catalogue).all()):
        few_columns = 0 if measured is None else measured.few_columns
        short = filter(has_two_rows_a_thread, catalogue)
        return [tile for tile in short if tile.n <= few_columns or problem.n > few_columns]
    return []


def _smallest_levels(sizes: ProblemSizes, shapes: NDArray[np.int8], tiles: tuple[TileShape, ...]) -> Ints:
    """For each problem the first of the square tiles that holds its small dimension, so that the tall operand is read
    once; of a reduction both dimensions of C."""
    needed = np.where(shapes == Shape.REDUCTION, np.maximum(sizes.m, sizes.n), np.minimum(sizes.m, sizes.n))
    sides = np.array([min(tile.m, tile.n) for tile in tiles])
    return np.minimum(np.searchsorted(sides, needed), len(tiles) - 1)


def _smallest_that_holds(problem: Problem, catalogue: Catalogue) -> TileShape | None:
    tiles = [tile for tile in DEEP.tiles_of(catalogue) if tile.m >= problem.m and tile.n >= problem.n]
    return min(tiles, key=lambda tile: tile.m * tile.n, default=None)
