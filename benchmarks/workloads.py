"""The workloads that benchmarks name, and the columns of their results (those of the peers' figures)."""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from jax_vbgemm.shapes import read_problems

FOLDER = Path(__file__).parent / "workloads"
Sizes = list[tuple[int, int, int]]

# The precisions of the peers' figures: dtype, and the matmul precision, which counts for float32 on a GPU.
PRECISIONS = {
    "fp32": ("float32", "highest"),
    "3xtf32": ("float32", "high"),
    "tf32": ("float32", "default"),
    "bf16": ("bfloat16", "default"),
    "fp16": ("float16", "default"),
    "fp64": ("float64", "highest"),
    "c64": ("complex64", "highest"),
    "c128": ("complex128", "highest"),
}


@dataclass
class Row:
    """One measurement; times in microseconds."""

    peer: str
    group: str
    workload: str
    precision: str
    nprob: int
    gflop: float
    cache: str  # "cold": operands from memory; "hot": from the caches
    graph_us: float
    stream_us: float
    max_rel_err: float
    cw_err: float
    nbad: int
    note: str

    @classmethod
    def read(cls, file: Path) -> Iterator["Row"]:
        with file.open(newline="") as lines:
            for line in csv.DictReader(lines):
                yield cls(**{f.name: f.type(line[f.name] or "nan") for f in fields(cls)})  # type: ignore[operator, misc]


def write_rows(file: Path, rows: Iterable[Row]) -> None:
    """Appends; a new file gets a heading."""
    new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.writer(out)
        if new:
            writer.writerow(f.name for f in fields(Row))
        writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in astuple(row)] for row in rows)


def group_of(name: str) -> str:
    return "range" if name.startswith("[") else name.split("_")[0]


def problems_of(name: str) -> Sizes:
    """M, N, K of each product of a workload.

    "[16,128]x64": 64 problems, M, N and K uniform integers in that range, seeded by their number (the protocol of the
    CPU peers); "any_mn128_k128_b64": the first 64 lines of a file in workloads/; else a whole file.
    """
    if match := re.fullmatch(r"\[(\d+),(\d+)\]x(\d+)", name):
        low, high, batch = map(int, match.groups())
        sizes = np.random.default_rng(batch).integers(low, high + 1, (batch, 3))
        return [(int(m), int(n), int(k)) for m, n, k in sizes]
    stem, _, batch = name.rpartition("_b")
    whole = FOLDER / f"{name}.txt"
    if not whole.exists() and not (batch.isdigit() and (FOLDER / f"{stem}.txt").exists()):
        raise ValueError(f"no workload {name!r}; there are {', '.join(sorted(f.stem for f in FOLDER.glob('*.txt')))}")
    problems = read_problems(whole) if whole.exists() else read_problems(FOLDER / f"{stem}.txt")[: int(batch)]
    return [(p.m, p.n, p.k) for p in problems]


def expand(names: Iterable[str]) -> list[str]:
    """Names; "grids" stands for the any and pow2 grids at batch 16, 64 and 256, "*" for any part of a file's name."""
    result: list[str] = []
    for name in names:
        if name == "grids":
            for kind in ("any", "pow2"):
                grid = [f"{kind}_mn{mn}_k{k}" for mn in (128, 256, 512) for k in (128, 256, 512, 1024)]
                result += [f"{stem}_b{batch}" for stem in grid for batch in (16, 64, 256)]
        elif "*" in name:
            result += sorted(file.stem for file in FOLDER.glob(f"{name}.txt"))
        else:
            result.append(name)
    return result
