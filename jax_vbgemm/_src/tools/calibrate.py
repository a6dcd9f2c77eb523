"""python -m jax_vbgemm calibrate: measures every tile on this machine's GPU, and fits the cost model to the times."""

from __future__ import annotations

import csv
import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_vbgemm._src.planner import DeviceSpec, catalogue_for, kind_of
from jax_vbgemm._src.planner.model.calibration import Fit, Point, fit_tile, write
from jax_vbgemm._src.planner.model.tile_families import is_made_for
from jax_vbgemm._src.planner.papers.uniform import Uniform
from jax_vbgemm._src.planner.tables.catalogue import TileKey
from jax_vbgemm._src.problem import Problem, ProblemSizes
from jax_vbgemm._src.tools.shapes import named_problems

# The measured arithmetics as pairs of dtype and precision, by their names in the CSV files of gpu_driver. On a device
# with tensor cores, each pair is a different arithmetic.
PRECISIONS = {
    "fp32": ("float32", "highest"),
    "3xtf32": ("float32", "high"),
    "tf32": ("float32", "default"),
    "bf16": ("bfloat16", "default"),
    "fp64": ("float64", "highest"),
    "float8_e4m3fn": ("float8_e4m3fn", "default"),  # for all 8-bit floats
    "int8": ("int8", "default"),
}

Points = Mapping[tuple[str, TileKey], Sequence[Point]]
# (problems, dtype, precision, tiles) -> seconds of a call with each tile
Measure = Callable[[tuple[Problem, ...], str, str, Sequence[TileKey]], Sequence[float]]


def measured_here(
    device: DeviceSpec,
    sample: Iterable[tuple[Problem, ...]],
    precisions: Iterable[str],
    measure: Measure,
    say: Callable[[str], Any],
) -> Points:
    """The seconds of every tile of every arithmetic for every workload of the sample."""
    points: dict[tuple[str, TileKey], list[Point]] = {}
    sample, kinds = list(sample), set()
    for dtype, precision in (PRECISIONS[name] for name in precisions):
        kind = kind_of(dtype, precision, device)
        if kind in kinds:
            continue  # without tensor cores, float32 has the same arithmetic at all precisions
        kinds.add(kind)
        tiles = [tile.key for tile in catalogue_for(kind, device)]
        for index, problems in enumerate(sample):
            say(f"{kind}: {len(tiles)} tiles on workload {index + 1} of {len(sample)}")
            seconds = measure(problems, dtype, precision, tiles)
            for tile, value in zip(tiles, seconds, strict=True):
                points.setdefault((kind, tile), []).append((ProblemSizes.of(problems), value))
    return points


def read_driver(files: Iterable[Path], folder: Path | None, device: DeviceSpec) -> Points:
    """The measurements of benchmarks/gpu_driver.cu: its rows for uniform plans. `folder` has the workloads that they
    name.

    Raises ValueError for a file without the driver's columns or an unknown workload.
    """
    points: dict[tuple[str, TileKey], list[Point]] = {}
    sizes: dict[str, ProblemSizes] = {}
    for file in files:
        with file.open(newline="") as lines:
            reader = csv.DictReader(lines)
            missing = {"peer", "workload", "precision", "graph_us", "nbad"} - set(reader.fieldnames or ())
            if missing:
                raise ValueError(f"--from: {file} has no column {', '.join(sorted(missing))}")
            for row in reader:
                name, _, threads = row["peer"].removeprefix("vbgemm_").removeprefix("uniform_").rpartition("_")
                if not threads.isdigit() or row["precision"] not in PRECISIONS or int(row["nbad"]):
                    continue
                workload = row["workload"]
                if workload not in sizes:
                    sizes[workload] = ProblemSizes.of(named_problems(workload, folder))
                key = kind_of(*PRECISIONS[row["precision"]], device), (name, int(threads))
                points.setdefault(key, []).append((sizes[workload], float(row["graph_us"]) * 1e-6))
    return points


def calibrate(points: Points, device: DeviceSpec, output: Path, commit: str, say: Callable[[str], Any]) -> None:
    """Fits every tile and writes the device's rows, with today's date and the commit of the kernels.

    Raises ValueError if there is nothing to fit.
    """
    if not points:
        raise ValueError("calibrate: nothing was measured with one tile for all problems")
    fits: dict[tuple[str, TileKey], Fit] = {}
    for (kind, tile), measured in sorted(points.items()):
        catalogue = catalogue_for(kind, device)
        shape = catalogue.find(*tile)
        measured = [point for point in measured if is_made_for(shape, point[0], catalogue)]
        if not measured:
            continue
        fit = fits[kind, tile] = fit_tile(kind, tile, device, measured)
        numbers = " ".join(f"{1e9 * value:.0f}" for value in fit.seconds)
        say(f"{kind} {tile[0]}/{tile[1]}: {fit.points} points, rms {fit.rms:.2f}, {numbers} ns")
    write(output, fits, datetime.date.today().isoformat(), commit)
    say(f"{output}: {len(fits)} rows of {device.name}")


def measure_in_loop(problems: tuple[Problem, ...], dtype: str, precision: str, tiles: Sequence[TileKey]) -> list[float]:
    """Measures on JAX's default device, inside a jitted loop."""
    import jax

    from jax_vbgemm._src.tools.tune import measure

    planners = [Uniform(tile) for tile in tiles]
    return measure(planners, problems, dtype, precision, jax.devices()[0], rounds=7)
