"""This package's time of a list beside the fastest other kernel's: the cells of best_peers.py's tables."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median

from figures import batch_of, family_of
from workloads import Row, problems_named

# The limit: 0.8 us of a launch inside a graph, and the larger one of bytes at an H200's 4.0 TB/s and products at the
# rates of 8192^3 (results/peers/README.md; an H200's tensor cores are those of an H100).
LAUNCH_US, BANDWIDTH = 0.8, 4.0e12
RATES = {"bf16": 688e12, "tf32": 359e12}
BYTES = {"bf16": 2, "tf32": 4}


def limit_us(workload: str, precision: str) -> float:
    problems = problems_named(workload)
    moved = sum(p.m * p.k + p.k * p.n + p.m * p.n for p in problems) * BYTES[precision]
    flops = sum(2 * p.m * p.n * p.k for p in problems)
    return LAUNCH_US + 1e6 * max(moved / BANDWIDTH, flops / RATES[precision])


@dataclass(frozen=True)
class Cell:
    workload: str
    precision: str
    ours: float
    best: float
    peer: str

    @property
    def gain(self) -> float:
        return self.best / self.ours

    @property
    def share(self) -> float:
        """Of the limit's rate."""
        return limit_us(self.workload, self.precision) / self.ours

    def __str__(self) -> str:
        times = f"{self.ours:8.2f} us {self.best:8.2f} by {self.peer:<32}"
        return f"{self.workload:<24} {self.precision} {self.gain:5.2f} {times} limit {self.share:.0%}"


def medians(rows: Iterable[Row]) -> list[Row]:
    """One row for each peer, list and precision: the median time of the rounds, and the largest errors."""
    rounds: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        rounds[row.workload, row.precision, row.peer].append(row)
    return [
        replace(
            of[0],
            graph_us=median(row.graph_us for row in of),
            stream_us=median(row.stream_us for row in of),
            max_rel_err=max(row.max_rel_err for row in of),
            cw_err=max(row.cw_err for row in of),
            nbad=max(row.nbad for row in of),
        )
        for of in rounds.values()
    ]


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    """Each list's time and its best peer's, of medians; ValueError where ours is wrong. A peer's wrong results don't
    count."""
    times: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        ours = row.peer.startswith("vbgemm")
        if ours and row.nbad:
            raise ValueError(f"wrong results of {row.peer} on {row.workload} {row.precision}")
        if not row.nbad:
            times[row.workload, row.precision]["ours" if ours else row.peer] = row.graph_us
    cells = []
    for (workload, precision), of in times.items():
        us = of.pop("ours", None)
        if us and of:
            peer = min(of, key=of.__getitem__)
            cells.append(Cell(workload, precision, us, of[peer], peer))
    return cells


@dataclass(frozen=True)
class Group:
    """The cells of a family, precision and batch."""

    cells: Sequence[Cell]

    @property
    def gain(self) -> float:
        return geometric_mean(cell.gain for cell in self.cells)

    @property
    def least(self) -> float:
        return min(cell.gain for cell in self.cells)

    @property
    def slower(self) -> int:
        """Lists on which a peer is faster."""
        return sum(cell.gain < 1 for cell in self.cells)

    @property
    def share(self) -> float:
        """Of the limit's rate."""
        return geometric_mean(cell.share for cell in self.cells)

    @property
    def peers_share(self) -> float:
        return geometric_mean(cell.share / cell.gain for cell in self.cells)


def grouped(cells: Iterable[Cell]) -> dict[tuple[str, bool, str, int], Group]:
    """By family, whether the list is drawn anew (those of files come first), precision and batch (0: a whole file)."""
    found: dict[tuple[str, bool, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        new = "_s" in cell.workload
        found[family_of(cell.workload), new, cell.precision, batch_of(cell.workload) or 0].append(cell)
    return {key: Group(found[key]) for key in sorted(found)}
