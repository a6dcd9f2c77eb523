"""Checks of array arguments of public functions; messages name the argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src import compat


def shown(value: Any) -> str:
    """The value as text for a message; only its type where the value would take more than a line."""
    written = repr(value)
    return written if len(written) <= 60 and "\n" not in written else f"of type {type(value).__name__}"


def as_array(name: str, written: str, value: Any) -> jax.Array:
    """The value as an array; TypeError where it is not one. `name`: the function in messages; `written`: the argument,
    or a leaf of it, in messages."""
    if isinstance(value, jax.Ref):
        raise TypeError(f"{name}: {written} is a jax.Ref: pass its value, {written}[...]")
    try:
        return value if isinstance(value, jax.Array) else jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {written} must be an array, but is {shown(value)}: {error}") from None


def promotes(array: Any, dtype: Any) -> bool:
    """Whether the array's dtype, or a dtype, promotes to `dtype`."""
    try:
        return bool(jnp.result_type(array, jnp.zeros((), dtype)) == dtype)
    except ValueError:  # under strict promotion the dtypes differ
        return False


def refuse_explicit_axes(name: str, arrays: Iterable[Any], written: Callable[[int], str]) -> None:
    """Raises ValueError where an array is sharded over explicit mesh axes; `written` gives the name of array i in
    messages."""
    for index, array in enumerate(arrays):
        axes = compat.explicit_axes(getattr(array, "buffer", array))  # of a view, those of its buffer
        if axes:
            raise ValueError(
                f"{name}: {written(index)} is sharded over the explicit mesh axes {', '.join(map(repr, axes))}: "
                "replicate it with jax.sharding.reshard, or use jax.shard_map"
            )


def unsharded_array(name: str, written: str, value: Any) -> jax.Array:
    """The value as an array, as `as_array` does; ValueError where it is sharded over explicit mesh axes."""
    array = as_array(name, written, value)
    refuse_explicit_axes(name, [array], lambda _: written)
    return array
