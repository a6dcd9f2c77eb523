"""Parameters of which the default run takes a few, where the others run the same code; the slow tests take all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], default: Collection[Any], turns: str = "") -> list[Any]:
    """The values, marked as slow except for those in `default`; a tuple holds one value for each argument. With a name
    of `turns`, all tests of one slow value have the same turn (slow_parts.py)."""
    values = list(values)
    missing = [value for value in default if value not in values]
    assert not missing, f"there is no case {missing}"
    arguments = [value if isinstance(value, tuple) else (value,) for value in values]
    slow = [pytest.mark.slow(turn=f"{turns} {value}") if turns else pytest.mark.slow for value in values]
    marks = [() if value in default else mark for value, mark in zip(values, slow, strict=True)]
    return [pytest.param(*each, marks=mark) for each, mark in zip(arguments, marks, strict=True)]
