"""Which values count as integers where a caller gives one, and those that JAX would not hold."""

from typing import Any, TypeGuard

import numpy as np


def is_integer(value: Any) -> TypeGuard["int | np.integer[Any]"]:
    """Whether the value is an integer of Python or NumPy. A bool is none, as it is a mistake where a number belongs."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def saturated(value: Any) -> Any:
    """The value, in which integers of the host beyond int32 are the nearest that int32 holds: without x64, JAX would
    refuse or wrap them. For sizes and indices, of which none so large exists; arrays of JAX are left as they are."""
    is_list = isinstance(value, list | tuple) and all(map(is_integer, value))
    if not (is_list or is_integer(value) or isinstance(value, np.ndarray)):
        return value
    array, limits = np.asarray(value), np.iinfo(np.int32)
    if array.dtype.kind not in "iuO" or array.size == 0 or limits.min <= array.min() <= array.max() <= limits.max:
        return value
    lowest = 0 if array.dtype.kind == "u" else limits.min
    return np.clip(array, lowest, limits.max).astype(np.int32)
