"""Arrays among the arguments of public functions: what is wrong with one is said in a message that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src import compat


def shown(value: Any) -> str:
    """The value as a message shows it: its type where it would take more than a line."""
    written = repr(value)
    return written if len(written) <= 60 and "\n" not in written else f"of type {type(value).__name__}"


def as_array(name: str, written: str, value: Any) -> jax.Array:
    """The value as an array; TypeError where it is none. `name`: of the function; `written`: the argument, or a leaf of
    it, as the user would write it."""
    try:
        return value if isinstance(value, jax.Array) else jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {written} must be an array, but is {shown(value)}: {error}") from None


def promotes(array: Any, dtype: Any) -> bool:
    """Whether the array's dtype, or a dtype, promotes to `dtype`."""
    try:
        return bool(jnp.result_type(array, jnp.zeros((), dtype)) == dtype)
    except ValueError:  # strict promotion
        return False


def refuse_explicit_axes(name: str, arrays: Iterable[Any], written: Callable[[int], str]) -> None:
    """ValueError where an array is sharded over explicit mesh axes; `written` says how the user would write array i."""
    for index, array in enumerate(arrays):
        axes = compat.explicit_axes(getattr(array, "buffer", array))  # a view's
        if axes:
            raise ValueError(
                f"{name}: {written(index)} is sharded over the explicit mesh axes {', '.join(map(repr, axes))}: "
                "replicate it with jax.sharding.reshard, or use jax.shard_map"
            )
