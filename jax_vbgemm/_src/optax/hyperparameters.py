"""Checks of an optimizer's hyperparameters. Traced values are not checked."""

from __future__ import annotations

import operator
from typing import Any

import jax


def check_number(optimizer: str, name: str, value: Any, least: float, below: float | None = None) -> None:
    """Raises ValueError unless least <= value < below. Traced values, from a schedule or `optax.inject_hyperparams`,
    are not checked."""
    if isinstance(value, jax.core.Tracer):
        return
    if not (least <= value and (below is None or value < below)):
        wanted = f"at least {least}" if below is None else f"in [{least}, {below})"
        raise ValueError(f"{optimizer}: {name} = {value} must be {wanted}")


def check_integer(optimizer: str, name: str, value: Any, least: int) -> None:
    """Raises unless the value, such as a number of steps, is an integer of at least `least`; it may be traced."""
    if isinstance(value, jax.core.Tracer):
        return
    if _index(value) is None:
        raise TypeError(f"{optimizer}: {name} = {value!r} must be an integer")
    check_number(optimizer, name, value, least)


def static_integer(optimizer: str, name: str, value: Any, least: int) -> int:
    """A checked integer on which shapes or the number of products depend, so that it must be known at trace time."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{optimizer}: {name} is traced, and must be known at trace time: optax.inject_hyperparams leaves it alone "
            f"where static_args names it, as in static_args={(name,)!r}"
        )
    check_integer(optimizer, name, value, least)
    return operator.index(value)


def _index(value: Any) -> int | None:
    try:
        return operator.index(value)
    except TypeError:
        return None
