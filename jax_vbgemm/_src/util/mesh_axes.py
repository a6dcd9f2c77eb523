"""The mesh axes given by a caller, and whether the call is already inside a shard_map over them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.util import compat


@dataclass(frozen=True)
class MeshAxes:
    """Axes of a mesh that are treated as one axis.

    names: the names of the axes. manual: whether the call is inside a shard_map over them. free: all axes of the mesh
    over which there is no shard_map yet.
    """

    mesh: Any
    names: tuple[str, ...]
    manual: bool
    free: frozenset[str]

    @property
    def size(self) -> int:
        """The number of devices along the axes."""
        return math.prod(self.mesh.shape[name] for name in self.names)

    def divide(self, given: str, count: int, what: str, least: int = 1) -> int:
        """`count` divided by the number of devices; ValueError if `count` is below `least` or not divisible.

        given: the function and its argument that tells `count`, with which the message begins.
        """
        if count < least or count % self.size:
            axes = " x ".join(map(repr, self.names))
            raise ValueError(
                f"{given}: the mesh axis {axes} has {self.size} devices, which don't divide {count} {what}"
            )
        return count // self.size

    # The operations below are for use inside a shard_map over the axes.

    def index(self) -> jax.Array:
        """The number of this device along the axes."""
        result: jax.Array = jax.lax.axis_index(self.names).astype(jnp.int32)
        return result

    def gathered(self, rows: jax.Array) -> jax.Array:
        """The rows of all devices, one device after the other. The transpose sums the cotangents of each row."""
        if rows.shape[0] == 0:  # XLA cannot gather arrays without rows
            return rows
        result: jax.Array = jax.lax.all_gather(compat.varying(rows, self.names), self.names, tiled=True)
        return result

    def summed_parts(self, rows: jax.Array) -> jax.Array:
        """This device's part of the sum of the devices' rows: the transpose of `gathered`."""
        if rows.shape[0] == 0:
            return rows
        result: jax.Array = jax.lax.psum_scatter(compat.varying(rows, self.names), self.names, tiled=True)
        return result

    def exchanged_parts(self, rows: jax.Array) -> jax.Array:
        """The rows that each device sends to this one, ordered by device: part i of `rows` goes to device i."""
        if rows.shape[0] == 0:
            return rows
        result: jax.Array = jax.lax.all_to_all(compat.varying(rows, self.names), self.names, 0, 0, tiled=True)
        return result


def mesh_axes(name: str, mesh_axis: Any, mesh: Any = None, *, manual: bool = False) -> MeshAxes:
    """Looks up the axes in `mesh`, or in the mesh of the enclosing shard_map or jax.set_mesh.

    manual: whether there has to be an enclosing shard_map over the axes.

    Raises:
      TypeError: mesh_axis is neither a name nor a tuple of names, or mesh is no mesh.
      ValueError: there is no mesh, it lacks an axis, an axis is named twice, or the enclosing shard_map is over some of
        the axes only.
    """
    names = mesh_axis if isinstance(mesh_axis, tuple) else (mesh_axis,)
    if not names or not all(isinstance(axis, str) for axis in names):
        raise TypeError(f"{name}: mesh_axis is {mesh_axis!r}: it must be the name of a mesh axis, or a tuple of names")
    if mesh is not None and not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        raise TypeError(f"{name}: mesh is {mesh!r}: it must be a jax.sharding.Mesh")
    ambient = jax.sharding.get_abstract_mesh()
    over = frozenset(ambient.manual_axes)  # of enclosing shard_maps
    if mesh is None or over:  # inside shard_map there is one mesh only
        mesh = ambient
    if mesh.empty:
        raise ValueError(f"{name}: mesh_axis={mesh_axis!r}, but there is no mesh: pass it as mesh, or use jax.set_mesh")
    for axis in names:
        if axis not in mesh.axis_names:
            known = ", ".join(map(repr, mesh.axis_names))
            raise ValueError(f"{name}: mesh_axis={mesh_axis!r}: {axis!r} is not an axis of the mesh, which has {known}")
        if names.count(axis) > 1:
            raise ValueError(f"{name}: mesh_axis={mesh_axis!r} names {axis!r} twice")
    inside = [axis for axis in names if axis in over]
    if inside and len(inside) < len(names):
        raise ValueError(
            f"{name}: mesh_axis={mesh_axis!r}, but the enclosing shard_map is over {', '.join(map(repr, inside))} only"
        )
    if manual and not inside:
        raise ValueError(f"{name}: mesh_axis={mesh_axis!r}, but there is no enclosing shard_map over it")
    return MeshAxes(mesh, names, bool(inside), frozenset(mesh.axis_names) - over)


def names_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes of an entry of a PartitionSpec."""
    return (entry,) if isinstance(entry, str) else entry if isinstance(entry, tuple) else ()
