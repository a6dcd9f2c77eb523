"""Plans for gpu_driver to compare on the same workloads, in two files.

A case file for the driver holds each plan once, however many planners make it. A list (CSV) beside it says which
planner made which plan. The driver's CSV uses the plan names of the list, so that reports do not run planners and the
code may change after the measurement.
"""

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import BinaryIO

import cases
from jax_vbgemm._src.planner import Planner, catalogue_for, device_spec, kind_of
from jax_vbgemm._src.problem import Problem
from workloads import PRECISIONS, Row, read_csv, write_csv


@dataclass(frozen=True)
class Candidate:
    """A planner's plan for a workload."""

    part: str  # the part of a benchmark to which it belongs
    workload: str
    precision: str
    planner: str
    plan: str  # its name in the driver's CSV
    planning_us: float
    predicted_us: float
    tlp: int


Key = tuple[str, str, str]  # workload, precision, plan


class Measured:
    """The driver's measurements in microseconds. A plan that was timed several times has several figures."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.times: dict[Key, list[float]] = defaultdict(list)
        self.gflop: dict[str, float] = {}
        for file in files:
            for row in read_csv(Row, file):
                if row.nbad:
                    raise ValueError(f"{file}: wrong results of {row.peer} on {row.workload} {row.precision}")
                self.times[row.workload, row.precision, row.peer].append(row.graph_us)
                self.gflop[row.workload] = row.gflop

    def us(self, candidate: Candidate) -> float | None:
        found = self.times.get((candidate.workload, candidate.precision, candidate.plan))
        return median(found) if found else None


def list_of(output: Path) -> Path:
    """The path of the list that belongs to a case file."""
    return output.with_suffix(".plans.csv")


def planned(
    planner: Planner, problems: Sequence[Problem], kind: str, device: str, repeats: int = 1
) -> tuple[bytes, float, float, int]:
    """The body of the case, the microseconds of planning (the minimum of `repeats`), and figures of the plan."""
    spec, took = device_spec(device), float("inf")
    catalogue = catalogue_for(kind, spec)
    for _ in range(repeats):
        anew = tuple(map(replace, problems))  # new objects, as planners cache the last problems
        begin = time.process_time()  # the CPU time of this process, which plans on one core
        plan = planner(anew, spec, catalogue)
        took = min(took, time.process_time() - begin)
    plan.validate()
    return cases.body_of(problems, plan), 1e6 * took, 1e6 * plan.predicted_seconds, plan.tlp


class Writer:
    """Writes a case file and its list."""

    def __init__(self, output: Path, device: str, repeats: int = 1) -> None:
        self.output, self.device, self.repeats = output, device, repeats
        self.candidates: list[Candidate] = []
        self.cases = 0
        self.problems: dict[tuple[str, str], Sequence[Problem]] = {}  # by part and workload
        self._names: dict[tuple[str, str, str], str] = {}  # by workload, precision and digest of the plan
        self._written: set[Key] = set()

    def __enter__(self) -> "Writer":
        self._file: BinaryIO = self.output.open("wb")
        self._file.write(cases.HEADING)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        list_of(self.output).unlink(missing_ok=True)  # of an older case file
        write_csv(list_of(self.output), self.candidates)

    def add(
        self, part: str, workload: str, problems: Sequence[Problem], precision: str, planners: Mapping[str, Planner],
        only: Collection[str] | None = None, rounds: int = 1, hopeless: float = math.inf,
    ) -> None:  # fmt: skip
        """Adds the plans of `planners` for a workload, or those of them in `only`, to be timed in `rounds` rounds.

        A plan that is predicted to take `hopeless` times as long as the first planner's is left out.
        """
        kind, limit = kind_of(*PRECISIONS[precision], device_spec(self.device)), math.inf
        self.problems[part, workload] = problems
        new = []
        for name, planner in planners.items():
            body, planning, predicted, tlp = planned(planner, problems, kind, self.device, self.repeats)
            if predicted > limit:
                continue
            limit = hopeless * predicted if math.isinf(limit) else limit
            digest = hashlib.sha1(body).hexdigest()[:10]
            # The driver's CSV has no quotes.
            plan = self._names.setdefault((workload, precision, digest), f"{name[:50].replace(', ', '/')}#{digest}")
            if only is None or plan in only:
                if (workload, precision, plan) not in self._written:
                    self._written.add((workload, precision, plan))
                    new.append((plan, body))
                self.candidates.append(Candidate(part, workload, precision, name, plan, planning, predicted, tlp))
        for _ in range(rounds):
            for plan, body in new:
                self._file.write(cases.named(plan, workload, body))
        self.cases += rounds * len(new)


Table = dict[str, dict[str, float]]  # workload -> planner -> microseconds


def tabulate(candidates: Iterable[Candidate], measured: Measured) -> Table:
    """The time of each planner's plan; plans that weren't measured are left out."""
    table: Table = defaultdict(dict)
    for candidate in candidates:
        us = measured.us(candidate)
        if us is not None:
            table[candidate.workload][candidate.planner] = us
    return dict(table)


def ratios(table: Table, planner: str, other: str, workloads: Sequence[str] | None = None) -> list[float]:
    """The speedup of `planner` over `other`, on each workload that has both."""
    rows = table.values() if workloads is None else [table[name] for name in workloads if name in table]
    return [row[other] / row[planner] for row in rows if planner in row and other in row]
