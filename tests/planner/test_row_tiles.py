"""Tiles for tall and skinny products, as the automatic planner takes them: row tiles and deep tiles."""

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec, plan_problems
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_families import LONG, worth_trying
from jax_vbgemm._src.planner.tiles.symmetric import stores_mirrored
from jax_vbgemm._src.problem import ProblemSizes


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [(10**6, 16, 8), (10**5, 8, 16), (10**5, 16, 16), (10**6, 7, 15)])
def test_many_rows_of_few_columns_take_row_tiles(dtype, size):
    plan = plan_problems([size], dtype, device_spec("h100"))
    assert {plan.catalogue.find(*choice).kernel for choice in plan.choices} <= {"t128_rows", "m128_rows"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("m", "n", "tile"), [(1, 1, 16), (3, 4, 16), (5, 1, 64), (9, 9, 256), (1, 31, 256), (40, 3, 512)]
)
def test_a_deep_reduction_takes_the_smallest_tile_of_shared_depth_that_holds_it(dtype, m, n, tile):
    plan = plan_problems([vb.Problem(m, n, 10**6, transpose_a=True)], dtype, device_spec("h100"))
    plan.validate()
    (used,) = plan.tiles_used
    assert used.kernel == "t128_deep"
    assert used.m * used.n == tile
    assert 132 <= plan.num_tiles <= 132 * 32  # slices for every multiprocessor


@pytest.mark.parametrize("n", [1, 3, 8, 16])
@pytest.mark.parametrize("kind", ["float32", "tf32"])
def test_a_transposed_tall_operand_of_float32_takes_row_tiles(kind, n):
    for m, k in ((10240, 10240), (2048, 100_000), (100_000, 2000)):
        plan = plan_problems([vb.Problem(m, n, k, transpose_a=True)], kind, device_spec("h100"))
        plan.validate()
        (used,) = plan.tiles_used
        assert used.kernel == "t128_rows"
        assert used.m == 256
        assert plan.num_tiles >= 0.8 * 132 * tile_occupancy(used, plan.device).blocks


def test_a_transposed_tall_operand_beside_small_factors_keeps_its_speed():
    problems = [vb.Problem(10**6, 8, 8, batch=40), vb.Problem(10240, 4, 100_000, transpose_a=True)]
    assert plan_problems(problems, "float32", device_spec("h100")).predicted_seconds < 2.5e-3


def test_a_member_without_products_leaves_a_transposed_tall_operand_its_tiles():
    tall = vb.Problem(10240, 4, 10240, transpose_a=True)
    alone, beside = (plan_problems([tall, *rest], "float32", device_spec("h100")) for rest in ([], [(10**6, 8, 0)]))
    assert beside.tiles_used == alone.tiles_used


def test_a_layer_and_its_gradients_get_the_tiles_of_each():
    layer = [(10**6, 16, 16), (16, 16, 10**6), (512, 512, 512)]
    plan = plan_problems(layer, "float64", device_spec("h100"))
    plan.validate()
    kernels = [plan.catalogue.by_index[row].kernel for row in plan.tile_strategy]
    of_problem = [{kernels[i] for i in np.flatnonzero(plan.tile_problem == p)} for p in range(3)]
    assert of_problem[:2] == [{"m128_rows"}, {"t128_deep"}]
    assert not of_problem[2] & {"m128_rows", "t128_deep"}


def test_tiles_of_shared_depth_are_no_choice_for_what_they_do_not_hold():
    for problem in ((65, 8, 10**6), (33, 33, 10**6), (16, 16, 1023), (512, 512, 10**6)):
        plan = plan_problems([problem], "float64", device_spec("h100"))
        assert "t128_deep" not in {tile.kernel for tile in plan.tiles_used}


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "tf32", "tf32x3"])
@pytest.mark.parametrize("columns", [1, 9, 17, 31, 32])
def test_a_tall_operand_is_read_once(kind, columns):
    for k in (1, 8, 32):
        plan = plan_problems([(10**6, columns, k)], kind, device_spec("h100"))
        assert all(plan.catalogue.find(*choice).n >= columns for choice in plan.choices)


def test_long_tensor_tiles_are_for_tall_and_skinny_batches_alone():
    device = device_spec("h100")
    catalogue = catalogue_for("tf32", device)
    tall, ordinary = vb.Problem(20_000, 32, 32), vb.Problem(300, 300, 300)

    def long_tiles(problems):
        return [tile.name for tile in LONG.tiles_of(worth_trying(catalogue, ProblemSizes.of(problems)))]

    assert long_tiles([tall]) == ["mma-128x32"]
    assert long_tiles([vb.Problem(10**6, 32, 32)]) == []  # row tiles on tensor cores only
    assert long_tiles([vb.Problem(20480, 24, 20480)]) == ["mma-128x32", "mma-32x128"]
    assert long_tiles([ordinary]) == long_tiles([tall, ordinary]) == []
    amd = catalogue_for("tf32", device_spec("mi300x"))
    assert not any(tile.tensor and tile.is_far_longer for tile in amd)


@pytest.mark.parametrize("planner", ["auto", "uniform"])
@pytest.mark.parametrize("size", [(4096, 4096, 4096), (10**6, 16, 2000), (16, 10**6, 16), (10**6, 100, 16)])
def test_row_tiles_are_for_a_small_b(size, planner):
    plan = plan_problems([size, size], "float32", device_spec("h100"), planner)
    assert not any(tile.name.startswith("rows-") for block in plan.blocks[:4] for tile in block)


@pytest.mark.parametrize("kind", ["float64", "bfloat16", "float16", "tf32"])
@pytest.mark.parametrize("columns", [17, 24, 31, 32, 33, 40])
def test_many_rows_of_more_columns_take_row_tiles_on_tensor_cores(kind, columns):
    for size in ((10**6, columns, 24), (columns, 10**6, 24), (10**5, columns, 24)):
        plan = plan_problems([size], kind, device_spec("h100"))
        plan.validate()
        (used,) = plan.tiles_used
        assert used.kernel == "m128_wide_rows"
        assert min(used.m, used.n) == (32 if columns <= 32 else 40)
        assert (used.m > used.n) == (size[0] > size[1])


@pytest.mark.parametrize(
    ("kind", "columns", "kernel"), [("bfloat16", 40, "t128"), ("float64", 31, "t128"), ("float64", 40, "m128")]
)
def test_of_few_steps_of_k_ordinary_row_tiles_are_enough(kind, columns, kernel):
    for size in ((10**6, columns, 3), (columns, 10**6, 3)):
        plan = plan_problems([size], kind, device_spec("h100"))
        assert {tile.kernel for tile in plan.tiles_used} == {f"{kernel}_wide_rows"}  # float64 has none for 40 columns


def test_row_tiles_on_tensor_cores_are_nvidias_alone_and_store_no_mirror_image():
    catalogue = catalogue_for("float64", device_spec("h100"))
    rows = [tile for tile in catalogue if tile.kernel in ("m128_rows", "m128_wide_rows")]
    assert rows
    assert not stores_mirrored(device_spec("h100"), catalogue)[[tile.index for tile in rows]].any()
    for kind in ("float64", "bfloat16", "tf32"):
        amd = catalogue_for(kind, device_spec("mi300x"))
        assert not any(tile.name.startswith(("mma-rows", "mma-columns")) for tile in amd)
