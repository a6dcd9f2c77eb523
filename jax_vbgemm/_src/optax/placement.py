"""Placement: how parameters are sharded over the devices among which Muon's matrices are divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from jax_vbgemm._src.many_devices.specs import specs_of
from jax_vbgemm._src.many_devices.stack import sharded_axis, whole_shape
from jax_vbgemm._src.optax.packed import is_ragged
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.mesh_axes import MeshAxes, mesh_axes
from jax_vbgemm._src.util.structure import path_of


@dataclass(frozen=True)
class Placement:
    """The arguments of these names of `newton_schulz`."""

    mesh_axis: Any = None
    mesh: Any = None
    shardings: Any = None

    def specs(self, name: str, tree: Any) -> list[Any]:
        """The PartitionSpec of each leaf, or None: by its type, where that has explicit axes."""
        leaves = jax.tree.leaves(tree, is_leaf=is_ragged)
        if self.shardings is not None and any(map(is_ragged, leaves)):
            raise ValueError(f"{name}: shardings cannot be used with packed parameters: they are of leaves")
        found = specs_of(name, self.shardings, tree, self.axes(name), is_leaf=is_ragged)
        return [
            jax.typeof(x).sharding.spec if not is_ragged(x) and compat.explicit_axes(x) else spec
            for x, spec in zip(leaves, found, strict=True)
        ]

    def axes(self, name: str) -> MeshAxes | None:
        """The axes of the mesh; None without `mesh_axis`."""
        return None if self.mesh_axis is None else mesh_axes(name, self.mesh_axis, self.mesh)

    def whole_leaves(self, name: str, tree: Any) -> list[Any]:
        """The leaves; if a device of the enclosing shard_map holds a part of a leaf, the shape of the whole leaf
        instead."""
        leaves: list[Any] = jax.tree.leaves(tree, is_leaf=is_ragged)
        for index, axis in self._sliced(name, tree):
            shape = whole_shape(leaves[index].shape, axis, mesh_axes(name, self.mesh_axis, self.mesh))
            leaves[index] = jax.ShapeDtypeStruct(shape, leaves[index].dtype)
        return leaves

    def refuse_slices(self, name: str, why: str, tree: Any, of: Sequence[bool] | None = None) -> None:
        """Raises ValueError if a device of the enclosing shard_map holds only a part of a leaf; of: the leaves to
        check."""
        structure = jax.tree.structure(tree, is_leaf=is_ragged)
        for index, _ in self._sliced(name, tree):
            if of is not None and not of[index]:
                continue
            raise ValueError(
                f"{name}: inside shard_map, tree{path_of(structure, index)} is a slice of the parameter, and {why} "
                "needs the whole: use jax.jit in place of shard_map"
            )

    def refusing_slices(self, transformation: optax.GradientTransformation, why: str) -> optax.GradientTransformation:
        """The transformation, which refuses slices of parameters."""

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            self.refuse_slices("muon", why, updates)
            return transformation.update(updates, state, params)

        return optax.GradientTransformation(transformation.init, update)

    def _sliced(self, name: str, tree: Any) -> list[tuple[int, int]]:
        """The leaves that are divided among devices of the enclosing shard_map, with the divided axis."""
        if self.shardings is None:
            return []
        specs = self.specs(name, tree)
        axes = mesh_axes(name, self.mesh_axis, self.mesh)
        leaves, structure = jax.tree.flatten(tree, is_leaf=is_ragged)
        if not axes.manual:
            return []
        axis_of = [
            sharded_axis(f"{name}: tree{path_of(structure, index)}", x.shape, spec, axes)
            for index, (x, spec) in enumerate(zip(leaves, specs, strict=True))
        ]
        return [(index, axis) for index, axis in enumerate(axis_of) if axis is not None]
