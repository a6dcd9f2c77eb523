"""Shape files: a line 'M N K', or 'M N K batch', for each product; # begins a comment.

For `python -m jax_vbgemm plan` the lines 'dtype NAME' and 'precision NAME' say how all products are computed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import numpy as np

from jax_vbgemm._src.problem import Problem


def parse_problems(text: str, name: str) -> tuple[Problem, ...]:
    """The problems of a shape file's text; ValueError, naming file and line, for a line that isn't three sizes, or
    three and a batch."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{name}, line {number}: {line!r}"
        if not 3 <= len(words) <= 4 or not all(re.fullmatch(r"[+-]?[0-9]+", word) for word in words):
            raise ValueError(f"{where} must be three or four integers, 'M N K' or 'M N K batch'")
        try:
            problems.append(Problem.of([int(word) for word in words]))
        except ValueError as error:
            raise ValueError(f"{where}: {str(error).removeprefix('Problem has ')}") from None
    return tuple(problems)


def read_problems(file: Path) -> tuple[Problem, ...]:
    """The problems of a shape file."""
    return parse_problems(_text_of(file), file.name)


def read_shapes(file: Path) -> tuple[tuple[Problem, ...], dict[str, str]]:
    """The problems of a shape file, and its lines 'dtype NAME' and 'precision NAME'."""
    lines, options = _text_of(file).splitlines(), {}
    for number, line in enumerate(lines):
        words = line.partition("#")[0].split()
        if words and words[0] in ("dtype", "precision"):
            if len(words) != 2 or words[0] in options:
                raise ValueError(f"{file.name}, line {number + 1}: {line!r} must be one '{words[0]} NAME' in the file")
            options[words[0]] = words[1]
            lines[number] = ""
    return parse_problems("\n".join(lines), file.name), options


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is not a text file: {error}") from None


def named_problems(name: str, folder: Path | None) -> tuple[Problem, ...]:
    """The problems of a workload that benchmarks name.

    "[16,128]x64": 64 problems with M, N and K uniform integers in that range, seeded by the number of problems (the
    protocol of the CPU peers). "one_7x5x1000000_tn": one problem, M x N x K, with A stored transposed and B not, in the
    notation of BLAS. "calibration_3": the workload of that index in the sample that `calibrate` measures.
    "any_mn128_k128_b64": the first 64 lines of a shape file in `folder`. Any other name is a whole file. Raises
    ValueError for a name that is none of these.
    """
    if match := re.fullmatch(r"calibration_(\d+)", name):
        sample = calibration_sample()
        if int(match[1]) >= len(sample):
            raise ValueError(f"workload {name!r}: the sample has {len(sample)}")
        return sample[int(match[1])]
    if match := re.fullmatch(r"\[(\d+),(\d+)\]x(\d+)", name):
        low, high, batch = map(int, match.groups())
        return _problems(np.random.default_rng(batch).integers(low, high + 1, (batch, 3)))
    if match := re.fullmatch(r"one_(\d+)x(\d+)x(\d+)(?:_([nt])([nt]))?", name):
        m, n, k = map(int, match.groups()[:3])
        return (Problem(m, n, k, transpose_a=match[4] == "t", transpose_b=match[5] == "t"),)
    if folder is None:
        raise ValueError(f"workload {name!r}: name the folder of its shape file (--workloads)")
    stem, _, batch_text = name.rpartition("_b")
    whole, part = folder / f"{name}.txt", folder / f"{stem}.txt"
    if whole.exists():
        return read_problems(whole)
    if not (batch_text.isdigit() and part.exists()):
        known = ", ".join(sorted(file.stem for file in folder.glob("*.txt")))
        raise ValueError(f"no workload {name!r} in {folder}; there are {known or 'none'}")
    return read_problems(part)[: int(batch_text)]


@lru_cache(maxsize=1)
def calibration_sample() -> tuple[tuple[Problem, ...], ...]:
    """The workloads that `calibrate` measures: aligned and unaligned rows, chosen so that they determine all
    coefficients.

    They have few blocks or many rounds, a short or a long K, and results with one or two small dimensions, for the
    tiles that suit those.
    """
    rng = np.random.default_rng(0)
    sample: list[tuple[Problem, ...]] = []
    grid = [(count, mn, mn, k) for count in (4, 16, 64, 256) for mn in (128, 256, 512) for k in (128, 1024)]
    uneven = [(5, 800, 100, 800), (5, 200, 400, 800), (8, 1000, 1000, 1000), (48, 100, 1000, 1000)]
    for count, *largest in (*grid, *uneven, (8, 512, 512, 4096), (512, 64, 64, 64)):
        sizes = rng.integers(np.array(largest) // 8, np.array(largest) + 1, (count, 3))
        sample += [_problems(sizes, multiple) for multiple in (1, 16)]
    for count, *largest in (
        (1, 10**4, 16, 16), (1, 10**5, 16, 16), (1, 10**6, 8, 16), (1, 10**5, 32, 40), (32, 4000, 24, 32),
        (1, 10**4, 16, 4096), (1, 10**6, 8, 8), (1, 10**6, 40, 40), (1, 10**5, 40, 16), (16, 40000, 32, 32),
    ):  # fmt: skip
        tall = rng.integers(np.array(largest) // 2, np.array(largest) + 1, (count, 3))
        for sizes in (tall, tall[:, [1, 0, 2]]):
            sample += [_problems(sizes, multiple) for multiple in (1, 8)]
    square = [(10**6, n, n) for n in (1, 3, 5, 7, 12, 16, 24, 31, 32, 33, 40)]
    others = [(10**6, n, k) for n, k in ((31, 1), (1, 31), (3, 40), (40, 3), (24, 8), (7, 24))]
    for m, n, k in (*square, *others):
        sample += [_problems(np.array([[m, n, k]])), _problems(np.array([[n, m, k]]))]
    sample += [_problems(np.array([[10**5, n, n]])) for n in (3, 7, 24, 31)]
    few = [(3, 3), (8, 8), (8, 16), (16, 8), (16, 16), (31, 31), (32, 32)]
    sample += [_problems(np.array([[m, n, k]])) for m in (10**4, 3 * 10**4) for n, k in few]
    ends = [(4, 4), (1, 1), (8, 8), (7, 5), (16, 16), (13, 9), (8, 32), (3, 31), (32, 8), (31, 3), (32, 32), (31, 31)]
    ends += [(8, 40), (3, 33), (40, 8), (33, 3)]
    for count, k in ((1, 4096), (1, 65536), (132, 4096), (264, 16384), (1056, 2048)):
        # A is stored transposed in gradients
        sample += [(Problem(m, n, k, transpose_a=True),) * count for m, n in ends]
    tsm2 = [(2048, 4096), (8192, 4096), (16384, 2048), (10240, 10240), (65536, 1024), (60001, 4099), (20000, 16384)]
    for count, m, k in (*((1, *sizes) for sizes in tsm2), (16, 1500, 2000), (66, 1024, 1024), (5, 4000, 12000)):
        sample += [(Problem(m, n, k),) * count for n in (2, 4, 7, 8, 13, 16)]
        sample += [(Problem(m, n, k, transpose_a=True),) * count for n in (3, 8, 16)]
    return tuple(sample)


def _problems(sizes: np.ndarray, multiple: int = 1) -> tuple[Problem, ...]:
    """Problems from rows (m, n, k), rounded up to a multiple."""
    return tuple(Problem(m, n, k) for m, n, k in (-(-sizes // multiple) * multiple).tolist())
