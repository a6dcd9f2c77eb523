"""Stack: matrices that are divided among devices, and the part that each device holds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.util.mesh_axes import MeshAxes, names_of


@dataclass(frozen=True)
class Stack:
    """A matrix, or a stack of equal matrices.

    shape: (m, n) or (count, m, n), of the whole stack. dtype, result: those of the matrices and of their results. axis:
    -1, -2 or -3, along which devices hold equal parts, the first device the first one; None: each device holds all.
    """

    shape: tuple[int, ...]
    dtype: Any
    result: Any
    axis: int | None

    @property
    def count(self) -> int:
        """The number of matrices; none of them needs work if they are empty."""
        return 0 if math.prod(self.shape) == 0 else 1 if len(self.shape) == 2 else self.shape[0]

    @property
    def kind(self) -> Hashable:
        """Stacks of one matrix with equal kinds are interchangeable; None for other stacks."""
        return (self.shape, self.dtype, self.axis) if len(self.shape) == 2 else None


def stack_of(shape: Sequence[int], dtype: Any, axis: int | None, sent: Any = None) -> Stack:
    """The stack that an array (..., m, n) becomes if its leading dimensions are folded.

    axis: as of the array. sent: the dtype of results that are sent, if it is narrower than dtype.
    """
    narrow = sent is not None and jnp.dtype(sent).itemsize < dtype.itemsize
    folded = tuple(shape) if len(shape) < 3 else (math.prod(shape[:-2]), *shape[-2:])
    side = None if axis is None else max(axis, -3)
    return Stack(folded, dtype, sent if narrow and side != -3 else dtype, side)


def sharded_axis(where: str, shape: Sequence[int], spec: Any, axes: MeshAxes) -> int | None:
    """The axis of an array, counted from its end, along which the devices of `axes` hold equal parts; None for an array
    that each device holds in full.

    An array that is sharded over some of the mesh axes, or along two of its own axes, is divided by rows or by columns.

    Args:
      where: the function and the array, with which messages begin.
      shape: of the whole array, or inside a shard_map over the axes of what each device holds.
      spec: a PartitionSpec, or None for a replicated array. Outside of shard_map, other axes than `axes` don't matter.

    Raises:
      ValueError: spec has more entries than the array has axes, or names an unknown axis; its devices don't divide the
        axis of the array; or, inside shard_map, devices hold other parts of the array.
    """
    if spec is None:
        return None
    check_spec(where, shape, spec, axes)
    found, sharded = None, False
    for axis, entry in enumerate(spec):
        names = names_of(entry)
        ours = tuple(name for name in names if name in axes.names)
        if axes.manual and names not in ((), axes.names):
            raise ValueError(
                f"{where} has the sharding {spec}: inside shard_map, one of its axes may be divided along "
                f"{' x '.join(map(repr, axes.names))}, and the others must be whole"
            )
        sharded |= bool(ours)
        if ours == axes.names:
            found = axis
    if found is None:
        sizes = [axis for axis in (-2, -1) if sharded and shape[axis] % axes.size == 0]
        return sizes[0] if sizes else None
    if not axes.manual:
        axes.divide(where, shape[found], f"entries of axis {found}", least=0)
    return found - len(shape)


def check_spec(where: str, shape: Sequence[int], spec: Any, axes: MeshAxes) -> None:
    """Raises ValueError if the spec has more entries than the array has axes, or names an axis that is not one of the
    mesh."""
    if len(spec) > len(shape):
        raise ValueError(f"{where} has the sharding {spec}, but its shape is {tuple(shape)}")
    for name in (name for entry in spec for name in names_of(entry)):
        if name not in axes.mesh.axis_names:
            known = ", ".join(map(repr, axes.mesh.axis_names))
            raise ValueError(f"{where} has the sharding {spec}: {name!r} is not an axis of the mesh, which has {known}")


def refuse_varying(where: str, x: jax.Array, axes: MeshAxes, slices: str) -> None:
    """Raises ValueError if an array that all devices of the enclosing shard_map must hold has a type that varies over
    `axes`. With check_vma=False types don't show this.

    slices: what the caller of a function of slices shall do.
    """
    names = [name for name in axes.names if name in jax.typeof(x).mat.varying]
    if names:
        raise ValueError(
            f"{where} varies over the mesh axis {' x '.join(map(repr, names))}, along which all devices must hold the "
            f"same array: {slices}; equal arrays don't vary after jax.lax.pmean"
        )


def whole_shape(shape: Sequence[int], axis: int | None, axes: MeshAxes) -> tuple[int, ...]:
    """The shape of the whole array; a device of a shard_map holds a part of it along the axis."""
    whole = list(shape)
    if axis is not None and axes.manual:
        whole[axis] *= axes.size
    return tuple(whole)


def axis_spec(rank: int, axis: int | None, axes: MeshAxes) -> Any:
    """The PartitionSpec of an array that is divided along the axis, which is counted from the end."""
    if axis is None:
        return jax.P()
    entry = axes.names if len(axes.names) > 1 else axes.names[0]
    return jax.P(*(entry if position == rank + axis else None for position in range(rank)))
