"""The planners of Wang 2022 and Zhang 2025 for GoogLeNet's blocks on an MI100 and an MI210, worked by hand."""

import math

import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner import catalogue_for, device_spec, kind_of
from jax_vbgemm._src.planner.model.occupancy import active_waves

from .cases import make, names

INCEPTION_3A = [(64, 784, 192), (96, 784, 192), (16, 784, 192), (32, 784, 192)]
INCEPTION_4E = [(256, 196, 528), (160, 196, 528), (32, 196, 528), (128, 196, 528)]


@pytest.mark.parametrize(
    ("device", "shapes", "tiles"),
    [
        # Target 2 * 104 = 208. 13 + 26 + 25 + 49 tiles of the first choice; the last but one in order is split (+73),
        # then the second (+49): 235.
        ("mi210", INCEPTION_3A, ["large", "medium", "small", "small"]),
        # Target 240: the first is split too.
        ("mi100", INCEPTION_3A, ["medium", "medium", "small", "small"]),
        # 16 + 12 + 8 + 7; a pass from the last: 26, 28, 35, 56 = 145; the next: 128 x 196 is split to 104 tiles: 221.
        ("mi210", INCEPTION_4E, ["medium", "medium", "small", "small"]),
        ("mi100", INCEPTION_4E, ["medium", "small", "small", "small"]),
    ],
)
def test_sort_split(device, shapes, tiles):
    plan = make(vb.SortSplit(), shapes, device)
    assert plan.order == (0, 1, 3, 2)  # one K; by the area of the first tile
    assert names(plan) == tiles
    assert {threads for _, threads in plan.choices} == {128}  # two waves of 64


@pytest.mark.parametrize(
    ("device", "threshold", "shapes", "tiles", "waves"),
    [
        # Only 16 divides 784: 13 * 49 blocks of two waves, of which 12 * 104 can be active.
        ("mi210", None, INCEPTION_3A, ["small"] * 4, 12 * 104),
        ("mi100", None, INCEPTION_3A, ["small"] * 4, 2 * 13 * 49),
        # Nothing divides 196: large, large, medium-large, large at first, 160 waves. Demoted until 26624 threads are
        # reached: 16 * 7 + 10 * 7 small-medium blocks and 7 + 4 * 7 medium ones.
        ("mi210", 26624, INCEPTION_4E, ["small-medium", "small-medium", "medium", "medium"], 2 * (182 + 35)),
        # 38400 threads need one more: 16 * 13 small blocks.
        (
            "mi100",
            38400,
            INCEPTION_4E,
            ["small", "small-medium", "small-medium", "small-medium"],
            2 * (208 + 10 * 7 + 2 * 7 + 8 * 7),
        ),
        # Half of the threads that they hold: not reached by 13 * (16 + 10 + 2 + 8) blocks, all 936 waves active.
        ("mi210", None, INCEPTION_4E, ["small"] * 4, 2 * 13 * 36),
        ("mi100", None, INCEPTION_4E, ["small"] * 4, 2 * 13 * 36),
    ],
)
def test_load_balanced(device, threshold, shapes, tiles, waves):
    spec = device_spec(device)
    # Eq. 9 by our kernels: 9936 bytes of LDS let a unit have 6 blocks of two waves, 14032 bytes 4 of four.
    active = {tile.key: active_waves(tile, spec) for tile in catalogue_for("float32", spec)}
    assert (active["small", 128], active["medium", 128], active["large", 256]) == (12, 12, 16)
    plan = make(vb.LoadBalanced(threshold), shapes, device)
    assert names(plan) == tiles
    assert plan.tlp == 64 * waves


@pytest.mark.parametrize("device", ["mi100", "mi210", "mi250x", "mi300x"])
def test_every_tile_is_made_of_whole_waves(device):
    spec = device_spec(device)
    for kind in ("float32", "float64", "complex64", "complex128", "bfloat16", "float16"):
        for tile in catalogue_for(kind, spec):
            assert tile.threads % spec.wave_size == 0
            assert spec.waves_of(tile.threads) == tile.threads // 64


def test_kinds_of_the_matrix_units():
    mi100, mi210, mi300x = map(device_spec, ("mi100", "mi210", "mi300x"))
    precisions = ("default", "high", "highest")
    assert [kind_of("float32", p, mi300x) for p in precisions] == ["tf32", "float32", "float32"]
    assert [kind_of("float32", p, mi210) for p in precisions] == ["float32"] * 3
    assert [kind_of("bfloat16", p, mi210) for p in precisions] == ["bfloat16"] * 3
    for device in (mi210, mi300x):
        for kind in ("float32", "float64", "bfloat16", "float16"):
            assert any(tile.tensor for tile in catalogue_for(kind, device))
    assert not any(tile.tensor for tile in catalogue_for("complex64", mi210))
    assert not any(tile.tensor for tile in catalogue_for("float32", mi100))
    assert math.isinf(mi210.tensor_rate("tf32"))
