"""The planner `tall_skinny` and the tiles it chooses from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec, plan_problems
from jax_vbgemm._src.planner.search.makespan import Makespan
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS, WHOLE_ROWS

from .cases import DEVICES, make, names, problem_lists, times_covered
from .tall_skinny_shapes import small, tall

wide = st.builds(lambda p: vb.Problem(p.n, p.m, p.k), tall)
deep = st.builds(vb.Problem, m=small, n=small, k=st.integers(1, 3000))
mixed = st.lists(st.one_of(tall, wide, deep), min_size=1, max_size=3).map(tuple)


@given(st.one_of(mixed, problem_lists), st.sampled_from(DEVICES), st.sampled_from((None, 0, 500)))
def test_each_product_is_formed_once(problems, device, target):
    plan = make(vb.TallSkinny(target), problems, device)
    plan.validate()
    if sum(p.batch * p.m * p.n * max(p.k, 1) for p in problems) < 10**6:
        assert all((counts == 1).all() for counts in times_covered(plan))


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16", "tf32"])
@pytest.mark.parametrize("n", [1, 3, 7, 12, 24, 31])
def test_tsm2_reads_a_once(kind, n):
    """Dot products along A's rows where they are wide enough, else the narrowest skinny tile."""

    def on_units(short):
        """Skinny tiles of 32 lines are built for tensor cores too."""
        return "m128_long" if short == 32 and upright.catalogue.on_tensor_cores else "t128_medium"

    upright, mirrored = (make(vb.TallSkinny(), [size], dtype=kind) for size in ((20480, n, 20480), (n, 20480, 20480)))
    tile, image = (plan.catalogue.find(*plan.choices[0]) for plan in (upright, mirrored))
    dots = [each for each in upright.catalogue if each.kernel in DOT_PRODUCTS and each.n >= n]
    if dots:
        assert tile == min(dots, key=lambda each: each.n)
    else:
        assert tile.n == next(short for short in (8, 16, 32) if n <= short)
        assert tile.kernel == on_units(tile.n)
    assert image.kernel == on_units(image.m)
    assert image.m == (16 if n <= 16 else 32)  # there is no narrower one


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "tf32"])
@pytest.mark.parametrize("n", [1, 8, 9, 16, 25, 32])
@pytest.mark.parametrize("k", slow_except([1, 8, 32], [8]))
@pytest.mark.parametrize("transpose_a", [False, True])
def test_ism2_reads_a_once_by_whole_rows(kind, n, k, transpose_a):
    for m in (10**4, 10**5, 10**6):
        upright = vb.Problem(m, n, k, transpose_a=transpose_a)
        for problem in (upright, vb.Problem(n, m, k)):
            plan = make(vb.TallSkinny(), [problem], dtype=kind)
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


@pytest.mark.parametrize("size", [(30, 44069, 28), (44069, 30, 28), (17, 20000, 8), (32, 100_000, 32)])
def test_no_unit_is_idle_where_shorter_tiles_hold_the_small_dimension(size):
    plan = make(vb.TallSkinny(), [size])
    (tile,) = plan.tiles_used
    assert min(tile.m, tile.n) >= min(size[:2])
    assert plan.num_tiles >= 132


def test_a_float64_product_of_25_columns_takes_one_pass():
    plan = make(vb.TallSkinny(), [(10**6, 25, 8)], dtype="float64")
    assert names(plan) == ["mma-rows-1024x32"]
    assert plan.num_tiles == -(-(10**6) // 1024)


@pytest.mark.parametrize("n", [1, 8, 16])
def test_a_tall_operand_stored_in_columns_is_the_papers_own(n):
    plan = make(vb.TallSkinny(), [vb.Problem(10240, n, 10240, transpose_a=True)])
    plan.validate()
    (tile,) = plan.tiles_used
    assert (tile.kernel, tile.m) == ("t128_rows", 256)
    assert plan.num_tiles > 132


def test_a_device_without_such_kernels_takes_far_longer_tiles():
    for name in ("p100", "k40c", "m40"):
        plan = make(vb.TallSkinny(), [(10**6, 16, 16), (10**5, 8, 8)], name, "float64")
        plan.validate()
        assert all(tile.name.startswith("skinny-") and tile.n >= 8 for tile in plan.tiles_used)


def test_reductions_share_depth():
    plan = make(vb.TallSkinny(), [vb.Problem(5, 3, 10**6, transpose_a=True)])
    plan.validate()
    assert names(plan) == ["deep-8x8"]
    assert plan.num_tiles > 132


@pytest.mark.parametrize(("kind", "by_default"), [("bfloat16", True), ("tf32", True), ("float32", False),
                                                  ("float64", False)])  # fmt: skip
def test_tensor_cores_as_for_the_other_papers_planners(kind, by_default):
    sizes = [(10**5, 24, 500), (24, 10**5, 500), (512, 512, 512)]
    options = [(None, by_default), (False, False)]
    if kind != "float32":  # whose products are not formed on NVIDIA's tensor cores
        options.append((True, True))
    for tensor, expected in options:
        plan = make(vb.TallSkinny(tensor=tensor), sizes, dtype=kind)
        plan.validate()
        shapes = ["mma-128x32", "mma-32x128", "mma-64x64"] if expected else ["skinny-128x32", "skinny-32x128", "large"]
        assert names(plan) == shapes
    whole_rows = make(vb.TallSkinny(tensor=False), [(10**6, 25, 8)], dtype="float64")
    assert names(whole_rows) == ["rows-1024x32"]
    with pytest.raises(ValueError, match="TallSkinny: tensor = 1 must be one of None, True, False"):
        vb.TallSkinny(tensor=1)


def test_more_kernels_than_a_call_launches_are_not_asked_for():
    """The kernels with least to read give their problems up."""
    sizes = [
        (10**6, 8, 8), (10**6, 32, 32), (20480, 4, 20480), vb.Problem(8, 8, 10**5, transpose_a=True), (512, 512, 512),
        (16, 16, 16),
    ]  # fmt: skip
    for kind in ("float32", "float64", "bfloat16"):
        plan = make(vb.TallSkinny(), sizes, dtype=kind)
        plan.validate()
        kernels = [plan.catalogue.find(*choice).kernel for choice in plan.choices]
        assert len(set(kernels)) <= 3
        assert kernels[2] in DOT_PRODUCTS  # A is 1.7 GB


@pytest.mark.parametrize("device", ["a100", "a800", "v100"])
def test_on_a_device_without_measurements_the_papers_kernels_are_chosen(device):
    deep = [vb.Problem(10240, 8, 10240), vb.Problem(10240, 8, 10240, transpose_a=True)]
    assert [name.split("-")[0] for name in names(make(vb.TallSkinny(), deep, device))] == ["dots", "rows"]
    assert names(make(vb.TallSkinny(), [(10**7, 16, 16)], device))[0].startswith("rows-")


def test_latencies_and_rows_a_thread_may_be_given():
    slow = vb.TallSkinny(memory_latency=1e-3)  # nothing is hidden: fewest rounds
    assert names(make(slow, [(10**5, 8, 8)])) == ["rows-256x8"]
    assert names(make(vb.TallSkinny(tcf=8), [(10**6, 8, 8)])) == ["rows-1024x8"]
    assert names(make(vb.TallSkinny(tcf=16), [(10**6, 8, 8)])) == ["rows-2048x8"]
    assert names(make(vb.TallSkinny(tcf=3), [(10**6, 8, 8)])) == names(make(vb.TallSkinny(), [(10**6, 8, 8)]))
    assert make(vb.TallSkinny(tcf=8), [(10**6, 8, 8), (64, 64, 64)]).notes == ()
    assert make(vb.TallSkinny(tcf=3), [(10**6, 8, 8), (64, 64, 64)]).notes == (
        "tcf = 3: no tile for 1 of 1 problems of ISM2; they have the model's tcf",
    )
    # Only tiles whose threads walk rows of C count, also where the device's measurements prefer others.
    for device, dtype in (("a800", "float32"), ("mi210", "float32"), ("v100", "float64"), ("h100", "float64")):
        for size in (10**4, 10**7):
            planner = vb.TallSkinny(tcf=8, tensor=False)
            plan = make(planner, [(size, 16, 16)], device, dtype=dtype)
            assert names(plan) == ["rows-1024x16"]
            assert not any("tcf" in note for note in plan.notes)
            plan = make(vb.TallSkinny(tcf=2, tensor=False), [(size, 16, 16)], device, dtype=dtype)
            assert names(plan) == ["rows-256x16"]
    for tcf in (0, 7.5):
        with pytest.raises(ValueError, match=f"TallSkinny: tcf = {tcf} must be a positive whole number"):
            vb.TallSkinny(tcf=tcf)
    with pytest.raises(ValueError, match="TallSkinny: memory_latency = -1 must be finite and not negative"):
        vb.TallSkinny(memory_latency=-1)
    with pytest.raises(TypeError, match="TallSkinny: tcf = '8' must be a number"):
        vb.TallSkinny(tcf="8")


def test_a_long_k_is_split_until_the_device_is_full():
    sizes = [(16, 16, 10**6), (10240, 16, 10240)]
    whole, split = make(vb.TallSkinny(target_blocks=0), sizes), make(vb.TallSkinny(target_blocks=500), sizes)
    assert whole.num_tiles == 81
    assert 81 < split.num_tiles <= 500
    assert split.choices == whole.choices
    split.validate()


def test_a_batch_may_mix_them_with_ordinary_problems():
    plan = make(vb.TallSkinny(), [(10**6, 16, 16), (64, 64, 64), (16, 10**6, 16)])
    assert names(plan) == ["rows-1024x16", "large", "columns-16x1024"]


def test_a_dtype_without_such_tiles_takes_ordinary_ones():
    assert names(make(vb.TallSkinny(), [(10**5, 16, 16)], dtype="complex64")) == ["small"]


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("n", [1, 16, 17, 25, 31, 32])
def test_square_tiles_are_no_narrower_than_the_small_dimension(dtype, n):
    for size in [(10**6, n, 8), (n, 10**6, 8), (20480, n, 5000), (n, 20480, 5000), (n, n, 10**6), (3, n, 10**6)]:
        plan = make(vb.TallSkinny(), [size], dtype=dtype)
        (tile,) = plan.tiles_used
        assert min(tile.m, tile.n) >= min(n, size[0])
        if max(size[:2]) <= 32:
            assert min(tile.m, tile.n) >= n


def test_a_transposed_tall_operand_is_read_once():
    for n, width in ((8, 8), (16, 16), (17, 32), (22, 32), (32, 32)):
        plan = make(vb.TallSkinny(), [vb.Problem(152463, n, 40, transpose_a=True)], dtype="float64")
        (tile,) = plan.tiles_used
        assert (tile.m, tile.n) == (256, width)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("size", [(10**6, 16, 16), (10**6, 8, 8), (10**5, 16, 16), (20480, 8, 20480), (16, 10**6, 16)])
def test_auto_takes_them(dtype, size):
    plan = plan_problems([size, (4, 4, 4)], dtype, device_spec("h100"))
    tile = plan.catalogue.by_index[int(plan.tile_strategy[0])]
    assert tile.kernel in ("t128_medium", "t128_rows", "m128_rows", *DOT_PRODUCTS)


@pytest.mark.parametrize("size", [(2**31 - 1, 16, 40), (16, 2**31 - 1, 40), (10**8, 40, 40)])
def test_offsets_may_exceed_32_bits(size):
    """m k > 2**31: tiles are places, not offsets, and a plan of equal tiles stays a run or two."""
    plan = make(vb.TallSkinny(), [size])
    assert plan.num_tiles == sum(
        -(-max(size) // long) * -(-min(size[:2]) // short)
        for short, long in [sorted((tile.m, tile.n)) for tile in [plan.catalogue.find(*plan.choices[0])]]
    )
    assert len(plan.runs) == 1


def test_a_target_must_be_a_number():
    with pytest.raises(TypeError, match="TallSkinny: target_blocks = '1' must be a number"):
        vb.TallSkinny("1")


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
