"""Zhang 2025, Eq. 5-9, worked by hand."""

import math

import pytest

from jax_vbgemm._src.planner import TileShape, device_spec
from jax_vbgemm._src.planner.model.occupancy import active_waves, kernel_occupancy, tile_occupancy

MI210, H100, V100 = device_spec("mi210"), device_spec("h100"), device_spec("v100")


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "by_blocks", "by_registers", "by_shared", "waves"),
    [
        # 16 blocks of 2 waves; 4 * floor(512 / 64); floor(65536 / 4096) * 2; 32 of the unit.
        (128, 64, 4096, 32, 32, 32, 32),
        # Registers: 73 are rounded up to 80: 4 * floor(512 / 80) = 24.
        (128, 73, 4096, 32, 24, 32, 24),
        # LDS: 12800 is 25 granules of 512: floor(65536 / 12800) = 5 blocks of 2 waves.
        (128, 64, 12800, 32, 32, 10, 10),
        # One byte more takes another granule of 512 B: still 4 blocks, not 65536 / 12801 = 5.
        (128, 64, 13107, 32, 32, 8, 8),
        # 256 threads: 16 blocks of 4 waves are more than the unit's 32; registers leave 4 * floor(512 / 128) = 16.
        (256, 128, 8192, 64, 16, 32, 16),
        # 4 * floor(512 / 96) = 20 waves are 5 blocks of 4.
        (256, 96, 8192, 64, 20, 32, 20),
        # 512 threads are 8 waves: 20 waves are only 2 whole blocks.
        (512, 96, 8192, 128, 20, 64, 16),
    ],
)
def test_mi210(threads, registers, shared, by_blocks, by_registers, by_shared, waves):
    occupancy = kernel_occupancy(MI210, threads=threads, registers=registers, shared_bytes=shared)
    assert (occupancy.by_blocks, occupancy.by_registers, occupancy.by_shared_memory) == (
        by_blocks,
        by_registers,
        by_shared,
    )
    assert (occupancy.by_unit, occupancy.by_scalar_registers) == (32, math.inf)
    assert occupancy.waves == waves
    assert occupancy.fraction == waves / 32
    assert occupancy.blocks == waves // math.ceil(threads / 64)


def test_scalar_registers_limit_cdna_but_not_nvidia():
    common = {"threads": 128, "registers": 32, "shared_bytes": 0, "scalar_registers": 102}
    assert kernel_occupancy(MI210, **common).by_scalar_registers == 3200 // 102 == 31
    assert kernel_occupancy(MI210, **common).waves == 30  # whole blocks of two waves
    assert kernel_occupancy(MI210, **common).limit == "scalar registers"
    assert kernel_occupancy(V100, **common).by_scalar_registers == math.inf


def test_nvidia_allocates_registers_by_256_a_warp_and_reserves_shared_memory():
    # 512 registers a lane: 4 * floor(512 / 128) = 16 warps for 121 to 128 registers, 2 blocks of 256 threads.
    for registers in (121, 128):
        assert kernel_occupancy(H100, threads=256, registers=registers, shared_bytes=1024).waves == 16
    # 228 KB hold 5 blocks of 45 KB, but not with 1 KB more each; the V100 reserves none: 96 KB hold 2 of 48 KB.
    assert kernel_occupancy(H100, threads=128, registers=32, shared_bytes=228 * 1024 // 5 // 128 * 128).blocks == 4
    assert kernel_occupancy(H100, threads=128, registers=32, shared_bytes=44 * 1024).blocks == 5
    assert kernel_occupancy(V100, threads=128, registers=32, shared_bytes=48 * 1024).blocks == 2


def test_the_limit_is_named():
    def limit(device, **kernel):
        return kernel_occupancy(device, **kernel).limit

    assert limit(H100, threads=256, registers=128, shared_bytes=1024) == "registers"
    assert limit(H100, threads=256, registers=32, shared_bytes=64 * 1024) == "shared memory"
    assert limit(H100, threads=32, registers=16, shared_bytes=1024) == "blocks"
    assert limit(H100, threads=256, registers=16, shared_bytes=1024) == "waves"


def test_a_core_runs_one_block_whatever_its_threads():
    for threads in (1, 128, 256):
        occupancy = tile_occupancy(TileShape(0, "any", 64, 64, 8, threads, "cpu"), device_spec("cpu"))
        assert (occupancy.waves, occupancy.blocks, occupancy.fraction) == (1, 1, 1.0)


def test_active_waves_takes_the_figures_of_the_kernel_that_holds_the_tile():
    light = TileShape(0, "small", 16, 16, 16, 128, "t128_light", registers=40, shared_bytes=4096)
    heavy = TileShape(0, "small", 16, 16, 16, 128, "t128_heavy", registers=250, shared_bytes=4096)
    assert active_waves(light, H100) == 4 * (512 // 40)
    assert active_waves(heavy, H100) == 4 * (512 // 256)
