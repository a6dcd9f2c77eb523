"""Pipelined tiles: for which problems and devices the automatic planner has them, and the order of their tiles."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec, plan_problems
from jax_vbgemm._src.planner.model.tile_families import LARGE
from jax_vbgemm._src.planner.tiles.bands import BAND, in_bands
from jax_vbgemm._src.planner.tiles.runs import Runs
from jax_vbgemm._src.problem import Problem, ProblemSizes

H100 = device_spec("h100")
BFLOAT16 = catalogue_for("bfloat16", H100)
(TILE,) = LARGE.tiles_of(BFLOAT16)


@pytest.mark.parametrize("device", ["a100", "l40s", "b200", "mi300x", "cpu"])
def test_other_devices_than_those_of_compute_capability_9_have_none(device):
    assert not list(LARGE.tiles_of(catalogue_for("bfloat16", device_spec(device))))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_other_dtypes_than_those_of_16_bits_have_none(dtype):
    assert not list(LARGE.tiles_of(catalogue_for(dtype, H100)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_products_take_them_and_small_ones_a_launch_of_their_own(dtype):
    large, small = [Problem(2000, 2048, 2048)] * 4, [Problem(40, 24, 16)] * 64
    assert plan_problems(large, dtype, H100).tiles_used == (catalogue_for(dtype, H100).find(*TILE.key),)
    plan = plan_problems([*large, *small], dtype, H100)
    plan.validate()
    assert {choice == TILE.key for choice in plan.choices[:4]} == {True}
    assert {choice == TILE.key for choice in plan.choices[4:]} == {False}


@pytest.mark.parametrize(
    "problem",
    [
        Problem(2000, 2048, 2044),  # rows of A of 4088 bytes
        Problem(2000, 2044, 2048),  # rows of B and C
        Problem(2000, 2048, 2048, line=4),
        Problem(2044, 2048, 2048, transpose_a=True),
    ],
)
def test_problems_that_tma_cannot_copy_do_not_take_them(problem):
    assert TILE not in plan_problems([problem], "bfloat16", H100).tiles_used


@pytest.mark.parametrize("problem", [Problem(2000, 2048, 2048, line=8), Problem(2000, 2048, 2048, batch=4)])
def test_aligned_windows_and_batches_take_them(problem):
    assert TILE in plan_problems([problem], "bfloat16", H100).tiles_used


def test_a_few_small_problems_share_the_launch_of_large_ones():
    problems = [Problem(2048, 2048, 2048)] * 8 + [Problem(32, 2048, 2048)]
    assert plan_problems(problems, "bfloat16", H100).tiles_used == (TILE,)
    assert len(plan_problems([*problems, Problem(32, 2044, 2048)], "bfloat16", H100).tiles_used) > 1


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 3000), st.integers(1, 3)), min_size=1, max_size=4))
def test_bands_hold_each_tile_once(sizes):
    problems = ProblemSizes.of([Problem(m, n, 64, batch=batch) for m, n, batch in sizes])
    tile_id = np.full(len(sizes), TILE.index)
    whole = Runs.whole_problems(problems, tile_id, BFLOAT16, np.arange(len(sizes)))
    banded = in_bands(whole, BFLOAT16)

    def tiles(runs):
        each = runs.expand(BFLOAT16)
        return list(zip(*(getattr(each, name).tolist() for name in ("problem", "batch", "row", "col")), strict=True))

    assert sorted(tiles(whole)) == sorted(tiles(banded))


def test_a_band_goes_down_its_columns():
    sizes = ProblemSizes.of([Problem(BAND * TILE.m * 2, TILE.n * 3, 64)])
    whole = Runs.whole_problems(sizes, np.array([TILE.index]), BFLOAT16, np.array([0]))
    each = in_bands(whole, BFLOAT16).expand(BFLOAT16)
    assert set(each.col[:BAND].tolist()) == {0}
    assert each.row[:BAND].tolist() == [TILE.m * i for i in range(BAND)]
    assert (each.row[BAND], each.col[BAND]) == (0, TILE.n)
    assert each.row[3 * BAND] == BAND * TILE.m


def test_the_planner_knows_the_alignment_of_windows():
    def line(view):
        placed = []

        def planner(problems, device, catalogue):
            placed.extend(problems)
            return vb.Uniform()(problems, device, catalogue)

        vb.batched_matmul([view], [jnp.ones((16, 24), jnp.float32)], planner=planner)
        return placed[0].line

    x = jnp.zeros(4000, jnp.float32)
    assert line(vb.View(x, (30, 16), (32, 1), 64)) == 8
    assert line(vb.View(x, (30, 16), (33, 1), 64)) == 1
    assert line(jnp.zeros((30, 16), jnp.float32)) is None
