"""The benchmark: workloads by name, results checked against float64, a table, CSV in the format of the peers' figures.

\b
  bench.py loop "[16,128]x64" --peer vbgemm --peer xla_loop    inside one jitted loop, on JAX's default backend
  bench.py kernel grids --precision fp32 --precision fp64      the kernel alone, by CUDA-graph replay (needs gpu_driver)
  bench.py ragged cpu --direction forward_backward             group sizes as data, beside lax.ragged_dot and others
  bench.py cases all.case grids --tile all                     only writes the plans that gpu_driver times

A workload is "[low,high]xbatch", a file in workloads/ ("inception_1", "ism2_*"), its first lines
("any_mn128_k128_b64"), "grids": the any and pow2 files at batch 16, 64 and 256, or another name of workloads.py.
"""

import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import cases as case_files
import dynamic
import in_loop
from options import Device, Planners, Precisions, Workloads, checked, commands, one_of
from workloads import Row, read_csv, write_csv

app = commands(__doc__)
console = Console()

Peers = Annotated[
    list[str], typer.Option("--peer", help=f"any of {', '.join(in_loop.PEERS)}", callback=one_of(in_loop.PEERS))
]
Csv = Annotated[Path | None, typer.Option(help="rows are appended")]
Tiles = Annotated[list[str], typer.Option("--tile", help="uniform plans: NAME,THREADS, or 'all'")]


def show(rows: list[Row], csv: Path | None) -> None:
    """Prints a line for each workload and precision, with a column for each peer."""
    if csv:
        write_csv(csv, rows)
    peers = list(dict.fromkeys(row.peer for row in rows))
    table = Table(title="us a batch")
    for column in ("workload", "precision", "products", "GFLOP", *peers, "GFLOP/s of the first", "its error"):
        table.add_column(column, justify="right")
    lines: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        lines[row.workload, row.precision][row.peer] = row
    for (name, precision), line in lines.items():
        first = line[peers[0]] if peers[0] in line else next(iter(line.values()))
        rate = first.gflop / first.graph_us * 1e6
        times = [f"{line[p].graph_us:.1f}" + (" WRONG" if line[p].nbad else "") if p in line else "-" for p in peers]
        table.add_row(
            name, precision, str(first.nprob), f"{first.gflop:.3f}", *times, f"{rate:.0f}",
            f"{first.max_rel_err:.0e}",
        )  # fmt: skip
    console.print(table)


@app.command()
def loop(
    workloads: Workloads,
    peers: Peers = ["vbgemm", "xla_loop"],
    precision: Precisions = ["fp32"],
    rounds: int = 15,
    csv: Csv = None,
) -> None:
    """Times products inside one jitted loop, in interleaved rounds."""
    rows = []
    work = [(name, which) for which in precision for name in workloads]
    for name, which in track(work, "workloads", console=console):
        rows += in_loop.measure(name, which, peers, rounds)
    show(rows, csv)


@app.command()
def ragged(
    workloads: Annotated[
        list[str],
        typer.Argument(
            help=f"ROWSxGROUPSxKxN, lora_ROWSxDxGROUPS, {', '.join(dynamic.LISTS)}", callback=checked(dynamic.expand)
        ),
    ],
    peers: Annotated[
        list[str], typer.Option("--peer", help=f"any of {', '.join(dynamic.PEERS)}", callback=one_of(dynamic.PEERS))
    ] = ["vbgemm", "lax_ragged_dot", "static_loop", "tokamax"],
    direction: Annotated[
        list[str], typer.Option(help=f"any of {', '.join(dynamic.DIRECTIONS)}", callback=one_of(dynamic.DIRECTIONS))
    ] = ["forward", "forward_backward"],
    skew: Annotated[
        list[str], typer.Option(help=f"any of {', '.join(dynamic.SKEWS)}", callback=one_of(dynamic.SKEWS))
    ] = ["uniform"],
    precision: Precisions = ["fp32"],
    rounds: int = 15,
    csv: Csv = None,
) -> None:
    """Times ragged products (rows in groups of runtime sizes) inside one jitted loop, in interleaved rounds."""
    rows, missing = [], []
    work = [(name, which, s, d) for which in precision for name in workloads for s in skew for d in direction]
    for name, which, s, d in track(work, "workloads", console=console):
        found, absent = dynamic.measure(name, which, s, d, peers, rounds)
        rows += found
        missing += absent
    show(rows, csv)
    for line in dict.fromkeys(missing):
        console.print(line, markup=False)


@app.command()
def cases(
    output: Path, workloads: Workloads, planner: Planners = ["auto"], tile: Tiles = [],
    precision: Precisions = ["fp32"],
    device: Device = "h100",
) -> None:  # fmt: skip
    """Writes plans for gpu_driver; runs anywhere."""
    count = case_files.write(output, workloads, planner, tile, precision, device)
    console.print(f"{output}: {count} cases, {output.stat().st_size / 1e6:.1f} MB")


@app.command()
def kernel(
    workloads: Workloads,
    driver: Annotated[Path, typer.Option(help="gpu_driver.cu, compiled as its head says")] = Path("build/gpu_driver"),
    planner: Planners = ["auto"], tile: Tiles = [], precision: Precisions = ["fp32"],
    device: Device = "h100",
    hot: Annotated[bool, typer.Option(help="operands in the L2 cache; default: cold")] = False,
    csv: Csv = None,
) -> None:  # fmt: skip
    """Times the kernel alone, by CUDA-graph replay on this machine's GPU."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in track(workloads, "workloads", console=console):
            file, result = Path(folder) / "case", Path(folder) / f"{name}.csv"
            case_files.write(file, [name], planner, tile, precision, device)
            command = [str(driver), "--cases", str(file), "--csv", str(result), *(["--hot"] if hot else [])]
            done = subprocess.run(command, capture_output=True, text=True)
            if not result.exists():
                raise typer.BadParameter(f"{driver} failed: {done.stderr or done.stdout}")
            rows += read_csv(Row, result)
    show(rows, csv)


if __name__ == "__main__":
    app()
