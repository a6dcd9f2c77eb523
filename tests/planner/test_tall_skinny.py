"""The planner `tall_skinny` and the tiles it chooses from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_vbgemm._src.planner import TallSkinny, catalogue_for, device_spec, plan_problems
from jax_vbgemm._src.planner.model.cost_model import step_depth
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_families import LONG, worth_trying
from jax_vbgemm._src.planner.search.makespan import Makespan
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS, WHOLE_ROWS
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.shares import even_shares, fewest_filling_shares
from jax_vbgemm._src.planner.tiles.symmetric import stores_mirrored
from jax_vbgemm._src.problem import Problem, Sizes

from .cases import DEVICES, make, names, problem_lists, times_covered

# Small dimensions that fill a tile and that don't.
small = st.sampled_from((1, 2, 3, 5, 7, 8, 12, 16, 24, 31, 32, 40))
tall = st.builds(Problem, m=st.integers(1, 1500), n=small, k=st.one_of(small, st.sampled_from((700, 1024))))
wide = st.builds(lambda p: Problem(p.n, p.m, p.k), tall)
deep = st.builds(Problem, m=small, n=small, k=st.integers(1, 3000))
mixed = st.lists(st.one_of(tall, wide, deep), min_size=1, max_size=3).map(tuple)


@given(st.one_of(mixed, problem_lists), st.sampled_from(DEVICES), st.sampled_from((None, 0, 500)))
def test_each_product_is_formed_once(problems, device, target):
    plan = make(TallSkinny(target), problems, device)
    plan.validate()
    if sum(p.batch * p.m * p.n * max(p.k, 1) for p in problems) < 10**6:
        assert all((counts == 1).all() for counts in times_covered(plan))


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16", "tf32"])
@pytest.mark.parametrize("n", [1, 3, 7, 12, 24, 31])
def test_tsm2_reads_a_once(kind, n):
    """Dot products along A's rows where they are wide enough, else the narrowest far longer tile."""
    upright, mirrored = (make(TallSkinny(), [size], dtype=kind) for size in ((20480, n, 20480), (n, 20480, 20480)))
    tile, image = (plan.catalogue.find(*plan.choices[0]) for plan in (upright, mirrored))
    dots = [each for each in upright.catalogue if each.kernel in DOT_PRODUCTS and each.n >= n]
    if dots:
        assert tile == min(dots, key=lambda each: each.n)
    else:
        assert (tile.kernel, tile.n) == ("t128_medium", next(short for short in (8, 16, 32) if n <= short))
    assert image.kernel == "t128_medium"
    assert image.m == (16 if n <= 16 else 32)  # there is no narrower one


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "tf32"])
@pytest.mark.parametrize("n", [1, 8, 9, 16, 25, 32])
@pytest.mark.parametrize("k", [1, 8, 32])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_ism2_reads_a_once_by_whole_rows(kind, n, k, transpose_a):
    for m in (10**4, 10**5, 10**6):
        upright = Problem(m, n, k, transpose_a=transpose_a)
        for problem in (upright, Problem(n, m, k)):
            plan = make(TallSkinny(), [problem], dtype=kind)
            plan.validate()
            (tile,) = plan.tiles_used
            assert min(tile.m, tile.n) >= n
            shortest = min(max(each.m, each.n) for each in plan.catalogue
                           if each.kernel in WHOLE_ROWS and (each.m > each.n) == (problem is upright)
                           and min(each.m, each.n) == min(tile.m, tile.n))  # fmt: skip
            if m >= 132 * shortest:
                assert tile.kernel in WHOLE_ROWS
                assert min(tile.m, tile.n) == next(short for short in (8, 16, 32) if n <= short)
                assert plan.num_tiles >= 132
            else:  # other long tiles may be shorter, but leave no more units empty
                assert plan.num_tiles >= -(-m // shortest)


def test_a_float64_product_of_25_columns_takes_one_pass():
    plan = make(TallSkinny(), [(10**6, 25, 8)], dtype="float64")
    assert names(plan) == ["mma-rows-1024x32"]
    assert plan.num_tiles == -(-(10**6) // 1024)


@pytest.mark.parametrize("n", [1, 8, 16])
def test_a_tall_operand_stored_in_columns_is_the_papers_own(n):
    plan = make(TallSkinny(), [Problem(10240, n, 10240, transpose_a=True)])
    plan.validate()
    (tile,) = plan.tiles_used
    assert (tile.kernel, tile.m) == ("t128_rows", 256)
    assert plan.num_tiles > 132


def test_a_device_without_such_kernels_takes_far_longer_tiles():
    for name in ("p100", "k40c", "m40"):
        plan = make(TallSkinny(), [(10**6, 16, 16), (10**5, 8, 8)], name, "float64")
        plan.validate()
        assert all(tile.name.startswith("skinny-") and tile.n >= 8 for tile in plan.tiles_used)


def test_reductions_share_depth():
    plan = make(TallSkinny(), [Problem(5, 3, 10**6, transpose_a=True)])
    plan.validate()
    assert names(plan) == ["deep-8x8"]
    assert plan.num_tiles > 132


def test_more_kernels_than_a_call_launches_are_not_asked_for():
    """The kernels with least to read give their problems up."""
    sizes = [
        (10**6, 8, 8), (10**6, 32, 32), (20480, 4, 20480), Problem(8, 8, 10**5, transpose_a=True), (512, 512, 512),
        (16, 16, 16),
    ]  # fmt: skip
    for kind in ("float32", "float64", "bfloat16"):
        plan = make(TallSkinny(), sizes, dtype=kind)
        plan.validate()
        kernels = [plan.catalogue.find(*choice).kernel for choice in plan.choices]
        assert len(set(kernels)) <= 3
        assert kernels[2] in DOT_PRODUCTS  # A is 1.7 GB


def test_latencies_and_rows_a_thread_may_be_given():
    slow = TallSkinny(memory_latency=1e-3)  # nothing is hidden: fewest rounds
    assert names(make(slow, [(10**5, 8, 8)])) == ["rows-256x8"]
    assert names(make(TallSkinny(tcf=8), [(10**6, 8, 8)])) == ["rows-1024x8"]
    assert names(make(TallSkinny(tcf=16), [(10**6, 8, 8)])) == ["rows-2048x8"]
    assert names(make(TallSkinny(tcf=3), [(10**6, 8, 8)])) == names(make(TallSkinny(), [(10**6, 8, 8)]))
    with pytest.raises(ValueError, match="TallSkinny: memory_latency = -1 must be finite and not negative"):
        TallSkinny(memory_latency=-1)
    with pytest.raises(TypeError, match="TallSkinny: tcf = '8' must be a number"):
        TallSkinny(tcf="8")


def test_a_long_k_is_split_until_the_device_is_full():
    sizes = [(16, 16, 10**6), (10240, 16, 10240)]
    whole, split = make(TallSkinny(target_blocks=0), sizes), make(TallSkinny(target_blocks=500), sizes)
    assert whole.num_tiles == 81
    assert 81 < split.num_tiles <= 500
    assert split.choices == whole.choices
    split.validate()


def test_a_batch_may_mix_them_with_ordinary_problems():
    plan = make(TallSkinny(), [(10**6, 16, 16), (64, 64, 64), (16, 10**6, 16)])
    assert names(plan) == ["rows-1024x16", "large", "columns-16x1024"]


def test_a_dtype_without_such_tiles_takes_ordinary_ones():
    assert names(make(TallSkinny(), [(10**5, 16, 16)], dtype="complex64")) == ["small"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [(10**6, 16, 16), (10**6, 8, 8), (10**5, 16, 16), (20480, 8, 20480), (16, 10**6, 16)])
def test_auto_takes_them(dtype, size):
    plan = plan_problems([size, (4, 4, 4)], dtype, device_spec("h100"))
    tile = plan.catalogue.by_index[int(plan.tile_strategy[0])]
    assert tile.kernel in ("t128_medium", "t128_rows", "m128_rows", *DOT_PRODUCTS)


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
    plan = plan_problems([Problem(m, n, 10**6, transpose_a=True)], dtype, device_spec("h100"))
    plan.validate()
    (used,) = plan.tiles_used
    assert used.kernel == "t128_deep"
    assert used.m * used.n == tile
    assert 132 <= plan.num_tiles <= 132 * 32  # shares for every multiprocessor


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
    deepest = k // step_depth(used.k, plan.catalogue.element_bytes) // 2 * -(-m // used.m)  # as many shares as K has
    too_long = used.m * k * plan.catalogue.element_bytes > 6 << 20 and rounds >= 3  # whole, so that three rounds do
    assert too_long or rounds / np.ceil(rounds) >= min(0.85, 0.5 * deepest / slots)
    other = plan_problems([Problem(m, n, k, transpose_a=True)], kind, device)
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


@pytest.mark.parametrize("n", [1, 3, 8, 16])
@pytest.mark.parametrize("kind", ["float32", "tf32"])
def test_a_transposed_tall_operand_of_float32_takes_row_tiles(kind, n):
    for m, k in ((10240, 10240), (2048, 100_000), (100_000, 2000)):
        plan = plan_problems([Problem(m, n, k, transpose_a=True)], kind, device_spec("h100"))
        plan.validate()
        (used,) = plan.tiles_used
        assert used.kernel == "t128_rows"
        assert used.m == 256
        assert plan.num_tiles >= 0.8 * 132 * tile_occupancy(used, plan.device).blocks


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


def test_a_transposed_tall_operand_beside_small_factors_keeps_its_speed():
    problems = [Problem(10**6, 8, 8, batch=40), Problem(10240, 4, 100_000, transpose_a=True)]
    assert plan_problems(problems, "float32", device_spec("h100")).predicted_seconds < 2.5e-3


def test_a_member_without_products_leaves_a_transposed_tall_operand_its_tiles():
    tall = Problem(10240, 4, 10240, transpose_a=True)
    alone, beside = (plan_problems([tall, *rest], "float32", device_spec("h100")) for rest in ([], [(10**6, 8, 0)]))
    assert beside.tiles_used == alone.tiles_used


@pytest.mark.parametrize("crowd", [Problem(4096, 4096, 512, batch=60), Problem(512, 512, 512, batch=300)])
def test_shares_beside_a_crowd_fit_the_descriptors(crowd):
    plan = plan_problems([(20480, 2, 20480), crowd], "float32", device_spec("h100"))
    split = (plan.runs.k_begin > 0).any()
    assert not split or ready_bytes(plan.num_tiles) <= 4 * MAX_BYTES


def test_dot_products_and_ordinary_products_are_launched_apart():
    plan = plan_problems([(20480, 2, 20480), (512, 512, 512)], "float32", device_spec("h100"))
    plan.validate()
    kernels = [plan.catalogue.by_index[row].kernel for row in plan.tile_strategy]
    assert {kernels[i] for i in np.flatnonzero(plan.tile_problem == 0)} == {"t256_dots"}
    assert "t256_dots" not in {kernels[i] for i in np.flatnonzero(plan.tile_problem == 1)}


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 3000)), min_size=1, max_size=5),
    st.sampled_from((132, 264)),
)
def test_shares_that_fill_are_no_more_than_that_takes(problems, slots):
    given_steps, tiles = (np.array(column) for column in zip(*problems, strict=True))
    steps = given_steps.clip(1)  # a problem of no depth has tiles, too

    def fullness(shares):
        each = -(-steps // shares)
        blocks = (shares * tiles).sum()
        work = (steps * tiles).sum()
        return work / slots / max(each.max(), np.ceil(blocks / slots) * work / blocks)

    shares = fewest_filling_shares(given_steps, tiles, slots, 2, 0.85)
    assert ((shares == 1) | (-(-steps // shares) >= 2)).all()
    parts = range(1, int(steps.max()) // 2 + 1)
    others = [even_shares(steps, -(-steps // -(-steps.max() // each)))[1] for each in parts]
    few = [each for each in others if (each * tiles).sum() <= 16 * slots]
    assert fullness(shares) >= min(0.85, max(map(fullness, few), default=0.0)) - 1e-9
    if len(problems) == 1:
        fewer = [even_shares(steps, np.array([parts]))[1] for parts in range(1, int(shares[0]))]
        assert all(fullness(each) < 0.85 for each in fewer)


@pytest.mark.parametrize(("size", "shares"), [((20480, 8, 20480), 5), ((10240, 8, 10240), 3), ((30_000, 16, 5001), 1)])
def test_no_block_of_dot_products_reads_for_long(size, shares):
    """As measured: five shares of 4 MB are faster than three of 7 MB, three of 3.5 MB as fast as ten."""
    plan = plan_problems([size], "float64", device_spec("h100"))
    plan.validate()
    (tile,) = plan.tiles_used
    assert tile.kernel == "m256_dots"
    assert plan.num_tiles == -(-size[0] // tile.m) * shares


@given(st.integers(1, 5000), st.integers(1, 500), st.integers(1, 400), st.integers(2, 300))
def test_shares_have_no_more_steps_than_asked_for(steps, tiles, slots, most_steps):
    shares = fewest_filling_shares(np.array([steps]), np.array([tiles]), slots, 2, 0.85, most_steps)
    assert shares[0] >= 1
    if ready_bytes(float(tiles) * -(-steps // most_steps) * 2, float(tiles)) < MAX_BYTES:
        assert -(-steps // shares[0]) <= max(most_steps, 3)  # three, where two shares would have less than two


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
    tall, ordinary = Problem(20_000, 32, 32), Problem(300, 300, 300)

    def long_tiles(problems):
        return [tile.name for tile in LONG.tiles_of(worth_trying(catalogue, Sizes.of(problems)))]

    assert long_tiles([tall]) == ["mma-128x32"]
    assert long_tiles([Problem(10**6, 32, 32)]) == []  # whole rows on tensor cores alone
    assert long_tiles([Problem(20480, 24, 20480)]) == ["mma-128x32", "mma-32x128"]
    assert long_tiles([ordinary]) == long_tiles([tall, ordinary]) == []
    amd = catalogue_for("tf32", device_spec("mi300x"))
    assert not any(tile.tensor and tile.is_far_longer for tile in amd)


@pytest.mark.parametrize("planner", ["auto", "uniform"])
@pytest.mark.parametrize("size", [(4096, 4096, 4096), (10**6, 16, 2000), (16, 10**6, 16), (10**6, 100, 16)])
def test_row_tiles_are_for_a_small_b(size, planner):
    plan = plan_problems([size, size], "float32", device_spec("h100"), planner)
    assert not any(tile.name.startswith("rows-") for block in plan.blocks[:4] for tile in block)


@pytest.mark.parametrize("size", [(2**31 - 1, 16, 40), (16, 2**31 - 1, 40), (10**8, 40, 40)])
def test_offsets_may_exceed_32_bits(size):
    """m k > 2**31: tiles are places, not offsets, and a plan of equal tiles stays a run or two."""
    plan = make(TallSkinny(), [size])
    assert plan.num_tiles == sum(
        -(-max(size) // long) * -(-min(size[:2]) // short)
        for short, long in [sorted((tile.m, tile.n)) for tile in [plan.catalogue.find(*plan.choices[0])]]
    )
    assert len(plan.runs) == 1


def test_a_target_must_be_a_number():
    with pytest.raises(TypeError, match="TallSkinny: target_blocks = '1' must be a number"):
        TallSkinny("1")


def test_tiles_are_short_one_way():
    tiles = [tile for tile in catalogue_for("float32", device_spec("h100")) if tile.name.startswith("skinny")]
    assert all(max(tile.m, tile.n) >= 4 * min(tile.m, tile.n) for tile in tiles)
    assert {(tile.threads, tile.kernel) for tile in tiles} == {(128, "t128_medium")}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])  # whose ordinary ones go to tensor cores
def test_a_mixed_batch_goes_out_as_a_launch_of_each_kind(dtype):
    skinny, ordinary = [(10**6, 16, 16), (16, 300_001, 7)], [(512, 480, 1000 + i) for i in range(64)]
    problems = [*ordinary[:32], *skinny, *ordinary[32:]]
    plan = plan_problems(problems, dtype, device_spec("h100"), Makespan())
    plan.validate()
    launches = plan.launch_form()[2]
    kernels = {launch.kernel for launch in launches}
    assert len(launches) == len(kernels) == len(kernels & {*WHOLE_ROWS}) + 1
    for problem, longer in ((32, "m"), (33, "n")):
        (row,) = np.unique(plan.tile_strategy[plan.tile_problem == problem]).tolist()
        tile = plan.catalogue.by_index[row]
        assert tile.kernel in WHOLE_ROWS
        assert getattr(tile, longer) == max(tile.m, tile.n)
    parts = [plan_problems(part, dtype, device_spec("h100"), Makespan()) for part in (skinny, ordinary)]
    assert plan.predicted_seconds <= sum(part.predicted_seconds for part in parts)


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
