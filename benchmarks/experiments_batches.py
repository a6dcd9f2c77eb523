"""Sections of docs/experiments.md on batches: Li's own grid, Zhang's batches and latencies beside cuBLAS, and tall
products of a column-major A. They were measured later than the rest, on another device, together with cuBLAS there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from candidates import Candidate, Measured, Table, ratios, tabulate
from experiments_threads import ThreadTile
from experiments_threads import read as read_threads
from experiments_tsm2 import NOT_YET, Timed, fastest_of
from experiments_tsm2 import read as read_tsm2
from figures import batch_of, by_title
from profile_occupancy import PART as OCCUPANCY
from profile_occupancy import Profiled
from report import table
from workloads import Row, read_csv

# The parts of experiments.py's plans that these sections show.
LI, EVERY_BATCH, BATCHES, COLUMNS = "li", "every_batch", "batches", "columns"
ONE_KERNEL = "one_kernel"  # of one_kernel.py, whose plans another driver times

LOOP, STREAMS = "cuBLAS loop", "cuBLAS, 8 streams"
PAPERS = ("coordinated", "sort_split", "load_balanced")


@dataclass(frozen=True)
class Later:
    """Our plans' times and cuBLAS's on one device; all are empty where they have not been measured."""

    plans: Sequence[Candidate]
    times: Measured
    cublas: Mapping[str, Mapping[tuple[str, str], float]]  # title -> (workload, precision) -> microseconds
    tsm2: Sequence[Timed]
    modules: Mapping[str, Mapping[str, float]]  # GoogLeNet's modules: name -> implementation -> microseconds
    threads: Sequence[ThreadTile]
    occupancy: Sequence[Profiled]

    def table(self, *parts: str, precision: str = "fp32") -> Table:
        """Workload -> planner, or cuBLAS, -> microseconds."""
        mine = [plan for plan in self.plans if plan.part in parts and plan.precision == precision]
        found = tabulate(mine, self.times)
        for title, times in self.cublas.items():
            for workload, row in found.items():
                if (workload, precision) in times:
                    row[title] = times[workload, precision]
        return found


def read(start: str) -> Later:
    """The files whose paths begin with `start`: lists of plans and the drivers' CSVs, of most plans and of those in one
    kernel, cublas_batches', tsm2_ablation's, thread_tiles', profile_occupancy's, and flax_layers' of modules. Raises
    ValueError for a wrong result."""
    plans, times = ([Path(f"{start}{of}{end}.csv") for of in ("", "_one_kernel")] for end in (".plans", ""))
    ends = ("cublas", "tsm2", "threads", OCCUPANCY, "modules")
    cublas, tsm2, threads, occupancy, layers = (Path(f"{start}_{end}.csv") for end in ends)
    modules: dict[str, dict[str, float]] = {}
    for row in read_csv(Row, layers) if layers.exists() else ():
        modules.setdefault(row.workload.split("_")[1], {})[row.peer] = row.graph_us
    rows = list(read_csv(Row, cublas)) if cublas.exists() else []
    for row in rows:
        if row.nbad:
            raise ValueError(f"{cublas}: wrong results of {row.peer} on {row.workload}")
    return Later(
        [plan for file in plans if file.exists() for plan in read_csv(Candidate, file)],
        Measured(file for file in times if file.exists()),
        by_title(rows),
        read_tsm2(tsm2),
        modules,
        read_threads(threads),
        list(read_csv(Profiled, occupancy)) if occupancy.exists() else [],
    )


def _mean(values: Sequence[float], count: bool = False) -> str:
    if not values:
        return NOT_YET
    return f"{geometric_mean(values):.2f}x" + (f" ({len(values)})" if count else "")


def _by(grid: Table, word: str, key: Callable[[str], int | None] = batch_of) -> dict[str, Table]:
    """The table's workloads by a number in their names, which `word` is about."""
    found: dict[int, Table] = {}
    for name, row in grid.items():
        found.setdefault(key(name) or 0, {})[name] = row
    return {f"{word} {number}": part for number, part in sorted(found.items())}


def _ratios(whole: Table, parts: Mapping[str, Table], rows: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """For each (text, paper, planner, other) the means over all workloads and over each part."""
    return table(
        ("", "paper", "all", *parts),
        [
            (
                text,
                paper,
                _mean(ratios(whole, planner, other), True),
                *(_mean(ratios(p, planner, other)) for p in parts.values()),
            )
            for text, paper, planner, other in rows
        ],
    )


def li_grid(later: Later) -> list[str]:
    grid = later.table(LI)
    parts = {
        **_by(grid, "K", lambda name: int(name.split("_k")[1].split("_")[0])),
        **_by(grid, "batch"),
        **_by(grid, "M = N", lambda name: int(name.split("_mn")[1].split("_")[0])),
    }
    rows = [
        ("tiling and batching over default", "", "coordinated", LOOP),
        ("tiling and batching over streams", "", "coordinated", STREAMS),
        ("batching over tiling alone", "1.17x", "coordinated", "coordinated, tiling alone"),
        ("threshold batching over tiling alone", "", "coordinated, threshold", "coordinated, tiling alone"),
        ("binary batching over tiling alone", "", "coordinated, binary", "coordinated, tiling alone"),
        ("`auto` over tiling and batching", "", "auto", "coordinated"),
    ]
    return [
        "### Li's own grid",
        "",
        "Products of equal sizes, M = N of 128, 256 and 512, batches of 4 to 32, K of 16 to 2048, on an H200. The "
        "baselines are the paper's other two: one product after another (default), and concurrent kernels on streams "
        "(here eight), both by cuBLAS in CUDA graphs. MAGMA has not been run on this grid. The paper's benefit falls as"
        " M, N and batch grow, and is larger for small K; 1.17x is 1.40x over 1.20x.",
        "",
        *_ratios(grid, parts, rows),
    ]


def every_batch(later: Later) -> list[str]:
    grid = later.table(EVERY_BATCH)
    parts = _by(grid, "batch")
    rows = [
        ("load_balanced over coordinated", "1.94x (A800)", "load_balanced", "coordinated"),
        ("load_balanced over sort_split", "1.88x (MI210)", "load_balanced", "sort_split"),
        ("load_balanced over a cuBLAS loop", "7.18x (A800)", "load_balanced", LOOP),
        ("load_balanced over cuBLAS on 8 streams", "", "load_balanced", STREAMS),
        (
            "new TLP over old (Fig. 8, 9)",
            "1.04x to 16, 1.11x from 32 (A800)",
            "load_balanced",
            "load_balanced, old TLP",
        ),
        ("auto over load_balanced", "", "auto", "load_balanced"),
    ]
    return [
        "### Every batch of the paper",
        "",
        "The same grids with all of the paper's batches, today's default options, on an H200. In the paper the "
        "advantage over cuBLAS grows with the batch.",
        "",
        *_ratios(grid, parts, rows),
    ]


def one_kernel(later: Later) -> list[str]:
    grid = later.table(EVERY_BATCH, ONE_KERNEL)
    grid = {name: row for name, row in grid.items() if any(planner.endswith("one kernel") for planner in row)}
    parts = _by(grid, "batch")
    rows = [
        (f"{planner}: a kernel for each class over one kernel", "", planner, f"{planner}, one kernel")
        for planner in ("coordinated", "load_balanced")
    ]
    return [
        "Both were compiled for an experiment (`benchmarks/one_kernel.py`), on an H200; the compiler spills a few "
        "registers of the kernels that hold more tiles:",
        "",
        *_ratios(grid, parts, rows),
    ]


def latencies(later: Later) -> list[str]:
    took = later.table(BATCHES)
    parts = _by(took, "batch")
    rows = [
        ("load_balanced over a cuBLAS loop", "3.02x (A800)", "load_balanced", LOOP),
        ("load_balanced over cuBLAS on 8 streams", "", "load_balanced", STREAMS),
        ("load_balanced over coordinated (the paper: Li)", "1.89x (A800)", "load_balanced", "coordinated"),
        ("load_balanced over sort_split (the paper: Wang)", "1.62x (MI210)", "load_balanced", "sort_split"),
        ("auto over a cuBLAS loop", "", "auto", LOOP),
    ]
    return [
        "The same batches on an H200, beside cuBLAS in CUDA graphs (MAGMA and CUTLASS, 2.59x and 2.45x in the paper, "
        "have not been run on them):",
        "",
        *_ratios(took, parts, rows),
    ]


def columns(later: Later) -> list[str]:
    """Our plans for a column-major A over cuBLAS on the same matrices, which tsm2_ablation times."""
    titles = ("tall_skinny", "auto", "whole rows", "far longer tiles")
    cublas = fastest_of([row for row in later.tsm2 if row.experiment == "versions"], "cuBLAS")
    body = []
    for precision in ("fp32", "fp64"):
        took = later.table(COLUMNS, precision=precision)
        found: dict[str, list[float]] = {title: [] for title in titles}
        for name, row in took.items():
            m, n, k = map(int, name.split("_")[1].split("x"))
            for title in titles:
                if title in row and (precision, m, k, n) in cublas:
                    found[title].append(cublas[precision, m, k, n].us / row[title])
        cells = [
            f"{_mean(found[title], True)}, worst {min(found[title]):.2f}x" if found[title] else NOT_YET
            for title in titles
        ]
        body.append((precision, *cells))
    return [
        "### A column-major, our tiles",
        "",
        "10240 x 10240 and 20480 x 20480 times 2 to 16 columns with A stored column-major, on an H200, over cuBLAS on "
        "the same matrices. In `whole rows` the lanes of a warp read adjacent elements of a column of A (Algorithm 4). "
        "In float32 the next ones are copied to shared memory meanwhile, in float64 there is no prefetch. K is whole "
        "there, as in the paper; `tall_skinny` and `auto` split it.",
        "",
        *table(("", *titles), body),
    ]
