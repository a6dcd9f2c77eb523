"""The contracted axes, as one tuple for each tensor."""

from __future__ import annotations

import operator
from typing import Any

from jax_vbgemm._src.util.shown import shown

NAME = "tensordot"

Axes = tuple[int, ...]


def contracted_axes(axes: Any, ndim_a: int, ndim_b: int) -> tuple[Axes, Axes]:
    """The contracted axes of both tensors, axis i of the first with axis i of the second; each counted from 0."""
    try:
        count = operator.index(axes)
    except TypeError:
        pass
    else:
        if not 0 <= count <= min(ndim_a, ndim_b):
            raise ValueError(f"{NAME}: axes={count}, but a has {ndim_a} axes and b has {ndim_b}")
        return tuple(range(ndim_a - count, ndim_a)), tuple(range(count))
    try:
        axes_a, axes_b = (_integers(part) for part in axes)
    except (TypeError, ValueError):
        raise TypeError(
            f"{NAME}: axes must be an integer, or a pair with the axes of a and those of b, not {shown(axes)}"
        ) from None
    if len(axes_a) != len(axes_b):
        raise ValueError(f"{NAME}: axes names {len(axes_a)} axes of a but {len(axes_b)} of b: each needs a partner")
    return _from_zero("a", axes_a, ndim_a), _from_zero("b", axes_b, ndim_b)


def free_axes(axes: Axes, ndim: int) -> Axes:
    """The axes that are not contracted."""
    return tuple(axis for axis in range(ndim) if axis not in axes)


def _integers(part: Any) -> Axes:
    try:
        return (operator.index(part),)
    except TypeError:
        return tuple(operator.index(axis) for axis in part)


def _from_zero(name: str, axes: Axes, ndim: int) -> Axes:
    for axis in axes:
        if not -ndim <= axis < ndim:
            raise ValueError(f"{NAME}: axis {axis} of {name} is out of range: {name} has {ndim} axes")
    counted = tuple(axis % ndim for axis in axes)
    if len(set(counted)) < len(counted):
        raise ValueError(f"{NAME}: axes {axes} of {name} name one axis twice")
    return counted
