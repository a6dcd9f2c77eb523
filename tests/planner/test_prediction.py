"""Predicted against measured times: the cost model's error on the data of benchmarks/results does not grow."""

import csv
import math
import statistics
from pathlib import Path

import pytest
from slow_cases import slow_except

from jax_vbgemm._src.planner import device_spec, kind_of, plan_problems
from jax_vbgemm._src.tools.calibrate import PRECISIONS
from jax_vbgemm._src.tools.shapes import named_problems

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
H100 = device_spec("h100")

# Upper bounds of the root mean square of log(predicted / measured) for `auto`'s plans: its values when the bounds were
# set, rounded up to two digits. Lower a bound when the model improves.
LIMITS = {
    ("h100_kernel", "fp32"): 0.11,
    ("h100_kernel", "3xtf32"): 0.13,
    ("h100_kernel", "tf32"): 0.13,
    ("h100_kernel", "bf16"): 0.13,
    ("h100_kernel", "fp64"): 0.12,
    ("h100_skinny", "fp32"): 0.17,
    ("h100_skinny", "tf32"): 0.16,
    ("h100_skinny", "fp64"): 0.10,
    ("h100_tall", "fp32"): 0.19,
    ("h100_tall", "bf16"): 0.27,
    ("h100_tall", "fp64"): 0.15,
}


def measured(file: str, precision: str) -> list[tuple[str, float]]:
    """Workloads, and seconds of `auto`'s plan there."""
    with (BENCHMARKS / "results" / f"{file}.csv").open(newline="") as lines:
        return [
            (row["workload"], 1e-6 * float(row["graph_us"]))
            for row in csv.DictReader(lines)
            if row["peer"] == "vbgemm_auto" and row["precision"] == precision
        ]


DEFAULT = [key for key in LIMITS if key[0] != "h100_kernel"]


@pytest.mark.parametrize(("file", "precision"), slow_except(LIMITS, DEFAULT))
def test_the_error_does_not_grow(file, precision):
    kind = kind_of(*PRECISIONS[precision], H100)
    errors = []
    for workload, seconds in measured(file, precision):
        plan = plan_problems(named_problems(workload, BENCHMARKS / "workloads"), kind, H100, "auto")
        errors.append(math.log(plan.predicted_seconds / seconds))
    assert len(errors) >= 20
    assert math.sqrt(statistics.fmean(error**2 for error in errors)) <= LIMITS[file, precision]


def test_every_measured_precision_has_a_limit():
    for file in {file for file, _ in LIMITS}:
        with (BENCHMARKS / "results" / f"{file}.csv").open(newline="") as lines:
            found = {row["precision"] for row in csv.DictReader(lines) if row["peer"] == "vbgemm_auto"}
        assert found == {precision for name, precision in LIMITS if name == file}
