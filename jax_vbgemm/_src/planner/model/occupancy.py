"""Occupancy, by Zhang et al. 2025: the work of a thread (section 4.1, Eq. 1-2), and the number of waves of a tile's
kernel that a compute unit runs at once (section 4.2.1, Eq. 5-9).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.planner.tables.catalogue import PLAIN_KIND, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec


@dataclass(frozen=True)
class Occupancy:
    """The waves that each resource of a unit allows (math.inf: no limit), and the resulting occupancy.

    `waves` is WF of Eq. 9, rounded down to whole blocks; `blocks` the number of blocks resident on a unit; `fraction`
    is `waves` divided by the unit's maximum; `limit` names the limiting resource.
    """

    by_blocks: float
    by_registers: float
    by_scalar_registers: float
    by_shared_memory: float
    by_unit: float
    waves_per_block: int

    @property
    def waves(self) -> int:
        lowest = min(self._limits().values())
        return int(lowest) // self.waves_per_block * self.waves_per_block

    @property
    def blocks(self) -> int:
        return self.waves // self.waves_per_block

    @property
    def fraction(self) -> float:
        return self.waves / self.by_unit

    @property
    def limit(self) -> str:
        limits = self._limits()
        return min(limits, key=lambda name: limits[name])

    def _limits(self) -> dict[str, float]:
        return {
            "waves": self.by_unit,
            "registers": self.by_registers,
            "shared memory": self.by_shared_memory,
            "blocks": self.by_blocks,
            "scalar registers": self.by_scalar_registers,
        }


def work_per_thread(m: int, n: int, k: int, threads: int) -> tuple[float, float]:
    """(W_CP, W_DL), Eq. 1 and 2: elements that a thread of an m x n tile computes, and elements it moves in a step of
    `k`."""
    return m * n / threads, (m * n + m * k + k * n) / threads


def kernel_step(tile: TileShape, device: DeviceSpec, kind: str) -> int:
    """Tk: the K step of the tile's compiled kernel for an arithmetic, in elements; on a CPU that of the catalogue."""
    if device.platform == "cpu":
        return tile.k
    return COMPILED_TILES[tile.index].k_steps[device.platform][kind if tile.tensor else PLAIN_KIND[kind]]


def waves_by_blocks(device: DeviceSpec, threads: int) -> int:
    """Eq. 5, WF_wg: the unit's limit of resident blocks, in waves."""
    return device.max_blocks * device.waves_of(threads)


def waves_by_registers(device: DeviceSpec, registers: int) -> float:
    """Eq. 6, WF_V: a SIMD divides its lanes' registers among its waves; `registers` are those of one thread."""
    if registers == 0:
        return math.inf
    registers_per_lane = device.registers // (device.simds * device.wave_size)
    return device.simds * (registers_per_lane // _round_up(registers, device.register_granule))


def waves_by_scalar_registers(device: DeviceSpec, scalar_registers: int) -> float:
    """Eq. 7, WF_S: `scalar_registers` are those of one wave; no limit where the device or the kernel has none."""
    if scalar_registers == 0 or device.scalar_registers == 0:
        return math.inf
    return device.scalar_registers // scalar_registers


def waves_by_shared_memory(device: DeviceSpec, shared_bytes: int, threads: int) -> float:
    """Eq. 8, WF_L: each block takes `shared_bytes` and the bytes that the device reserves, in whole granules."""
    block_bytes = shared_bytes + device.shared_reserved
    if block_bytes == 0:
        return math.inf
    return device.shared_bytes // _round_up(block_bytes, device.shared_granule) * device.waves_of(threads)


def kernel_occupancy(
    device: DeviceSpec, *, threads: int, registers: int, shared_bytes: int, scalar_registers: int = 0
) -> Occupancy:
    """Eq. 5-9 for a kernel of `threads` a block, `registers` a thread and `shared_bytes` a block."""
    return Occupancy(
        by_blocks=waves_by_blocks(device, threads),
        by_registers=waves_by_registers(device, registers),
        by_scalar_registers=waves_by_scalar_registers(device, scalar_registers),
        by_shared_memory=waves_by_shared_memory(device, shared_bytes, threads),
        by_unit=min(device.max_waves, device.max_threads // device.wave_size),
        waves_per_block=device.waves_of(threads),
    )


@lru_cache(maxsize=1024)
def tile_occupancy(tile: TileShape, device: DeviceSpec) -> Occupancy:
    """Occupancy of the launched kernel that holds `tile`."""
    return kernel_occupancy(
        device,
        threads=tile.threads,
        registers=tile.registers,
        shared_bytes=tile.shared_bytes,
        scalar_registers=tile.scalar_registers,
    )


def active_waves(tile: TileShape, device: DeviceSpec) -> int:
    """WF of Eq. 9: the waves of `tile`'s kernel that one unit runs at once, in whole blocks."""
    return tile_occupancy(tile, device).waves


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
