"""The picture of a plan shows each block once, on slots that exist, and the padding that the plan reports."""

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.planner.plan.picture import schedule

RAGGED = [(70, 130, 900), (300, 40, 64), (5, 5, 5), (1000, 1000, 1000)]


@pytest.mark.parametrize(
    ("problems", "options"),
    [
        (RAGGED, {"device": "h100"}),
        (RAGGED, {"device": "h100", "planner": "coordinated", "precision": "highest"}),
        (RAGGED, {"device": "cpu"}),
        ([(16, 16, 10**6)], {"device": "h100"}),
        ([(0, 5, 3)], {"device": "h100"}),
    ],
)
def test_blocks_take_turns_on_slots(problems, options):
    plan = vb.plan(problems, **options)
    drawn = schedule(plan)
    assert len(drawn.unit) == sum(launch.num_blocks for launch in plan.launch_form()[2])
    assert np.all(drawn.unit < plan.device.units)
    assert np.all(drawn.lane < drawn.lanes)
    slots: dict[tuple[int, int], float] = {}
    for unit, lane, begin, length in zip(drawn.unit, drawn.lane, drawn.begin, drawn.length, strict=True):
        assert begin >= slots.get((unit, lane), 0.0)
        assert length > 0
        slots[unit, lane] = begin + length


def test_the_grey_part_is_the_padding():
    plan = vb.plan([(70, 130, 64), (65, 20, 64)], device="h100", planner="uniform")
    drawn = schedule(plan)
    assert 1 / drawn.useful.mean() == pytest.approx(plan.padding_waste)
