"""The papers' experiments, repeated with this package's kernels: plans for the GPU, and the page docs/experiments.md.

\b
  experiments.py cases experiments.case                        on any machine; writes experiments.plans.csv beside it
  experiments.sh experiments.case GPU_DRIVER OUTPUT            on the GPU: all that it is needed for
  experiments.py page --plans … --measured …                   docs/experiments.md and its plots

The same cases answer planners.py's `report` and `thresholds`, and train batching_forest.py's forest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

import batching_forest
import experiments_data
import experiments_page
import planners
from candidates import Candidate, Measured, Writer, list_of
from jax_vbgemm import Coordinated, LoadBalanced, SortSplit, Uniform
from jax_vbgemm._src.planner import PLANNERS, Planner, catalogue_for, device_spec, kind_of
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS, WHOLE_ROWS
from jax_vbgemm._src.problem import Problem
from options import Device, commands
from workloads import PRECISIONS, expand, problems_named, read_csv

app = commands(__doc__)
console = Console()

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"

# The steps of Li's framework one by one, and each interpretation that the papers' texts allow.
READINGS: Mapping[str, Planner] = {
    "coordinated, tiling alone": Coordinated(batching="none"),
    "coordinated, threshold": Coordinated(batching="threshold"),
    "coordinated, binary": Coordinated(batching="binary"),
    "sort_split, tile first": SortSplit(sort_by="tile"),
    "sort_split, one pass": SortSplit(passes="one"),
    "sort_split, tile first, one pass": SortSplit(sort_by="tile", passes="one"),
    "load_balanced, by problem": LoadBalanced(bound="problem"),
    "load_balanced, by device": LoadBalanced(bound="device"),
    "load_balanced, whole passes": LoadBalanced(demotion="batch"),
    "load_balanced, smallest tiles": LoadBalanced(unreached="smallest"),
}
ON_TENSOR_CORES = {name: PLANNERS[name] for name in ("auto", "coordinated", "sort_split", "load_balanced")}
ORDINARY: Mapping[str, Planner] = {
    "coordinated, ordinary tiles": Coordinated(tensor=False),
    "sort_split, ordinary tiles": SortSplit(tensor=False),
    "load_balanced, ordinary tiles": LoadBalanced(tensor=False),
}

READ, TENSOR, BRANCHES, BATCHES, THREADS, SKINNY = "readings", "tensor", "branches", "batches", "threads", "skinny"
BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
LARGE = (Problem(512, 512, 512),) * 64  # Fig. 3 of Zhang 2025: products that are many and large


def _skinny_tiles(precision: str, device_name: str, columns: int) -> dict[str, Planner]:
    """For each kind of kernel a planner with its narrowest tile that holds the columns. K is not split, as in the
    paper."""
    device = device_spec(device_name)
    catalogue = catalogue_for(kind_of(*PRECISIONS[precision], device), device)
    found: dict[str, Planner] = {}
    for title, has in (
        ("far longer tiles", lambda tile: tile.name.startswith("skinny-")),
        ("whole rows", lambda tile: tile.kernel in WHOLE_ROWS and tile.m == 256),
        ("dot products", lambda tile: tile.kernel in DOT_PRODUCTS),
    ):
        tiles = [tile for tile in catalogue if has(tile) and tile.m > tile.n >= columns]
        if tiles:
            found[title] = Uniform(min(tiles, key=lambda tile: (tile.n, tile.m)).key)
    return found


@app.command()
def cases(output: Path, device_name: Device = "h100") -> None:
    """Writes the plans for gpu_driver, and the list of them."""
    device = device_spec(device_name)
    with Writer(output, device_name, repeats=3) as writer:
        planners.add(writer, "fp32", device, console)
        for name in track(expand(["grids"]), "readings", console=console):
            problems = problems_named(name)
            writer.add(READ, name, problems, "fp32", READINGS)
            if name.endswith("_b64"):
                writer.add(TENSOR, name, problems, "tf32", {**ON_TENSOR_CORES, **ORDINARY})
        for name in expand(["inception*", "squeezenet*", "densenet*"]):
            writer.add(BRANCHES, name, problems_named(name), "fp32", {**PLANNERS, **READINGS})
        for batch in BATCH_SIZES:
            # The driver's CSV has no quotes, so that names have no commas.
            writer.add(BATCHES, f"range_b{batch}", problems_named(f"[16,256]x{batch}"), "fp32", PLANNERS)
        tiles = {f"{tile.name}/{tile.threads}": Uniform(tile.key) for tile in catalogue_for("float32", device)
                 if tile.kernel.endswith(("_light", "_heavy"))}  # fmt: skip
        tiles |= {"large/128": Uniform(("large", 128))}
        writer.add(THREADS, "large_b64", LARGE, "fp32", tiles)
        for name in expand(["ism2*", "tsm2*"]):
            problems = problems_named(name)
            for precision in ("fp32", "fp64", "tf32"):
                own = {name: PLANNERS[name] for name in ("tall_skinny", "auto")}
                own |= _skinny_tiles(precision, device_name, problems[0].n) if precision != "tf32" else {}
                writer.add(SKINNY, name, problems, precision, own)
        for index in track(range(batching_forest.SAMPLES), "batching", console=console):
            both: dict[str, Planner] = {each: Coordinated(batching=each) for each in batching_forest.HEURISTICS}
            writer.add(
                batching_forest.PART, batching_forest.workload(index), batching_forest.sample(index), "fp32", both
            )
    console.print(f"{output}: {writer.cases} cases, {output.stat().st_size / 1e6:.1f} MB; {list_of(output)}")


@app.command()
def page(
    plans: Annotated[Path, typer.Option(help="the list that `cases` wrote")] = RESULTS / "h100_experiments.plans.csv",
    measured: Annotated[Path, typer.Option(help="the driver's CSV of them")] = RESULTS / "h100_experiments.csv",
    peers: Annotated[Path, typer.Option(help="CSV of the peers on the same workloads")] = planners.PEERS,
    output: Annotated[Path, typer.Option(help="the page; plots go into a folder of its name")] = PAGE,
    device_name: Device = "h100",
) -> None:
    """Writes the page and its plots. Plans that were not measured yet are shown with their predicted times."""
    times = Measured([measured] if measured.exists() else [])
    data = experiments_data.Data(list(read_csv(Candidate, plans)), times, peers, device_spec(device_name))
    for file in experiments_page.write(data, output):
        console.print(f"{file}: {file.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    app()
