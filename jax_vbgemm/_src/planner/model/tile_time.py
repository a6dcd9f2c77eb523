"""The predicted time of one tile, from which the cost model builds that of a plan."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tables.coefficients import tile_coefficients
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, ceil_div
from jax_vbgemm._src.problem import ProblemSizes

Floats = NDArray[np.float64]

CACHE_LINE = 64  # bytes


def tile_seconds(sizes: ProblemSizes, tiles: Runs, catalogue: Catalogue, device: DeviceSpec, sharing: int) -> Floats:
    """The seconds of each tile of `tiles` (runs of one tile each) while `sharing` blocks share a unit."""
    if device.device_type == "cpu":
        return cpu_tile_seconds(sizes, tiles, catalogue, device)
    aligned = sizes.aligned(catalogue.element_bytes)[tiles.problem]
    return gpu_tile_seconds(tiles.k_end - tiles.k_begin, tiles.tile_id, aligned, catalogue, device, sharing)


class Pace(NamedTuple):
    """The time of tiles: a fixed part and the time of one step of `depth` along K, in seconds.

    A block takes its own latencies (`fixed`, `step`) or the time of the unit's resources that it shares with the other
    resident blocks (`shared_fixed`, `shared_step`), whichever is longer.
    """

    fixed: Floats
    step: Floats
    shared_fixed: Floats
    shared_step: Floats
    depth: Ints

    def seconds(self, steps: Ints) -> Floats:
        found: Floats = np.maximum(self.fixed + steps * self.step, self.shared_fixed + steps * self.shared_step)
        return found

    def steps_within(self, seconds: float) -> Ints:
        """The number of K steps that fit into a time; negative if the fixed part alone takes longer."""
        steps = np.minimum((seconds - self.fixed) / self.step, (seconds - self.shared_fixed) / self.shared_step)
        return np.floor(steps).astype(np.int64)


def gpu_tile_seconds(
    depth: Ints,
    tile_id: Ints | int,
    aligned: NDArray[np.bool_],
    catalogue: Catalogue,
    device: DeviceSpec,
    sharing: int | Ints,
) -> Floats:
    """The seconds of tiles whose K range has length `depth`, while `sharing` blocks share a unit. `tile_id`: the row
    of the compiled table for each tile, or one for all."""
    pace = gpu_pace(tile_id, aligned, catalogue, device, sharing)
    return pace.seconds(ceil_div(depth, pace.depth))


def gpu_pace(
    tile_id: Ints | int, aligned: NDArray[np.bool_], catalogue: Catalogue, device: DeviceSpec, sharing: int | Ints
) -> Pace:
    """The pace of tiles while `sharing` blocks share a unit; `tile_id` as for `gpu_tile_seconds`.

    If the device is calibrated (calibration.csv), the fixed part and the K step of a tile each have a latency and a
    part of the unit's time, with one set of coefficients for problems whose rows are aligned (`ProblemSizes.aligned`)
    and one for other problems. Elsewhere a step takes the maximum of four times: its multiply-adds, its reads of shared
    memory (a thread that owns r x c elements reads r + c values for each k, about 2 sqrt(r c)), its loads through the
    cache, and a latency that nothing hides. Masked tiles cost as much as whole tiles.
    """
    tile = catalogue.columns
    tk = tile.k[tile_id]
    calibrated = tile_coefficients(device.calibration, catalogue)
    if calibrated is not None:
        of_tile = calibrated[:, :, tile_id]
        fixed, step, shared_fixed, shared_step = np.where(aligned, of_tile[:, 0], of_tile[:, 1])
        depth = step_depth(tk, catalogue.element_bytes)
        return Pace(fixed, step, sharing * shared_fixed, sharing * shared_step, depth)
    tm, tn, threads = tile.m[tile_id], tile.n[tile_id], tile.threads[tile_id]
    size = catalogue.element_bytes
    parts = sharing * device.units  # a block gets 1/parts of the device's rates
    rate = np.where(tile.tensor[tile_id], device.tensor_rate(catalogue.kind), device.peak_rate(catalogue.dtype))
    products = _flops(catalogue) * tm * tn * tk * parts / rate
    shared_memory = 2 * np.sqrt(tm * tn * threads) * tk * size * (parts / device.shared_bandwidth)
    cache = (tm + tn) * tk * size * (parts / device.cache_bandwidth)
    step = np.maximum(np.maximum(products, shared_memory), np.maximum(cache, device.step_latency))
    fixed = tm * tn * size * (parts / device.bandwidth)
    return Pace(fixed, step, fixed, step, tk)


def step_depth(tile_k: Ints, element_bytes: int) -> Ints:
    """The length of a step of a GPU tile in this model, in elements: the K step of NVIDIA's kernels (csrc/gpu/
    vendor_tiles.h), except that row tiles have longer ones. `tile_k` is for 4-byte elements."""
    return np.maximum(tile_k * 4 // element_bytes, 8)


def cpu_tile_seconds(sizes: ProblemSizes, runs: Runs, catalogue: Catalogue, device: DeviceSpec) -> Floats:
    """The seconds of one tile of each run, averaged over the run: the sum of its arithmetic and its loads.

    A tile reads A, reads and packs B, and reads C before it writes C; a row of B costs one cache line more than its
    length. The CPU kernel treats each tile as a product of its own, so that several tiles in one block have several
    fixed parts.
    """
    size = catalogue.element_bytes
    rows, cols = computed_extents(sizes, runs, catalogue, device)
    depth = runs.k_end - runs.k_begin
    products = _flops(catalogue) * rows * cols * depth * (device.units / device.peak_rate(catalogue.dtype))
    numbers = (rows + 2 * cols) * depth + 2 * rows * cols
    loads = (numbers * size + CACHE_LINE * depth) * (device.units / device.cache_bandwidth)
    seconds: Floats = products + loads + device.block_latency
    return seconds


def computed_extents(
    sizes: ProblemSizes, runs: Runs, catalogue: Catalogue, device: DeviceSpec
) -> tuple[Floats, Floats]:
    """The rows and columns that are computed for one tile of each run, averaged over the run.

    A GPU computes masked tiles whole. A CPU core computes only the part of an edge tile that lies in C, in whole
    vectors along a row.
    """
    tile_m, tile_n = catalogue.columns.m[runs.tile_id], catalogue.columns.n[runs.tile_id]
    if device.device_type == "gpu":
        return tile_m.astype(np.float64), tile_n.astype(np.float64)

    def mean(origin: Ints, tiles: Ints, edge: Ints, end: Ints, vector: int) -> Floats:
        last = np.minimum(edge, end - origin - (tiles - 1) * edge)
        extent: Floats = ((tiles - 1) * ceil_div(edge, vector) + ceil_div(last, vector)) * vector / tiles
        return extent

    vector = device.vector_bytes // catalogue.element_bytes
    return (
        mean(runs.row, runs.tiles_y, tile_m, sizes.m[runs.problem], 1),
        mean(runs.col, runs.tiles_x, tile_n, sizes.n[runs.problem], vector),
    )


def _flops(catalogue: Catalogue) -> float:
    """Real floating-point operations of one multiply-add."""
    return 8.0 if catalogue.dtype.startswith("complex") else 2.0
