"""Plans change only on purpose: the plans of each registered planner equal those of golden.csv."""

import pytest

from . import golden


@pytest.mark.parametrize("case", golden.cases(), ids="-".join)
def test_plans_are_what_they_were(case):
    kept = golden.read().get(case, "no line")
    assert golden.row(*case) == kept, "if that is meant: python -m tests.planner.golden, and look at the difference"


def test_no_line_is_left_of_what_is_gone():
    assert set(golden.read()) == set(golden.cases())
