"""Which values count as integers where a caller gives one."""

from typing import Any, TypeGuard

import numpy as np


def is_integer(value: Any) -> TypeGuard["int | np.integer[Any]"]:
    """Whether the value is an integer of Python or NumPy. A bool is none, as it is a mistake where a number belongs."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
