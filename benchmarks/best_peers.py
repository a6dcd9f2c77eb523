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
from pathlib import Path
from typing import Annotated

import typer

import cases as case_files
from options import Device, Precisions, Workloads, commands
from peer_gains import cells_of, grouped, medians
from workloads import Row, problems_named, read_csv, write_csv

app = commands(__doc__)


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
    typer.echo("best peer / ours: geomean, min, lists below 1; share of the limit: ours, best peer (geomeans)")
    for (family, new, precision, batch), group in grouped(cells).items():
        typer.echo(
            f"{family + ' new' * new:<8} {precision} b{batch:<4} {group.gain:5.2f} {group.least:5.2f}"
            f" {group.slower:3}/{len(group.cells)}   {group.share:4.0%} {group.peers_share:4.0%}"
        )
    for cell in sorted(cells, key=lambda cell: cell.gain)[:worst]:
        typer.echo(str(cell))
    wrong = sorted({row.peer for row in rows if row.nbad})
    peers = defaultdict(set)
    for row in rows:
        peers[row.workload, row.precision].add(row.peer)
    counts = [len(names) - 1 for names in peers.values()]  # fewer where a program failed
    typer.echo(f"{min(counts, default=0)} to {max(counts, default=0)} peers a list")
    typer.echo(f"{len(cells)} lists, {len(rows)} rows; wrong results: {', '.join(wrong) or 'none'}")


if __name__ == "__main__":
    app()
