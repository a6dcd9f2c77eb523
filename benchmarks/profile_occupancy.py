"""The occupancy of kernels by Nsight Compute (Zhang et al. 2025, Fig. 6): of plans, and of cuBLAS on the same batches.

    profile_occupancy.py CASES OUTPUT.csv --driver GPU_DRIVER [--cublas-batches PROGRAM [--cublas LIBRARY]] [--lists X]

CASES is what `experiments.py cases` wrote, and X.plans.csv and X.sizes are its lists; by default they lie beside it.
Runs ncu once for each plan of the part "occupancy", and once for each of its batches by cuBLAS. Needs a GPU whose
counters ncu may read, and nothing outside of the standard library.
"""

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

PART = "occupancy"
CUBLAS = "cuBLAS loop"
TIMEOUT = 120  # seconds that one run of ncu may take
METRICS = {
    "launch__block_size": "threads",
    "launch__registers_per_thread": "registers",
    "gpu__time_duration.sum": "ns",
    "sm__maximum_warps_per_active_cycle_pct": "theoretical",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved",
}


@dataclass(frozen=True)
class Profiled:
    """The launches of a kernel with one grid in one call of a batch."""

    workload: str
    peer: str  # a planner, or CUBLAS
    kernel: str
    launches: int
    threads: int  # of a block
    registers: int  # of a thread
    us: float  # of all launches
    theoretical: float  # the fraction of a multiprocessor's warps that can be active
    achieved: float  # the mean fraction that is, weighted by the time of the launches


def launches_in(log: str) -> list[dict[str, str]]:
    """The launches that ncu's CSV lists, in their order: the kernel, its grid, and the metrics under our names."""
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID"')]
    found: dict[str, dict[str, str]] = {}
    for row in csv.DictReader(lines[starts[0] :] if starts else ()):
        launch = found.setdefault(row["ID"], {"kernel": row["Kernel Name"], "grid": row["Grid Size"]})
        if row["Metric Name"] in METRICS:
            launch[METRICS[row["Metric Name"]]] = row["Metric Value"].replace(",", "")
    return list(found.values())


def rows_of(workload: str, peer: str, launches: Sequence[dict[str, str]], one_call: bool) -> list[Profiled]:
    """Rows of a batch. `one_call`: the launches are those of one call; otherwise calls repeat the same launches, of
    which those with equal kernel and grid count as one."""
    by_kind: dict[tuple[str, str], list[dict[str, str]]] = {}
    for launch in launches:
        by_kind.setdefault((launch["kernel"], launch["grid"]), []).append(launch)
    rows = []
    for (kernel, _), same in by_kind.items():
        times = [1e-3 * float(launch["ns"]) for launch in same]
        total = sum(times)

        def mean(name: str, same: list[dict[str, str]] = same, times: list[float] = times) -> float:
            return sum(t * float(launch[name]) / 100 for t, launch in zip(times, same, strict=True)) / sum(times)

        count = len(same) if one_call else 1
        threads, registers = (int(float(same[0][name])) for name in ("threads", "registers"))
        us = total if one_call else total / len(same)
        name, templated, _ = kernel.removeprefix("void ").partition(">(")  # without the parameters
        name = name + ">" if templated else name.partition("(")[0]
        rows.append(
            Profiled(workload, peer, name, count, threads, registers, us, mean("theoretical"), mean("achieved"))
        )
    return rows


def profile(program: Sequence[str], options: Sequence[str]) -> list[dict[str, str]]:
    """The launches of a program that ncu profiles with some options."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--log-file", str(log)]
        command += ["--metrics", ",".join(METRICS), *options, *program]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        text = log.read_text() if log.exists() else ""
    launches = launches_in(text)
    if not launches:
        sys.exit(f"ncu profiled no kernel of {program[0]}:\n{(text + result.stdout + result.stderr)[-2000:]}")
    return launches


def of_plan(driver: str, cases: Path, workload: str, plan: str) -> list[dict[str, str]]:
    # A plan has up to four kernels, and the driver repeats its calls: eight launches have all of them.
    options = ["--kernel-name", "regex:^vbgemm_[ta]", "--launch-count", "8"]
    return profile([driver, "--cases", str(cases), "--filter", f"{plan} {workload}"], options)


def of_cublas(program: Sequence[str], workload: str, sizes: Iterable[str]) -> list[dict[str, str]]:
    """The launches of cuBLAS in the first call of cublas_batches, whose first kernel fills the operands, and which
    checks the results after that call. cuBLAS launches at most two kernels a product."""
    mine = [line for line in sizes if line.split()[0] == workload]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sizes"
        file.write_text("\n".join(mine) + "\n")
        first, *library = program
        command = [first, str(file), str(Path(folder) / "times.csv"), *library]
        launches = profile(command, ["--launch-skip", "1", "--launch-count", str(2 * len(mine))])
    ends = [i for i, launch in enumerate(launches) if "count_wrong" in launch["kernel"]]
    return launches[: ends[0]] if ends else launches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--cublas-batches")
    parser.add_argument("--cublas")
    parser.add_argument("--lists", type=Path)
    given = parser.parse_args()
    if not shutil.which("ncu"):
        sys.exit("occupancy: there is no ncu (Nsight Compute)")
    lists = given.lists or given.cases.with_suffix("")
    with Path(f"{lists}.plans.csv").open(newline="") as lines:
        plans = [row for row in csv.DictReader(lines) if row["part"] == PART]
    if not plans:
        sys.exit(f"{given.cases} has no part {PART!r}: experiments.py cases --part {PART}")
    rows: list[Profiled] = []
    known: dict[tuple[str, str], list[dict[str, str]]] = {}  # several planners may make one plan
    for row in plans:
        key = row["workload"], row["plan"]
        if key not in known:
            known[key] = of_plan(given.driver, given.cases, *key)
        rows += rows_of(row["workload"], row["planner"], known[key], one_call=False)
    if given.cublas_batches:
        program = [given.cublas_batches, *(["--cublas", given.cublas] if given.cublas else [])]
        sizes = Path(f"{lists}.sizes").read_text().splitlines()
        for workload in dict.fromkeys(row["workload"] for row in plans):
            rows += rows_of(workload, CUBLAS, of_cublas(program, workload, sizes), one_call=True)
    with given.output.open("w", newline="") as out:
        writer = csv.DictWriter(out, [field.name for field in fields(Profiled)], lineterminator="\n")
        writer.writeheader()
        for each in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(each).items()})
    print(f"profile_occupancy: {len(rows)} kernels")


if __name__ == "__main__":
    main()
