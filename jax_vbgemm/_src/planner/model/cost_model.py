"""The cost model: the predicted time of a plan, which `auto` and the choices inside other planners compare.

A round is the set of blocks that a device holds at once, a wave in the sense of wave quantization; the word wave stands
for a warp (wavefront) in this package.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_time import Floats, cpu_tile_seconds, gpu_tile_seconds
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, tile_counts
from jax_vbgemm._src.planner.tiles.symmetric import stores_mirrored, tiles_computed
from jax_vbgemm._src.problem import ProblemSizes


@dataclass(frozen=True)
class Prediction:
    """`seconds` of the whole call; `waves` of thread blocks; `balance`, the mean over the maximum time of a block."""

    seconds: float
    waves: float
    balance: float


def predict(
    sizes: ProblemSizes,
    runs: Runs,
    block_first: Ints | None,
    catalogue: Catalogue,
    device: DeviceSpec,
    tile_order: Ints | None = None,
) -> Prediction:
    """The predicted makespan of the tiles in `runs` on the device.

    `block_first` is None if each tile is a block. With a `tile_order`, blocks consist of the tiles of `runs` in that
    order.

    The kernels of a call run one after another. A kernel takes the time of its longest block or the total time of its
    blocks divided by the slots (units times resident blocks), whichever is longer. The launch adds to that, and on a
    GPU each tile shape beyond the first. CPU cores take blocks in order, so that few large blocks are scheduled one by
    one. The call takes at least the time in which its operands and results pass through the memory once, and a fixed
    time beside that. A block's time is that of its tiles (`tile_time.py`) and, on a GPU, a fixed part. All coefficients
    are entries of the device table.
    """
    if len(runs) == 0:
        return Prediction(0.0, 0.0, 1.0)
    blocks_alone = _on_cores if device.device_type == "cpu" else _on_gpu
    found = blocks_alone(sizes, runs, block_first, catalogue, device, tile_order)
    seconds = found.seconds
    split = runs.k_end - runs.k_begin < sizes.k[runs.problem]
    if split.any():
        areas = (catalogue.columns.m * catalogue.columns.n)[runs.tile_id]
        seconds += split_seconds(float((runs.count * areas)[split].sum()), catalogue, device)
    streaming = operand_bytes(sizes, catalogue) / device.bandwidth
    # A core partly overlaps memory access and arithmetic: hypot is the larger time plus some of the smaller one.
    least = math.hypot(seconds, streaming) if device.device_type == "cpu" else streaming + device.launch_seconds
    return replace(found, seconds=max(seconds, least) + device.call_seconds)


def _on_cores(
    sizes: ProblemSizes, runs: Runs, block_first: Ints | None, catalogue: Catalogue, device: DeviceSpec,
    tile_order: Ints | None,
) -> Prediction:  # fmt: skip
    """The prediction for a CPU, without memory traffic and call overhead. If there are few enough blocks, they are
    scheduled one by one in their order."""
    if tile_order is not None or runs.num_tiles <= _BLOCKS_TO_SCHEDULE * device.units:
        runs = runs.expand(catalogue)
    seconds, count = cpu_tile_seconds(sizes, runs, catalogue, device), runs.count
    if block_first is not None:
        seconds = np.add.reduceat(seconds.take(_run_of_tile(runs, tile_order)), block_first[:-1])
        count = np.ones(len(seconds), np.int64)
    work, blocks = weighted_sum(seconds, count), int(count.sum())
    return Prediction(
        seconds=_list_schedule(seconds, count, device.units) + device.launch_seconds,
        waves=blocks / device.units,
        balance=_balance(work, blocks, float(seconds.max())),
    )


def _on_gpu(
    sizes: ProblemSizes, runs: Runs, block_first: Ints | None, catalogue: Catalogue, device: DeviceSpec,
    tile_order: Ints | None,
) -> Prediction:  # fmt: skip
    """The prediction for a GPU, kernel by kernel, without memory traffic and launch overhead."""
    seconds, waves, total_work, total_blocks, longest = 0.0, 0.0, 0.0, 0, 0.0
    kernels, depth = catalogue.columns.kernel[runs.tile_id], runs.k_end - runs.k_begin
    run_of_tile, needed = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    if block_first is not None:
        run_of_tile = _run_of_tile(runs, tile_order)
        # The kernels that each block needs, as a bit mask.
        needed = np.bitwise_or.reduceat((1 << kernels).astype(np.uint32).take(run_of_tile), block_first[:-1])
    for kernel in np.flatnonzero(np.bincount(kernels, runs.count)).tolist():
        selected = np.flatnonzero(kernels == kernel)
        # As in launch_form, a block whose tiles belong to several kernels is one block in each.
        count = runs.count[selected] if block_first is None else ((needed & (1 << kernel)) > 0).astype(np.int64)
        blocks = int(count.sum())
        resident = max(tile_occupancy(catalogue.any_tile_of(catalogue.kernels[kernel]), device).blocks, 1)
        sharing = min(resident, math.ceil(blocks / device.units))
        aligned = sizes.aligned(catalogue.element_bytes)[runs.problem[selected]]
        each = gpu_tile_seconds(depth[selected], runs.tile_id[selected], aligned, catalogue, device, sharing)
        if block_first is not None:
            run_seconds = np.zeros(len(runs))
            run_seconds[selected] = each
            # A block without tiles of this kernel has count 0, so that it is not considered the longest.
            each = np.add.reduceat(run_seconds.take(run_of_tile), block_first[:-1])
        each = each + device.block_latency
        seconds += makespan_of_blocks(each, count, device.units * sharing, device.tail)
        seconds += device.launch_seconds
        seconds += device.further_tile_latency * (len(np.unique(runs.tile_id[selected])) - 1)
        waves += blocks / (device.units * resident)
        total_work, total_blocks = total_work + weighted_sum(each, count), total_blocks + blocks
        longest = max(longest, float(each.max()))
    return Prediction(seconds, waves, _balance(total_work, total_blocks, longest))


def _run_of_tile(runs: Runs, tile_order: Ints | None) -> Ints:
    """The run of each tile, in block order."""
    run = np.repeat(np.arange(len(runs)), runs.count)
    return run if tile_order is None else run[tile_order]


def _balance(work: float, blocks: int, longest: float) -> float:
    return work / blocks / longest if longest else 1.0


def weighted_sum(values: Floats, weights: Floats | Ints) -> float:
    """The sum of values times weights, added up by NumPy. `@` would call a BLAS, whose order of additions depends on
    the host's CPU: the rounding would then decide between two plans of nearly equal time.
    """
    return float((values * weights).sum())


# The maximum number of blocks per core that are scheduled one by one: with more, the last block is below a sixteenth of
# the time.
_BLOCKS_TO_SCHEDULE = 16


def _list_schedule(block_seconds: Floats, count: Ints, units: int) -> float:
    """The time at which the last block ends if each free unit takes the next block; `count` blocks of each time."""
    blocks = int(count.sum())
    if blocks > _BLOCKS_TO_SCHEDULE * units:
        return max(weighted_sum(block_seconds, count) / units, float(block_seconds.max()))
    free = [0.0] * units
    for seconds in np.repeat(block_seconds, count).tolist():
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def block_seconds(
    sizes: ProblemSizes, tiles: Sequence[TileShape], catalogue: Catalogue, device: DeviceSpec, sharing: int | Ints
) -> Floats:
    """The seconds of one block where a problem is covered by one tile shape with one tile in each block; 0 if C has
    no elements. A row for each tile shape, a column for each problem.
    """
    exist = (sizes.m > 0) & (sizes.n > 0) & (sizes.batch > 0)
    if device.device_type == "cpu":
        seconds = np.zeros((len(tiles), len(sizes.m)))
        for row, tile in zip(seconds, tiles, strict=True):
            runs = Runs.whole_problems(sizes, np.full(len(exist), tile.index), catalogue, np.arange(len(exist)))
            row[runs.problem] = cpu_tile_seconds(sizes, runs, catalogue, device)
        return seconds
    tile_id = np.array([tile.index for tile in tiles])[:, None]
    aligned = sizes.aligned(catalogue.element_bytes)
    seconds = gpu_tile_seconds(sizes.k, tile_id, aligned, catalogue, device, sharing) + device.block_latency
    return np.where(exist, seconds, 0.0)


def least_seconds(
    sizes: ProblemSizes, kernels: Mapping[str, Sequence[TileShape]], catalogue: Catalogue, device: DeviceSpec
) -> dict[str, float]:
    """For named sets of tile shapes, a lower bound of the predicted time of any GPU plan that uses shapes of the set:
    the work of its tiles, spread evenly over the units.

    Tiles lie on a grid whose cells are the common divisors of their sizes. They cover each cell, or at least half of
    the cells where symmetric results are folded.
    """
    tiles = _each_once(kernels.values())
    areas = np.array([[tile.m * tile.n] for tile in tiles])
    pace = _unit_seconds(sizes, tiles, catalogue, device) / areas  # seconds of a unit per element
    folds = stores_mirrored(device, catalogue)[[tile.index for tile in tiles]]
    pace *= np.where(folds[:, None] & sizes.symmetric, 0.5, 1.0)
    row = {tile.index: i for i, tile in enumerate(tiles)}
    found = {}
    for name, members in kernels.items():
        tile_m, tile_n = math.gcd(*(tile.m for tile in members)), math.gcd(*(tile.n for tile in members))
        elements = tile_counts(sizes, tile_m, tile_n) * (tile_m * tile_n)
        set_pace = pace[[row[tile.index] for tile in members]].min(axis=0)
        found[name] = weighted_sum(set_pace, elements) / device.units
    return found


def least_of_whole_problems(
    sizes: ProblemSizes,
    planners: Mapping[str, Sequence[Sequence[TileShape]]],
    catalogue: Catalogue,
    device: DeviceSpec,
) -> dict[str, float]:
    """Like `least_seconds`, for planners that cover each problem by one tile shape and take all shapes from one of
    their sets: a tighter lower bound, because it includes the waste along edges.
    """
    tiles = _each_once(members for sets in planners.values() for members in sets)
    count = np.array([tiles_computed(sizes, tile, device) for tile in tiles])
    work = _unit_seconds(sizes, tiles, catalogue, device) * count
    row = {tile.index: i for i, tile in enumerate(tiles)}

    def set_pace(members: Sequence[TileShape]) -> float:
        return float(work[[row[tile.index] for tile in members]].min(axis=0).sum()) / device.units

    return {name: min(map(set_pace, sets)) for name, sets in planners.items()}


def _each_once(sets: Iterable[Sequence[TileShape]]) -> list[TileShape]:
    return list(dict.fromkeys(tile for members in sets for tile in members))


def _unit_seconds(sizes: ProblemSizes, tiles: Sequence[TileShape], catalogue: Catalogue, device: DeviceSpec) -> Floats:
    """A lower bound of the seconds of a unit that one tile takes: a row for each tile shape, a column for each problem.

    A block's part of its unit's time falls with the number of blocks that share the unit, so it is that for as many
    blocks as a unit can hold. The block's latency is left out, as several tiles of one block have it once.
    """
    resident = np.array([[max(tile_occupancy(tile, device).blocks, 1)] for tile in tiles])
    seconds = block_seconds(sizes, tiles, catalogue, device, resident)
    taken: Floats = np.maximum(seconds - device.block_latency, 0.0) / resident
    return taken


# The maximum number of rounds that are counted one by one; with more, the last round is below a sixteenth of the time.
_ROUNDS_COUNTED = 16


def gpu_makespan(longest: float, work: float, blocks: float, slots: int, tail: float) -> float:
    """The seconds from the start of the first block to the end of the last one; `work` is the sum over all blocks.

    A free slot takes the next block, so that no block begins later than `longest` times the number of full rounds.
    `tail` is the device's coefficient for blocks that do not end together.
    """
    tail_seconds = tail * work / blocks if blocks > slots else 0.0
    return max(longest, min(work / slots + tail_seconds, math.ceil(blocks / slots) * longest))


def makespan_of_blocks(block_seconds: Floats, count: Ints, slots: int, tail: float) -> float:
    """The makespan of count[i] blocks of block_seconds[i] each: `gpu_makespan`, and at least the bound of full
    rounds."""
    blocks, longest = int(count.sum()), float(block_seconds.max(initial=0, where=count > 0))
    makespan = gpu_makespan(longest, weighted_sum(block_seconds, count), blocks, slots, tail)
    return max(makespan, _full_rounds(block_seconds, count, slots))


def _full_rounds(block_seconds: Floats, count: Ints, slots: int) -> float:
    """A lower bound of the makespan: r * slots + 1 blocks of at least t seconds each take (r + 1) t.

    `count` blocks of each time. The bound is tight for blocks of equal length, where the last round may be nearly
    empty.
    """
    rounds = (int(count.sum()) - 1) // slots
    if not 1 <= rounds <= _ROUNDS_COUNTED:
        return 0.0
    order = np.argsort(-block_seconds)
    before = np.arange(1, rounds + 1) * slots
    next_block = np.searchsorted(np.cumsum(count[order]), before, side="right")
    return float((block_seconds[order[next_block]] * np.arange(2, rounds + 2)).max())


def split_seconds(sums: float, catalogue: Catalogue, device: DeviceSpec) -> float:
    """The time that split-K adds to a call: a launch that reduces `sums` partial sums, which are written and read
    once."""
    return device.split_latency + 3 * sums * max(catalogue.element_bytes, 4) / device.bandwidth


def operand_bytes(sizes: ProblemSizes, catalogue: Catalogue) -> float:
    return weighted_sum(sizes.elements(), sizes.batch) * catalogue.element_bytes
