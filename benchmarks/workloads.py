"""The workloads that benchmarks name, and the columns of their results (those of the peers' figures)."""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jax_vbgemm._src.problem import Problem
from jax_vbgemm._src.tools import calibrate
from jax_vbgemm._src.tools.shapes import calibration_sample, named_problems

FOLDER = Path(__file__).parent / "workloads"

# The precisions of the peers' figures: dtype, and the matmul precision, which counts for float32 on a GPU.
PRECISIONS = {
    **calibrate.PRECISIONS,
    "fp16": ("float16", "default"),
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


T = TypeVar("T")


def read_csv(cls: type[T], file: Path) -> Iterator[T]:
    """The lines as instances of a dataclass, whose fields are among the columns; an empty number is NaN."""
    with file.open(newline="") as lines:
        for line in csv.DictReader(lines):
            yield cls(**{f.name: f.type(line[f.name] or ("nan" if f.type is float else "")) for f in fields(cls)})


def write_csv(file: Path, rows: Iterable[Any]) -> None:
    """Appends instances of one dataclass; a new file gets a heading."""
    rows = list(rows)
    new = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        if new and rows:
            writer.writerow(f.name for f in fields(rows[0]))
        writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in astuple(row)] for row in rows)


def group_of(name: str) -> str:
    return "range" if name.startswith("[") else name.split("_")[0]


def problems_named(name: str) -> tuple[Problem, ...]:
    """The problems of a workload, one of `named_problems`; or "any_mn128_k256_s7_b64", a list of Zhang's grid that no
    file holds, drawn with seed 7."""
    if match := re.fullmatch(r"(any|pow2)_mn(\d+)_k(\d+)_s(\d+)_b(\d+)", name):
        mn, k, seed, batch = map(int, match.groups()[1:])
        return tuple(Problem(*sizes) for sizes in drawn(match[1], mn, k, seed)[:batch])
    return named_problems(name, FOLDER)


def drawn(kind: str, mn: int, k: int, seed: int) -> list[list[int]]:
    """256 rows M, N, K as in the grid's files: M and N in [16, mn] and K in [16, k], "any": uniform integers; "pow2":
    powers of two, each as likely."""
    rng = np.random.default_rng([seed, mn, k, kind == "any"])
    largest = np.array([mn, mn, k])
    if kind == "any":
        return rng.integers(16, largest + 1, (256, 3)).tolist()
    return (1 << rng.integers(4, np.log2(largest).astype(int) + 1, (256, 3))).tolist()


# Batches of Zhang's grid that kernels and plans are tuned with, and others.
BATCHES = {"grids": (16, 64, 256), "held_out": (8, 32, 128)}


def grid(batches: Iterable[int], seed: str = "") -> list[str]:
    """The lists of Zhang's grid: those of the files, or with "_s7" others of the same distribution."""
    files = [f"{kind}_mn{mn}_k{k}" for kind in ("any", "pow2") for mn in (128, 256, 512) for k in (128, 256, 512, 1024)]
    return [f"{file}{seed}_b{batch}" for file in files for batch in batches]


# Tall products as in layers and their gradients: few columns, few rows, and reductions over the long side.
TALL_COLUMNS = (1, 3, 5, 7, 12, 16, 24, 31, 32, 33, 40)
TALL_PAIRS = ((1, 31), (31, 1), (40, 3), (3, 40), (8, 24), (24, 7))  # K and columns


def tall_names(long: int, k: int, n: int) -> list[str]:
    """A tall product, with A transposed, with B transposed, its mirror image, and the gradient of its small factor."""
    upright = f"one_{long}x{n}x{k}"
    return [upright, f"{upright}_tn", f"{upright}_nt", f"one_{n}x{long}x{k}", f"one_{k}x{n}x{long}_tn"]


def expand(names: Iterable[str]) -> list[str]:
    """Names; "grids" stands for the any and pow2 grids at batch 16, 64 and 256, "held_out" for those at 8, 32 and 128,
    "grids_s7" and "held_out_s7" for lists drawn anew with seed 7; "tall" for single products of a long side of 10^6 and
    two small ones in five layouts, some also of 10^5 and 10^7, "calibration" for the sample that the cost model is
    fitted to, "*" for any part of a file's name; ValueError where no file has such a name."""
    result: list[str] = []
    for name in names:
        if match := re.fullmatch(r"(grids|held_out)(_s\d+)?", name):
            result += grid(BATCHES[match[1]], match[2] or "")
        elif name == "tall":
            for k, n in (*((n, n) for n in TALL_COLUMNS), *TALL_PAIRS):
                result += tall_names(10**6, k, n)
            for long in (10**5, 10**7):
                for n in (3, 7, 24, 31):
                    upright, *_, gradient = tall_names(long, n, n)
                    result += [upright, gradient]
        elif name == "calibration":
            result += [f"calibration_{index}" for index in range(len(calibration_sample()))]
        elif "*" in name:
            found = sorted(file.stem for file in FOLDER.glob(f"{name}.txt"))
            if not found:
                raise ValueError(f"no workload matches {name!r} in {FOLDER}")
            result += found
        else:
            result.append(name)
    return result
