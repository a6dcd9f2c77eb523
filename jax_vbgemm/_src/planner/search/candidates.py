"""The candidates that `makespan` compares: ways to cover a batch with the tiles of one kernel."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.tile_time import Floats, gpu_pace
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.runs import Ints, ceil_div, saturating_count, tile_counts
from jax_vbgemm._src.planner.tiles.split_k import even_slices
from jax_vbgemm._src.planner.tiles.symmetric import tiles_computed
from jax_vbgemm._src.problem import ProblemSizes

# The number of upper bounds of the longest block's time that are tried, between the smallest possible time and no
# bound. (With 4, the published plans are 0.1% slower by the model; with 12 they are 0.1% faster, and planning takes 1.2
# times as long.)
_NUM_LIMITS = 6

# The minimum K steps of a K slice: while one step is computed, the next one is loaded.
FEWEST_STEPS = 2


@dataclass(frozen=True)
class Option:
    """A way to cover a problem: `tile` alone, or `tile` inside and `edge` along the ragged edges.

    `inside` and `outside` are the numbers of these tiles, for each problem.
    """

    tile: TileShape
    edge: TileShape
    inside: Ints
    outside: Ints


class Candidate(NamedTuple):
    """An option for each problem, or one for all, with the number of blocks, the longest block, and the total work."""

    choice: Ints | int
    blocks: float
    end: float
    work: float
    slices: Ints | int = 1
    longest: Floats | None = None  # for each problem, where K is split
    sums: float = 0.0  # the number of accumulators of all K slices


def options_of_kernel(sizes: ProblemSizes, kernel: str, device: DeviceSpec, catalogue: Catalogue) -> list[Option]:
    """Each tile of the kernel, and each pair of tiles whose smaller one divides the larger one. Symmetric problems are
    folded in options with one tile.
    """
    tiles = catalogue.tiles_of(kernel)
    none = np.zeros_like(sizes.m)
    counts = {tile.index: tile_counts(sizes, tile.m, tile.n) for tile in tiles}
    options = [Option(tile, tile, tiles_computed(sizes, tile, device), none) for tile in tiles]
    for tile in tiles:
        edges = [
            edge
            for edge in tiles
            if edge.m * edge.n < tile.m * tile.n and tile.m % edge.m == 0 and tile.n % edge.n == 0
        ]
        if edges:
            inside = saturating_count(sizes.m // tile.m, sizes.n // tile.n, sizes.batch)
            for edge in edges:
                outside = counts[edge.index] - inside * (tile.m // edge.m * (tile.n // edge.n))
                options.append(Option(tile, edge, inside, outside))
    return options


def uses_of(options: Sequence[Option], has_inside: NDArray[np.bool_], has_outside: NDArray[np.bool_]) -> Ints:
    """The tiles that an option uses for a problem, as a bit mask."""
    bit = {tile: 1 << i for i, tile in enumerate({option.tile.index: None for option in options})}
    tile, edge = (np.array([[bit[index]] for index in column]) for column in zip(*_indices(options), strict=True))
    inside: Ints = np.where(has_inside, tile, 0)
    outside: Ints = np.where(has_outside, edge, 0)
    return inside | outside


def _indices(options: Sequence[Option]) -> list[tuple[int, int]]:
    return [(option.tile.index, option.edge.index) for option in options]


def candidates(
    pairs: Sequence[Ints],
    count: Ints,
    longest: Floats,
    total: Floats,
    slots: int,
    splits: "Splits | None",
) -> Iterator[Candidate]:
    """The candidates that are worth comparing.

    First one option for all problems. Then, for several upper bounds of the longest block, each problem's cheapest
    option within the bound, among the options of one of the `pairs` and among all. If one block takes longer than
    all work does on average, also the cheapest options within lower bounds with K split.
    """
    alone = (count.sum(axis=1, dtype=np.float64), longest.max(axis=1, initial=0), total.sum(axis=1))
    yield from starmap(Candidate, zip(range(len(count)), *(column.tolist() for column in alone), strict=True))
    if pairs:
        yield from _within_limits(min(pairs, key=lambda rows: _least_work(rows, total)), count, longest, total, slots)
    cheapest = None
    for found in _within_limits(np.arange(len(count)), count, longest, total, slots):
        cheapest = found
        yield found
    if splits is None:
        return
    end = float(longest.max()) if cheapest is None else cheapest.end
    least = max(float(total.min(axis=0).sum()) / slots, splits.shortest)
    if end > least:
        for limit in np.geomspace(end, least, _NUM_LIMITS + 1)[1:]:
            split = splits.within(float(limit), longest, total)
            if split is not None:
                yield split


def pairs_of(options: Sequence[Option]) -> list[Ints]:
    """For each pair of tiles, the options that use only these two; empty if there are at most two tiles."""
    indices = _indices(options)
    tiles = [tile for tile, edge in indices if tile == edge]
    if len(tiles) < 3:
        return []
    return [
        np.array([row for row, (tile, edge) in enumerate(indices) if tile in pair and edge in pair])
        for pair in combinations(tiles, 2)
    ]


def _least_work(rows: Ints, total: Floats) -> float:
    """The total work where each problem takes the cheapest of some options."""
    return float(reduce(np.minimum, (total[row] for row in rows.tolist())).sum())


def _within_limits(rows: Ints, count: Ints, longest: Floats, total: Floats, slots: int) -> Iterator[Candidate]:
    """For decreasing limits, each problem's cheapest option whose blocks take no longer than the limit. Empty where all
    options have blocks of equal length.
    """
    problem_index = np.arange(longest.shape[1])
    option_seconds, work = longest[rows], total[rows]

    def figures(which: Ints) -> Candidate:
        choice = rows[which]
        # One index into the flattened table is faster than a pair of indices.
        at = choice * len(problem_index) + problem_index
        blocks, end = float(count.take(at).sum()), float(longest.take(at).max())
        return Candidate(choice, blocks, end, float(total.take(at).sum()))

    low, high = float(option_seconds.min(axis=0).max(initial=0)), float(option_seconds.max(initial=0))
    if low == high:
        return
    found = figures(work.argmin(axis=0))
    yield found
    for limit in np.geomspace(high, low, _NUM_LIMITS) * (1 + 1e-9):
        if found.end <= found.work / slots:
            return  # a lower limit would only add work
        if limit < found.end:
            found = figures(np.where(option_seconds <= limit, work, np.inf).argmin(axis=0))  # each has one within it
            yield found


class Splits:
    """Candidates with K split so that blocks take no longer than a limit: each single tile, with K in equal slices."""

    def __init__(
        self,
        sizes: ProblemSizes,
        options: Sequence[Option],
        count: Ints,
        catalogue: Catalogue,
        device: DeviceSpec,
        sharing: int,
    ) -> None:
        # options with one tile come first
        tiles = np.array([option.tile.index for option in options if option.tile is option.edge])
        self._area = (catalogue.columns.m * catalogue.columns.n)[tiles]
        aligned = sizes.aligned(catalogue.element_bytes)
        self._pace = gpu_pace(tiles[:, None], aligned, catalogue, device, sharing)
        self._latency = device.block_latency
        self._count = count
        self._steps = ceil_div(sizes.k, self._pace.depth)
        self.shortest = float(self._pace.seconds(np.asarray(FEWEST_STEPS)).min()) + self._latency

    def within(self, limit: float, longest: Floats, total: Floats) -> Candidate | None:
        """The cheapest candidate whose blocks take no longer than `limit`; None if a problem has none, or where
        there would be too many tiles."""
        max_steps = self._pace.steps_within(limit - self._latency)  # maximum K steps per slice
        steps, slices = even_slices(self._steps, ceil_div(self._steps, np.maximum(max_steps, 1)))
        seconds = self._pace.seconds(steps) + self._latency
        singles = len(seconds)
        whole = longest <= limit
        work = np.where(whole, total, np.inf)
        split = np.where(max_steps >= FEWEST_STEPS, self._count[:singles] * slices * seconds, np.inf)
        work[:singles] = np.where(whole[:singles], work[:singles], split)
        choice = work.argmin(axis=0)
        problem_index = np.arange(len(choice))
        chosen = work[choice, problem_index]
        if not np.isfinite(chosen).all():
            return None
        is_split = ~whole[choice, problem_index]
        row = np.minimum(choice, singles - 1)
        problem_slices = np.where(is_split, slices[row, problem_index], 1)
        time = np.where(is_split, seconds[row, problem_index], longest[choice, problem_index])
        choice_blocks = self._count[choice, problem_index] * problem_slices
        blocks, sums = float(choice_blocks.sum()), float((choice_blocks * self._area[row])[is_split].sum())
        if ready_bytes(blocks, float(self._count[choice, problem_index][is_split].sum())) > MAX_BYTES:
            return None
        return Candidate(choice, blocks, float(time.max()), float(chosen.sum()), problem_slices, time, sums)
