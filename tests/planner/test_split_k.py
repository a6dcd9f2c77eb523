"""How many parts a long K is split into."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.planner import device_spec, plan_problems
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.split_k import even_slices, fewest_filling_slices


@pytest.mark.parametrize("crowd", [vb.Problem(4096, 4096, 512, batch=60), vb.Problem(512, 512, 512, batch=300)])
def test_shares_beside_a_crowd_fit_the_descriptors(crowd):
    plan = plan_problems([(20480, 2, 20480), crowd], "float32", device_spec("h100"))
    split = (plan.runs.k_begin > 0).any()
    assert not split or ready_bytes(plan.num_tiles) <= 4 * MAX_BYTES


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 3000)), min_size=1, max_size=5),
    st.sampled_from((132, 264)),
)
def test_shares_that_fill_are_no_more_than_that_takes(problems, slots):
    given_steps, tiles = (np.array(column) for column in zip(*problems, strict=True))
    steps = given_steps.clip(1)  # a problem of no depth has tiles, too

    def fullness(slices):
        each = -(-steps // slices)
        blocks = (slices * tiles).sum()
        work = (steps * tiles).sum()
        return work / slots / max(each.max(), np.ceil(blocks / slots) * work / blocks)

    slices = fewest_filling_slices(given_steps, tiles, slots, 2, 0.85)
    assert ((slices == 1) | (-(-steps // slices) >= 2)).all()
    parts = range(1, int(steps.max()) // 2 + 1)
    others = [even_slices(steps, -(-steps // -(-steps.max() // each)))[1] for each in parts]
    few = [each for each in others if (each * tiles).sum() <= 16 * slots]
    assert fullness(slices) >= min(0.85, max(map(fullness, few), default=0.0)) - 1e-9
    if len(problems) == 1:
        fewer = [even_slices(steps, np.array([parts]))[1] for parts in range(1, int(slices[0]))]
        assert all(fullness(each) < 0.85 for each in fewer)


@given(st.integers(1, 5000), st.integers(1, 500), st.integers(1, 400), st.integers(2, 300))
def test_shares_have_no_more_steps_than_asked_for(steps, tiles, slots, most_steps):
    slices = fewest_filling_slices(np.array([steps]), np.array([tiles]), slots, 2, 0.85, most_steps)
    assert slices[0] >= 1
    if ready_bytes(float(tiles) * -(-steps // most_steps) * 2, float(tiles)) < MAX_BYTES:
        assert -(-steps // slices[0]) <= max(most_steps, 3)  # three, where two slices would have less than two
