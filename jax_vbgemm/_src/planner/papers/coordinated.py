"""`coordinated`: Li et al., "A coordinated tiling and batching framework for efficient GEMM on GPUs", PPoPP 2019."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from jax_vbgemm._src.planner.papers.options import check_choice, check_number
from jax_vbgemm._src.planner.papers.paper_planner import PaperPlanner
from jax_vbgemm._src.planner.plan.draft import Draft
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.descriptor_size import MOST_BATCHED_TILES, MOST_DESCRIBED_TILES
from jax_vbgemm._src.planner.tiles.runs import Ints, offsets, tile_counts
from jax_vbgemm._src.problem import Problem, ProblemSizes

QUEUE = ("small", "medium", "large", "tall", "wide", "huge")  # Table 2, in queue order
BY_256, BY_128 = (tuple((name, threads) for name in QUEUE) for threads in (256, 128))

# On tensor cores each shape is built once, and 128 x 64 is not built: the next smaller shape replaces it.
TENSOR_QUEUE = (
    ("mma-16x32", 128), ("mma-32x32", 128), ("mma-64x64", 128), ("mma-128x64", 128), ("mma-64x128", 128),
    ("mma-128x128", 256),
)  # fmt: skip

Heuristic = Literal["threshold", "binary"]
Switch = Literal["last", "restart", "early"]
Selector = Callable[[float, float, float, int], Heuristic]
HEURISTICS: tuple[Heuristic, ...] = ("threshold", "binary")


@dataclass(frozen=True)
class Coordinated(PaperPlanner):
    """The planner "coordinated", of Li et al., "A coordinated tiling and batching framework for efficient GEMM on
    GPUs", PPoPP 2019.

    The tiles of all problems grow together while the number of threads stays above a threshold (section 4.2.3); then
    tiles are batched into blocks (section 5).

    Unknown values and negative numbers raise ValueError; an option that must be a number and is not raises TypeError.

    `tlp_threshold`: the number of threads that keep the device busy, and `theta`: the sum of K that keeps a block busy;
    None: the device table's.

    `switch`: when and how the versions of 128 threads are taken (section 4.2.3: "if all GEMMs have only one tiling
    strategy in their priority queues, we switch to 128-thread version tiling strategies and repeat step 2").

    - "last" (default): where the threads of these last strategies are still more than the threshold; each problem keeps
      its strategy, in the other version.
    - "restart": there, too, but all queues are filled again, so that step 2 begins with the smallest strategy.
    - "early": as soon as each queue holds one strategy, however many threads these have; strategies are kept.

    `batching`: how tiles are put into blocks.

    - "threshold", "binary": this heuristic of the paper, for any number of tiles. (Beyond 20,164 tiles the descriptor
      constant, which lists the tiles in the program, is larger than a megabyte.)
    - "none": one tile in each block, which shows the tiling engine alone (section 7.1).
    - None (default): the heuristic with the smaller predicted time; one tile in each block beyond 20,164 tiles. For
      fixed shapes the paper tries both heuristics and keeps the faster one (section 5), as `autotune` does by
      measurement.
    - a hashable callable: "threshold" or "binary" from the mean M, N and K of the problems, each counted once for
      each of its batch, and their number, as the paper's random forest (benchmarks/batching_forest.py trains one).

    `tensor`: whether plans use tensor-core tiles of the paper's shapes. None (default): for float32 at JAX's default
    precision and for 16-bit floats, but not for float32 at "highest" and for float64.
    """

    name: ClassVar[str] = "coordinated"
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (BY_256, BY_128)
    tensor_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (TENSOR_QUEUE,)

    tlp_threshold: float | None = None
    theta: float | None = None
    batching: Heuristic | Literal["none"] | Selector | None = None
    tensor: bool | None = None
    switch: Switch = "last"

    def __post_init__(self) -> None:
        check_number("Coordinated", "tlp_threshold", self.tlp_threshold)
        check_number("Coordinated", "theta", self.theta)
        check_choice("Coordinated", "switch", self.switch, ("last", "restart", "early"))
        if not (callable(self.batching) and isinstance(self.batching, Hashable)):
            known = (None, *HEURISTICS, "none")
            check_choice("Coordinated", "batching", self.batching, known, "or a hashable callable")
        check_choice("Coordinated", "tensor", self.tensor, (None, True, False))

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        threshold = device.tlp_threshold if self.tlp_threshold is None else self.tlp_threshold
        theta = device.theta if self.theta is None else self.theta
        sizes = ProblemSizes.of(problems)
        most_threads, *fewer_threads = self.sets_for(catalogue)
        queue, replaced = catalogue.resolve(most_threads)
        position, tlp, at_last = _choose_tiles(sizes, queue, threshold)
        notes: tuple[str, ...] = ()
        if not fewer_threads and self.switch != "last":
            notes = (f"switch = {self.switch!r} has no effect: tiles on tensor cores have one version",)
        if fewer_threads and (at_last if self.switch == "early" else tlp > threshold):
            queue, also_replaced = catalogue.resolve(fewer_threads[0])
            replaced += also_replaced
            if self.switch == "restart":
                position, _, _ = _choose_tiles(sizes, queue, threshold)
        draft = Draft.whole_problems(
            problems,
            device,
            catalogue,
            planner=self.name,
            tile_id=np.array([tile.index for tile in queue])[position],
            replaced=replaced,
        )
        draft = replace(draft, notes=notes)
        batching = _selected(self.batching, sizes) if callable(self.batching) else self.batching
        if batching == "none":
            return draft
        if batching is not None and draft.runs.num_tiles > MOST_DESCRIBED_TILES:
            raise ValueError(
                f"Coordinated: batching = {batching!r} needs a record for each of {draft.runs.num_tiles} tiles; a "
                f"program holds at most {MOST_DESCRIBED_TILES}. batching=None does not batch so many"
            )
        if batching is None and draft.runs.num_tiles > MOST_BATCHED_TILES:
            note = f"one tile a block: more than {MOST_BATCHED_TILES} tiles to batch"
            return replace(draft, notes=(*draft.notes, note))
        drafts = []
        if batching != "binary":
            drafts.append(_batch_by_threshold(draft, threshold, theta))
        if batching != "threshold":
            drafts.append(_batch_by_pairs(draft))
        return drafts[0] if len(drafts) == 1 else min(drafts, key=lambda batched: batched.seconds)


def features_of(sizes: ProblemSizes) -> tuple[float, float, float, int]:
    """Mean M, N and K, and the number of problems: the features of the paper's random forest (section 5)."""
    number = int(sizes.batch.sum())
    m, n, k = (int((column * sizes.batch).sum()) / max(number, 1) for column in (sizes.m, sizes.n, sizes.k))
    return m, n, k, number


def has_few_tiles(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> bool:
    """Whether there are at most as many tiles as `Coordinated` batches by default."""
    return Coordinated(batching="none").draft(problems, device, catalogue).runs.num_tiles <= MOST_BATCHED_TILES


def _selected(selector: Selector, sizes: ProblemSizes) -> Heuristic:
    found = selector(*features_of(sizes))
    if found not in HEURISTICS:
        raise ValueError(f"Coordinated: batching returned {found!r}; it must be one of {', '.join(HEURISTICS)}")
    return found


def _choose_tiles(sizes: ProblemSizes, queue: tuple[TileShape, ...], threshold: float) -> tuple[Ints, int, bool]:
    """The queue position of each problem's tile, the TLP (Eq. 1) of these tiles, and whether each problem's queue holds
    a single strategy."""
    fits = np.array([(tile.m <= sizes.m) & (tile.n <= sizes.n) for tile in queue])
    fits[0] = True
    # the queue positions whose tile fits the problem come first, in order
    queue_order = np.argsort(~fits, axis=0, kind="stable")
    last = fits.sum(axis=0) - 1
    threads = np.array([tile_counts(sizes, tile.m, tile.n) * tile.threads for tile in queue])
    problem = np.arange(len(sizes.m))
    step = np.zeros_like(problem)
    while True:
        position = queue_order[step, problem]
        tlp = int(threads[position, problem].sum())
        at_last = bool((step == last).all())
        if tlp <= threshold or at_last:
            return position, tlp, at_last
        step = np.minimum(step + 1, last)


def _batch_by_threshold(draft: Draft, threshold: float, theta: float) -> Draft:
    """Section 5: fill blocks in order until their K exceeds theta, while threads are left; then one tile per block."""
    runs, num_tiles = draft.runs, draft.runs.num_tiles
    # All tiles have 256 threads, or all have 128. Only on tensor cores both occur; each block then counts as the
    # larger.
    threads = int(draft.catalogue.columns.threads[runs.tile_id].max(initial=0))
    depth, floor_theta = runs.k_end - runs.k_begin, math.floor(theta)  # sums of K are whole
    # The number of tiles of a block that begins with a given tile: the smallest number whose total K exceeds theta.
    # Within one run that is a division; a block over several runs is found by a search. No block begins after the last
    # tile.
    step = np.where(depth > 0, floor_theta // np.maximum(depth, 1) + 1, num_tiles)
    next_block = np.arange(num_tiles + 1)
    next_block[:-1] += np.repeat(step, runs.count)
    across_runs = np.flatnonzero(next_block[:-1] > np.repeat(runs.first_tile[1:], runs.count))
    total = offsets(np.repeat(depth, runs.count))  # K before each tile
    next_block[across_runs] = np.minimum(
        np.searchsorted(total, total[across_runs] + floor_theta, side="right"), num_tiles
    )
    # The blocks begin at 0, next_block[0], next_block[next_block[0]], ... From 2^i of them, next_block composed with
    # itself gives the next 2^i.
    first = np.zeros(1, np.int64)
    while first[-1] < num_tiles:
        first = np.append(first, next_block.take(first))
        next_block = next_block.take(next_block)
    first = first[: np.searchsorted(first, num_tiles) + 1]
    # Threads never increase from one block to the next.
    left = (num_tiles - first + np.arange(len(first))) * threads
    last = int(np.count_nonzero(left[:-1] > threshold / 2))
    block_first = np.concatenate((first[: last + 1], np.arange(first[last] + 1, num_tiles + 1)))
    return replace(draft, block_first=block_first, notes=(*draft.notes, "threshold batching"))


def _batch_by_pairs(draft: Draft) -> Draft:
    """Section 5: sort tiles by K and pair the first with the last, the second with the second-last, ..."""
    # All tiles of a run have the same K, so that sorting runs and expanding them afterwards sorts the tiles.
    runs = np.argsort(draft.runs.k_end - draft.runs.k_begin, kind="stable")
    count = draft.runs.count[runs]
    ascending = np.repeat(draft.runs.first_tile[runs] - offsets(count)[:-1], count) + np.arange(draft.runs.num_tiles)
    num_tiles, half = len(ascending), len(ascending) // 2
    paired = np.empty_like(ascending)
    paired[0 : 2 * half : 2], paired[1 : 2 * half : 2] = ascending[:half], ascending[::-1][:half]
    paired[2 * half :] = ascending[half : num_tiles - half]  # with an odd number, the last tile has a block of its own
    block_first = np.append(np.arange(0, 2 * half, 2), np.arange(2 * half, num_tiles + 1))
    return replace(draft, tile_order=paired, block_first=block_first, notes=(*draft.notes, "binary batching"))
