"""Properties of the plans of all planners, and plans made by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.planner import Auto, catalogue_for, device_spec
from jax_vbgemm._src.planner.registry import REGISTERED

from .cases import DEVICES, DTYPES, from_blocks, huge_problems, make, of_all_families, problem_lists, times_covered

H100 = device_spec("h100")
FLOAT32 = catalogue_for("float32", H100)
PLANNERS = (Auto(), *(planner for each in REGISTERED for planner in (each.planner, *each.examples)))
any_planner = st.sampled_from(PLANNERS)
any_device = st.sampled_from(DEVICES)
any_dtype = st.sampled_from(DTYPES)


@pytest.mark.parametrize("planner", PLANNERS, ids=repr)
@given(problem_lists, any_device, any_dtype)
def test_each_element_is_covered_once_for_each_k(planner, problems, device, dtype):
    plan = make(planner, problems, device, dtype)
    for counts in times_covered(plan):
        assert (counts == 1).all()
    plan.validate()


# Coordinated batches thread blocks two by two, of which huge problems have millions.
BATCHED = [planner for planner in PLANNERS if getattr(planner, "batching", None) == "binary"]
NOT_BATCHED = [planner for planner in PLANNERS if planner not in BATCHED]


@pytest.mark.parametrize("planner", slow_except(PLANNERS, NOT_BATCHED), ids=repr)
@given(st.one_of(st.lists(huge_problems, min_size=1, max_size=3), of_all_families), any_device)
def test_huge_problems_and_every_family(planner, problems, device):
    plan = make(planner, problems, device)
    plan.validate()
    tiles = np.bincount(plan.runs.problem, plan.runs.count * (plan.runs.k_begin == 0), len(problems))
    for p, choice, count in zip(plan.problems, plan.choices, tiles.tolist(), strict=True):
        if choice is not None:  # one tile for the whole problem
            shape = plan.catalogue.find(*choice)
            assert count == -(-p.m // shape.m) * -(-p.n // shape.n) * p.batch


def test_a_tall_problem_is_one_run():
    assert len(make(vb.SortSplit(), [(10**7, 16, 16)]).runs) == 1


@given(problem_lists, any_planner, any_device)
def test_figures_hold_for_every_plan(problems, planner, device):
    plan = make(planner, problems, device)
    assert sum(map(len, plan.blocks)) == plan.num_tiles == len(plan.tile_problem)
    assert plan.num_blocks == len(plan.blocks) == len(plan.block_start) - 1
    assert sorted(plan.order) == list(range(len(problems)))
    assert len(plan.choices) == len(problems)
    assert 0 < plan.balance <= 1 + 1e-12
    assert (plan.predicted_seconds > 0) == (plan.num_tiles > 0)
    assert all(0 < fraction <= 1 for fraction in plan.occupancy.values())
    assert plan.occupancy.keys() == plan.active_waves.keys() == plan.work_per_thread.keys()
    if plan.num_tiles and any(p.k for p in problems):
        assert plan.padding_waste >= 1
    assert plan.device is device_spec(device)
    assert plan.dtype == "float32"


@given(problem_lists, any_planner, any_device)
def test_the_launch_form_is_the_plan_sorted_by_kernel(problems, planner, device):
    plan = make(planner, problems, device)
    runs, block_first, launches = plan.launch_form()
    launched = dataclasses.replace(plan, runs=runs, block_first=block_first)
    kernel_of = {tile.index: tile.kernel for tile in plan.catalogue}

    def blocks_by_kernel(plan):
        """(kernel, tiles) of each block; a block of several kernels counts once for each."""
        first, tile_id, blocks = plan.block_start.tolist(), plan.tile_strategy.tolist(), plan.blocks
        found = []
        for begin, block in zip(first, blocks, strict=False):
            kernels = [kernel_of[tile_id[begin + place]] for place in range(len(block))]
            for name in plan.catalogue.kernels:
                if name in kernels:
                    found.append((name, [tile for tile, k in zip(block, kernels, strict=True) if k == name]))
        return found

    launched_blocks = blocks_by_kernel(launched)
    launched_kernels = [kernel for kernel, _ in launched_blocks]
    rank = plan.catalogue.kernels.index
    assert launched_blocks == sorted(blocks_by_kernel(plan), key=lambda block: rank(block[0]))
    assert launched_kernels == [launch.kernel for launch in launches for _ in range(launch.num_blocks)]
    assert [launch.first_block for launch in launches] == list(np.cumsum([0] + [x.num_blocks for x in launches])[:-1])
    assert len(launches) <= 3


def test_tiles_are_enumerated_by_problem_batch_row_column():
    plan = make(vb.Uniform(("medium", 256)), [(40, 50, 7, 2), (0, 5, 5), (5, 5, 0)])
    assert plan.blocks == [
        [vb.Tile(0, batch, row, col, 0, 7, "medium")] for batch in (0, 1) for row in (0, 32) for col in (0, 32)
    ] + [[vb.Tile(2, 0, 0, 0, 0, 0, "medium")]]
    assert plan.tile_batch.tolist() == [0] * 4 + [1] * 4 + [0]
    assert plan.tile_k_begin.tolist() == [0] * 9
    assert plan.tile_k_end.tolist() == [7] * 8 + [0]


def test_an_empty_list_is_a_plan():
    for planner in PLANNERS:
        plan = make(planner, [])
        plan.validate()
        assert (plan.num_tiles, plan.blocks, plan.tlp, plan.predicted_seconds) == (0, [], 0, 0.0)
        assert str(plan).startswith("Plan by")


def test_padding_waste_and_tlp_by_hand():
    # 264 x 264 in tiles of 128: 9 tiles of 128 x 128 where 264 x 264 are wanted; in tiles of 64: 25.
    assert make(vb.Uniform(("huge", 256)), [(264, 264, 10)]).padding_waste == pytest.approx(9 * 128**2 / 264**2)
    plan = make(vb.Uniform(("large", 128)), [(264, 264, 10), (64, 64, 100)])
    assert plan.padding_waste == pytest.approx((25 * 64**2 * 10 + 64**2 * 100) / (264**2 * 10 + 64**2 * 100))
    assert plan.tlp == 26 * 128
    # A core computes an edge tile only as far as it reaches: 40 columns are three vectors of sixteen floats.
    assert make(vb.Uniform("large"), [(50, 40, 9)], "cpu").padding_waste == pytest.approx(48 / 40)


# Plans made by hand.


def test_blocks_and_choices_of_a_plan_made_by_hand():
    plan = from_blocks(
        [(64, 80, 5), (16, 16, 5)],
        [vb.Tile(0, 0, 0, 0, 0, 5, "large"), vb.Tile(0, 0, 0, 64, 0, 5, "small")],
        [
            vb.Tile(0, 0, 16, 64, 0, 5, "small"),
            vb.Tile(0, 0, 32, 64, 0, 5, ("small", 256)),
            vb.Tile(0, 0, 48, 64, 0, 5, "small"),
        ],
        [vb.Tile(1, 0, 0, 0, 0, 5, ("small", 128))],
    )
    plan.validate()
    assert plan.choices == (None, ("small", 128))
    assert [len(block) for block in plan.blocks] == [2, 3, 1]
    assert plan.blocks[0][1] == vb.Tile(0, 0, 0, 64, 0, 5, "small")
    assert plan.tlp == 5 * 256 + 128
    assert [launch[1:] for launch in plan.launch_form()[2]] == [(0, 1), (1, 2)]


def grid(problem, name, edge, index=0):
    return [
        [vb.Tile(index, batch, row, col, 0, problem.k, name)]
        for batch in range(problem.batch)
        for row in range(0, problem.m, edge)
        for col in range(0, problem.n, edge)
    ]


TWO = (vb.Problem(8, 8, 4), vb.Problem(40, 70, 9, batch=2))
WHOLE = grid(TWO[0], "small", 16) + grid(TWO[1], "medium", 32, 1)


def test_a_whole_plan_is_valid():
    from_blocks(TWO, *WHOLE).validate()
    assert len(WHOLE) == 1 + 2 * 2 * 3


def changed(at, **fields):
    return [[block[0]._replace(**fields)] if i == at else block for i, block in enumerate(WHOLE)]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (WHOLE[:-1], "plan: problems[1] at batch 1, row 32, col 64, k 0 is not covered"),
        (WHOLE[1:], "plan: problems[0] at batch 0, row 0, col 0, k 0 is not covered"),
        (WHOLE + WHOLE[3:4], "plan: problems[1] at batch 0, row 0, col 64, k 0 is covered 2 times"),
        (changed(2, col=31), "plan: problems[1] at batch 0, row 0, col 31, k 0 is covered 2 times"),
        (changed(2, k_end=8), "plan: problems[1] at batch 0, row 0, col 32, k 8 is not covered"),
        (changed(2, k_begin=1), "plan: problems[1] at batch 0, row 0, col 32, k 0 is not covered"),
        (changed(2, k_end=10), "plan: a tile of problems[1] has the k range [0, 10), which is not in [0, 9)"),
        (changed(2, k_begin=9), "plan: a tile of problems[1] has the k range [9, 9), which is not in [0, 9)"),
        (changed(2, k_begin=-1), "plan: a tile of problems[1] has the k range [-1, 9), which is not in [0, 9)"),
        (changed(6, row=40), "plan: a tile of problems[1] begins at row 40, outside [0, 40)"),
        (changed(6, col=-16), "plan: a tile of problems[1] begins at col -16, outside [0, 70)"),
        (changed(6, batch=2), "plan: a tile of problems[1] begins at batch 2, outside [0, 2)"),
        (changed(6, problem=2), "plan: a tile of problems[2] names problem 2, but there are 2"),
        (changed(6, problem=-1), "plan: a tile of problems[-1] names problem -1, but there are 2"),
    ],
)
def test_validation_names_what_is_wrong(blocks, message):
    with pytest.raises(ValueError, match="plan") as caught:
        from_blocks(TWO, *blocks).validate()
    assert str(caught.value) == f"{message} (planner 'mine')"


def test_problems_without_elements_have_no_tiles():
    from_blocks([(0, 5, 5), (5, 0, 5), (5, 5, 5, 0)]).validate()
    with pytest.raises(ValueError, match=r"problems\[1\] begins at row 0, outside \[0, 0\)"):
        from_blocks([(5, 0, 5), (0, 5, 5)], [vb.Tile(1, 0, 0, 0, 0, 5, "small")]).validate()


def test_a_product_over_nothing_is_still_written_once():
    tile = vb.Tile(0, 0, 0, 0, 0, 0, "small")
    from_blocks([(5, 5, 0)], [tile]).validate()
    with pytest.raises(ValueError, match=r"problems\[0\] at batch 0, row 0, col 0, k 0 is not covered"):
        from_blocks([(5, 5, 0)]).validate()
    with pytest.raises(ValueError, match="covered 2 times"):
        from_blocks([(5, 5, 0)], [tile], [tile]).validate()


def test_a_split_of_k_is_valid():
    from_blocks([(16, 16, 9)], [vb.Tile(0, 0, 0, 0, 0, 5, "small")], [vb.Tile(0, 0, 0, 0, 5, 9, "small")]).validate()


@given(st.data())
def test_validation_agrees_with_counting(data):
    """Tiles at random places of a small problem, whole grids with some tiles changed among them."""
    m, n, k, batch = (data.draw(st.integers(1, high)) for high in (40, 40, 3, 2))
    problem = vb.Problem(m, n, k, batch)
    blocks = grid(problem, *data.draw(st.sampled_from([("small", 16), ("medium", 32)])))
    k_begin = data.draw(st.integers(0, k - 1))
    tile = vb.Tile(
        0,
        data.draw(st.integers(0, batch - 1)),
        data.draw(st.integers(0, m - 1)),
        data.draw(st.integers(0, n - 1)),
        k_begin,
        data.draw(st.integers(k_begin + 1, k)),
        data.draw(st.sampled_from(["small", "medium", "large"])),
    )
    match data.draw(st.sampled_from(["whole", "add", "remove", "replace", "split"])):
        case "add":
            blocks.append([tile])
        case "remove":
            blocks.pop(data.draw(st.integers(0, len(blocks) - 1)))
        case "replace":
            blocks[data.draw(st.integers(0, len(blocks) - 1))] = [tile]
        case "split":
            assume(k > 1)
            (whole,) = blocks.pop()
            blocks += [[whole._replace(k_end=1)], [whole._replace(k_begin=1)]]
    plan = from_blocks([problem], *blocks)
    wrong = np.argwhere(times_covered(plan)[0] != 1)
    if len(wrong) == 0:
        plan.validate()
    else:
        place = "batch {}, row {}, col {}, k {}".format(*wrong[0])
        with pytest.raises(ValueError, match=rf"problems\[0\] at {place} is (not covered|covered \d+ times)"):
            plan.validate()


@pytest.mark.parametrize(
    ("edges", "tiles", "launches"),
    [
        ((128, 16), (("huge", 256), ("small", 128)), (("t128_light", 0, 1), ("t256_heavy", 1, 1))),
        ((64, 32), (("large", 128), ("medium", 128)), (("t128_light", 0, 1), ("t128_medium", 1, 1))),
    ],
)
def test_a_block_of_two_kernels_becomes_a_block_of_each(edges, tiles, launches):
    block = [vb.Tile(index, 0, 0, 0, 0, 8, name) for index, name in enumerate(tiles)]
    mixed = from_blocks([(edge, edge, 8) for edge in edges], block)
    mixed.validate()
    assert len(mixed.blocks) == 1
    _, block_first, found = mixed.launch_form()
    assert block_first.tolist() == [0, 1, 2]
    assert found == launches


def test_a_plan_needs_at_most_four_kernels():
    shapes = [("small", 128), ("small", 256), ("large", 128), ("huge", 256), ("tall", 128)]
    assert len({FLOAT32.find(*name).kernel for name in shapes}) == 5
    tiles = [[vb.Tile(i, 0, 0, 0, 0, 8, name)] for i, name in enumerate(shapes)]
    from_blocks([(8, 8, 8)] * 4, *tiles[:4]).validate()
    with pytest.raises(
        ValueError,
        match=r"it needs the kernels t128_light, t256_light, t128_medium, t128_heavy, t256_heavy; "
        "a call launches at most 4",
    ):
        from_blocks([(8, 8, 8)] * 5, *tiles).validate()


def test_a_places_k_is_cut_into_tiles_of_one_shape():
    small = [vb.Tile(1, 0, row, col, 0, 8, "small") for row in (0, 16) for col in (0, 16)]
    rest = [tile._replace(k_begin=8, k_end=20) for tile in small]
    other = vb.Tile(0, 0, 0, 0, 0, 8, "small")
    sizes = [(8, 8, 8), (32, 32, 20)]
    from_blocks(sizes, [other], *([tile] for tile in (*small, *rest))).validate()
    uneven = from_blocks(sizes, [other], *([tile] for tile in small), [vb.Tile(1, 0, 0, 0, 8, 20, "medium")])
    with pytest.raises(ValueError, match=r"problems\[1\] at row 0, col 0 from k 8 on continues no tile"):
        uneven.validate()


def test_plans_that_cannot_be_built():
    with pytest.raises(ValueError, match=r"plan: blocks\[1\] has no tiles"):
        from_blocks([(8, 8, 8)], [vb.Tile(0, 0, 0, 0, 0, 8, "small")], [])
    with pytest.raises(ValueError, match="there is no tile 'tiny' for float32; there are small/128"):
        from_blocks([(8, 8, 8)], [vb.Tile(0, 0, 0, 0, 0, 8, "tiny")])
    with pytest.raises(ValueError, match="plan: 2 tiles were chosen for 1 problems"):
        vb.Plan.from_choices([vb.Problem(1, 1, 1)], H100, FLOAT32, planner="mine", tiles=FLOAT32.tiles[:2])
    with pytest.raises(ValueError, match=r"plan: \d+ tiles are more than the 2\*\*31 - 1 that a plan can hold"):
        make(vb.Uniform(("small", 256)), [(2**31 - 1, 2**31 - 1, 1, 2**31 - 1)])


@pytest.mark.parametrize("fields", [{"choices": ()}, {"order": (5,)}, {"order": (0, 0)}])
def test_a_choice_and_a_place_for_each_problem(fields):
    plan = make(vb.Uniform("large"), [(64, 256, 8), (8, 8, 8)])
    with pytest.raises(ValueError, match="choices and order must have one entry for each of 2 problems"):
        dataclasses.replace(plan, **fields).validate()


def test_a_wrong_block_first_is_found():
    plan = make(vb.Uniform("large"), [(64, 256, 8)])
    for first in ([0, 2, 2, 4], [1, 4], [0, 3]):
        with pytest.raises(ValueError, match="block_first must rise from 0 to the number of tiles"):
            dataclasses.replace(plan, block_first=np.array(first)).validate()


@pytest.mark.parametrize(
    ("field", "step", "place"),
    [
        ("k_begin", 1, "batch 0, row 0, col 0, k 0"),
        ("k_end", -1, "batch 0, row 0, col 0, k 6"),
        ("tiles_y", -1, "batch 0, row 32, col 0, k 0"),
        ("tiles_x", -1, "batch 0, row 0, col 64, k 0"),
        ("tiles_batch", -1, "batch 1, row 0, col 0, k 0"),
        ("row", 1, "batch 0, row 0, col 0, k 0"),
        ("col", 1, "batch 0, row 0, col 0, k 0"),
    ],
)
def test_a_run_that_falls_short_is_found(field, step, place):
    plan = make(vb.Uniform(("medium", 128)), [(40, 70, 7, 2)])
    runs = dataclasses.replace(plan.runs, **{field: getattr(plan.runs, field) + step})
    with pytest.raises(ValueError, match=rf"problems\[0\] at {place} is not covered"):
        dataclasses.replace(plan, runs=runs).validate()


def test_two_runs_of_the_whole_are_one_too_many():
    plan = make(vb.Uniform(), [(40, 70, 7, 2)])
    with pytest.raises(ValueError, match=r"problems\[0\] at batch 0, row 0, col 0, k 0 is covered 2 times"):
        dataclasses.replace(plan, runs=plan.runs.take(np.array([0, 0]))).validate()


# What people read.


def test_a_printed_plan_says_what_and_why():
    text = str(make(vb.Uniform(("huge", 256)), [(264, 264, 10)] * 3 + [(1, 2, 3)], "a100"))
    first, second, *_ = text.splitlines()
    assert first == "Plan by 'uniform' for a100 (108 units), float32: 4 problems, 28 tiles, 28 blocks"
    assert all(word in second for word in ("predicted", "us", "waves", "padding waste", "balance", "TLP 7168"))
    assert "128x128  t256_heavy" in text
    assert "registers (" in text  # the resource that limits the occupancy
    lines = [line.split() for line in text.splitlines()]
    assert ["3", "264", "264", "10", "1", "huge/256"] in lines
    assert ["1", "1", "2", "3", "1", "huge/256"] in lines


def test_a_printed_plan_stays_short():
    shapes = [(m, n, 64) for m in range(1, 40) for n in range(1, 40)]
    text = str(make(vb.LoadBalanced(), shapes))
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 120
    assert "1509 more, of 1509 other sizes" in text
