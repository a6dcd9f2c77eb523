"""The fit to times that the cost model itself predicts, and the command."""

import csv
import re

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm.__main__ import main
from jax_vbgemm._src.planner import catalogue_for, device_spec, plan_problems
from jax_vbgemm._src.planner.model.calibration import COLUMNS, fit_tile, priors_of, write
from jax_vbgemm._src.problem import ProblemSizes
from jax_vbgemm._src.tools import calibrate
from jax_vbgemm._src.tools.shapes import calibration_sample, named_problems

pytest.importorskip("scipy")

H100 = device_spec("h100")
LARGE = ("large", 256)


def modelled(problems, dtype, precision, tiles):
    """Seconds by the committed calibration, as a device would measure that follows the model exactly."""
    kind = {("float32", "default"): "tf32", ("float32", "high"): "tf32x3"}.get((dtype, precision), dtype)
    return [plan_problems(problems, kind, H100, vb.Uniform(tile)).predicted_seconds for tile in tiles]


@pytest.mark.slow
def test_the_fit_finds_what_made_the_times():
    sample = calibration_sample()[::6]
    points = [(ProblemSizes.of(problems), modelled(problems, "float32", "highest", [LARGE])[0]) for problems in sample]
    fit = fit_tile("float32", LARGE, H100, points)
    assert fit.points == len(sample)
    assert fit.rms < 0.03


def test_its_workloads_have_names():
    sample = calibration_sample()
    assert named_problems("calibration_0", None) == sample[0]
    assert named_problems(f"calibration_{len(sample) - 1}", None) == sample[-1]
    with pytest.raises(ValueError, match=f"the sample has {len(sample)}"):
        named_problems(f"calibration_{len(sample)}", None)


def test_every_tile_of_every_kind_is_measured_once():
    seen, sample = [], calibration_sample()[:2]

    def measure(problems, dtype, precision, tiles):
        seen.append((dtype, precision))
        return [1e-5] * len(tiles)

    points = calibrate.measured_here(H100, sample, calibrate.PRECISIONS, measure, lambda _: None)
    kinds = ("float32", "tf32", "tf32x3", "bfloat16", "float64", "float8_e4m3fn", "int8")
    assert set(points) == {(kind, tile.key) for kind in kinds for tile in catalogue_for(kind, H100)}
    assert all(len(measured) == 2 for measured in points.values())
    assert len(seen) == 2 * len(kinds)
    seen.clear()
    calibrate.measured_here(device_spec("v100"), sample, ["fp32", "3xtf32", "tf32"], measure, lambda _: None)
    assert seen == [("float32", "highest")] * 2  # one kind without tensor cores


def test_rows_are_replaced_and_others_kept(tmp_path):
    file = tmp_path / "new_device" / "calibration.csv"
    sample = calibration_sample()[:3]
    fit = fit_tile("float32", LARGE, H100, [(ProblemSizes.of(problems), 1e-4) for problems in sample])
    write(file, {("float32", LARGE): fit, ("float64", LARGE): fit}, "2026-01-01", "aaaaaaa")
    again = fit_tile("float32", LARGE, H100, [(ProblemSizes.of(sample[0]), 1e-3)])
    write(file, {("float32", LARGE): again}, "2026-01-02", "bbbbbbb")
    rows = {tuple(row[:3]): row[3:] for row in csv.reader(file.open())}
    assert list(rows) == [COLUMNS[:3], ("float32", "large", "256"), ("float64", "large", "256")]
    assert rows["float64", "large", "256"][-3:] == ["3", "2026-01-01", "aaaaaaa"]
    assert rows["float32", "large", "256"][-3:] == ["1", "2026-01-02", "bbbbbbb"]
    assert rows["float32", "large", "256"][-4] == f"{again.rms:.3f}"


def test_numbers_that_no_measurement_moved_are_marked():
    assert priors_of([3000, 500, 300, 250, 3001, 499, 300, 250]) == [
        "block", "step", "shared_block", "shared_step",
        "block_unaligned", "step_unaligned", "shared_block_unaligned", "shared_step_unaligned",
    ]  # fmt: skip
    assert priors_of([4468, 500, 558, 1492] * 2) == ["step", "step_unaligned", "unaligned"]
    assert priors_of([1, 2, 3, 4, 5, 6, 7, 8]) == []


def test_the_command_reads_the_drivers_file(tmp_path, capsys):
    measured, output = tmp_path / "measured.csv", tmp_path / "calibration.csv"
    shapes = tmp_path / "some.txt"
    shapes.write_text("\n".join(f"{m} {m} {k}" for m, k in np.random.default_rng(0).integers(16, 300, (40, 2))))
    with measured.open("w") as file:
        file.write(
            "peer,workload,precision,graph_us,nbad\nvbgemm_auto,some,fp32,1,0\nvbgemm_uniform_large_256,some,fp32,1,3\n"
        )
        for name in ("some", "some_b16", "[16,128]x64"):
            seconds = modelled(named_problems(name, tmp_path), "float32", "highest", [LARGE])[0]
            file.write(f'vbgemm_large_256,"{name}",fp32,{seconds * 1e6},0\n')
    arguments = ["calibrate", "--from", str(measured), "--workloads", str(tmp_path), "--device", "h100"]
    assert main([*arguments, "--output", str(output), "--commit", "abc"]) == 0
    assert "float32 large/256: 3 points" in capsys.readouterr().out
    (row,) = csv.DictReader(output.open())
    assert (row["kind"], row["tile"], row["threads"], row["points"]) == ("float32", "large", "256", "3")
    assert row["commit"] == "abc"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu"], "--device: cpu has no tiles to calibrate"),
        (["--device", "h1000"], "h1000"),
        (["--device", "h100", "--precision", "fp8"], "--precision: unknown name 'fp8'"),
        (["--device", "h100", "--from", "nowhere.csv"], "nowhere.csv"),
        (["--device", "mi100"], "this machine has no mi100"),
    ],
)
def test_bad_input_is_explained(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["calibrate", *arguments])
    assert re.search(message, capsys.readouterr().err)
