"""The papers' experiments, repeated with this package's kernels: plans for the GPU, and the page docs/experiments.md.

\b
  experiments.py cases experiments.case                        on any machine; writes experiments.plans.csv beside it,
                                                               and experiments.sizes for cublas_batches
  experiments.sh experiments.case PROGRAMS OUTPUT              on the GPU: all that it is needed for
  experiments.py page --plans … --measured …                   docs/experiments.md and its plots

The same cases answer planners.py's `report` and `thresholds`, and train batching_forest.py's forest.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

import batching_forest
import experiments_batches
import experiments_data
import experiments_page
import planners
from candidates import Candidate, Measured, Writer, list_of
from experiments_batches import BATCHES, COLUMNS, EVERY_BATCH, LI, OCCUPANCY, PAPERS
from jax_vbgemm import Coordinated, LoadBalanced, SortSplit, Uniform
from jax_vbgemm._src.planner import PLANNERS, DeviceSpec, Planner, catalogue_for, device_spec, kind_of
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS, WHOLE_ROWS
from jax_vbgemm._src.problem import Problem
from options import Device, commands, one_of
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

READ, TENSOR, BRANCHES, THREADS, SKINNY = "readings", "tensor", "branches", "threads", "skinny"
BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
LARGE = (Problem(512, 512, 512),) * 64  # Fig. 3 of Zhang 2025: products that are many and large

# Li 2019, Fig. 8 and 9: products of equal sizes. Our copy of the paper has no figures; its text names these sizes of
# C and batches, of which the last of each is ours, and the range of K.
LI_SIZES, LI_BATCHES, LI_K = (128, 256, 512), (4, 8, 16, 32), (16, 32, 64, 128, 256, 512, 1024, 2048)
LI_STEPS = ("coordinated, tiling alone", "coordinated, threshold", "coordinated, binary")
ZHANG_BATCHES = (8, 16, 32, 64, 128, 256)  # Zhang 2025, section 5.1
PROFILED = ("any_mn128_k128_b64", "any_mn512_k512_b64")  # Zhang 2025, Fig. 6; its text names no sizes
COLUMN_SIZES = (10240, 20480)  # a large A times 2 to 16 columns, with A stored column-major, as in Rivera et al.


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


def _planners(writer: Writer, device: DeviceSpec) -> None:
    planners.add(writer, "fp32", device, console)


def _readings(writer: Writer, _: DeviceSpec) -> None:
    for name in track(expand(["grids"]), READ, console=console):
        problems = problems_named(name)
        writer.add(READ, name, problems, "fp32", READINGS)
        if name.endswith("_b64"):
            writer.add(TENSOR, name, problems, "tf32", {**ON_TENSOR_CORES, **ORDINARY})


def _branches(writer: Writer, _: DeviceSpec) -> None:
    for name in expand(["inception*", "squeezenet*", "densenet*"]):
        writer.add(BRANCHES, name, problems_named(name), "fp32", {**PLANNERS, **READINGS})


def _batches(writer: Writer, _: DeviceSpec) -> None:
    for batch in BATCH_SIZES:
        # The driver's CSV has no quotes, so that names have no commas.
        writer.add(BATCHES, f"range_b{batch}", problems_named(f"[16,256]x{batch}"), "fp32", PLANNERS)


def _threads(writer: Writer, device: DeviceSpec) -> None:
    tiles = {f"{tile.name}/{tile.threads}": Uniform(tile.key) for tile in catalogue_for("float32", device)
             if tile.kernel.endswith(("_light", "_heavy"))}  # fmt: skip
    writer.add(THREADS, "large_b64", LARGE, "fp32", tiles | {"large/128": Uniform(("large", 128))})


def _skinny(writer: Writer, device: DeviceSpec) -> None:
    for name in expand(["ism2*", "tsm2*"]):
        problems = problems_named(name)
        for precision in ("fp32", "fp64", "tf32"):
            own = {name: PLANNERS[name] for name in ("tall_skinny", "auto")}
            own |= _skinny_tiles(precision, device.name, problems[0].n) if precision != "tf32" else {}
            writer.add(SKINNY, name, problems, precision, own)


def _columns(writer: Writer, device: DeviceSpec) -> None:
    for s in COLUMN_SIZES:
        for n in (2, 4, 8, 16):
            name = f"one_{s}x{n}x{s}_tn"
            for precision in ("fp32", "fp64"):
                own = {name: PLANNERS[name] for name in ("tall_skinny", "auto")}
                own |= _skinny_tiles(precision, device.name, n)
                writer.add(COLUMNS, name, problems_named(name), precision, own)


def _li(writer: Writer, _: DeviceSpec) -> None:
    steps = {name: READINGS[name] for name in LI_STEPS}
    for size in track(LI_SIZES, "Li's grid", console=console):
        for k in LI_K:
            for batch in LI_BATCHES:
                problems = (Problem(size, size, k),) * batch
                writer.add(LI, f"li_mn{size}_k{k}_b{batch}", problems, "fp32", {**PLANNERS, **steps})


def _every_batch(writer: Writer, _: DeviceSpec) -> None:
    stems = dict.fromkeys(name.rpartition("_b")[0] for name in expand(["grids"]))
    for stem in track(stems, "Zhang's batches", console=console):
        for batch in ZHANG_BATCHES:
            name = f"{stem}_b{batch}"
            writer.add(EVERY_BATCH, name, problems_named(name), "fp32", planners.COMPARED)


def _occupancy(writer: Writer, _: DeviceSpec) -> None:
    for name in PROFILED:
        own = {planner: PLANNERS[planner] for planner in ("auto", "uniform", *PAPERS)}
        writer.add(OCCUPANCY, name, problems_named(name), "fp32", own)


def _forest(writer: Writer, _: DeviceSpec) -> None:
    both: dict[str, Planner] = {each: Coordinated(batching=each) for each in batching_forest.HEURISTICS}
    for index in track(range(batching_forest.SAMPLES), "batching", console=console):
        writer.add(batching_forest.PART, batching_forest.workload(index), batching_forest.sample(index), "fp32", both)


# The experiments by name, and which of their workloads cuBLAS computes as well.
PARTS: Mapping[str, Callable[[Writer, DeviceSpec], None]] = {
    "planners": _planners, READ: _readings, BRANCHES: _branches, BATCHES: _batches, THREADS: _threads, SKINNY: _skinny,
    COLUMNS: _columns, LI: _li, EVERY_BATCH: _every_batch, OCCUPANCY: _occupancy, "forest": _forest,
}  # fmt: skip
FOR_CUBLAS = (BRANCHES, BATCHES, LI, EVERY_BATCH, OCCUPANCY)


@app.command()
def cases(
    output: Path,
    device_name: Device = "h100",
    part: Annotated[list[str] | None, typer.Option(help="only these experiments", callback=one_of(PARTS))] = None,
) -> None:
    """Writes the plans for gpu_driver, the list of them, and the sizes for cublas_batches."""
    device = device_spec(device_name)
    with Writer(output, device_name, repeats=3) as writer:
        for name in part or PARTS:
            PARTS[name](writer, device)
    with output.with_suffix(".sizes").open("w") as sizes:
        for (of_part, workload), problems in writer.problems.items():
            if of_part in FOR_CUBLAS:
                sizes.writelines(f"{workload} {p.m} {p.n} {p.k}\n" for p in problems)
    console.print(f"{output}: {writer.cases} cases, {output.stat().st_size / 1e6:.1f} MB; {list_of(output)}")


@app.command()
def page(
    plans: Annotated[Path, typer.Option(help="the list that `cases` wrote")] = RESULTS / "h100_experiments.plans.csv",
    measured: Annotated[Path, typer.Option(help="the driver's CSV of them")] = RESULTS / "h100_experiments.csv",
    peers: Annotated[Path, typer.Option(help="CSV of the peers on the same workloads")] = planners.PEERS,
    later: Annotated[
        str, typer.Option(help="what the files of the experiments that were measured later begin with")
    ] = str(RESULTS / "h200_papers"),
    output: Annotated[Path, typer.Option(help="the page; plots go into a folder of its name")] = PAGE,
    device_name: Device = "h100",
) -> None:
    """Writes the page and its plots. Plans that were not measured yet are shown with their predicted times; in the
    tables of experiments that were measured later, cells without figures say so."""
    times = Measured([measured] if measured.exists() else [])
    data = experiments_data.Data(list(read_csv(Candidate, plans)), times, peers, device_spec(device_name))
    for file in experiments_page.write(data, experiments_batches.read(later), output):
        console.print(f"{file}: {file.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    app()
