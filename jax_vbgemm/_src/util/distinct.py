"""distinct: the only function that compares objects by identity; all other code refers to arrays by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def distinct(values: Sequence[T]) -> tuple[list[T], list[int]]:
    """The distinct objects among the values, in order of first occurrence, and for each value the index of its object.

    Tracers cannot be compared by value at trace time, so that an array that is given twice is recognised by identity.

    >>> distinct(["a", "b", "a"])
    (['a', 'b'], [0, 1, 0])
    """
    objects = {id(value): value for value in values}
    index = {key: place for place, key in enumerate(objects)}
    return list(objects.values()), [index[id(value)] for value in values]
