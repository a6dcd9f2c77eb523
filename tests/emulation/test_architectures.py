"""A second architecture with a pipelined kernel of its own: a line in each table, and nothing that exists changes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emulated_check import COMPILER, CSRC, FLAGS, NATIVE

# What the tables of csrc get: the architecture, its kernel and a tile.
STUB = {
    "catalogue.h": [
        ("{ all, nvidia, hopper }", "{ all, nvidia, hopper, stub }"),
        ('{"all", "nvidia", "hopper"}', '{"all", "nvidia", "hopper", "stub"}'),
    ],
    "kernels.def": [
        (
            "ALIGNED_KERNEL(m128_aligned_32x32",
            "PIPELINED_KERNEL(m256_stub, 256, stub)\nALIGNED_KERNEL(m128_aligned_32x32",
        ),
    ],
    "tiles.def": [
        ("// The CPU kernel", 'PIPELINED_TILE("stub-256x256", 256, 256, 32, 256, BF16, stub)\n// The CPU kernel'),
    ],
    "gpu/tile/kernels.h": [
        ("FOR_EACH(m384_pipelined, kind)", "FOR_EACH(m384_pipelined, kind) FOR_EACH(m256_stub, kind)"),
    ],
}

PROGRAM = """
#include "gpu/host/launch.cu"
namespace vbgemm {
constexpr Kernel of_tile(std::string_view name) {
  for (const TileShape& tile : kTiles)
    if (name == tile.name) return kernel_of(tile);
  return Kernel::t128_light;
}
static_assert(of_tile("mma-128x256") == Kernel::m384_pipelined && of_tile("stub-256x256") == Kernel::m256_stub);
static_assert(find_compiled("bfloat16", Kernel::m256_stub) < kNumCompiled);
static_assert(std::is_same_v<ParametersOf<Kernel::m256_stub>::type, PlanParameters>);
static_assert(static_cast<int>(Kernel::m256_stub) == static_cast<int>(Kernel::m384_pipelined) + 1);
}  // namespace vbgemm
"""


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs a C++ compiler, {COMPILER} is not there")
def test_the_host_side_compiles_with_a_second_pipelined_kernel(tmp_path: Path) -> None:
    shutil.copytree(CSRC, tmp_path / "csrc")
    for name, replacements in STUB.items():
        for old, new in replacements:
            file = tmp_path / "csrc" / name
            text = file.read_text()
            assert text.count(old) == 1, f"{name} no longer has the text that this test changes"
            file.write_text(text.replace(old, new))
    command = [COMPILER, *FLAGS, f"-I{tmp_path / 'csrc'}", f"-I{NATIVE}", "-x", "c++", "-fsyntax-only", "-"]
    result = subprocess.run(command, input=PROGRAM, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# Imports the package with a module _core whose tables have the stub.
IMPORT = """
import importlib.machinery, importlib.util, sys
from dataclasses import replace
places = importlib.util.find_spec("jax_vbgemm").submodule_search_locations
spec = importlib.machinery.PathFinder.find_spec("jax_vbgemm._core", places)
sys.modules[spec.name] = _core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_core)
tiles, kernels = _core.tiles(), _core.kernels()
row = next(row for row in tiles if "m384_pipelined" in row)
stub = tuple({"mma-128x256": "stub-256x256", 128: 256, 384: 256, "m384_pipelined": "m256_stub"}.get(x, x)
             if isinstance(x, (str, int)) else x for x in row)
_core.tiles, _core.kernels = lambda: [*tiles, stub], lambda: [*kernels, "m256_stub"]

import jax_vbgemm
from jax_vbgemm._src.planner.tables import catalogue
from jax_vbgemm._src.planner.tables.device_table import device_spec
assert catalogue.PIPELINED == ("m384_pipelined", "m256_stub")
table = catalogue._resource_table()
of_stub = {("sm_stub", "m256_stub", "bfloat16"): table["sm_90a", "m384_pipelined", "bfloat16"]}
catalogue._resource_table = lambda: table | of_stub
hopper = device_spec("h100")
for device, kernel in ((hopper, "m384_pipelined"), (replace(hopper, resources="sm_stub"), "m256_stub")):
    found = {tile.kernel for tile in catalogue.catalogue_for("bfloat16", device)} & set(catalogue.PIPELINED)
    assert found == {kernel}, (device.resources, found)
"""


def test_a_device_has_the_pipelined_tiles_of_its_architecture() -> None:
    subprocess.run([sys.executable, "-c", IMPORT], check=True)
