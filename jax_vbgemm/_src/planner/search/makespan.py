"""`makespan`: a search for the tile, or pair of tiles, of each problem with the least predicted time of the batch.

A round is the set of blocks that the device holds at once (one wave, in the sense of wave quantization).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.cost_model import least_seconds, weighted_sum
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_families import (
    COLUMNS,
    DOTS,
    LARGE,
    STREAMING,
    are_copied_by_tma,
    are_of,
    are_read_fastest,
    families_of,
    streams_deep_k,
    without_dot_products,
    worth_trying,
)
from jax_vbgemm._src.planner.model.tile_time import step_depth
from jax_vbgemm._src.planner.plan.draft import Draft, DraftPlanner, joined
from jax_vbgemm._src.planner.search.candidates import FEWEST_STEPS, Option, options_of_kernel
from jax_vbgemm._src.planner.search.choice import TileChoice, choose
from jax_vbgemm._src.planner.tables.catalogue import SHARED_DEPTH, WHOLE_ROWS, Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tables.rules import Rules
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.launches import MAX_SEARCHED
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, ceil_div
from jax_vbgemm._src.planner.tiles.split_k import fewest_filling_slices, in_slices
from jax_vbgemm._src.planner.tiles.symmetric import stores_mirrored
from jax_vbgemm._src.problem import Problem, ProblemSizes

# With more full rounds than this, the last round is not worth filling: it is below a ninth of the time.
_ROUNDS_TO_FILL = 8

# Up to this many problems, the best draft of each kernel is also tried with a number of K slices that fills rounds, and
# with its last round split. More problems have blocks of many lengths, which fill the last round anyway. (8 and 64 give
# the same published plans.)
_FEW_PROBLEMS = 16
_MOST_BYTES_JOINED = 4 * MAX_BYTES  # descriptor limit where split-K in one part forces one record per tile in all parts
_MOST_OF_SPLIT = 2.0  # upper bound of the speedup by splitting the last round: two rounds become little more than one


@dataclass(frozen=True)
class Makespan(DraftPlanner):
    """The package's own planner: searches for the smallest predicted makespan.

    All tiles of a draft belong to one launched kernel, as kernels run one after another; each kernel is tried.
    Problems of several families (planner/model/tile_families.py) may get one launch for each family.

    A problem is covered by one tile, or by a large one inside and a smaller one along the ragged edges. Within
    an upper bound of a block's time, each problem takes the option with the least work; the bounds that are tried trade
    the longest block against the total work. As each further tile shape costs a launch some time, the search is done
    with all tiles, and with the two tiles that need the least work together. If one block still takes longer than
    all work does on average, K is split. Blocks have one tile and are ordered by descending predicted time (longest
    processing time first).

    `kernel`: use only the tiles of this launched kernel; `without`: do not use this tile, (name, threads). Raises
    ValueError if there is no such kernel or tile, where no tile is left, and on a CPU, where one tile shape for all
    problems wastes nothing along edges.
    """

    kernel: str | None = None
    without: TileKey | None = None

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        if device.device_type == "cpu":
            raise ValueError(f"Makespan: it plans for GPUs, but {device.name!r} is a {device.device_type}")
        if len(catalogue) == 0:
            raise ValueError(f"Makespan: no tile is built for {catalogue.kind} on {device.name}")
        sizes, among = ProblemSizes.of(problems), self._allowed_tiles(catalogue)
        families = families_of(sizes, among)
        if 0 < _slower_reads(are_of(DOTS, families), sizes, device, catalogue) < device.launch_seconds:
            families = families_of(sizes, without_dot_products(among))
        streamed = are_read_fastest(families, sizes, device.rules)
        one = _search_one_kernel(problems, device, catalogue, among)
        by_family = _search_by_family(problems, families, device, catalogue, among)
        # Small problems are not large, but a second launch for a few of them may take longer than tiles that are mostly
        # empty.
        if are_of(LARGE, families).any() and are_copied_by_tma(sizes, catalogue).all():
            by_family += [by_one_tile(problems, device, catalogue, tile) for tile in LARGE.tiles_of(among)]

        def seconds(draft: Draft) -> float:
            """The predicted time, plus the measured extra time of non-streaming tiles to read such operands, which the
            cost model does not include."""
            by_others = streamed & ~np.isin(draft.tile_id, [t.index for t in catalogue if t.kernel in STREAMING])
            return draft.seconds + _slower_reads(by_others, sizes, device, catalogue)

        return min([one, *by_family], key=seconds)

    def _allowed_tiles(self, catalogue: Catalogue) -> Catalogue:
        """The tiles that may be chosen."""
        if self.kernel is None and self.without is None:
            return catalogue
        if self.kernel not in (None, *catalogue.kernels):
            raise ValueError(
                f"Makespan: there is no kernel {self.kernel!r} for {catalogue.kind}; there are "
                + ", ".join(catalogue.kernels)
            )
        left_out = None if self.without is None else catalogue.find(*self.without)
        tiles = tuple(tile for tile in catalogue if self.kernel in (None, tile.kernel) and tile != left_out)
        if not tiles:
            raise ValueError(f"Makespan: without {self.without} there is no tile left")
        return replace(catalogue, tiles=tiles)


def _slower_reads(problems: NDArray[np.bool_], sizes: ProblemSizes, device: DeviceSpec, catalogue: Catalogue) -> float:
    """The extra seconds in which tiles other than streaming ones read these problems' operands; 0 if not
    measured."""
    if device.rules is None:
        return 0.0
    elements = weighted_sum(sizes.elements() * problems, sizes.batch)
    return device.rules.slower_reads * elements * catalogue.element_bytes / device.bandwidth


def by_one_tile(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue, tile: TileShape) -> Draft:
    """The search with a single tile shape: it only decides how K is split and the order of blocks."""
    return _search_one_kernel(problems, device, catalogue, replace(catalogue, tiles=(tile,)))


def narrower_searches(runs: Runs, catalogue: Catalogue, kernels: Sequence[str]) -> dict[str, Makespan]:
    """Narrower searches by name: with the tiles of one kernel only ("only t128_medium"), and without one tile that
    occurs in the `runs` of a plan ("without huge/256").
    """
    found = {f"only {kernel}": Makespan(kernel=kernel) for kernel in kernels}
    taken = [catalogue.by_index[index] for index in sorted(set(runs.tile_id.tolist()))] if len(catalogue) > 1 else []
    return found | {f"without {tile.name}/{tile.threads}": Makespan(without=tile.key) for tile in taken}


def _search_by_family(
    problems: Sequence[Problem], families: Ints, device: DeviceSpec, catalogue: Catalogue, among: Catalogue
) -> list[Draft]:
    """Drafts with several launches: one for tall and skinny problems and one for other problems, one for large problems
    and one for others, or one for each family.

    If the families would need more launches than a call may have, some share the launch of the ordinary problems:
    first those of skinny tiles (family 1), then large ones, then those of dot-product tiles, which lose least, then
    those of column tiles.
    """

    @cache
    def search(members: tuple[int, ...]) -> Draft:
        return _search_one_kernel(tuple(problems[i] for i in members), device, catalogue, among)

    def apart(groups: Ints) -> list[tuple[Ints, Draft]]:
        """The members of each group and their draft; empty if there is one group."""
        members = [np.flatnonzero(groups == number) for number in np.unique(groups)[::-1]]
        return [(each, search(tuple(each.tolist()))) for each in members] if len(members) > 1 else []

    def kernels(parts: list[tuple[Ints, Draft]]) -> dict[str, int]:
        """The kernels that the parts launch, and the number of problems of each."""
        found: dict[str, int] = {}
        for members, part in parts:
            if len(part.runs):
                kernel = catalogue.by_index[int(part.runs.tile_id[0])].kernel
                found[kernel] = found.get(kernel, 0) + len(members)
        return found

    large = are_of(LARGE, families)
    each, fewer = apart(families), families
    for staying in (families == 0, large, are_of(DOTS, families), are_of(COLUMNS, families)):
        if len(kernels(each)) > MAX_SEARCHED:
            fewer = np.where(staying, 1, fewer)
            each = apart(fewer)
    drafts = []
    groupings = (np.where(large, 0, np.minimum(families, 1)), large.astype(np.int64), fewer)
    for parts in map(apart, {_groups(one): one for one in groupings}.values()):
        # Parts of one kernel are better in one launch with the longest blocks first, except short and long row tiles.
        if len(kernels(parts)) > 1 or (parts and set(kernels(parts)) <= set(WHOLE_ROWS)):
            note = "families apart: " + ", ".join(
                f"{count} problems by {kernel}" for kernel, count in kernels(parts).items()
            )
            draft = joined(problems, parts)
            if _fits_descriptors(draft):
                drafts.append(replace(draft, notes=(*draft.notes, note)))
    return drafts


def _groups(numbers: Ints) -> bytes:
    """A canonical numbering: equal for all numberings that group problems in the same way."""
    return np.unique(numbers, return_inverse=True)[1].tobytes()


def _fits_descriptors(draft: Draft) -> bool:
    """Whether the descriptor constant stays within its limit, if each tile needs a record, as split-K requires."""
    runs = draft.runs
    split = (runs.k_begin == 0) & (runs.k_end < ProblemSizes.of(draft.problems).k[runs.problem])
    return not split.any() or ready_bytes(runs.num_tiles, int(runs.count[split].sum())) <= _MOST_BYTES_JOINED


def _search_one_kernel(
    problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue, among: Catalogue
) -> Draft:
    """The best draft whose tiles all belong to one kernel and are in the catalogue `among`."""
    sizes = ProblemSizes.of(problems)
    draft = _draft_for(problems, sizes, device, catalogue, among)
    if not (sizes.symmetric.any() and stores_mirrored(device, among).any()):
        return draft
    # The choice sees of folded problems only the number of tiles, and may err where few tiles are left. The choice for
    # the same problems without symmetry is therefore tried too, and folded.
    whole = _draft_for(problems, replace(sizes, symmetric=np.zeros_like(sizes.symmetric)), device, catalogue, among)
    return min(draft, whole, key=lambda draft: draft.seconds)


def _draft_for(
    problems: Sequence[Problem], sizes: ProblemSizes, device: DeviceSpec, catalogue: Catalogue, among: Catalogue
) -> Draft:
    among = worth_trying(among, sizes)
    kernels = among.kernels
    gain = _MOST_OF_SPLIT if len(sizes.with_products().m) <= _FEW_PROBLEMS else 1.0
    least: Mapping[str, float] = {}
    if len(kernels) > 1:
        least = least_seconds(sizes, {kernel: among.tiles_of(kernel) for kernel in kernels}, catalogue, device)
    choices: list[TileChoice] = []
    for kernel in sorted(kernels, key=lambda kernel: least.get(kernel, 0.0)):  # the most promising first
        limit = gain * min((choice.makespan for choice in choices), default=math.inf)
        if least.get(kernel, 0.0) < limit:
            found = choose(sizes, options_of_kernel(sizes, kernel, device, among), device, catalogue, limit)
            choices += [] if found is None else [found]
    if gain == 1.0:
        choices = choices[-1:]  # each choice is better than the previous ones
    drafts = [_draft(problems, sizes, choice, device, catalogue) for choice in choices]
    if gain > 1.0:
        drafts = [_with_full_rounds(problems, sizes, *pair) for pair in zip(choices, drafts, strict=True)]
    drafts = [_with_last_round_split(draft) for draft in drafts]
    # Among drafts with equal times, because all are memory-bound, the one with the smallest makespan of blocks.
    return min(zip(drafts, choices, strict=True), key=lambda pair: (pair[0].seconds, pair[1].makespan))[0]


def _draft(
    problems: Sequence[Problem], sizes: ProblemSizes, found: TileChoice, device: DeviceSpec, catalogue: Catalogue
) -> Draft:
    order = np.argsort(-found.longest, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    parts: list[Runs] = []
    tile_id = np.full(len(problems), -1)
    for index in np.unique(found.choice).tolist():
        option = found.options[index]
        mine = np.flatnonzero(found.choice == index)
        whole = Runs.whole_problems(sizes, np.full(len(problems), option.tile.index), catalogue, mine)
        if option.tile is not option.edge:
            parts += _inside_and_edges(sizes, whole, option)
        elif (found.slices[mine] > 1).any():
            depth = np.full(len(whole), step_depth(np.asarray(option.tile.k), catalogue.element_bytes))
            parts.append(in_slices(whole, found.slices[whole.problem], depth))
        else:
            parts.append(whole)
        no_edges = option.outside[mine] == 0
        tile_id[mine[no_edges]] = option.tile.index
        tile_id[mine[~no_edges & (option.inside[mine] == 0)]] = option.edge.index
    runs = Runs.joined(parts)
    runs = runs.take(np.flatnonzero(runs.count))
    runs = runs.take(np.argsort(rank[runs.problem], kind="stable"))
    return Draft(problems, device, catalogue, "makespan", runs, tile_id, order)


def _with_full_rounds(problems: Sequence[Problem], sizes: ProblemSizes, found: TileChoice, draft: Draft) -> Draft:
    """The draft; or, if K is split, a draft with fewer or more K slices whose blocks fill whole rounds.

    The number of slices follows from an upper bound of the longest block, which may leave a few blocks in a last round.
    Full rounds are taken where they are clearly faster. Deep tiles are limited by the memory: the cost model hardly
    distinguishes numbers of blocks that saturate it, but more blocks hide more latency. Among the numbers of slices
    whose blocks all run at once, the largest one within `tie_tolerance` is taken. Tiles that stream a deep K are
    limited by memory so evenly that they take the smallest number of slices that leaves few units idle. Without rules
    of the device, the predicted time alone decides.
    """
    runs, device, catalogue = draft.runs, draft.device, draft.catalogue
    rules = device.rules
    if (
        rules is not None
        and len(runs)
        and streams_deep_k(catalogue.by_index[int(runs.tile_id[0])], sizes.with_products())
    ):
        even = _evenly_split(sizes, found, rules, device, catalogue)
        return _slices_adjacent(_draft(problems, sizes, even, device, catalogue))
    is_split = found.slices[runs.problem] > 1
    blocks, whole = runs.num_tiles, int(runs.count[~is_split].sum())
    if blocks == whole:
        return draft
    tile = catalogue.by_index[int(runs.tile_id[0])]
    resident = max(tile_occupancy(tile, device).blocks, 1)

    def filled(slots: int) -> Draft:
        scale = max(slots - whole, 0) / (blocks - whole)
        slices = np.where(found.slices > 1, (found.slices * scale).astype(np.int64).clip(1), 1)
        return _draft(problems, sizes, replace(found, slices=slices), device, catalogue)

    in_one_round = [filled(device.units * sharing) for sharing in range(resident, 0, -1)]
    if tile.kernel == SHARED_DEPTH and rules is not None:
        least = min(each.seconds for each in [*in_one_round, draft])
        return next((each for each in in_one_round if each.seconds <= least * rules.tie_tolerance), draft)
    slots = device.units * resident
    in_more = [filled(blocks // slots * slots)] if blocks >= 2 * slots else []
    best = min([*in_one_round, *in_more], key=lambda each: each.seconds)
    clearly_faster = 1.0 if rules is None else rules.clearly_faster
    return best if best.seconds <= draft.seconds * clearly_faster else draft


def _evenly_split(
    sizes: ProblemSizes, found: TileChoice, rules: Rules, device: DeviceSpec, catalogue: Catalogue
) -> TileChoice:
    """The choice with the fewest K slices that leave few units idle."""
    options = [found.options[index] for index in found.choice.tolist()]
    resident = max(tile_occupancy(options[0].tile, device).blocks, 1)
    depth = step_depth(np.array([option.tile.k for option in options]), catalogue.element_bytes)
    tiles = np.array([option.inside[i] + option.outside[i] for i, option in enumerate(options)])
    may_split = np.array([option.tile is option.edge for option in options]) & (tiles > 0)
    steps = np.where(may_split, ceil_div(sizes.k, depth), 1)
    step_bytes = max(option.tile.m for option in options) * int(depth.max()) * catalogue.element_bytes
    longest = max(rules.most_read // step_bytes, FEWEST_STEPS)
    slices = fewest_filling_slices(steps, tiles, device.units * resident, FEWEST_STEPS, rules.min_slot_fill, longest)
    return replace(found, slices=slices)


def _slices_adjacent(draft: Draft) -> Draft:
    """The draft with the K slices of each tile next to each other in the order of blocks. Blocks that run at the same
    time then read different columns of A, which are in different banks of the memory (5% faster;
    docs/design/tall-skinny.md, T17).
    """
    if not (draft.runs.k_begin > 0).any():
        return draft
    tiles = draft.runs.expand(draft.catalogue)
    rank = np.argsort(draft.order)[tiles.problem]
    order = np.lexsort((tiles.k_begin, tiles.col, tiles.row, tiles.batch, rank))
    return replace(draft, runs=tiles.take(order))


def _with_last_round_split(draft: Draft) -> Draft:
    """The draft; or, if predicted to be faster, the draft with the last round's tiles split along K, if that round
    leaves most units idle.
    """
    runs, device, catalogue = draft.runs, draft.device, draft.catalogue
    if len(runs) == 0 or (runs.k_begin > 0).any():
        return draft
    resident = max(tile_occupancy(catalogue.by_index[int(runs.tile_id[0])], device).blocks, 1)
    slots = device.units * resident
    rounds, last = divmod(runs.num_tiles, slots)
    if rounds == 0 or rounds > _ROUNDS_TO_FILL or not 0 < last <= slots // 2:
        return draft
    if ready_bytes(rounds * slots + slots, last) > MAX_BYTES:
        return draft
    tiles = runs.expand(catalogue)
    first = np.arange(runs.num_tiles - last)
    tail = tiles.take(np.arange(runs.num_tiles - last, runs.num_tiles))
    depth = step_depth(catalogue.columns.k[tail.tile_id], catalogue.element_bytes)
    slices = np.minimum(slots // last, tail.k_end // (FEWEST_STEPS * depth)).clip(1)
    split = replace(draft, runs=Runs.joined([tiles.take(first), in_slices(tail, slices, depth)]))
    return split if split.seconds < draft.seconds else draft


def _inside_and_edges(sizes: ProblemSizes, whole: Runs, option: Option) -> list[Runs]:
    """Three boxes for each problem: whole tiles, edge tiles to their right down to the last row, and edge tiles
    below."""
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
        replace(whole, tile_id=edges, col=end_x, tiles_y=below(zeros), tiles_x=ceil_div(n - end_x, edge.n)),
        replace(whole, tile_id=edges, row=inner_y * tile.m, tiles_y=below(inner_y * tile.m), tiles_x=end_x // edge.n),
    ]
