"""The section of docs/experiments.md on the threads of a tile (Zhang et al. 2025, Fig. 3)."""

from experiments_data import Data
from report import table


def section(data: Data) -> list[str]:
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
        "TFLOP/s of 64 products of 512 x 512 x 512, for each tile with 128 and with 256 threads (the paper has "
        "64, 128, 256 and 512; kernels of 64 and 512 threads are not built). The paper finds that rates rise and "
        f"then fall as a thread's part of a tile grows, and that more threads suit larger tiles; here {fewer} of "
        f"{len(both)} tiles that have both are faster with 128:",
        "",
        *table(("tile", "128 threads", "256 threads"), ((s, cell(s, 128), cell(s, 256)) for s in shapes)),
        "",
        "![Threads and tiles](experiments/threads.svg)",
    ]
