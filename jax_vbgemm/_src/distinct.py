"""The one place that looks at the identity of objects; everything else refers to arrays by their positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def distinct(values: Sequence[T]) -> tuple[list[T], list[int]]:
    """The different objects among the values, in order of first occurrence, and for each value the index of its own.

    Tracers have no equality at trace time, so an array that a user gives twice is found by being the same object.

    >>> distinct(["a", "b", "a"])
    (['a', 'b'], [0, 1, 0])
    """
    objects = {id(value): value for value in values}
    index = {key: place for place, key in enumerate(objects)}
    return list(objects.values()), [index[id(value)] for value in values]
