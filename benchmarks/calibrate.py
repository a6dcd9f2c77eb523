"""Fits the cost model's coefficients of one GPU to what gpu_driver measured there: jax_vbgemm/planner/calibration.csv.

  bench.py cases all.case grids "inception_*" --tile all --precision fp32 --precision fp64
  gpu_driver --cases all.case --csv measured.csv        on the GPU
  calibrate.py measured.csv --device h100

Each tile and kind of arithmetic gets three numbers (cost_model.py): `block`, the fixed part of a block, `step`, one K
step of a block that has its unit to itself, and `shared_step`, what a step takes for each of the blocks that share a
unit once that is more. The errors are relative (log), and a weak prior holds numbers that the data don't determine.
"""

import argparse
import csv
import math
import statistics
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from jax_vbgemm.planner import catalogue_for, cost_model, device_spec
from jax_vbgemm.planner.occupancy import tile_occupancy
from jax_vbgemm.planner.runs import Runs
from jax_vbgemm.problem import Problem, Sizes
from workloads import problems_of

OUTPUT = Path(cost_model.__file__).with_name("calibration.csv")
KINDS = {"fp32": "float32", "fp64": "float64", "bf16": "bfloat16", "tf32": "tf32", "3xtf32": "tf32x3"}
PRIOR = np.log([3e-6, 0.5e-6, 0.25e-6])
PRIOR_WEIGHT = 0.003


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="+", help="gpu_driver's CSV with rows of uniform plans")
    parser.add_argument("--device", default="h100")
    options = parser.parse_args()
    device = device_spec(options.device)

    sizes: dict[str, Sizes] = {}
    points: dict[tuple[str, str, int], list] = {}
    for row in (row for file in options.measured for row in csv.DictReader(file.open())):
        name, _, threads = row["peer"].removeprefix("vbgemm_").removeprefix("uniform_").rpartition("_")
        if not threads.isdigit() or row["precision"] not in KINDS or int(row["nbad"]):
            continue
        if row["workload"] not in sizes:
            sizes[row["workload"]] = Sizes.of([Problem(*size) for size in problems_of(row["workload"])])
        key = (KINDS[row["precision"]], name, int(threads))
        points.setdefault(key, []).append((sizes[row["workload"]], float(row["graph_us"]) * 1e-6))

    rows = []
    for (kind, name, threads), measured in sorted(points.items()):
        catalogue = catalogue_for(kind, device)
        tile = catalogue.find(name, threads)
        resident = tile_occupancy(tile, device).blocks
        features = []
        for size, seconds in measured:
            every = np.arange(len(size.m))
            runs = Runs.whole_problems(size, np.full(len(size.m), tile.index), catalogue, every)
            steps = -(
                -(runs.k_end - runs.k_begin) // cost_model.step_depth(np.asarray(tile.k), catalogue.element_bytes)
            )
            sharing = min(resident, math.ceil(runs.num_tiles / device.units))
            floor = cost_model.operand_bytes(size, catalogue) / device.bandwidth
            features.append((steps, runs.count, sharing, floor, seconds))

        def loss(log_coefficients: np.ndarray, features: list = features) -> float:
            block, step, shared_step = np.exp(log_coefficients)
            errors = []
            for steps, count, sharing, floor, seconds in features:
                block_seconds = block + steps * max(step, sharing * shared_step)
                makespan = max(block_seconds.max(), block_seconds @ count / (device.units * sharing))
                errors.append(math.log(max(makespan, floor) + device.launch_seconds) - math.log(seconds))
            return statistics.fmean(e * e for e in errors) + PRIOR_WEIGHT * float(
                ((log_coefficients - PRIOR) ** 2).sum()
            )

        # Two starts: the larger of two numbers decides a step, and the search may begin on the wrong side.
        starts = (PRIOR, PRIOR + np.log([1.0, 2.0, 4.0]))
        fits = [minimize(loss, start, method="Nelder-Mead", options={"maxiter": 800}) for start in starts]
        fit = min(fits, key=lambda fit: fit.fun)
        coefficients = np.exp(fit.x)
        rows.append([options.device, kind, name, str(threads), *(f"{1e9 * value:.0f}" for value in coefficients)])
        print(f"{kind} {name}/{threads}: {len(measured)} points, rms {math.sqrt(fit.fun):.2f},", *rows[-1][4:], "ns")

    measured_now = {tuple(row[:4]) for row in rows}
    kept = [row for row in csv.reader(OUTPUT.open()) if tuple(row[:4]) not in measured_now][1:]
    with OUTPUT.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["device", "kind", "tile", "threads", "block_ns", "step_ns", "shared_step_ns"])
        writer.writerows(sorted([*kept, *rows]))


if __name__ == "__main__":
    main()
