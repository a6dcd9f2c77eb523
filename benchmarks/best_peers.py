"""This package's kernels beside the fastest other kernel for each list, in turns on one GPU.

\b
  best_peers.py cases TURNS grids held_out --device h200              anywhere: plans and lists, a file for each turn
  best_peers.py run TURNS ROWS.csv --driver DRIVER --peers PEERS      on the GPU, appends rows
  best_peers.py table ROWS.csv... [--csv MEDIANS.csv]                 summary and the worst lists

DRIVER is gpu_driver.cu and PEERS cutlass_grouped.cu, compiled as their heads say: both time by one protocol
(tests/native/gpu_driver/protocol.h) on the same numbers. The best peer is an oracle, chosen for each list afterwards.
A time is the median of the rounds.
"""

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated

import typer

import cases as case_files
from figures import batch_of, family_of
from options import Device, Precisions, Workloads, commands
from workloads import Row, problems_named, read_csv, write_csv

app = commands(__doc__)

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


@app.command()
def cases(
    folder: Path,
    workloads: Workloads,
    precision: Precisions = ["bf16", "tf32"],
    device: Device = "h200",
    lists: Annotated[int, typer.Option(help="in a turn")] = 72,
) -> None:
    """Writes plans (TURN.case) and sizes (TURN.sizes) of each turn; the turn's name ends with the precision."""
    folder.mkdir(parents=True, exist_ok=True)
    for which in precision:
        for first in range(0, len(workloads), lists):
            names = workloads[first : first + lists]
            turn = folder / f"{first // lists:02}_{which}"
            case_files.write(turn.with_suffix(".case"), names, ["auto"], [], [which], device)
            sizes = [f"{name} {p.m} {p.n} {p.k}\n" for name in names for p in problems_named(name)]
            turn.with_suffix(".sizes").write_text("".join(sizes))


@app.command()
def run(
    folder: Path,
    csv: Path,
    driver: Annotated[Path, typer.Option()] = Path("build/gpu_driver"),
    peers: Annotated[Path, typer.Option()] = Path("build/cutlass_grouped"),
    rounds: int = 3,
    samples: Annotated[int, typer.Option(help="graphs of a measurement")] = 20,
    budget: Annotated[float, typer.Option(help="seconds after which no turn begins")] = float("inf"),
) -> None:
    """Times ours and the peers in turns."""
    begin = time.monotonic()
    common = ["--samples", str(samples)]
    for _ in range(rounds):
        for turn in sorted(folder.glob("*.case")):
            precision = turn.stem.rpartition("_")[2]
            ours = [driver, "--cases", turn, "--csv", csv, *common]
            theirs = [peers, turn.with_suffix(".sizes"), csv, "--precision", precision, "--no-stream", *common]
            if time.monotonic() - begin > budget:
                return
            for command in (ours, theirs):
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
                if done.returncode:  # wrong results are in the rows, too
                    typer.echo(f"{turn.stem}: {command[0]}: {done.stderr[-300:] or f'returned {done.returncode}'}")


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


def seed_of(workload: str) -> str:
    return " new" if "_s" in workload else ""


@app.command()
def table(
    files: list[Path],
    worst: int = 15,
    csv: Annotated[Path | None, typer.Option(help="medians of the rounds are appended")] = None,
) -> None:
    """Prints a line for each family, precision and batch, and the worst lists."""
    rows = medians(row for file in files for row in read_csv(Row, file))
    if csv:
        write_csv(csv, rows)
    cells = cells_of(rows)
    groups: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[family_of(cell.workload) + seed_of(cell.workload), cell.precision, batch_of(cell.workload) or 0].append(
            cell
        )
    typer.echo("best peer / ours: geomean, min, lists below 1; share of the limit: ours, best peer (geomeans)")
    for (family, precision, batch), group in sorted(groups.items()):
        gains, shares = [cell.gain for cell in group], [cell.share for cell in group]
        theirs = geometric_mean(cell.share / cell.gain for cell in group)
        slower = sum(gain < 1 for gain in gains)
        mean = geometric_mean(gains)
        typer.echo(
            f"{family:<8} {precision} b{batch:<4} {mean:5.2f} {min(gains):5.2f} {slower:3}/{len(gains)}"
            f"   {geometric_mean(shares):4.0%} {theirs:4.0%}"
        )
    for cell in sorted(cells, key=lambda cell: cell.gain)[:worst]:
        typer.echo(str(cell))
    wrong = sorted({row.peer for row in rows if row.nbad})
    typer.echo(f"{len(cells)} lists, {len(rows)} rows; wrong results: {', '.join(wrong) or 'none'}")


if __name__ == "__main__":
    app()
