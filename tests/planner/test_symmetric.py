"""Folded plans: each element of a symmetric result is covered once, by a tile or by its mirror image."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.planner import Auto, catalogue_for, device_spec, plan_problems
from jax_vbgemm._src.planner.model.cost_model import least_of_whole_problems, least_seconds
from jax_vbgemm._src.planner.plan.draft import Draft
from jax_vbgemm._src.planner.search.makespan import Makespan
from jax_vbgemm._src.planner.tiles.runs import Runs
from jax_vbgemm._src.planner.tiles.split_k import in_slices
from jax_vbgemm._src.planner.tiles.symmetric import MOST_TILES, fold, tiles_computed
from jax_vbgemm._src.problem import ProblemSizes

H100 = device_spec("h100")
BFLOAT16 = catalogue_for("bfloat16", H100)
TENSOR = [tile for tile in BFLOAT16 if tile.stores_mirrored]
any_tile = st.sampled_from(TENSOR)
edges = st.sampled_from((0, 1, 16, 31, 64, 65, 127, 128, 129, 200, 256, 300, 513))
symmetric_problems = st.builds(
    lambda n, k, batch: vb.Problem(n, n, k, batch, symmetric=True),
    edges,
    st.sampled_from((0, 1, 64, 200, 3000)),
    st.sampled_from((0, 1, 1, 2, 3)),
)
other_problems = st.builds(vb.Problem, edges, edges, st.sampled_from((0, 64, 200)), st.sampled_from((1, 2)))
problem_lists = st.lists(st.one_of(symmetric_problems, other_problems), max_size=6).map(tuple)


def times_covered(plan: vb.Plan) -> list[np.ndarray]:
    """How often each (batch, row, col) is covered, weighted by the K of its tiles over all K, tile by tile."""
    counts = [np.zeros((p.batch, p.m, p.n), int) for p in plan.problems]
    tiles = plan.single_tiles
    columns = (tiles.problem, tiles.tile_id, tiles.row, tiles.col, tiles.batch, tiles.k_begin, tiles.k_end)
    for problem, tile_id, row, col, batch, begin, end, mirrored in zip(
        *(column.tolist() for column in (*columns, tiles.mirrored)), strict=True
    ):
        shape, depth = plan.catalogue.by_index[tile_id], end - begin if plan.problems[problem].k else 1
        counts[problem][batch, row : row + shape.m, col : col + shape.n] += depth
        if mirrored:
            counts[problem][batch].T[row : row + shape.m, col : col + shape.n] += depth
    return counts


def check(plan: vb.Plan) -> None:
    plan.validate()
    for problem, counts in zip(plan.problems, times_covered(plan), strict=True):
        assert (counts == max(problem.k, 1)).all()
    assert not plan.runs.mirrored[[not plan.problems[i].symmetric for i in plan.runs.problem]].any()


@pytest.mark.parametrize("planner", [Auto(), Makespan(), vb.Uniform(), vb.SortSplit()], ids=repr)
@given(problem_lists, st.sampled_from(["bfloat16", "tf32", "float64"]))
def test_planners_cover_each_element_once(planner, problems, kind):
    check(plan_problems(problems, kind, H100, planner))


@given(problem_lists, any_tile, st.integers(1, 4))
def test_any_tile_and_any_split_covers_each_element_once(problems, tile, slices):
    draft = Draft.whole_problems(problems, H100, BFLOAT16, planner="mine", tile_id=np.full(len(problems), tile.index))
    check(draft.build())
    whole = Runs.whole_problems(ProblemSizes.of(problems), draft.tile_id, BFLOAT16, draft.order)
    split = in_slices(whole, np.full(len(whole), slices), np.full(len(whole), 32))
    check(dataclasses.replace(draft, runs=split).build())
    count = np.bincount(draft.runs.problem, draft.runs.count, len(problems))
    assert (count == tiles_computed(ProblemSizes.of(problems), tile, H100)).all()
    if (runs := fold(draft.runs, problems, H100, BFLOAT16)) is not draft.runs:
        assert len(runs) == len(draft.runs)  # what is folded stays


@given(problem_lists, any_tile)
def test_the_order_of_the_rest_is_kept(problems, tile):
    whole = Runs.whole_problems(
        ProblemSizes.of(problems), np.full(len(problems), tile.index), BFLOAT16, np.arange(len(problems))
    )
    folded = fold(whole, problems, H100, BFLOAT16).expand(BFLOAT16)

    def places(tiles):
        columns = (tiles.problem, tiles.batch, tiles.row, tiles.col)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    below = [problems[i].symmetric and row >= col + tile.n for i, _, row, col in places(whole.expand(BFLOAT16))]
    kept = [place for place, out in zip(places(whole.expand(BFLOAT16)), below, strict=True) if not out]
    # Pipelined tiles that are wider than tall are folded by columns.
    in_order = sorted if BFLOAT16.is_pipelined[tile.index] and tile.m < tile.n else list
    assert in_order(places(folded)) == in_order(kept)
    above = [problems[i].symmetric and row + tile.m <= col for i, _, row, col in places(folded)]
    assert folded.mirrored.tolist() == above


def test_half_the_tiles_by_hand():
    problem = vb.Problem(512, 512, 64, symmetric=True)
    counts = {
        tile.name: plan.num_tiles for tile in TENSOR for plan in [vb.Uniform(tile.key)([problem], H100, BFLOAT16)]
    }
    assert counts["mma-128x128"] == 10
    assert counts["mma-64x64"] == 36
    assert counts["mma-64x128"] == 2 * 10
    tiles = vb.Plan.from_choices([problem], H100, BFLOAT16, planner="mine", tiles=[BFLOAT16.find("mma-128x128")])
    assert (tiles.num_tiles, tiles.runs.mirrored @ tiles.runs.count) == (10, 6)
    tiles.validate()


@pytest.mark.parametrize(
    ("device", "dtype"),
    slow_except([("cpu", "float32"), ("mi210", "bfloat16"), ("v100", "float32")], [("cpu", "float32")]),
)
@given(problem_lists)
def test_elsewhere_nothing_is_folded(device, dtype, problems):
    plain = tuple(dataclasses.replace(problem, symmetric=False) for problem in problems)
    plan, expected = (plan_problems(given, dtype, device_spec(device)) for given in (problems, plain))
    assert not plan.runs.mirrored.any()
    for field in dataclasses.fields(Runs):
        assert (getattr(plan.runs, field.name) == getattr(expected.runs, field.name)).all()


def test_tiles_that_never_fold_are_not_bounded_as_if_they_did():
    """Otherwise the lower bounds of the papers' planners would be too low, and all of them would make plans."""
    sizes = [(512, 512, 512), (300, 300, 100)] * 32
    notes = [
        plan_problems([vb.Problem(*size, symmetric=symmetric) for size in sizes], "float32", H100).notes
        for symmetric in (True, False)
    ]
    assert notes[0] == notes[1]
    assert "no less than" in notes[0][-1]


@given(problem_lists, st.sampled_from(["bfloat16", "float32"]))
def test_no_plan_is_predicted_to_take_less_than_the_least(problems, kind):
    sizes, catalogue = ProblemSizes.of(problems), catalogue_for(kind, H100)
    for tile in catalogue:
        seconds = vb.Uniform(tile.key)(problems, H100, catalogue).predicted_seconds
        least = least_seconds(sizes, {"one": [tile]}, catalogue, H100)["one"]
        whole = least_of_whole_problems(sizes, {"one": [[tile]]}, catalogue, H100)["one"]
        assert least <= whole * (1 + 1e-12) <= seconds * (1 + 1e-11)


def test_what_stays_whole():
    edge = 16 * 300  # so many small tiles are too many
    plan = vb.Uniform("mma-16x32")([vb.Problem(edge, edge, 8, 2, symmetric=True)], H100, BFLOAT16)
    assert plan.num_tiles > MOST_TILES
    assert len(plan.runs) == 1
    assert len(vb.Uniform("mma-64x64")([vb.Problem(64, 64, 8, 1000, symmetric=True)], H100, BFLOAT16).runs) == 1
    many = vb.Uniform("mma-64x64")([vb.Problem(128, 128, 8, 10_000, symmetric=True)], H100, BFLOAT16)  # rows
    assert (many.num_tiles, len(many.runs)) == (40_000, 1)
    ordinary = vb.Uniform("large")([vb.Problem(512, 512, 8, symmetric=True)], H100, BFLOAT16)  # not on tensor cores
    assert not ordinary.runs.mirrored.any()
    # Two tile shapes.
    problem, draft = mixed()
    assert not draft.runs.mirrored.any()
    check(draft.build())
    assert draft.build().problems == (problem,)


def mixed():
    problem = vb.Problem(256, 256, 64, symmetric=True)
    large, small = BFLOAT16.find("mma-128x128").index, BFLOAT16.find("mma-64x128").index
    tiles = [(0, large, row, col, 0, 0, 64) for row in (0,) for col in (0, 128)]
    tiles += [(0, small, row, col, 0, 0, 64) for row in (128, 192) for col in (0, 128)]
    none = np.array([-1])
    runs = Runs.single_tiles(tiles)
    return problem, Draft((problem,), H100, BFLOAT16, "mine", runs, none, np.arange(1))


@pytest.mark.parametrize("planner", slow_except([Auto(), Makespan(), vb.Uniform()], [vb.Uniform()]), ids=repr)
@given(problem_lists)
def test_no_plan_is_predicted_much_slower_for_it(planner, problems):
    plain = tuple(dataclasses.replace(problem, symmetric=False) for problem in problems)
    plan, whole = (plan_problems(given, "bfloat16", H100, planner) for given in (problems, plain))
    # The model's tail is a share of an average block, which is longer where short ones are left out.
    assert plan.predicted_seconds <= whole.predicted_seconds * 1.05


def test_the_prediction_sees_half_the_work():
    # In TF32, as bfloat16 has a faster tile that cannot store a tile's transpose.
    plans = [plan_problems([vb.Problem(2048, 2048, 2048, symmetric=flag)] * 12, "tf32", H100) for flag in (False, True)]
    assert plans[1].predicted_seconds < 0.65 * plans[0].predicted_seconds


def folded_plan():
    return vb.Uniform("mma-64x64")([vb.Problem(200, 200, 64, 2, symmetric=True)], H100, BFLOAT16)


def test_a_missing_mirror_image_is_found():
    plan = folded_plan()
    runs = dataclasses.replace(plan.runs, mirrored=np.zeros_like(plan.runs.problem))
    with pytest.raises(ValueError, match=r"problems\[0\] at batch 0, row 64, col 0, k 0 is not covered"):
        dataclasses.replace(plan, runs=runs).validate()
    runs = dataclasses.replace(plan.runs, mirrored=np.ones_like(plan.runs.problem))
    with pytest.raises(ValueError, match=r"problems\[0\] at batch 0, row 0, col 0, k 0 is covered 2 times"):
        dataclasses.replace(plan, runs=runs).validate()


def test_only_a_symmetric_problem_has_mirrored_tiles():
    plan = folded_plan()
    with pytest.raises(ValueError, match=r"a tile of problems\[0\] is mirrored, but the problem is not symmetric"):
        dataclasses.replace(plan, problems=(vb.Problem(200, 200, 64, 2),)).validate()
    mi210 = device_spec("mi210")
    with pytest.raises(ValueError, match=r"mirrored, but on mi210 'mma-64x64' is not stored twice"):
        dataclasses.replace(plan, device=mi210).validate()


def test_a_symmetric_problem_is_square():
    with pytest.raises(ValueError, match="Problem has symmetric = True, m = 3 and n = 4: m and n must be equal"):
        vb.Problem(3, 4, 5, symmetric=True)
    with pytest.raises(TypeError, match="symmetric = 1: flags must be bools"):
        vb.Problem(3, 3, 5, symmetric=1)
