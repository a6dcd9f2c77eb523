"""Checks of integer arguments, and integers that JAX cannot represent."""

from typing import Any, TypeGuard

import numpy as np


def is_integer(value: Any) -> TypeGuard["int | np.integer[Any]"]:
    """Whether the value is an integer of Python or NumPy. A bool does not count, because it is a mistake where a number
    is expected."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def saturated(value: Any) -> Any:
    """The value with host integers clamped to int32, because JAX would reject or wrap larger ones without x64. For
    sizes and indices, which are never that large; JAX arrays are unchanged."""
    is_list = isinstance(value, list | tuple) and all(map(is_integer, value))
    if not (is_list or is_integer(value) or isinstance(value, np.ndarray)):
        return value
    array, limits = np.asarray(value), np.iinfo(np.int32)
    if array.dtype.kind not in "iuO" or array.size == 0 or limits.min <= array.min() <= array.max() <= limits.max:
        return value
    lowest = 0 if array.dtype.kind == "u" else limits.min
    return np.clip(array, lowest, limits.max).astype(np.int32)
