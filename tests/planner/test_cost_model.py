"""Predictions against the docstring's formulas worked by hand, on a device with round figures."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.native.arithmetic import FLOAT8
from jax_vbgemm._src.planner import Auto, Catalogue, TileShape, catalogue_for, device_spec
from jax_vbgemm._src.planner.auto import PAPERS
from jax_vbgemm._src.planner.cores import mostly_write
from jax_vbgemm._src.planner.model import cost_model, tile_time
from jax_vbgemm._src.planner.model.tile_families import worth_trying
from jax_vbgemm._src.planner.tables import coefficients
from jax_vbgemm._src.problem import ProblemSizes, problems_of

from .cases import make, problem_lists

# A unit holds one block of 1024 threads; all costs are zero except those that a test sets.
ROUND = dataclasses.replace(
    device_spec("h100"),
    name="round",
    units=4,
    max_blocks=1,
    peak_rates=(("float32", 1e30),),
    bandwidth=1e30,
    cache_bandwidth=1e30,
    shared_bandwidth=1e30,
    step_latency=0.0,
    block_latency=0.0,
    launch_seconds=0.0,
    call_seconds=0.0,
)
TILE = TileShape(0, "t", 32, 64, 8, 128, "one", 32, 1024)
OTHER = TileShape(1, "u", 32, 64, 8, 256, "two", 32, 1024)
CATALOGUE = Catalogue("float32", (TILE, OTHER), 0)


def seconds(shapes: Sequence, name: str = "t", **figures: object) -> float:
    device = dataclasses.replace(ROUND, **figures)
    return vb.Uniform(name)(problems_of(shapes), device, CATALOGUE).predicted_seconds


def test_latencies():
    assert seconds([(32, 64, 33)], step_latency=1.0) == pytest.approx(5)  # five steps of 8
    assert seconds([(32, 64, 0)], step_latency=1.0, block_latency=10.0) == pytest.approx(10)
    assert seconds([(32, 64, 8)], launch_seconds=3.0) == pytest.approx(3)
    assert seconds([(32, 64, 8)], launch_seconds=3.0, call_seconds=2.0) == pytest.approx(5)


def test_rates():
    macs = 32 * 64 * 8
    assert seconds([(32, 64, 8)], peak_rates=(("float32", 4e6),)) == pytest.approx(2 * macs / 1e6)  # one unit's share
    assert seconds([(1, 1, 1)], peak_rates=(("float32", 4e6),)) == pytest.approx(2 * macs / 1e6)  # masked, but computed
    assert seconds([(32, 64, 8)], cache_bandwidth=4e6) == pytest.approx((32 + 64) * 8 * 4 / 1e6)
    assert seconds([(32, 64, 8)], shared_bandwidth=4e6) == pytest.approx(2 * 16**0.5 * 128 * 8 * 4 / 1e6)
    # The memory: the tile's share of the epilogue, but never less than all operands and results at the full rate.
    assert seconds([(32, 64, 8)], bandwidth=4e6) == pytest.approx(32 * 64 * 4 / 1e6)
    assert seconds([(32, 64, 8000)], bandwidth=4e6) == pytest.approx((32 * 8000 + 8000 * 64 + 32 * 64) * 4 / 4e6)


def test_makespan():
    one = {"step_latency": 1.0}
    assert seconds([(32, 64, 8, 4)], **one) == pytest.approx(1)  # four units
    assert seconds([(32, 64, 8, 6)], **one) == pytest.approx(2)  # two rounds
    assert seconds([(32, 64, 16, 2), (32, 64, 8, 4)], **one) == pytest.approx(8 / 4 + 0.3 * 8 / 6)  # an uneven end
    assert seconds([(32, 64, 80), (32, 64, 8, 6)], **one) == pytest.approx(10)  # the longest block
    assert seconds([(32, 64, 8, 8)], max_blocks=2, **one) == pytest.approx(1)  # two resident blocks a unit
    # ... but they share the unit's rates.
    flops = {"peak_rates": (("float32", 4e6),), "max_blocks": 2}
    assert seconds([(32, 64, 8, 8)], **flops) == pytest.approx(2 * seconds([(32, 64, 8, 4)], **flops))


def test_kernels_run_one_after_another_and_blocks_sum_their_tiles():
    device = dataclasses.replace(ROUND, step_latency=1.0, block_latency=0.5, launch_seconds=100.0)
    problems = problems_of([(32, 64, 16)] * 5)
    tiles = [vb.Tile(i, 0, 0, 0, 0, 16, name) for i, name in enumerate("ttutu")]

    def plan(*blocks):
        return vb.Plan.from_blocks(
            problems, device, CATALOGUE, planner="mine", blocks=[[tiles[i] for i in b] for b in blocks]
        )

    assert plan((0,), (1,), (2,), (3,), (4,)).predicted_seconds == pytest.approx(200 + 2.5 + 2.5)
    batched = plan((0, 3), (2, 4), (1,))
    assert batched.predicted_seconds == pytest.approx(200 + 4.5 + 4.5)
    assert batched.balance == pytest.approx((4.5 + 2.5 + 4.5) / 3 / 4.5)
    assert batched.waves == pytest.approx(2 / 4 + 1 / 4)


def test_a_pace_is_the_slower_of_two_lines():
    one = np.ones(3)
    pace = tile_time.Pace(fixed=4 * one, step=1 * one, shared_fixed=1 * one, shared_step=2 * one, depth=np.array(8))
    steps = np.array([0, 3, 5])
    assert pace.seconds(steps).tolist() == [4, 7, 11]
    assert pace.steps_within(7.0).tolist() == [3, 3, 3]
    assert pace.steps_within(11.5).tolist() == [5, 5, 5]
    assert (pace.steps_within(3.0) < 0).all()


@pytest.mark.parametrize("sharing", [1, 2, 4])
@pytest.mark.parametrize("aligned", [True, False])
def test_calibrated_blocks_slow_down_with_what_they_share(sharing, aligned):
    device = device_spec("h100")
    catalogue = catalogue_for("tf32", device)
    tile = catalogue.find("mma-64x64")
    row = coefficients.calibration_table("h100")["tf32", *tile.key]
    block, step, shared_block, shared_step = row[:4] if aligned else row[4:]
    size = 64 if aligned else 63  # its rows' length in elements
    seconds = cost_model.block_seconds(
        ProblemSizes.of([vb.Problem(64, size, size)]), [tile], catalogue, device, sharing
    )
    steps = 2
    expected = max(block + steps * step, sharing * (shared_block + steps * shared_step))
    assert seconds[0, 0] == pytest.approx(expected + device.block_latency)


def test_a_core_pays_for_what_a_tile_reaches():
    device = dataclasses.replace(
        device_spec("cpu"),
        peak_rates=(("float32", 2e6),),
        cache_bandwidth=1e30,
        bandwidth=1e30,
        block_latency=0.0,
        launch_seconds=0.0,
        call_seconds=0.0,
    )

    def cpu(shapes):
        return vb.Uniform("t")(problems_of(shapes), device, CATALOGUE).predicted_seconds

    assert cpu([(32, 64, 10)]) == pytest.approx(2 * 32 * 64 * 10 / 1e6)  # one of two cores
    assert cpu([(5, 20, 10)]) == pytest.approx(2 * 5 * 32 * 10 / 1e6)  # two vectors of sixteen columns
    assert cpu([(37, 64, 10)]) == pytest.approx(2 * 32 * 64 * 10 / 1e6)  # two tiles on two cores: the larger one
    assert cpu([(37, 64, 10, 100)]) == pytest.approx(100 * 2 * 37 * 64 * 10 / 2e6)  # many tiles: their mean


def test_cores_take_blocks_in_order():
    device = dataclasses.replace(
        device_spec("cpu"), peak_rates=(("float32", 4e6),), cache_bandwidth=1e30, bandwidth=1e30, block_latency=0.0,
        launch_seconds=0.0,
        call_seconds=0.0,
    )  # fmt: skip

    def cpu(shapes):
        return vb.Uniform("t")(problems_of(shapes), device, CATALOGUE).predicted_seconds

    one = 2 * 32 * 64 * 10 / 2e6
    assert cpu([(32, 64, 10, 3)]) == pytest.approx(2 * one)  # three blocks on two cores
    assert cpu([(32, 64, 10), (32, 64, 10), (32, 64, 40)]) == pytest.approx(5 * one)  # the longest comes last
    assert cpu([(32, 64, 40), (32, 64, 10), (32, 64, 10)]) == pytest.approx(4 * one)
    assert cpu([(32, 64, 10, 101)]) == pytest.approx(50.5 * one)  # too many to count one by one


def test_streaming_adds_to_computing_on_a_cpu():
    device = dataclasses.replace(
        device_spec("cpu"), peak_rates=(("float32", 2e6),), cache_bandwidth=1e30, bandwidth=1e6, block_latency=0.0,
        launch_seconds=0.0,
        call_seconds=0.0,
    )  # fmt: skip
    bytes_moved = (32 * 10 + 10 * 64 + 32 * 64) * 4
    computing = 2 * 32 * 64 * 10 / 1e6
    plan = vb.Uniform("t")(problems_of([(32, 64, 10)]), device, CATALOGUE)
    assert plan.predicted_seconds == pytest.approx((computing**2 + (bytes_moved / 1e6) ** 2) ** 0.5)


@given(problem_lists)
def test_uniform_takes_the_tile_with_the_smallest_makespan(problems):
    for device in ("h100", "cpu"):
        plan = make(vb.Uniform(), problems, device)
        tiles = worth_trying(plan.catalogue, ProblemSizes.of(plan.problems))
        best = min(make(vb.Uniform(tile.key), problems, device).predicted_seconds for tile in tiles)
        assert plan.predicted_seconds == best


@given(problem_lists)
@example([vb.Problem(1, 256, 1)])
def test_auto_is_never_predicted_slower_than_the_papers_planners(problems):
    for device in ("h100", "mi210", "cpu"):
        plan = make(Auto(), problems, device)
        if mostly_write(ProblemSizes.of(plan.problems), plan.device):  # there the cost model does not choose
            continue
        papers = [make(planner, problems, device) for planner in (vb.Coordinated(), vb.SortSplit(), vb.LoadBalanced())]
        shortest = min(other.predicted_seconds for other in (*papers, make(vb.Uniform(), problems, device)))
        assert plan.predicted_seconds <= shortest * (1 + 1e-12)
        assert plan.planner == "auto"
        for other in papers:
            if left_out := re.search(rf"{other.planner} no less than ([\d.]+) us", plan.notes[-1]):
                assert other.predicted_seconds * 1e6 >= float(left_out[1]) - 0.005
                assert plan.predicted_seconds * 1e6 <= float(left_out[1]) + 0.005
            else:
                assert f"{other.planner} {other.predicted_seconds * 1e6:.2f} us" in plan.notes[-1]


@given(problem_lists, st.sampled_from((1, 100)), st.sampled_from(("h100", "a100", "v100", "mi210")))
def test_no_plan_is_predicted_to_take_less_than_the_least(problems, copies, device):
    problems = problems * copies  # many share blocks
    plans = [
        make(planner, problems, device)
        for planner in (vb.Uniform(), vb.Coordinated(), vb.SortSplit(), vb.LoadBalanced())
    ]
    catalogue = plans[0].catalogue
    sizes = ProblemSizes.of(plans[0].problems)
    for plan in plans:
        if plan.num_tiles:
            tiles = [catalogue.by_index[index] for index in sorted(set(plan.runs.tile_id.tolist()))]
            least = cost_model.least_seconds(sizes, {"all": tiles}, catalogue, plan.device)["all"]
            whole = cost_model.least_of_whole_problems(sizes, {"all": [tiles]}, catalogue, plan.device)["all"]
            assert 0 < least <= whole * (1 + 1e-12)
            assert whole <= plan.predicted_seconds * (1 + 1e-12)


@given(problem_lists, st.sampled_from(("h100", "a100", "v100", "mi210")))
def test_the_papers_tiles_are_those_that_auto_bounds(problems, device):
    for planner in PAPERS:
        plan = make(planner, problems, device)
        used = set(plan.runs.tile_id.tolist())
        sets = [plan.catalogue.resolve(tiles)[0] for tiles in planner.ordinary_sets(plan.catalogue)]
        assert any(used <= {tile.index for tile in tiles} for tiles in sets)


def test_auto_makes_no_plans_of_the_papers_where_they_cannot_win():
    note = make(Auto(), [(512, 512, 512)] * 64, dtype="tf32").notes[-1]
    assert "took makespan" in note
    assert all(f"{planner.name} no less than" in note for planner in PAPERS)
    assert "no less than" not in make(Auto(), [(512, 512, 512)] * 2).notes[-1]


def test_no_plan_prefers_a_tile_that_was_never_measured(monkeypatch):
    shapes = [(512, 512, 512)] * 8
    before = make(Auto(), shapes)
    (chosen,) = set(before.choices)
    table = {key: row for key, row in coefficients.calibration_table("h100").items() if key[1:] != chosen}
    monkeypatch.setattr(coefficients, "calibration_table", lambda device: table)
    coefficients.tile_coefficients.cache_clear()
    try:
        after = make(Auto(), shapes)
        assert chosen not in after.choices
        other = after.choices[0]
        monkeypatch.undo()
        coefficients.tile_coefficients.cache_clear()
        assert make(vb.Uniform(other), shapes).predicted_seconds >= before.predicted_seconds
    finally:
        coefficients.tile_coefficients.cache_clear()


@pytest.mark.parametrize("kind", [*FLOAT8, "int8"])
def test_types_of_a_byte_are_predicted_by_the_formula_until_one_tile_is_calibrated(kind, monkeypatch):
    shapes = [(512, 512, 512)] * 8
    assert make(Auto(), shapes, dtype=kind).choices[0][0].startswith("mma-")
    row = coefficients.calibration_table("h100")["bfloat16", "large", 128]
    measured = "float8_e4m3fn" if kind in FLOAT8 else kind
    monkeypatch.setattr(coefficients, "calibration_table", lambda device: {(measured, "large", 128): row})
    coefficients.tile_coefficients.cache_clear()
    try:
        assert set(make(Auto(), shapes, dtype=kind).choices) == {("large", 128)}
    finally:
        coefficients.tile_coefficients.cache_clear()


def test_the_cpus_own_tiles_are_candidates():
    assert make(Auto(), [(2000, 2000, 2000)], "cpu").choices[0][0].startswith("cpu-")
