"""Checks of array arguments of public functions; messages name the argument."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.distinct import distinct
from jax_vbgemm._src.util.shown import shown as shown

P = ParamSpec("P")
R = TypeVar("R")


def refuse_arguments_of(other: str, *names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for a public function that lacks the keyword arguments `names`, which the function `other` has: a
    call with one of them raises a TypeError that names `other`. The function's signature stays as it is."""

    def decorated(f: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            found = [name for name in names if name in kwargs]
            if found:
                raise TypeError(f"{f.__name__}: it has no argument {found[0]!r}; {other} has {', '.join(names)}")
            return f(*args, **kwargs)

        return call

    return decorated


def as_array(name: str, written: str, value: Any) -> jax.Array:
    """The value as an array; TypeError if it is not one. `name`: the function in messages; `written`: the argument,
    or a leaf of it, in messages."""
    if isinstance(value, jax.Ref):
        raise TypeError(f"{name}: {written} is a jax.Ref: pass its value, {written}[...]")
    try:
        return value if isinstance(value, jax.Array) else jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}: {written} must be an array, but is {shown(value)}: {error}") from None


def inputs_of(name: str, inputs: Any, count: int, consumers: str) -> list[jax.Array]:
    """One input for each consumer (branches, networks): an array is the input of all, a list or tuple has one for
    each. An object that occurs twice is one array, so that a call reads it once."""
    if not isinstance(inputs, list | tuple):
        return [as_array(name, "inputs", inputs)] * count
    if len(inputs) != count:
        raise ValueError(
            f"{name}: inputs has {len(inputs)} entries but there are {count} {consumers}: "
            f"give one array for each of them, or one array for all"
        )
    objects, index = distinct(inputs)
    first = [index.index(i) for i in range(len(objects))]
    arrays = [as_array(name, f"inputs[{i}]", x) for i, x in zip(first, objects, strict=True)]
    return [arrays[i] for i in index]


def promotes(array: Any, dtype: Any) -> bool:
    """Whether the array's dtype, or a dtype, promotes to `dtype`."""
    try:
        return bool(jnp.result_type(array, jnp.zeros((), dtype)) == dtype)
    except ValueError:  # under strict promotion the dtypes differ
        return False


def refuse_explicit_axes(name: str, arrays: Iterable[Any], written: Callable[[int], str]) -> None:
    """Raises ValueError if an array is sharded over explicit mesh axes; `written` gives the name of array i in
    messages."""
    for index, array in enumerate(arrays):
        axes = compat.explicit_axes(getattr(array, "buffer", array))  # of a view, those of its buffer
        if axes:
            raise ValueError(
                f"{name}: {written(index)} is sharded over the explicit mesh axes {', '.join(map(repr, axes))}: "
                "replicate it with jax.sharding.reshard, or use jax.shard_map"
            )


def unsharded_array(name: str, written: str, value: Any) -> jax.Array:
    """The value as an array, as `as_array` does; ValueError if it is sharded over explicit mesh axes."""
    array = as_array(name, written, value)
    refuse_explicit_axes(name, [array], lambda _: written)
    return array
