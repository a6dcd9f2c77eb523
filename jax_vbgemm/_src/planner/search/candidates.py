"""The ways to cover a batch with one kernel's tiles that `makespan` compares."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.cost_model import Floats, gpu_pace
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.runs import Ints, ceil_div, saturating_count, tile_counts
from jax_vbgemm._src.planner.tiles.shares import even_shares
from jax_vbgemm._src.planner.tiles.symmetric import tiles_computed
from jax_vbgemm._src.problem import Sizes

# How long the longest block may take is tried at so many values between the shortest possible and any. (4 make the
# published plans 0.1% slower, by the model; 12 make them 0.1% faster and planning 1.2 times as long.)
_LIMITS = 6

# A share of K is at least so many steps deep: while one is computed, the next is loaded.
FEWEST_STEPS = 2


@dataclass(frozen=True)
class Option:
    """A way to cover each of the problems: `tile` alone, or `tile` inside and `edge` along the ragged edges.

    `inside` and `outside` count their tiles, by problem.
    """

    tile: TileShape
    edge: TileShape
    inside: Ints
    outside: Ints


class Candidate(NamedTuple):
    """Options by problem, or one for all, and what they take: blocks, the longest of them, and all their work."""

    choice: Ints | int
    blocks: float
    end: float
    work: float
    shares: Ints | int = 1
    longest: Floats | None = None  # by problem, where K is split
    sums: float = 0.0  # accumulators of all shares


def options_of_kernel(sizes: Sizes, kernel: str, device: DeviceSpec, catalogue: Catalogue) -> list[Option]:
    """Each tile of the kernel, and the pairs of which the smaller divides the larger. Symmetric problems are folded
    where they have one tile.
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
    """Which tiles an option uses for a problem, a bit each."""
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
    """Options by problem that are worth comparing.

    One option for all; for limits between the shortest possible longest block and none, the cheapest within the limit,
    of one of the `pairs` and of all; and where one block lasts longer than the rest needs, the cheapest within lower
    limits with K split.
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
        for limit in np.geomspace(end, least, _LIMITS + 1)[1:]:
            split = splits.within(float(limit), longest, total)
            if split is not None:
                yield split


def pairs_of(options: Sequence[Option]) -> list[Ints]:
    """The options that two tiles allow, for each two of the tiles; none where there are no more than two."""
    indices = _indices(options)
    tiles = [tile for tile, edge in indices if tile == edge]
    if len(tiles) < 3:
        return []
    return [
        np.array([row for row, (tile, edge) in enumerate(indices) if tile in pair and edge in pair])
        for pair in combinations(tiles, 2)
    ]


def _least_work(rows: Ints, total: Floats) -> float:
    """Of some options, each problem taking the cheapest."""
    return float(reduce(np.minimum, (total[row] for row in rows.tolist())).sum())


def _within_limits(rows: Ints, count: Ints, longest: Floats, total: Floats, slots: int) -> Iterator[Candidate]:
    """Of some options the cheapest by problem whose blocks take no longer than a limit, for falling limits; none where
    all have blocks of one length.
    """
    every = np.arange(longest.shape[1])
    mine, work = longest[rows], total[rows]

    def figures(which: Ints) -> Candidate:
        choice = rows[which]
        # One index into the flattened table is found faster than a pair.
        at = choice * len(every) + every
        blocks, end = float(count.take(at).sum()), float(longest.take(at).max())
        return Candidate(choice, blocks, end, float(total.take(at).sum()))

    low, high = float(mine.min(axis=0).max(initial=0)), float(mine.max(initial=0))
    if low == high:
        return
    found = figures(work.argmin(axis=0))
    yield found
    for limit in np.geomspace(high, low, _LIMITS) * (1 + 1e-9):
        if found.end <= found.work / slots:
            return  # a lower limit only adds work
        if limit < found.end:
            found = figures(np.where(mine <= limit, work, np.inf).argmin(axis=0))  # each has one within it
            yield found


class Splits:
    """How problems take no longer than a limit if K is split: each of the single tiles in equal shares."""

    def __init__(
        self,
        sizes: Sizes,
        options: Sequence[Option],
        count: Ints,
        catalogue: Catalogue,
        device: DeviceSpec,
        sharing: int,
    ) -> None:
        tiles = np.array([option.tile.index for option in options if option.tile is option.edge])  # they come first
        self._area = (catalogue.columns.m * catalogue.columns.n)[tiles]
        aligned = sizes.aligned(catalogue.element_bytes)
        self._pace = gpu_pace(tiles[:, None], aligned, catalogue, device, sharing)
        self._latency = device.block_latency
        self._count = count
        self._steps = ceil_div(sizes.k, self._pace.depth)
        self.shortest = float(self._pace.seconds(np.asarray(FEWEST_STEPS)).min()) + self._latency

    def within(self, limit: float, longest: Floats, total: Floats) -> Candidate | None:
        """The cheapest whose blocks take no longer than `limit`; None where a problem has none or they are too many."""
        room = self._pace.steps_within(limit - self._latency)  # of a share
        steps, shares = even_shares(self._steps, ceil_div(self._steps, np.maximum(room, 1)))
        seconds = self._pace.seconds(steps) + self._latency
        singles = len(seconds)
        whole = longest <= limit
        work = np.where(whole, total, np.inf)
        split = np.where(room >= FEWEST_STEPS, self._count[:singles] * shares * seconds, np.inf)
        work[:singles] = np.where(whole[:singles], work[:singles], split)
        choice = work.argmin(axis=0)
        every = np.arange(len(choice))
        chosen = work[choice, every]
        if not np.isfinite(chosen).all():
            return None
        is_split = ~whole[choice, every]
        row = np.minimum(choice, singles - 1)
        of_problem = np.where(is_split, shares[row, every], 1)
        time = np.where(is_split, seconds[row, every], longest[choice, every])
        of_choice = self._count[choice, every] * of_problem
        blocks, sums = float(of_choice.sum()), float((of_choice * self._area[row])[is_split].sum())
        if ready_bytes(blocks, float(self._count[choice, every][is_split].sum())) > MAX_BYTES:
            return None
        return Candidate(choice, blocks, float(time.max()), float(chosen.sum()), of_problem, time, sums)
