"""Plans made of wrong parts: each error names the part, its place and the planner."""

import dataclasses

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.problem import problems_of

from .cases import from_blocks

H100 = device_spec("h100")
FLOAT32 = catalogue_for("float32", H100)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"block_first": []},
            ValueError,
            "block_first is empty: it has an entry for each block, and the number of tiles",
        ),
        ({"block_first": [0, 1.5]}, TypeError, r"block_first is \[0, 1.5\]: expected a 1-D array of integers"),
        ({"block_first": 3}, TypeError, "block_first is 3: expected a 1-D array of integers"),
        ({"runs": None}, TypeError, "runs is None: expected Runs"),
    ],
)
def test_parts_of_a_wrong_kind(changes, error, message):
    plan = vb.Uniform()(problems_of([(64, 64, 64)]), H100, FLOAT32)
    with pytest.raises(error, match=f"plan: {message}"):
        dataclasses.replace(plan, **changes)


def test_lists_for_arrays():
    plan = vb.Uniform()(problems_of([(64, 64, 64)]), H100, FLOAT32)
    listed = dataclasses.replace(plan, block_first=list(range(plan.num_tiles + 1)))
    listed.validate()
    assert listed.blocks == plan.blocks


def test_columns_of_runs():
    runs = vb.Uniform()(problems_of([(64, 64, 64)] * 2), H100, FLOAT32).runs
    for name, column in (("row", runs.row[:1]), ("k_end", [*runs.k_end, 1]), ("mirrored", [0])):
        with pytest.raises(
            ValueError, match=rf"plan: runs.{name} has \d entr.* but runs.problem has 2: one for each run"
        ):
            dataclasses.replace(runs, **{name: column})
    for column in (None, [2**63, 0], [0.5, 1], "rows"):
        with pytest.raises((TypeError, ValueError), match=r"plan: runs\.row "):
            dataclasses.replace(runs, row=column)
    tiles = [vb.Tile(0, 0, row, 0, 0, 64, "huge") for row in (0, 2**63)]
    with pytest.raises(ValueError, match="plan: tile 1 of the plan has a number beyond int64"):
        vb.Plan.from_blocks(problems_of([(64, 64, 64)]), H100, FLOAT32, planner="mine", blocks=[tiles])


SQUARES = problems_of([(64, 64, 64), (32, 32, 32)])


def of_choices(tiles, order=None):
    tiles = [FLOAT32.find(tile) if tile in ("large", "medium") else tile for tile in tiles]
    return vb.Plan.from_choices(SQUARES, H100, FLOAT32, planner="mine", tiles=tiles, order=order)


LARGE, MEDIUM = vb.Tile(0, 0, 0, 0, 0, 64, "large"), vb.Tile(1, 0, 0, 0, 0, 32, "medium")


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        ([[LARGE], [MEDIUM._replace(row=0.5)]], TypeError, r"blocks\[1\]\[0\].row = 0.5 must be an integer"),
        ([[LARGE, MEDIUM._replace(k_end=20.9)]], TypeError, r"blocks\[0\]\[1\].k_end = 20.9 must be an integer"),
        ([[LARGE._replace(problem="x")]], TypeError, r"blocks\[0\]\[0\].problem = 'x' must be an integer"),
        ([[LARGE._replace(batch=True)]], TypeError, r"blocks\[0\]\[0\].batch = True must be an integer"),
        ([[LARGE._replace(name=None)]], TypeError, r"\.name = None must be a name or \(name, threads\)"),
        ([[LARGE._replace(name=("large",))]], TypeError, r"\.name = \('large',\) must be a name or"),
        ([[LARGE._replace(name="larg")]], ValueError, r"blocks\[0\]\[0\].name: there is no tile 'larg'"),
        ([[1], [2]], TypeError, r"blocks\[0\]\[0\] is 1: expected a Tile"),
        ([1, 2], TypeError, r"blocks\[0\] is 1: expected a list of Tile"),
        ([LARGE, MEDIUM], TypeError, r"blocks\[0\] is Tile\(.*\): expected a list of Tile"),
        ([[LARGE], []], ValueError, r"blocks\[1\] has no tiles"),
    ],
)
def test_wrong_blocks_name_planner_and_place(blocks, error, message):
    with pytest.raises(error, match=rf"plan: .*{message}.*\(planner 'mine'\)"):
        from_blocks(SQUARES, *blocks)
    from_blocks(SQUARES, [LARGE], [MEDIUM._replace(row=np.int64(0))]).validate()


@pytest.mark.parametrize(
    ("tiles", "order", "error", "message"),
    [
        ((r"large ", "medium"), None, TypeError, r"tiles\[0\] is 'large ': expected a TileShape of the catalogue"),
        (("large",), None, ValueError, "1 tiles were chosen for 2 problems"),
        (("large", "medium"), [0, 5], ValueError, r"order = \[0, 5\] must name each of 2 problems once"),
        (("large", "medium"), [0], ValueError, r"order = \[0\] must name each of 2 problems once"),
        (("large", "medium"), [0, 0], ValueError, r"order = \[0, 0\] must name each of 2 problems once"),
    ],
)
def test_wrong_choices_name_planner_and_place(tiles, order, error, message):
    with pytest.raises(error, match=rf"plan: {message} \(planner 'mine'\)"):
        of_choices(tiles, order)
    assert of_choices(("large", "medium"), (1, 0)).order == (1, 0)
    with pytest.raises(TypeError, match="plan: order is"):
        of_choices(("large", "medium"), "ab")


def test_a_tile_of_another_catalogue_is_refused():
    tile = catalogue_for("bfloat16", H100).find("mma-64x64")
    with pytest.raises(ValueError, match=r"tiles\[0\] = \('mma-64x64', 128\) is not in the catalogue of float32"):
        of_choices([tile, tile])


def test_an_incomplete_plan_is_refused_with_the_planners_name():
    with pytest.raises(ValueError, match=r"plan: problems\[1\] at .* is not covered \(planner 'mine'\)"):
        from_blocks(SQUARES, [LARGE]).validate()


def test_tlp_is_a_number():
    with pytest.raises(TypeError, match="plan: tlp is 'x': expected an integer"):
        dataclasses.replace(from_blocks(SQUARES, [LARGE], [MEDIUM]), tlp="x")
