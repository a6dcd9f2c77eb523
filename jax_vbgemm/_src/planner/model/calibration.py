"""The cost model's measured coefficients: their file, and the fit to measurements.

Each tile and arithmetic has four coefficients (cost_model.py) for problems with aligned rows and four for other
problems. `block` is the fixed time of a block that has its unit to itself, and `step` the time of one of its K steps.
`shared_block` and `shared_step` are the same times for each of the blocks that share a unit; they count where they are
the longer ones. The fit minimises relative errors (differences of logarithms). Weak priors determine coefficients that
the data leave open, and draw those of aligned and of other problems towards each other.

A device's calibration.csv has a row for each tile and arithmetic. Its column `priors` names the coefficients that equal
their priors because the measurements did not determine them ("unaligned": all four are those of aligned rows). `rms` is
the root mean square of log(predicted / measured) over `points` measurements; both are empty in rows that are older than
these columns. `date` and `commit` say when the measurements were made, and with which kernels.
"""

import csv
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.cost_model import makespan_of_blocks, operand_bytes
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_time import step_depth
from jax_vbgemm._src.planner.tables.catalogue import TileKey, catalogue_for
from jax_vbgemm._src.planner.tables.coefficients import CALIBRATED
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import ceil_div, tile_counts
from jax_vbgemm._src.problem import ProblemSizes

COLUMNS = ("kind", "tile", "threads", *CALIBRATED, "priors", "rms", "points", "date", "commit")
PRIOR_NS = (3000.0, 500.0, 300.0, 250.0)
_PRIOR = np.log(1e-9 * np.array(PRIOR_NS))
_PRIOR_WEIGHT = 0.003
_SIMILARITY_WEIGHT = 0.01
_NAMES = tuple(column.removesuffix("_ns") for column in CALIBRATED)

Point = tuple[ProblemSizes, float]  # the seconds of a batch covered by one tile


@dataclass(frozen=True)
class Fit:
    """The fitted (block, step, shared block, shared step) seconds for aligned problems, then for other problems; the
    root mean square of log(predicted / measured); and the number of points.
    """

    seconds: tuple[float, ...]
    rms: float
    points: int


def fit_tile(kind: str, tile: TileKey, device: DeviceSpec, measured: Sequence[Point]) -> Fit:
    """The coefficients of one tile, from batches covered by this tile only. Needs SciPy (extra `cli`)."""
    from scipy.optimize import least_squares

    catalogue = catalogue_for(kind, device)
    shape = catalogue.find(*tile)
    resident = max(tile_occupancy(shape, device).blocks, 1)
    depth = step_depth(np.asarray(shape.k), catalogue.element_bytes)
    launch = device.launch_seconds + device.call_seconds
    features = []
    for sizes, seconds in measured:
        count = tile_counts(sizes, shape.m, shape.n)
        sharing = min(resident, math.ceil(count.sum() / device.units))
        floor = operand_bytes(sizes, catalogue) / device.bandwidth
        exist = count > 0
        aligned = sizes.aligned(catalogue.element_bytes)[exist]
        features.append((ceil_div(sizes.k, depth)[exist], count[exist], aligned, sharing, floor, seconds))

    def errors(log_coefficients: NDArray[np.float64]) -> list[float]:
        class_coefficients = np.exp(log_coefficients).reshape(2, 4)
        found = []
        for steps, count, aligned, sharing, floor, seconds in features:
            block, step, shared_block, shared_step = class_coefficients[np.where(aligned, 0, 1)].T
            blocks = np.maximum(block + steps * step, sharing * (shared_block + steps * shared_step))
            makespan = makespan_of_blocks(blocks, count, device.units * sharing, device.tail)
            found.append(math.log(max(makespan, floor) + launch) - math.log(seconds))
        return found

    def residuals(log_coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        aligned, others = log_coefficients.reshape(2, 4)
        relative = np.array(errors(log_coefficients)) / math.sqrt(len(features))
        prior = math.sqrt(_PRIOR_WEIGHT) * (aligned - _PRIOR)
        return np.concatenate((relative, prior, math.sqrt(_SIMILARITY_WEIGHT) * (aligned - others)))

    # Several starting points: a block's time is the maximum of two expressions, and from a point where the wrong one is
    # larger the search may not find the other.
    starts = (_PRIOR + np.log([1, step, 1, shared]) for step, shared in itertools.product((1, 4, 16, 64), repeat=2))
    fits = [least_squares(residuals, np.tile(start, 2), diff_step=1e-4) for start in starts]
    best = min(fits, key=lambda fit: float(fit.cost)).x
    rms = math.sqrt(statistics.fmean(e * e for e in errors(best)))
    return Fit(tuple(float(value) for value in np.exp(best)), rms, len(measured))


def priors_of(nanoseconds: Sequence[int]) -> list[str]:
    """The names of a row's coefficients that equal their priors."""
    found = [name for name, value, prior in zip(_NAMES, nanoseconds, 2 * PRIOR_NS, strict=True)
             if abs(value - prior) <= 0.005 * prior]  # fmt: skip
    return found + (["unaligned"] if nanoseconds[:4] == nanoseconds[4:] else [])


def write(file: Path, fits: Mapping[tuple[str, TileKey], Fit], date: str, commit: str) -> None:
    """Adds rows to a device's calibration file, or replaces those of the same kind and tile."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for (kind, (name, threads)), fit in fits.items():
        numbers = [round(1e9 * value) for value in fit.seconds]
        about = [" ".join(priors_of(numbers)), f"{fit.rms:.3f}", str(fit.points), date, commit]
        rows[kind, name, str(threads)] = [*map(str, numbers), *about]
    kept: dict[tuple[str, ...], list[str]] = {}
    if file.exists():
        with file.open(newline="") as lines:
            kept = {tuple(row[:3]): row[3:] for row in list(csv.reader(lines))[1:]}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([*key, *values] for key, values in sorted((kept | rows).items()))
