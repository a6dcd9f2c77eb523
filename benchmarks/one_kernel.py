"""An experiment: one kernel for a batch, as in the papers, instead of a kernel for each class of registers and threads.

Li et al. 2019 have all strategies with the same threads in one kernel, and Zhang et al. 2025 all tiles in a kernel of
256 threads, of which 128 leave where the tile needs no more. The package's kernels do not do that; those of this
experiment are compiled from a header with changes that this script makes:

\b
  one_kernel.py header build/one_kernel
  nvcc -std=c++17 -O2 -arch=sm_90a -Ibuild/one_kernel -Icsrc -c -o simt_f32.o csrc/gpu/instances/simt_f32.cu
  nvcc -std=c++17 -O2 -arch=sm_90a -Icsrc -Itests/native -o gpu_driver_one
    benchmarks/gpu_driver.cu simt_f32.o libvbgemm_cuda.a
  one_kernel.py cases one_kernel.case                               on any machine; gpu_driver_one alone can run them
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from candidates import Writer, list_of
from jax_vbgemm import Coordinated, LoadBalanced, Plan
from jax_vbgemm._src.planner import DeviceSpec, Planner
from jax_vbgemm._src.planner.papers.coordinated import BY_128, BY_256
from jax_vbgemm._src.planner.papers.load_balanced import CLASSES
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey
from jax_vbgemm._src.problem import Problem
from options import Device, commands
from workloads import expand, problems_named

app = commands(__doc__)
console = Console()

PART = "one_kernel"
HEADER = Path(__file__).parents[1] / "csrc" / "gpu" / "tile" / "tile_kernel.h"

# The kernel that holds a paper's tiles: Li's by their threads, of which a batch has one number, Zhang's all.
LI: Mapping[TileKey, str] = {**dict.fromkeys(BY_256, "t256_heavy"), **dict.fromkeys(BY_128, "t128_full")}
ZHANG: Mapping[TileKey, str] = dict.fromkeys(CLASSES, "t256_light")

CHANGES = (
    (
        "constexpr KernelTiles tiles_in_kernel(",
        """constexpr bool holds(Kernel kernel, const TileShape& tile) {
  if (kernel_of(tile) == kernel) return true;
  if (tile.partition != ThreadPartition::tile || tile.tensor || is_far_longer(tile)) return false;
  if (kernel == Kernel::t256_light) return tile.threads == 128 && tile.m * tile.n <= 32 * 32;
  return threads_of(kernel) == tile.threads && (kernel == Kernel::t256_heavy || kernel == Kernel::t128_full);
}
constexpr KernelTiles tiles_in_kernel(""",
    ),
    ("|| kernel_of(tile) != kernel) continue;", "|| !holds(kernel, tile)) continue;"),
    (
        "        Policy::template multiply<",
        """        if constexpr (decltype(chosen)::type::kShape.threads < kThreads) {
          if (thread_index() >= decltype(chosen)::type::kShape.threads) {
            await_previous_kernel();
            leave_kernel();
          }
        }
        Policy::template multiply<""",
    ),
)


@dataclass(frozen=True)
class InOneKernel:
    """A planner's plan in one launch."""

    planner: Planner
    kernel: tuple[tuple[TileKey, str], ...]

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        kernels = dict(self.kernel)
        tiles = (replace(tile, kernel=kernels.get(tile.key, tile.kernel)) for tile in catalogue)
        return replace(self.planner(problems, device, catalogue), catalogue=replace(catalogue, tiles=tuple(tiles)))


PLANNERS: Mapping[str, Planner] = {
    "coordinated, one kernel": InOneKernel(Coordinated(), tuple(LI.items())),
    "load_balanced, one kernel": InOneKernel(LoadBalanced(), tuple(ZHANG.items())),
}


@app.command()
def header(folder: Path) -> None:
    """Writes tile_kernel.h with the changes to where `-I FOLDER` finds it."""
    text = HEADER.read_text()
    for right, changed in CHANGES:
        if text.count(right) != 1:
            raise ValueError(f"{HEADER} has {right!r} {text.count(right)} times, not once")
        text = text.replace(right, changed)
    output = folder / HEADER.relative_to(HEADER.parents[2])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    console.print(output)


@app.command()
def cases(output: Path, device_name: Device = "h100") -> None:
    """Writes the plans of Zhang's grids for gpu_driver_one, and the list of them."""
    with Writer(output, device_name) as writer:
        for name in track(expand(["grids"]), "plans", console=console):
            writer.add(PART, name, problems_named(name), "fp32", PLANNERS)
    console.print(f"{output}: {writer.cases} cases, {output.stat().st_size / 1e6:.1f} MB; {list_of(output)}")


if __name__ == "__main__":
    app()
