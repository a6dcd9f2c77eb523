"""Dot-product tiles: products of few columns whose rows are long."""

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec, plan_problems
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_time import step_depth
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS

from .cases import times_covered

DOTS = {
    "float32": ["dots-64x4", "dots-64x8"],
    "float64": ["dots-64x4", "mma-dots-128x8", "mma-dots-128x16"],
    "tf32": ["dots-64x4", "dots-64x8", "mma-dots-128x16"],
    "tf32x3": ["dots-64x4", "dots-64x8"],
    "bfloat16": ["mma-dots-128x8", "mma-dots-128x16"],
    "float16": ["mma-dots-128x8", "mma-dots-128x16"],
}  # in ascending width
LONG_ROWS = [
    (20480, 2, 20480),
    (10240, 8, 10240),
    (16, 3, 10**6),
    (1000, 1, 2000),
    (64, 5, 8192),
    (20480, 9, 20480),
    (32, 16, 10**6),
]


def test_the_tiles_of_dot_products():
    for kind, tiles in DOTS.items():
        catalogue = catalogue_for(kind, device_spec("h100"))
        assert [tile.name for tile in catalogue if tile.kernel in DOT_PRODUCTS] == tiles
        assert all(catalogue.find(name).tensor == name.startswith("mma") for name in tiles)
    assert not any(tile.kernel in DOT_PRODUCTS for kind in DOTS for tile in catalogue_for(kind, device_spec("mi300x")))


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (kind, (m, n, k))
        for kind, tiles in DOTS.items()
        for m, n, k in LONG_ROWS
        if n <= int(tiles[-1].split("x")[1]) and m >= int(tiles[0].split("-")[-1].split("x")[0]) // 4
    ],
)
def test_few_columns_and_long_rows_take_the_narrowest_dot_products(kind, size):
    m, n, k = size
    device = device_spec("h100")
    plan = plan_problems([size], kind, device)
    plan.validate()
    (used,) = plan.tiles_used
    assert used.name == next(name for name in DOTS[kind] if n <= plan.catalogue.find(name).n)
    slots = device.units * tile_occupancy(used, device).blocks
    rounds = plan.num_tiles / slots
    deepest = k // step_depth(used.k, plan.catalogue.element_bytes) // 2 * -(-m // used.m)  # as many slices as K has
    too_long = used.m * k * plan.catalogue.element_bytes > 6 << 20 and rounds >= 3  # whole, so that three rounds do
    assert too_long or rounds / np.ceil(rounds) >= min(0.85, 0.5 * deepest / slots)
    other = plan_problems([vb.Problem(m, n, k, transpose_a=True)], kind, device)
    assert not any(tile.kernel in DOT_PRODUCTS for tile in other.tiles_used)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("float64", (31, 8, 8192)),  # of 128 rows of a tile less than a quarter
        ("float32", (15, 8, 8192)),
        ("tf32", (20480, 17, 20480)),
        ("bfloat16", (20480, 8, 20481)),  # rows that begin anywhere, of short elements
        ("float16", (20480, 16, 20476)),
    ],
)
def test_problems_that_dot_products_are_not_for(kind, size):
    plan = plan_problems([size], kind, device_spec("h100"))
    plan.validate()
    assert not any(tile.kernel in DOT_PRODUCTS for tile in plan.tiles_used)


def test_a_dtype_without_dot_products_takes_other_tiles():
    plan = plan_problems([(20480, 2, 20480)], "complex64", device_spec("h100"))
    plan.validate()
    assert not any(tile.kernel in DOT_PRODUCTS for tile in plan.tiles_used)


@pytest.mark.parametrize("widths", [(3, 12), (7, 12), (2, 5, 16)])
def test_dot_products_of_several_widths_are_tiles_of_them_all(widths):
    plan = plan_problems([(20480, n, 20480) for n in widths], "float64", device_spec("h100"))
    plan.validate()
    assert all(tile.kernel in DOT_PRODUCTS for tile in plan.tiles_used)
    assert all(
        (counts == 1).all()
        for counts in times_covered(plan_problems([(130, n, 4100) for n in widths], "float64", device_spec("h100")))
    )


def test_one_deep_problem_among_many_dot_products_is_split():
    plan = plan_problems([(64, 2, 10**6), (300_000, 2, 1024)], "float32", device_spec("h100"))
    assert plan.predicted_seconds < 1e-3
    assert (plan.runs.k_begin[plan.runs.problem == 0] > 0).any()


def test_a_problem_without_products_does_not_count_among_dot_products():
    plan = plan_problems([(64, 4, 2048), (0, 4, 2 * 10**7)], "float32", device_spec("h100"))
    assert plan.num_tiles <= 264


def test_dot_products_and_ordinary_products_are_launched_apart():
    plan = plan_problems([(20480, 2, 20480), (512, 512, 512)], "float32", device_spec("h100"))
    plan.validate()
    kernels = [plan.catalogue.by_index[row].kernel for row in plan.tile_strategy]
    assert {kernels[i] for i in np.flatnonzero(plan.tile_problem == 0)} == {"t256_dots"}
    assert "t256_dots" not in {kernels[i] for i in np.flatnonzero(plan.tile_problem == 1)}


@pytest.mark.parametrize(("size", "slices"), [((20480, 8, 20480), 5), ((10240, 8, 10240), 3), ((30_000, 16, 5001), 1)])
def test_no_block_of_dot_products_reads_for_long(size, slices):
    """As measured: five slices of 4 MB are faster than three of 7 MB, three of 3.5 MB as fast as ten."""
    plan = plan_problems([size], "float64", device_spec("h100"))
    plan.validate()
    (tile,) = plan.tiles_used
    assert tile.kernel == "m256_dots"
    assert plan.num_tiles == -(-size[0] // tile.m) * slices
