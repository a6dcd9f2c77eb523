"""Checks alpha and beta: for each result a scalar known at trace time, or an element of an array."""

from __future__ import annotations

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.call import Argument, Call, leaves_of
from jax_vbgemm._src.matmul.view import View, is_view
from jax_vbgemm._src.util.arguments import refuse_explicit_axes, shown


def scalars(call: Call, option: str, value: Any) -> list[Any]:
    """One entry for each result: a number or an array of rank 0 (not yet checked), or a pair (1-D array, index)."""
    count = len(call.dtypes)
    if is_view(value):
        return _elements(call, option, value)
    value = _plain_number(value)
    if isinstance(value, numbers.Number):
        return [value] * count
    if isinstance(value, np.ndarray | jax.Array):
        if isinstance(value, jax.Array):
            refuse_explicit_axes(call.name, [value], lambda _: option)
        if value.ndim == 0:
            return [value] * count
        if value.shape != (count,):
            raise ValueError(
                f"{call.name}: {option} has shape {value.shape}, but there are {count} problems: one entry for each"
            )
        return [_plain_number(value[i]) if isinstance(value, np.ndarray) else (value, i) for i in range(count)]
    return [_plain_number(leaf) for leaf in leaves_of(call, option, value)]


def _elements(call: Call, option: str, view: View) -> list[tuple[jax.Array, int]]:
    """The elements of a view of rank 0 or 1, which the call reads in place."""
    count = len(call.dtypes)
    if view.shape not in ((), (count,)):
        raise ValueError(
            f"{call.name}: {option} has shape {view.shape}, but there are {count} problems: one entry for each"
        )
    refuse_explicit_axes(call.name, [view.buffer], lambda _: option)
    places = np.broadcast_to(view.layout.positions().reshape(view.shape), count)
    vector = view.buffer.reshape(-1)
    return [(vector, int(place)) for place in places]


def checked_scalar(call: Call, option: str, index: int, value: Any) -> complex | float | tuple[Argument, int]:
    """The entry of result `index` in the accumulator's dtype: a number, or an element of an operand."""
    array, element = value if isinstance(value, tuple) else (value, None)

    def written() -> str:
        return call.written(option, index) if element is None else f"{option}[{index}]"

    dtype = reference.accumulator(call.dtypes[index])
    is_array = isinstance(array, jax.Array)
    if not is_array and not isinstance(array, numbers.Number):
        raise TypeError(f"{call.name}: {written()} must be a number, not {shown(array)}")
    if is_array and element is None and array.ndim != 0:
        raise ValueError(f"{call.name}: {written()} has shape {array.shape}: it must be a number")
    is_complex = jnp.iscomplexobj(array) if is_array else isinstance(array, complex)
    if is_complex and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError(f"{call.name}: {written()} is complex, but {call.result(index)} is {call.dtypes[index]}")
    if is_array and not jnp.issubdtype(dtype, jnp.inexact) and not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{call.name}: {written()} is {array.dtype}, but {call.result(index)} is {dtype}")
    if is_array:
        return Argument(array, array.shape or (1,), dtype), element or 0
    try:
        return _number(array, dtype)
    except ValueError as error:
        given, wanted = _shown(array), call.dtypes[index]
        raise ValueError(f"{call.name}: {written()} is {given}, but {call.result(index)} is {wanted}{error}") from None


def is_zero(value: Any) -> bool:
    return isinstance(value, int | float | complex) and value == 0


def _plain_number(value: Any) -> Any:
    """A NumPy number or array of rank 0 as a Python number; any other value unchanged."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value


def _number(value: Any, dtype: Any) -> complex | float:
    """A number for a result of `dtype`; integers keep all their digits. ValueError if the dtype cannot hold it."""
    if isinstance(value, complex):
        return value
    if jnp.issubdtype(dtype, jnp.inexact):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(": it is beyond the range of float64") from None
    if not (value.denominator == 1 if isinstance(value, numbers.Rational) else float(value).is_integer()):
        raise ValueError("")
    if np.dtype(dtype).kind == "b":
        return int(value)
    limits = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
    if not int(limits.min) <= int(value) <= int(limits.max):
        raise ValueError(f": it must lie in [{limits.min}, {limits.max}]")
    return int(value)


def _shown(number: Any) -> str:
    """A number for a message; Python refuses to print integers of thousands of digits."""
    is_long = isinstance(number, int) and abs(number) >= 10**30
    return f"an integer of {number.bit_length()} bits" if is_long else str(number)
