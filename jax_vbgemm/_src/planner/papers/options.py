"""Checks of planner options: an error names the planner, the option and the rule."""

import math
from typing import Any

import numpy as np

from jax_vbgemm._src.util.integers import is_integer


def check_number(planner: str, option: str, value: Any) -> None:
    """Raises unless `value` is None or a finite number >= 0."""
    if value is None:
        return
    if not is_integer(value) and not isinstance(value, float | np.floating):
        raise TypeError(f"{planner}: {option} = {value!r} must be a number")
    if not 0 <= value < math.inf:
        raise ValueError(f"{planner}: {option} = {value!r} must be finite and not negative")


def check_count(planner: str, option: str, value: Any) -> None:
    """Raises unless `value` is None or a whole number >= 1."""
    check_number(planner, option, value)
    if value is not None and (value < 1 or value != int(value)):
        raise ValueError(f"{planner}: {option} = {value!r} must be a positive whole number")


def check_choice(planner: str, option: str, value: Any, choices: tuple[Any, ...], besides: str = "") -> None:
    """Raises unless `value` is one of `choices`; True and False do not count as numbers. `besides`: a description of
    other legal values."""
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        known = " ".join(filter(None, (", ".join(map(repr, choices)), besides)))
        raise ValueError(f"{planner}: {option} = {value!r} must be one of {known}")
