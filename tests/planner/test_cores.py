"""Split-K on a CPU: which problems are split for how many cores, and that no other problem is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.planner.auto import Auto
from jax_vbgemm._src.planner.cores import Cores
from jax_vbgemm._src.problem import problems_of

from .cases import make, problem_lists, times_covered

CPU = device_spec("cpu")
REDUCTION = vb.Problem(16, 16, 10**6, transpose_a=True)


def plan_for(cores, shapes, dtype="float32", planner=Cores()):  # noqa: B008
    device = CPU.with_units(cores)
    plan = planner(problems_of(shapes), device, catalogue_for(dtype, device))
    plan.validate()
    return plan


@pytest.mark.parametrize("cores", [2, 3, 16, 128])
@pytest.mark.parametrize("problem", [REDUCTION, vb.Problem(1, 1, 10**6), vb.Problem(40, 3, 10**6, transpose_a=True)])
def test_a_reduction_occupies_all_cores(cores, problem):
    plan = plan_for(cores, [problem], planner=Auto())
    assert plan.num_tiles >= 0.9 * cores  # K slices are whole steps
    depths = [tile.k_end - tile.k_begin for block in plan.blocks for tile in block]
    assert max(depths) <= 2 * np.mean(depths)


def test_one_deep_product_among_many_shallow_ones_is_split_alone():
    plan = plan_for(8, [(64, 64, 64)] * 50 + [REDUCTION], planner=Auto())
    counts = np.bincount([tile.problem for block in plan.blocks for tile in block])
    assert counts[50] >= 8
    assert all(tile.k_end - tile.k_begin == 64 for block in plan.blocks for tile in block if tile.problem < 50)
    assert plan.blocks[0][0].problem == 50  # the longest come first


@pytest.mark.parametrize(
    ("cores", "problem"),
    [(1, REDUCTION), (8, (16, 16, 16)), (8, (64, 64, 300)), (2, (10**6, 16, 16)), (8, (2000, 2000, 2000))],
)
def test_what_is_not_split(cores, problem):
    plan = plan_for(cores, [problem])
    assert all(tile.k_begin == 0 for block in plan.blocks for tile in block)


def test_splitting_is_predicted_to_be_worth_it():
    whole, split = plan_for(1, [REDUCTION]), plan_for(64, [REDUCTION])
    assert split.predicted_seconds < 0.9 * whole.predicted_seconds


@given(problem_lists, st.sampled_from([1, 2, 7, 64]))
def test_everything_is_covered_once(problems, cores):
    device = CPU.with_units(cores)
    plan = Cores()(problems, device, catalogue_for("float32", device))
    plan.validate()
    assert all((count == 1).all() for count in times_covered(plan))


def test_it_is_a_plan_of_auto():
    assert "took cores" in make(Auto(), [REDUCTION], "cpu").notes[0]


@pytest.mark.parametrize(
    ("shapes", "wide"),
    [
        ([(768, 3072, 4)], True),
        ([(300, 256, 64), (1024, 1024, 1), (5, 300, 0)], True),  # the last has no products
        ([(300, 256, 65)], False),
        ([(300, 255, 64)], False),
        ([(768, 3072, 4), (64, 64, 64)], False),
    ],
)
def test_products_that_mostly_write_have_the_longest_rows(shapes, wide):
    longest = max((tile for tile in catalogue_for("float32", CPU) if tile.threads == 1), key=lambda tile: tile.n)
    plan = plan_for(2, shapes, planner=Auto())
    assert (set(plan.tiles_used) == {longest}) == wide
