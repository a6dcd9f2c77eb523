"""`auto` on a CPU: one tile shape for all problems, with K split where whole products would leave cores idle."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_vbgemm._src.planner.model.cost_model import block_seconds
from jax_vbgemm._src.planner.papers.uniform import Uniform
from jax_vbgemm._src.planner.plan.draft import Draft, DraftPlanner
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tables.rules import CoreRules
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.runs import Runs, ceil_div
from jax_vbgemm._src.planner.tiles.split_k import in_slices
from jax_vbgemm._src.problem import Problem, ProblemSizes


@dataclass(frozen=True)
class Cores(DraftPlanner):
    """The tile shape, and the number of K slices of each problem, with the smallest predicted makespan.

    K is split where one tile of a product would take longer than a core's even part of all work: a reduction over 10^6
    rows has a single tile. (Smaller tiles would be enough for a few cores, but each of them reads its part of A or B
    again: a 31 x 31 result over 10^6 rows took twice as long that way on two cores.)
    """

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        if mostly_write(ProblemSizes.of(problems), device):
            longest = max((tile for tile in catalogue if tile.threads == 1), key=lambda tile: tile.n)
            return Uniform(longest.key).draft(problems, device, catalogue)
        drafts = [Uniform().draft(problems, device, catalogue)]
        if device.units > 1 and device.core_rules is not None:
            own = [tile for tile in catalogue if tile.threads == 1]  # tiles with several threads are for GPUs
            drafts += [draft for tile in own for draft in _split(problems, tile, device.core_rules, device, catalogue)]
        return min(drafts, key=lambda draft: draft.seconds)


def mostly_write(sizes: ProblemSizes, device: DeviceSpec) -> bool:
    """Whether all products are bound by writing their results, which is fastest along the rows of C."""
    rules = device.core_rules
    if rules is None or not sizes.has_products.any():
        return False
    write = (sizes.k <= rules.short_k) & (sizes.n >= rules.wide_columns)
    return bool(write[sizes.has_products].all())


def _split(
    problems: Sequence[Problem], tile: TileShape, rules: CoreRules, device: DeviceSpec, catalogue: Catalogue
) -> Iterator[Draft]:
    """Drafts of one tile shape with K split into slices so short that each core gets as many blocks as the rules
    say."""
    tile_id = np.full(len(problems), tile.index)
    draft = Draft.whole_problems(problems, device, catalogue, planner="cores", tile_id=tile_id)
    runs = draft.runs
    each = block_seconds(ProblemSizes.of(problems), [tile], catalogue, device, 1)[0][runs.problem]
    even = (each * runs.count).sum() / device.units
    steps = ceil_div(runs.k_end, rules.step)
    for blocks in rules.blocks_per_core:
        slices = np.minimum(np.ceil(each * blocks / even), steps).astype(np.int64).clip(1)
        split = np.flatnonzero(slices > 1)
        if len(split) == 0 or ready_bytes((slices * runs.count).sum(), runs.count[split].sum()) > MAX_BYTES:
            continue
        tiles = runs.take(split).expand(catalogue)
        deep = in_slices(tiles, np.repeat(slices[split], runs.count[split]), np.full(len(tiles), rules.step))
        yield replace(draft, runs=Runs.joined([deep, runs.take(np.flatnonzero(slices == 1))]))
