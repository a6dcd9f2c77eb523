"""Zhang 2025, Eq. 5-9, against the occupancy that clang reports for every kernel of the ROCm backend."""

import csv
import math
from pathlib import Path

import pytest

from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.planner.model.occupancy import kernel_occupancy, tile_occupancy
from jax_vbgemm._src.planner.tables import catalogue
from jax_vbgemm._src.planner.tables.catalogue import PLAIN_KIND

ROWS = list(csv.DictReader(Path(catalogue.__file__).with_name("resources_amd.csv").open()))
TILES = {(tile.kernel, kind) for tile in COMPILED_TILES for kind in tile.k_steps["rocm"]}
ROWS_WITH_TILES = [row for row in ROWS if (row["kernel"], row["dtype"]) in TILES]  # complex128 has empty kernels
DEVICE_OF = {"gfx908": "mi100", "gfx90a": "mi210", "gfx942": "mi300x"}


def registers(row):
    """The registers of a thread. The MI100 has separate files for vector and accumulation registers; later chips have
    one, in which the accumulation registers begin at a multiple of 4."""
    vector, accumulation = int(row["vgprs"]), int(row["agprs"])
    return max(vector, accumulation) if row["arch"] == "gfx908" else -(-vector // 4) * 4 + accumulation


@pytest.mark.parametrize("row", ROWS_WITH_TILES, ids=lambda row: f"{row['arch']}-{row['kernel']}-{row['dtype']}")
def test_the_papers_equations_give_the_compilers_occupancy(row):
    device = device_spec(DEVICE_OF[row["arch"]])
    occupancy = kernel_occupancy(
        device,
        threads=256 if "256" in row["kernel"] else 128,
        registers=registers(row),
        shared_bytes=int(row["shared_bytes"]),
        scalar_registers=int(row["sgprs"]),
    )
    # The compiler counts the waves of the SIMD that holds most of them, and blocks only as shared memory limits them.
    limits = (occupancy.by_registers, occupancy.by_scalar_registers, occupancy.by_shared_memory, occupancy.by_unit)
    assert math.ceil(min(limits) / device.simds) == int(row["waves_per_simd"])
    assert min(limits) - occupancy.waves < occupancy.waves_per_block
    assert occupancy.waves > 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['arch']}-{row['kernel']}-{row['dtype']}")
def test_no_kernel_uses_scratch_memory(row):
    assert row["scratch_bytes"] == "0"
    # The MI100 has accumulation registers beside the vector registers, and these spill to them, not to memory.
    assert row["spills"] == "0" or (row["arch"] == "gfx908" and row["agprs"] != "0")


@pytest.mark.parametrize("device", ["mi100", "mi210", "mi250x", "mi300x"])
@pytest.mark.parametrize("kind", [kind for kind, one in ARITHMETICS.items() if kind == PLAIN_KIND[kind]])
def test_tiles_have_the_figures_of_their_kernels(device, kind):
    spec = device_spec(device)
    rows = {(row["arch"], row["kernel"], row["dtype"]): row for row in ROWS}
    for tile in catalogue_for(kind, spec):
        row = rows[spec.resources, tile.kernel, kind if tile.tensor else PLAIN_KIND[kind]]
        figures = (registers(row), int(row["shared_bytes"]), int(row["sgprs"]))
        assert (tile.registers, tile.shared_bytes, tile.scalar_registers) == figures
        assert tile_occupancy(tile, spec).waves > 0
