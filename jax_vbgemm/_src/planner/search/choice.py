"""The choice among the options of one kernel's tiles that is predicted to finish first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jax_vbgemm._src.planner.model.cost_model import block_seconds, gpu_makespan, makespan_of_blocks, split_seconds
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_time import Floats
from jax_vbgemm._src.planner.plan.plan import MAX_TILES
from jax_vbgemm._src.planner.search.candidates import Candidate, Option, Splits, candidates, pairs_of, uses_of
from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints
from jax_vbgemm._src.problem import ProblemSizes


@dataclass(frozen=True)
class TileChoice:
    """One of `options` for each problem, the number of its K slices, its longest block, and the makespan: the seconds
    from the beginning of the first block to the end of the last one.
    """

    makespan: float
    options: Sequence[Option]
    choice: Ints
    slices: Ints
    longest: Floats


def choose(
    sizes: ProblemSizes, options: Sequence[Option], device: DeviceSpec, catalogue: Catalogue, limit: float
) -> TileChoice | None:
    """The best choice among the options of one kernel; None if no choice takes less than `limit` seconds.

    With an infinite limit there always is a choice, though it may have more tiles than a plan can hold.

    The time of a block depends on how many blocks share its unit, and this number depends on the choice. Choices are
    therefore compared only where they lead to the sharing for which their costs were computed. The search begins with
    the sharings that follow where one option serves all problems, and adds a sharing where a promising choice leads to
    it.
    """
    table = _Table(sizes, options, device, catalogue)
    best = None if limit < math.inf else table.first_for_all()
    waiting = {table.sharing_of(blocks) for blocks in table.count.sum(axis=1, dtype=np.float64).tolist()}
    done: set[int] = set()
    while waiting:
        sharing = waiting.pop()
        done.add(sharing)
        costs = table.costs(sharing)
        if costs.least >= limit and costs.splits is None:
            continue
        most_promising = math.inf
        for found in candidates(table.pairs, table.count, costs.longest, costs.total, costs.slots, costs.splits):
            makespan = gpu_makespan(found.end, found.work, found.blocks, costs.slots, device.tail)
            if makespan >= limit:
                continue
            besides = table.besides(found)
            makespan += besides
            leads_to = table.sharing_of(found.blocks)
            if leads_to == sharing and makespan < limit and found.blocks <= MAX_TILES:
                choice = table.choice(found, costs, besides)  # few candidates reach this exact comparison
                if choice.makespan < limit:
                    best, limit = choice, choice.makespan
            elif makespan < min(limit, most_promising) and leads_to not in done:
                most_promising = makespan
                waiting.add(leads_to)
    return best


class _Costs(NamedTuple):
    """Seconds by option and problem, while as many blocks share a unit as make `slots` on the device.

    They are those of a block of the option's tile, of a block of its edge tile, of the longest block, and of all
    blocks. `least` is a lower bound of the makespan without split-K. `splits` is set where a block of one problem takes
    longer than all work does on average, so that splitting K is worth trying.
    """

    slots: int
    tile_seconds: Floats
    edge_seconds: Floats
    longest: Floats
    total: Floats
    least: float
    splits: Splits | None


class _Table:
    """The options' data that do not depend on the choice, by option and problem: tiles inside and along the edges."""

    def __init__(
        self, sizes: ProblemSizes, options: Sequence[Option], device: DeviceSpec, catalogue: Catalogue
    ) -> None:
        self._sizes, self._options, self._device, self._catalogue = sizes, options, device, catalogue
        self._resident = max(tile_occupancy(options[0].tile, device).blocks, 1)
        self._inside = np.array([option.inside for option in options])
        self._outside = np.array([option.outside for option in options])
        self._has_inside, self._has_outside = self._inside > 0, self._outside > 0
        self.count = self._inside + self._outside
        self._every = np.arange(len(sizes.m))
        self._uses, self.pairs = uses_of(options, self._has_inside, self._has_outside), pairs_of(options)
        self._tiles = [option.tile for option in options if option.tile is option.edge]
        row = {tile.index: i for i, tile in enumerate(self._tiles)}
        self._tile_row = [row[option.tile.index] for option in options]
        self._edge_row = [row[option.edge.index] for option in options]

    def sharing_of(self, blocks: float) -> int:
        """The number of blocks that share a unit if there are `blocks` in all."""
        return min(self._resident, max(math.ceil(blocks / self._device.units), 1))

    def costs(self, sharing: int) -> _Costs:
        """The costs while `sharing` blocks share a unit."""
        seconds = block_seconds(self._sizes, self._tiles, self._catalogue, self._device, sharing)
        slots = self._device.units * sharing
        tile_seconds, edge_seconds = seconds[self._tile_row], seconds[self._edge_row]
        longest = np.maximum(tile_seconds * self._has_inside, edge_seconds * self._has_outside)
        total = tile_seconds * self._inside + edge_seconds * self._outside
        shortest, share = float(longest.min(axis=0).max(initial=0)), float(total.min(axis=0).sum()) / slots
        splits = None
        if shortest > share:
            splits = Splits(self._sizes, self._options, self.count, self._catalogue, self._device, sharing)
        return _Costs(slots, tile_seconds, edge_seconds, longest, total, max(shortest, share), splits)

    def besides(self, found: Candidate) -> float:
        """Seconds outside of blocks: reducing partial sums, and fetching the instructions of each further tile
        shape."""
        different = int(np.bitwise_or.reduce(self._uses[found.choice, self._every])).bit_count()
        adding = split_seconds(found.sums, self._catalogue, self._device) if found.sums else 0.0
        return adding + self._device.further_tile_latency * (different - 1)

    def first_for_all(self) -> TileChoice:
        zeros = np.zeros_like(self._every)
        return TileChoice(math.inf, self._options, zeros, zeros + 1, np.zeros(len(zeros)))

    def choice(self, found: Candidate, costs: _Costs, besides: float) -> TileChoice:
        """The candidate as a choice, whose makespan counts full rounds."""
        chosen, slices = (np.broadcast_to(column, self._every.shape) for column in (found.choice, found.slices))
        at = chosen, self._every
        longest = costs.longest[at] if found.longest is None else found.longest
        blocks = np.concatenate((self._inside[at] * slices, self._outside[at]))
        each = np.concatenate((np.where(slices > 1, longest, costs.tile_seconds[at]), costs.edge_seconds[at]))
        makespan = makespan_of_blocks(each, blocks, costs.slots, self._device.tail) + besides
        return TileChoice(makespan, self._options, chosen, slices, longest)
