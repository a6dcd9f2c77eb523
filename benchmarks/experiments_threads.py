"""The section of docs/experiments.md on the threads of a tile (Zhang et al. 2025, Fig. 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments_data import Data
from experiments_tsm2 import NOT_YET
from report import table
from workloads import read_csv

THREADS = (64, 128, 256, 512)


@dataclass(frozen=True)
class ThreadTile:
    """A line of thread_tiles' output: a kernel for one tile."""

    rows: int
    cols: int
    threads: int
    tflops: float
    registers: int  # of a thread
    spilled: int  # bytes of a thread's local memory
    occupancy: float
    nbad: int


def read(file: Path) -> list[ThreadTile]:
    """What was measured; nothing where the file is missing. Raises ValueError for a wrong result."""
    rows = list(read_csv(ThreadTile, file)) if file.exists() else []
    for row in rows:
        if row.nbad:
            raise ValueError(f"{file}: {row.threads} threads computed {row.rows} x {row.cols} tiles wrong")
    return rows


def section(data: Data, own: Sequence[ThreadTile]) -> list[str]:
    (row,) = data.table("threads").values()
    gflop = 2e-9 * 64 * 512**3
    shapes = list(dict.fromkeys(name.rpartition("/")[0] for name in row))

    def cell(shape: str, threads: int) -> str:
        us = row.get(f"{shape}/{threads}")
        return "-" if us is None else f"{1e3 * gflop / us:.1f}"

    both = [shape for shape in shapes if f"{shape}/128" in row and f"{shape}/256" in row]
    fewer = sum(row[f"{shape}/128"] < row[f"{shape}/256"] for shape in both)
    return [
        "## Threads and tiles (Zhang 2025, Fig. 3)",
        "",
        "TFLOP/s of 64 products of 512 x 512 x 512, for each tile with 128 and with 256 threads. The paper finds that "
        "rates rise and then fall as a thread's part of a tile grows, and that more threads suit larger tiles; here "
        f"{fewer} of {len(both)} tiles that have both are faster with 128:",
        "",
        *table(("", *shapes), [(f"{count} threads", *(cell(s, count) for s in shapes)) for count in (128, 256)]),
        "",
        "![Threads and tiles](experiments/threads.svg)",
        "",
        *every_pair(own),
    ]


def every_pair(own: Sequence[ThreadTile]) -> list[str]:
    of = {(tile.rows, tile.cols, tile.threads): tile for tile in own}
    shapes = list(dict.fromkeys((tile.rows, tile.cols) for tile in own))
    fastest = {shape: max((tile for tile in own if (tile.rows, tile.cols) == shape), key=_rate) for shape in shapes}

    def cell(shape: tuple[int, int], threads: int) -> str:
        tile = of[*shape, threads]
        rate = f"**{tile.tflops:.1f}**" if tile is fastest[shape] else f"{tile.tflops:.1f}"
        return f"{rate} ({tile.occupancy:.0%}{', spills' if tile.spilled else ''})"

    body = [(f"{count} threads", *([cell(shape, count) for shape in shapes] or [NOT_YET])) for count in THREADS]
    return [
        "### 64 to 512 threads, nine tiles",
        "",
        "The package has no kernels of 64 and 512 threads. `benchmarks/thread_tiles.cu` has a kernel for every pair of "
        "tile and threads, with K steps of 16 (Table 3) and otherwise as in the authors' released kernels: two stages "
        "in shared memory, and loads that only other thread blocks hide. The text of the paper names 8 x 8, 32 x 32, "
        "32 x 64 and 64 x 64 of its nine tiles; ours double from 8 x 8 to 128 x 128. The same products on an H200, "
        "TFLOP/s, with the occupancy in brackets and the fastest kernel of each tile in bold. In the paper 128 threads "
        "are the fastest for 32 x 32, and 256 are taken for 32 x 64 and 64 x 64:",
        "",
        *table(("", *([f"{rows} x {cols}" for rows, cols in shapes] or ["all tiles"])), body),
    ]


def _rate(tile: ThreadTile) -> float:
    return tile.tflops
