"""Wang 2022, against a transcription of its three steps in plain loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_vbgemm as vb

from .cases import DEVICES, make, names, num_tiles, problem_lists

LEVELS = {"small": 16, "medium": 32, "large": 64}


def reference(problems, target, sort_by="k", passes="repeat"):
    """(names, order)."""
    edges = list(LEVELS.values())
    level = [max((i for i in range(3) if edges[i] <= min(p.m, p.n)), default=0) for p in problems]
    by_k, by_tile = [-p.k for p in problems], [-edges[lv] for lv in level]
    keys = list(zip(by_k, by_tile, strict=True) if sort_by == "k" else zip(by_tile, by_k, strict=True))
    order = sorted(range(len(problems)), key=lambda i: keys[i])

    def blocks():
        return sum(num_tiles(p, edges[lv], edges[lv]) for p, lv in zip(problems, level, strict=True))

    while blocks() < target and any(level):
        for i in reversed(order):
            if blocks() >= target:
                break
            level[i] = max(level[i] - 1, 0)
        if passes == "one":
            break
    return [list(LEVELS)[lv] for lv in level], tuple(order)


@given(problem_lists, st.integers(0, 400))
def test_tiles_and_order_are_those_of_the_paper(problems, target):
    plan = make(vb.SortSplit(target_blocks=target), problems)
    assert (names(plan), plan.order) == reference(problems, target)
    assert {threads for _, threads in plan.choices} <= {128}
    assert plan.block_first is None


@given(problem_lists, st.sampled_from(DEVICES))
def test_the_default_target_is_split_factor_times_units(problems, device):
    factor = {"mi210": 2, "h100": 16}.get(device, 1)
    plan = make(vb.SortSplit(), problems, device)
    assert (names(plan), plan.order) == reference(problems, factor * plan.device.units)


@given(
    problem_lists, st.integers(0, 400), st.sampled_from(("k", "tile")), st.sampled_from(("repeat", "one")),
)  # fmt: skip
def test_each_reading(problems, target, sort_by, passes):
    plan = make(vb.SortSplit(target, sort_by, passes), problems)
    assert (names(plan), plan.order) == reference(problems, target, sort_by, passes)


def test_readings_by_hand():
    shapes = [(64, 64, 8), (16, 16, 90), (32, 32, 50)]
    assert make(vb.SortSplit(target_blocks=0), shapes).order == (1, 2, 0)
    assert make(vb.SortSplit(target_blocks=0, sort_by="tile"), shapes).order == (0, 2, 1)
    # 1 + 1 + 1 blocks; one pass makes 4 + 1 + 4, the second of 64 x 64 another 16.
    assert names(make(vb.SortSplit(target_blocks=10, passes="one"), shapes)) == ["medium", "small", "small"]
    assert names(make(vb.SortSplit(target_blocks=10), shapes)) == ["small"] * 3


def test_on_tensor_cores_the_same_shapes_are_chosen():
    shapes = [(64, 64, 8), (16, 16, 90), (32, 32, 50)]
    plan = make(vb.SortSplit(target_blocks=0), shapes, dtype="bfloat16")
    plan.validate()
    assert names(plan) == ["mma-64x64", "mma-16x32", "mma-32x32"]
    assert names(make(vb.SortSplit(target_blocks=0, tensor=False), shapes, dtype="bfloat16")) == [
        "large", "small", "medium",
    ]  # fmt: skip


def test_sort_up_by_hand():
    # By K, then by the area of the first tile, then as they came.
    shapes = [(16, 16, 8), (64, 64, 8), (16, 16, 90), (64, 64, 8), (32, 32, 8), (200, 16, 90)]
    plan = make(vb.SortSplit(target_blocks=0), shapes)
    assert plan.order == (2, 5, 1, 3, 4, 0)
    assert list(dict.fromkeys(plan.tile_problem.tolist())) == [2, 5, 1, 3, 4, 0]


def test_split_down_by_hand():
    shapes = [(128, 128, 64), (128, 128, 32), (64, 64, 16)]  # 4 + 4 + 1 blocks of 64 x 64
    assert names(make(vb.SortSplit(target_blocks=9), shapes)) == ["large", "large", "large"]
    assert names(make(vb.SortSplit(target_blocks=10), shapes)) == ["large", "large", "medium"]  # 4 + 4 + 4
    assert names(make(vb.SortSplit(target_blocks=12), shapes)) == ["large", "large", "medium"]  # met
    assert names(make(vb.SortSplit(target_blocks=13), shapes)) == ["large", "medium", "medium"]  # 4 + 16 + 4
    assert names(make(vb.SortSplit(target_blocks=25), shapes)) == ["medium", "medium", "medium"]  # 16 + 16 + 4
    assert names(make(vb.SortSplit(target_blocks=37), shapes)) == [
        "medium",
        "medium",
        "small",
    ]  # second pass: 16 + 16 + 16
    assert names(make(vb.SortSplit(target_blocks=10**9), shapes)) == ["small", "small", "small"]


def test_the_order_is_not_sorted_again_after_the_split():
    # Both 64 x 64 at first; the second is split, and still comes before the third of area 32 x 32.
    plan = make(vb.SortSplit(target_blocks=4), [(32, 64, 8), (64, 64, 8), (32, 32, 8)])
    assert plan.order == (1, 0, 2)


def test_options():
    with pytest.raises(ValueError, match="SortSplit: target_blocks = -3 must be finite and not negative"):
        vb.SortSplit(target_blocks=-3)
    with pytest.raises(ValueError, match="SortSplit: sort_by = 'm' must be one of 'k', 'tile'"):
        vb.SortSplit(sort_by="m")
    with pytest.raises(ValueError, match="SortSplit: passes = 2 must be one of 'repeat', 'one'"):
        vb.SortSplit(passes=2)


@pytest.mark.parametrize(("device", "kind"), [("v100", "float32"), ("cpu", "float32"), ("h100", "float32")])
@pytest.mark.parametrize("planner", [vb.SortSplit, vb.LoadBalanced, vb.Coordinated, vb.TallSkinny])
def test_tensor_cores_that_a_device_lacks_are_refused_by_name(planner, device, kind):
    with pytest.raises(ValueError, match=f"{planner.__name__}: tensor = True: none of .* is built for {kind}"):
        make(planner(tensor=True), [(64, 64, 64)], device, kind)
