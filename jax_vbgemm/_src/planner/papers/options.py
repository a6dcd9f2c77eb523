"""Checks of planner options: an error names the planner, the option and the rule."""

import math
from typing import Any

import numpy as np


def check_number(planner: str, option: str, value: Any) -> None:
    """`value` is None or a finite number >= 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{planner}: {option} = {value!r} must be a number")
    if not 0 <= value < math.inf:
        raise ValueError(f"{planner}: {option} = {value!r} must be finite and not negative")


def check_choice(planner: str, option: str, value: Any, choices: tuple[Any, ...]) -> None:
    """`value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{planner}: {option} = {value!r} must be one of {', '.join(map(repr, choices))}")
