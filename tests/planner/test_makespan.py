"""The planner that minimises the predicted makespan: coverage, and the quality of its choices."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_time import step_depth
from jax_vbgemm._src.planner.search.makespan import Makespan
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.split_k import in_slices
from jax_vbgemm._src.problem import problems_of

from .cases import DTYPES, huge_problems, make, of_all_families, problem_lists, times_covered

GPUS = ("h100", "v100", "mi210")


@given(problem_lists, st.sampled_from(GPUS), st.sampled_from(DTYPES))
def test_every_element_is_covered_once(problems, device, dtype):
    plan = make(Makespan(), problems, device, dtype)
    plan.validate()
    if sum(p.m * p.n * max(p.k, 1) * p.batch for p in problems) < 10**7:
        assert all((counts == 1).all() for counts in times_covered(plan))


@example(
    problems=(vb.Problem(1023, 1, 1), vb.Problem(1024, 1, 1), vb.Problem(1, 1, 1024), vb.Problem(1, 10**6, 8)),
    device="h100",
    dtype="float32",
)
@given(of_all_families, st.sampled_from(GPUS), st.sampled_from((*DTYPES, "bfloat16")))
def test_every_family(problems, device, dtype):
    make(Makespan(), problems, device, dtype).validate()


def test_four_families_need_no_more_launches_than_a_call_has():
    """Row tiles, deep tiles, skinny tiles, and a tile of ordinary problems: four kernels, each the best."""
    sizes = [(4 * 10**6, 8, 8), (64, 8, 10_000), (4096, 32, 256), *[(512, 512, 512)] * 8]
    plan = make(Makespan(), sizes)
    plan.validate()
    _, _, launches = plan.launch_form()
    assert len(launches) == 3
    assert plan.notes[0].startswith("families apart: 1 problems by t128_rows, ")


@pytest.mark.parametrize("empty", [(0, 16, 16), (16, 0, 16), (5, 5, 0), (5, 5, 5, 0)])
@pytest.mark.parametrize("size", [(10**6, 16, 16), (16, 16, 10**6), (4096, 32, 256), (512, 512, 512)])
def test_members_without_products_do_not_change_what_is_tried(size, empty):
    """They never reach a kernel: the lowering leaves them out, and has to get the same plan that vb.plan shows."""
    plan, alone = (make(Makespan(), sizes, dtype="bfloat16") for sizes in ([size, size, empty], [size, size]))
    plan.validate()
    assert plan.choices[:2] == alone.choices
    assert {tile.kernel for tile in plan.tiles_used} == {tile.kernel for tile in alone.tiles_used}


@given(st.lists(huge_problems, max_size=3))
def test_huge_problems(problems):
    make(Makespan(), problems).validate()


@given(problem_lists, st.sampled_from(GPUS))
def test_never_predicted_slower_than_one_tile_for_all(problems, device):
    plan, uniform = make(Makespan(), problems, device), make(vb.Uniform(), problems, device)
    assert plan.predicted_seconds <= uniform.predicted_seconds * (1 + 1e-12)


def test_one_kernel_does_it_all():
    rng = np.random.default_rng(0)
    for count in (1, 16, 300):
        plan = make(Makespan(), rng.integers(1, 513, (count, 3)).tolist())
        assert len({tile.kernel for tile in plan.tiles_used}) == 1
        assert plan.block_first is None


def test_a_problem_may_have_small_tiles_along_its_edges():
    sizes = [(1000, 1000, 512)] * 40 + [(1030, 1030, 512)] * 40
    plan = make(Makespan(), sizes, dtype="float64")
    assert plan.choices[0] is not None or plan.choices[-1] is not None
    mixed = [index for index, choice in enumerate(plan.choices) if choice is None]
    assert mixed
    tiles = [tile for block in plan.blocks for tile in block if tile.problem == mixed[0]]
    assert len({tile.name for tile in tiles}) == 2
    inside = max(plan.tiles_used, key=lambda tile: tile.m * tile.n)
    assert plan.padding_waste < make(vb.Uniform(tile=inside.key), sizes, dtype="float64").padding_waste


@pytest.mark.parametrize(("latency", "most"), [(1.0, 1), (0.0, 6)])
def test_a_launch_has_few_tiles_where_each_costs_something(latency, most):
    """If each further tile shape costs a second, one serves all problems; if they are free, several are used."""
    device = dataclasses.replace(device_spec("h100"), further_tile_latency=latency)
    sizes = np.random.default_rng(1).integers(1, 257, (64, 3)).tolist()
    plan = Makespan()(problems_of(sizes), device, catalogue_for("bfloat16", device))
    assert len(plan.tiles_used) <= most
    assert (len(plan.tiles_used) > 1) == (latency == 0)


def test_a_prediction_counts_the_tiles_of_each_kernel():
    sizes = [(64, 64, 64)] * 3
    free = device_spec("h100")
    catalogue = catalogue_for("bfloat16", free)
    names = ["mma-64x64", "mma-32x32", "mma-16x32"]  # of one kernel

    def seconds(latency):
        device = dataclasses.replace(free, further_tile_latency=latency)
        tiles = [catalogue.find(name) for name in names]
        return vb.Plan.from_choices(
            problems_of(sizes), device, catalogue, planner="mine", tiles=tiles
        ).predicted_seconds

    assert seconds(1e-6) == pytest.approx(seconds(0.0) + 2e-6)


def test_the_longest_blocks_come_first():
    plan = make(Makespan(), [(64, 64, 10), (64, 64, 4000), (64, 64, 300)] * 200)
    depths = [plan.problems[problem].k for problem in plan.tile_problem]
    assert depths == sorted(depths, reverse=True)
    assert [plan.problems[index].k for index in plan.order] == [4000] * 200 + [300] * 200 + [10] * 200


def test_k_is_split_where_one_block_would_outlast_the_rest():
    lone = make(Makespan(), [(64, 192, 25_088)])
    assert 50 < lone.num_blocks < 2000
    lone.validate()
    assert lone.predicted_seconds < 0.2 * make(vb.Uniform(), [(64, 192, 25_088)]).predicted_seconds
    crowd = make(Makespan(), [(512, 512, 512)] * 100 + [(100, 100, 100)] * 200)
    assert (crowd.runs.k_begin == 0).all()
    mixed = make(Makespan(), [(512, 512, 64)] * 30 + [(32, 32, 60_000)])
    assert (mixed.runs.k_begin[mixed.runs.problem < 30] == 0).all()
    assert (mixed.runs.k_begin[mixed.runs.problem == 30] > 0).any()


@pytest.mark.parametrize(
    ("kind", "sizes", "most"),
    [
        ("tf32", [(100, 100, 10**6)], 1.01),
        ("float32", [(33, 64, 10**6)], 1.01),
        # A draft that fills rounds is only taken where it is clearly faster, and that of pipelined tiles is 6% faster.
        ("bfloat16", [(256, 256, 65_536)] * 2, 1.06),
        ("tf32", [(300, 64, 65_536)] * 2, 1.01),
        ("float64", [(100, 100, 100_000)] * 3, 1.01),
    ],
)
def test_shares_fill_whole_rounds(kind, sizes, most):
    """A few more blocks than one round would double the time: no equal K slices that fill a round are faster."""
    device = device_spec("h100")
    problems, catalogue = problems_of(sizes), catalogue_for(kind, device)
    found = Makespan().draft(problems, device, catalogue).seconds
    for tile in catalogue:
        draft = vb.Uniform(tile.key).draft(problems, device, catalogue)
        depth = step_depth(catalogue.columns.k[draft.runs.tile_id], catalogue.element_bytes)
        for resident in range(1, tile_occupancy(tile, device).blocks + 1):
            slices = np.full(len(draft.runs), max(device.units * resident // draft.runs.num_tiles, 1))
            split = dataclasses.replace(draft, runs=in_slices(draft.runs, slices, depth))
            assert found <= most * split.seconds


@pytest.mark.parametrize("crowd", [[(64, 64, 64, 9000)], [(64, 64, 64)] * 9000], ids=["batch", "members"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_deep_problem_is_split_among_a_crowd(crowd, dtype):
    deep = [(64, 64, 100_000)]
    plan = make(Makespan(), crowd + deep, dtype=dtype)
    assert (plan.runs.k_begin[plan.runs.problem == len(crowd)] > 0).any()
    assert ready_bytes(plan.num_tiles) < MAX_BYTES
    alone = [make(Makespan(), part, dtype=dtype).predicted_seconds for part in (crowd, deep)]
    assert plan.predicted_seconds < 1.1 * sum(alone)


def test_few_problems_take_the_kernel_that_is_best_with_its_last_round_split():
    """128 x 128 tiles need more than one round here, and are slower than others until the second is shared."""
    device, sizes = device_spec("h100"), [(m, 1024, 1024) for m in (783, 146, 350, 837, 453, 1072, 332, 123)]
    catalogue, problems = catalogue_for("tf32x3", device), problems_of(sizes)
    chosen = Makespan().draft(problems, device, catalogue)
    for kernel in {tile.kernel for tile in catalogue if tile.tensor}:
        assert chosen.seconds <= Makespan(kernel=kernel).draft(problems, device, catalogue).seconds
    assert {tile.name for tile in chosen.build().tiles_used} == {"mma-128x128"}


def test_where_the_memory_limits_all_kernels_the_one_with_the_least_work_is_taken():
    tile = make(Makespan(), [vb.Problem(20480, 8, 20480, transpose_a=True), (4, 4, 4)], dtype="float64").tiles_used[0]
    assert not tile.tensor


def test_a_last_round_of_few_tiles_is_shared_by_all_units():
    sizes = [(128 * 35, 1024, 1024)]  # 280 tiles of 128 x 128 where 264 fit
    catalogue = catalogue_for("bfloat16", device_spec("h100"))
    largest = dataclasses.replace(catalogue, tiles=(catalogue.find("mma-128x128"),))
    plan = Makespan()(problems_of(sizes), device_spec("h100"), largest)
    plan.validate()
    split = plan.runs.k_end - plan.runs.k_begin < 1024
    assert 280 - np.count_nonzero(~split) == 16
    assert plan.predicted_seconds < make(vb.Uniform(("mma-128x128", 256)), sizes, dtype="bfloat16").predicted_seconds


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 10**6)), max_size=4))
def test_few_elements_and_long_k(problems):
    plan = make(Makespan(), problems)
    plan.validate()
    assert plan.predicted_seconds <= make(vb.Uniform(), problems).predicted_seconds * (1 + 1e-12)


def test_choices_name_the_tile_of_each_problem():
    plan = make(Makespan(), [(16, 16, 16), (500, 500, 64), (0, 5, 5)])
    for index, choice in enumerate(plan.choices):
        used = {plan.catalogue.by_index[s].key for s in plan.tile_strategy[plan.tile_problem == index].tolist()}
        assert used <= {choice} or (choice is None and len(used) == 2)


@pytest.mark.parametrize("kind", ["tf32", "bfloat16"])
@pytest.mark.parametrize("seed", range(8))
def test_no_tile_alone_is_predicted_faster(kind, seed):
    rng = np.random.default_rng(seed)
    sizes = 2 ** np.stack([rng.integers(4, 10, 64), rng.integers(4, 10, 64), rng.integers(4, 8, 64)], axis=1)
    device = device_spec("h100")
    problems, catalogue = problems_of(sizes.tolist()), catalogue_for(kind, device)
    found = Makespan()(problems, device, catalogue).predicted_seconds
    tensor_tiles = [tile.key for tile in catalogue if tile.tensor]
    assert found <= min(vb.Uniform(key)(problems, device, catalogue).predicted_seconds for key in tensor_tiles) * (
        1 + 1e-9
    )


@given(problem_lists)
def test_only_some_tiles(problems):
    device = device_spec("h100")
    catalogue = catalogue_for("float32", device)
    whole = Makespan().draft(problems_of(problems), device, catalogue)
    for kernel in catalogue.kernels:
        plan = make(Makespan(kernel=kernel), problems)
        plan.validate()
        assert plan.catalogue == catalogue
        assert {tile.kernel for tile in plan.tiles_used} <= {kernel}
    for index in set(whole.runs.tile_id.tolist()):
        tile = catalogue.by_index[index]
        plan = make(Makespan(without=tile.key), problems)
        plan.validate()
        assert tile not in plan.tiles_used


@pytest.mark.parametrize(
    ("planner", "message"),
    [
        (
            Makespan(kernel="m128_light"),
            "Makespan: there is no kernel 'm128_light' for float32; there are t128_light, ",
        ),
        (Makespan(without=("small", 64)), r"there is no tile \('small', 64\) for float32"),
        (Makespan("t128_rows", ("rows-256x8", 256)), r"there is no tile \('rows-256x8', 256\)"),
    ],
)
def test_tiles_that_are_not_there(planner, message):
    with pytest.raises(ValueError, match=message):
        make(planner, [(64, 64, 64)])


def test_a_cpu_is_none_of_its_devices():
    with pytest.raises(ValueError, match="Makespan: it plans for GPUs, but 'cpu' is a cpu"):
        make(Makespan(), [(8, 8, 32768)], "cpu")


def test_no_tile_left():
    device = device_spec("h100")
    catalogue = catalogue_for("float32", device)
    one = dataclasses.replace(catalogue, tiles=(catalogue.find("large", 128),))
    with pytest.raises(ValueError, match=r"Makespan: without \('large', 128\) there is no tile left"):
        Makespan(without=("large", 128))(problems_of([(64, 64, 64)]), device, one)
