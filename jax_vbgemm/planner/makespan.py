"""`makespan`: a tile, or a pair of tiles, for each problem, so that the whole batch is predicted to finish first."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_vbgemm.planner.catalogue import Catalogue, TileShape
from jax_vbgemm.planner.cost_model import Floats, block_seconds
from jax_vbgemm.planner.device import DeviceSpec
from jax_vbgemm.planner.draft import Draft
from jax_vbgemm.planner.occupancy import tile_occupancy
from jax_vbgemm.planner.plan import MAX_TILES, Plan
from jax_vbgemm.planner.runs import Ints, Runs, ceil_div, saturating_count, tile_counts
from jax_vbgemm.problem import Problem, Sizes

# How long the longest block may take is tried at so many values between the shortest possible and any.
_LIMITS = 6


@dataclass(frozen=True)
class Makespan:
    """All tiles are of one launched kernel, as kernels run one after another; each kernel is tried.

    A problem is covered by one tile, or by a large one inside and a smaller one along the ragged edges. With a limit on
    the time of a block, each problem takes what costs the device least; the limits that are tried trade the longest
    block against the total. Blocks come in descending predicted time (longest processing time first), one tile each.
    """

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        return self.draft(problems, device, catalogue).build()

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        if len(catalogue) == 0:
            raise ValueError(f"Makespan: no tile is built for {catalogue.kind} on {device.name}")
        sizes = Sizes.of(problems)
        best = None
        for kernel in catalogue.kernels:
            best = _choose(sizes, _options(sizes, kernel, catalogue), device, catalogue, best)
        assert best is not None
        return _draft(problems, sizes, best, device, catalogue)


@dataclass(frozen=True)
class _Option:
    """A way to cover each of the problems: `tile` alone, or `tile` inside and `edge` along the ragged edges.

    `inside` and `outside` count their tiles, by problem.
    """

    tile: TileShape
    edge: TileShape
    inside: Ints
    outside: Ints


@dataclass(frozen=True)
class _Choice:
    """An option for each problem, and the longest block of each problem."""

    makespan: float
    options: Sequence[_Option]
    choice: Ints
    longest: Floats


def _options(sizes: Sizes, kernel: str, catalogue: Catalogue) -> list[_Option]:
    """Each tile of the kernel, and the pairs of which the smaller divides the larger."""
    tiles = [tile for tile in catalogue if tile.kernel == kernel]
    none = np.zeros_like(sizes.m)
    counts = {tile.index: tile_counts(sizes, tile.m, tile.n) for tile in tiles}
    options = [_Option(tile, tile, counts[tile.index], none) for tile in tiles]
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
                options.append(_Option(tile, edge, inside, outside))
    return options


def _choose(
    sizes: Sizes, options: Sequence[_Option], device: DeviceSpec, catalogue: Catalogue, best: _Choice | None
) -> _Choice:
    """The best choice among the options, which belong to one kernel, or `best` where none is better.

    The time of a block depends on how many share its unit, and that on the choice: choices are compared that lead to
    the sharing they were made for. It is known beforehand where one option serves all problems; others follow.
    """
    resident = max(tile_occupancy(options[0].tile, device).blocks, 1)
    inside = np.array([option.inside for option in options])
    outside = np.array([option.outside for option in options])
    count, every = inside + outside, np.arange(len(sizes.m))
    alone, has_inside, has_outside = count.sum(axis=1, dtype=np.float64), inside > 0, outside > 0

    def sharing_of(blocks: float) -> int:
        return min(resident, max(math.ceil(blocks / device.units), 1))

    waiting = {sharing_of(blocks) for blocks in alone.tolist()}
    done: set[int] = set()
    if best is None:
        best = _Choice(math.inf, options, np.zeros_like(every), np.zeros(len(every)))
    while waiting:
        sharing = waiting.pop()
        done.add(sharing)
        seconds = {
            tile.index: block_seconds(sizes, tile, catalogue, device, sharing)
            for tile in {option.tile.index: option.tile for option in options}.values()
        }
        of_tile = np.array([seconds[option.tile.index] for option in options])
        of_edge = np.array([seconds[option.edge.index] for option in options])
        longest = np.maximum(of_tile * has_inside, of_edge * has_outside)
        total = of_tile * inside + of_edge * outside
        slots = device.units * sharing
        least = max(float(longest.min(axis=0).max(initial=0)), float(total.min(axis=0).sum()) / slots)
        if least >= best.makespan:
            continue
        most_promising = math.inf
        for choice, blocks, end, work in _candidates(count, longest, total, slots):
            makespan = max(end, work / slots)
            if sharing_of(blocks) == sharing and makespan < best.makespan and blocks <= MAX_TILES:
                chosen = np.broadcast_to(choice, every.shape)
                best = _Choice(makespan, options, chosen, longest[chosen, every])
            elif makespan < min(best.makespan, most_promising) and sharing_of(blocks) not in done:
                most_promising = makespan
                waiting.add(sharing_of(blocks))
    return best


def _candidates(
    count: Ints, longest: Floats, total: Floats, slots: int
) -> Iterator[tuple[Ints | int, float, float, float]]:
    """Options by problem that are worth comparing, each with its blocks, its longest block and its work.

    One option for all; and for limits between the shortest possible longest block and none, the cheapest within the
    limit.
    """
    every = np.arange(longest.shape[1])
    alone = (count.sum(axis=1, dtype=np.float64), longest.max(axis=1, initial=0), total.sum(axis=1))
    yield from zip(range(len(count)), *(column.tolist() for column in alone), strict=True)

    def figures(choice: Ints) -> tuple[Ints, float, float, float]:
        # One index into the flattened table is found faster than a pair.
        at = choice * len(every) + every
        return choice, float(count.take(at).sum()), float(longest.take(at).max()), float(total.take(at).sum())

    low, high = float(longest.min(axis=0).max(initial=0)), float(alone[1].max())
    if low < high:
        cheapest = figures(total.argmin(axis=0))
        yield cheapest
        _, _, end, work = cheapest
        for limit in np.geomspace(high, low, _LIMITS) * (1 + 1e-9):
            if end <= work / slots:
                break  # a lower limit only adds work
            if limit < end:
                found = figures(np.where(longest <= limit, total, np.inf).argmin(axis=0))  # each has one within it
                yield found
                _, _, end, work = found


def _draft(
    problems: Sequence[Problem], sizes: Sizes, found: _Choice, device: DeviceSpec, catalogue: Catalogue
) -> Draft:
    order = np.argsort(-found.longest, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    parts: list[Runs] = []
    strategy = np.full(len(problems), -1)
    for index in np.unique(found.choice).tolist():
        option = found.options[index]
        mine = np.flatnonzero(found.choice == index)
        whole = Runs.whole_problems(sizes, np.full(len(problems), option.tile.index), catalogue, mine)
        parts += [whole] if option.tile is option.edge else _inside_and_edges(sizes, whole, option)
        no_edges = option.outside[mine] == 0
        strategy[mine[no_edges]] = option.tile.index
        strategy[mine[~no_edges & (option.inside[mine] == 0)]] = option.edge.index
    runs = Runs.joined(parts)
    runs = runs.take(np.flatnonzero(runs.count))
    runs = runs.take(np.argsort(rank[runs.problem], kind="stable"))
    return Draft(problems, device, catalogue, "makespan", runs, strategy, order)


def _inside_and_edges(sizes: Sizes, whole: Runs, option: _Option) -> list[Runs]:
    """Three boxes a problem: whole tiles, edge tiles right of them down to the last row, and edge tiles below them."""
    tile, edge = option.tile, option.edge
    m, n = sizes.m[whole.problem], sizes.n[whole.problem]
    inner_y, inner_x = m // tile.m, n // tile.n
    inner_y, inner_x = np.where(inner_x > 0, inner_y, 0), np.where(inner_y > 0, inner_x, 0)
    edges = np.full_like(whole.problem, edge.index)
    zeros = np.zeros_like(m)
    end_x = inner_x * tile.n

    def below(row: Ints) -> Ints:
        return ceil_div(m - row, edge.m)

    return [
        replace(whole, tiles_y=inner_y, tiles_x=inner_x),
        replace(whole, strategy=edges, col=end_x, tiles_y=below(zeros), tiles_x=ceil_div(n - end_x, edge.n)),
        replace(whole, strategy=edges, row=inner_y * tile.m, tiles_y=below(inner_y * tile.m), tiles_x=end_x // edge.n),
    ]
