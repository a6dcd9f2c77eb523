"""`coordinated`: Li et al., "A coordinated tiling and batching framework for efficient GEMM on GPUs", PPoPP 2019."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from jax_vbgemm._src.planner.papers.options import check_choice, check_number
from jax_vbgemm._src.planner.plan.draft import Draft, DraftPlanner
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.descriptor_size import MOST_BATCHED_TILES
from jax_vbgemm._src.planner.tiles.runs import Ints, offsets, tile_counts
from jax_vbgemm._src.problem import Problem, Sizes

QUEUE = ("small", "medium", "large", "tall", "wide", "huge")  # Table 2, in queue order
BY_256, BY_128 = (tuple((name, threads) for name in QUEUE) for threads in (256, 128))


@dataclass(frozen=True)
class Coordinated(DraftPlanner):
    """Tiles grow for all problems together while there are threads to spare (section 4.2.3); then tiles are batched
    into blocks (section 5).

    `tlp_threshold`: threads that keep the device busy, and `theta`: sum of K that keeps a block busy; default: the
    device table's. `batching`: "threshold", "binary", or None for whichever the cost model predicts to finish sooner
    (the paper trains a random forest).
    """

    name: ClassVar[str] = "coordinated"
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (BY_256, BY_128)  # a plan's tiles are all of one

    tlp_threshold: float | None = None
    theta: float | None = None
    batching: Literal["threshold", "binary"] | None = None

    def __post_init__(self) -> None:
        check_number("Coordinated", "tlp_threshold", self.tlp_threshold)
        check_number("Coordinated", "theta", self.theta)
        check_choice("Coordinated", "batching", self.batching, (None, "threshold", "binary"))

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        threshold = device.tlp_threshold if self.tlp_threshold is None else self.tlp_threshold
        theta = device.theta if self.theta is None else self.theta
        sizes = Sizes.of(problems)
        queue, replaced = catalogue.resolve(BY_256)
        strategy, tlp = _choose_tiles(sizes, queue, threshold)
        if tlp > threshold:
            queue, replaced_128 = catalogue.resolve(BY_128)
            replaced += replaced_128
        draft = Draft.whole_problems(
            problems,
            device,
            catalogue,
            planner=self.name,
            strategy=np.array([tile.index for tile in queue])[strategy],
            replaced=replaced,
        )
        if draft.runs.num_tiles > MOST_BATCHED_TILES:
            return replace(draft, notes=(f"one tile a block: more than {MOST_BATCHED_TILES} tiles to batch",))
        drafts = []
        if self.batching != "binary":
            drafts.append(_batch_by_threshold(draft, threshold, theta))
        if self.batching != "threshold":
            drafts.append(_batch_by_pairs(draft))
        return drafts[0] if len(drafts) == 1 else min(drafts, key=lambda batched: batched.seconds)


def _choose_tiles(sizes: Sizes, queue: tuple[TileShape, ...], threshold: float) -> tuple[Ints, int]:
    """Position in the queue of each problem's tile, and the TLP (Eq. 1) of these tiles with 256 threads."""
    fits = np.array([(tile.m <= sizes.m) & (tile.n <= sizes.n) for tile in queue])
    fits[0] = True
    own_queue = np.argsort(~fits, axis=0, kind="stable")  # the positions a problem may take come first, in order
    last = fits.sum(axis=0) - 1
    blocks = np.array([tile_counts(sizes, tile.m, tile.n) for tile in queue])
    problem = np.arange(len(sizes.m))
    step = np.zeros_like(problem)
    while True:
        position = own_queue[step, problem]
        tlp = int(blocks[position, problem].sum()) * 256
        if tlp <= threshold or (step == last).all():
            return position, tlp
        step = np.minimum(step + 1, last)


def _batch_by_threshold(draft: Draft, threshold: float, theta: float) -> Draft:
    """Section 5: fill blocks in order until their K exceeds theta, while threads are left; then one tile a block."""
    runs, num_tiles = draft.runs, draft.runs.num_tiles
    threads = int(draft.catalogue.columns.threads[runs.strategy[:1]].sum())  # all 256, or all 128
    depth, whole_theta = runs.k_end - runs.k_begin, math.floor(theta)  # sums of K are whole
    # A block that begins with a tile ends so many tiles on: the fewest whose K is beyond theta, if their run has them;
    # a block over several runs is searched for. After the last tile nothing begins.
    step = np.where(depth > 0, whole_theta // np.maximum(depth, 1) + 1, num_tiles)
    jump = np.arange(num_tiles + 1)
    jump[:-1] += np.repeat(step, runs.count)
    beyond = np.flatnonzero(jump[:-1] > np.repeat(runs.first_tile[1:], runs.count))
    total = offsets(np.repeat(depth, runs.count))  # K before each tile
    jump[beyond] = np.minimum(np.searchsorted(total, total[beyond] + whole_theta, side="right"), num_tiles)
    # first = 0, jump[0], jump[jump[0]], ...: with 2^i blocks known, 2^i jumps at once give as many more.
    first = np.zeros(1, np.int64)
    while first[-1] < num_tiles:
        first = np.append(first, jump.take(first))
        jump = jump.take(jump)
    first = first[: np.searchsorted(first, num_tiles) + 1]
    # Threads never increase from one block to the next.
    left = (num_tiles - first + np.arange(len(first))) * threads
    last = int(np.count_nonzero(left[:-1] > threshold / 2))
    block_first = np.concatenate((first[: last + 1], np.arange(first[last] + 1, num_tiles + 1)))
    return replace(draft, block_first=block_first, notes=("threshold batching",))


def _batch_by_pairs(draft: Draft) -> Draft:
    """Section 5: sort tiles by K and pair the first with the last, the second with the second-last, ..."""
    # All tiles of a run have one K, so that runs are sorted and then written out.
    runs = np.argsort(draft.runs.k_end - draft.runs.k_begin, kind="stable")
    count = draft.runs.count[runs]
    ascending = np.repeat(draft.runs.first_tile[runs] - offsets(count)[:-1], count) + np.arange(draft.runs.num_tiles)
    num_tiles, half = len(ascending), len(ascending) // 2
    paired = np.empty_like(ascending)
    paired[0 : 2 * half : 2], paired[1 : 2 * half : 2] = ascending[:half], ascending[::-1][:half]
    paired[2 * half :] = ascending[half : num_tiles - half]  # an odd one is alone
    block_first = np.append(np.arange(0, 2 * half, 2), np.arange(2 * half, num_tiles + 1))
    return replace(draft, tile_order=paired, block_first=block_first, notes=("binary batching",))
