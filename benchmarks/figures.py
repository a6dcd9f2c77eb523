"""The data of a report on the kernel alone: times of this package and its peers, and the limit of each workload."""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, median

from workloads import Row, read_csv

OURS, LOOP = "vbgemm_auto", "cuBLAS loop"
FAMILIES = ("any", "pow2", "inception", "moe")
GRIDS = ("any", "pow2")
PRECISIONS = {
    "fp64": "float64",
    "fp32": "float32 without tensor cores",
    "3xtf32": "float32 as three TF32",
    "tf32": "TF32",
    "bf16": "bfloat16",
}

# Prefixes of the peers' names. Of several configurations of a peer, the fastest one counts for each workload.
PEERS = {
    "cublas_loop": LOOP,
    "torch_mm_loop": "torch.mm loop",
    "cublas_8streams": "cuBLAS, 8 streams",
    "cublas_grouped": "cuBLAS grouped",
    "magma_vbatched": "MAGMA vbatched",
    "torch_padded_bmm_withpad": "torch.bmm, padding",
    "torch_padded_bmm": "torch.bmm, padded before",
    "torch_grouped_mm": "torch._grouped_mm",
    "triton_grouped": "Triton grouped",
    "cutlass": "CUTLASS grouped",
    "li19": "Li 2019",
    "zhang25": "Zhang 2025, mended",  # the released code computes some results wrong; wrong results don't count
}

Case = tuple[str, str]  # (workload, precision)
Times = Mapping[Case, float]  # microseconds


@dataclass(frozen=True)
class Best:
    """The fastest correct peer of a workload, and the lower bound of any kernel's time (benchmarks/results/peers)."""

    us: float
    peer: str
    limit: float

    @classmethod
    def read(cls, file: Path) -> dict[Case, "Best"]:
        with file.open(newline="") as lines:
            return {
                (row["workload"], row["precision"]): cls(
                    float(row["best_graph_us"]), row["best_peer"], float(row["limit_us"])
                )
                for row in csv.DictReader(lines)
            }


def family_of(workload: str) -> str:
    return workload.split("_")[0]


def batch_of(workload: str) -> int | None:
    """64 of "any_mn128_k128_b64"; None of a workload that is a whole file."""
    found = re.search(r"_b(\d+)$", workload)
    return int(found[1]) if found else None


def title_of(peer: str) -> str:
    """The displayed name of a peer: that of the longest matching prefix in PEERS, or else its own name."""
    starts = [start for start in PEERS if peer.startswith(start)]
    return PEERS[max(starts, key=len)] if starts else peer


def cold(rows: Iterable[Row]) -> list[Row]:
    """The rows that the page shows: correct results, operands from memory, graph replay."""
    kept = (row for row in rows if row.cache == "cold" and row.nbad == 0 and row.group in FAMILIES)
    return [row for row in kept if row.graph_us > 0]


def fastest(rows: Iterable[Row]) -> dict[Case, float]:
    times: dict[Case, float] = {}
    for row in rows:
        case = row.workload, row.precision
        times[case] = min(row.graph_us, times.get(case, math.inf))
    return times


def by_title(rows: Iterable[Row]) -> dict[str, dict[Case, float]]:
    """Each peer's times, by its displayed name, in the order of PEERS."""
    of: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of[title_of(row.peer)].append(row)
    order = list(PEERS.values())
    titles = sorted(of, key=lambda title: order.index(title) if title in order else len(order))
    return {title: fastest(of[title]) for title in titles}


def gains(ours: Times, theirs: Times) -> dict[tuple[str, str], list[float]]:
    """By (family, precision), the speedup of `ours` over `theirs` on each workload that both have."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (workload, precision), us in ours.items():
        if (workload, precision) in theirs:
            found[family_of(workload), precision].append(theirs[workload, precision] / us)
    return dict(found)


def shares(times: Times, best: Mapping[Case, Best]) -> dict[tuple[str, str, int | None], float]:
    """Geometric mean of limit / time by (family, precision, batch)."""
    found: dict[tuple[str, str, int | None], list[float]] = defaultdict(list)
    for (workload, precision), us in times.items():
        if (workload, precision) in best:
            key = family_of(workload), precision, batch_of(workload)
            found[key].append(best[workload, precision].limit / us)
    return {key: geometric_mean(values) for key, values in found.items()}


@dataclass(frozen=True)
class Results:
    """All data of the page."""

    ours: Times
    peers: Mapping[str, Times]  # by title; those measured beside us in place of those of the peers' file
    best: Mapping[Case, Best]
    machines: Mapping[str, float]  # cuBLAS loop: time in the peers' file over time beside us, by precision
    sources: Sequence[Mapping[str, str]]

    @cached_property
    def precisions(self) -> list[str]:
        here = {precision for _, precision in self.ours}
        return [precision for precision in PRECISIONS if precision in here]

    @cached_property
    def best_times(self) -> Times:
        """The times of the best peer, on the workloads of this package."""
        return {case: self.best[case].us for case in self.ours if case in self.best}

    @classmethod
    def read(cls, ours: Path, peers: Path, best: Path, sources: Path) -> "Results":
        rows = list(read_csv(Row, ours))
        wrong = [f"{row.workload} {row.precision}" for row in rows if row.peer == OURS and row.nbad]
        if wrong:
            raise ValueError(f"{ours}: wrong results of {OURS} on {', '.join(wrong)}")
        runs: dict[Case, list[float]] = defaultdict(list)
        for row in cold(rows):
            if row.peer == OURS:
                runs[row.workload, row.precision].append(row.graph_us)
        if not runs:
            raise ValueError(f"{ours} has no row of {OURS} with cache = cold")
        beside = by_title(row for row in cold(rows) if not row.peer.startswith("vbgemm"))
        theirs = by_title(cold(read_csv(Row, peers)))
        machines: dict[str, list[float]] = defaultdict(list)
        for case, us in beside.get(LOOP, {}).items():
            if case in theirs.get(LOOP, {}):
                machines[case[1]].append(theirs[LOOP][case] / us)
        return cls(
            {case: median(values) for case, values in runs.items()},
            {title: {**theirs.get(title, {}), **beside.get(title, {})} for title in {**theirs, **beside}},
            Best.read(best),
            {precision: geometric_mean(ratios) for precision, ratios in machines.items()},
            [source_of(file, sources) for file in (ours, peers, best)],
        )


def source_of(file: Path, sources: Path) -> dict[str, str]:
    """The line of sources.csv about a file; ValueError where it has none."""
    with sources.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if (sources.parent / row["file"]).resolve() == file.resolve():
                return row
    raise ValueError(f"{sources} has no line for {file}: add one with device, date and what it holds")
