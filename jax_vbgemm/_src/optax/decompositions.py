"""Decompositions of many square matrices, in which SOAP and Shampoo spend most of their time, divided among devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax

from jax_vbgemm._src.many_devices.divided import divided
from jax_vbgemm._src.many_devices.stack import refuse_varying
from jax_vbgemm._src.optax.kronecker import Leaf
from jax_vbgemm._src.util.mesh_axes import MeshAxes, mesh_axes

# Only the ratio of times matters: a decomposition of an n x n matrix takes about n^3 operations. Assumed, not measured.
_SECONDS_PER_N_CUBED = 1e-11

Decomposition = Callable[..., list[jax.Array]]


class Devices:
    """The devices among which decompositions are divided, by the arguments mesh_axis and mesh of an optimizer.

    Without a mesh_axis, every device computes all of them.
    """

    def __init__(self, name: str, mesh_axis: Any, mesh: Any) -> None:
        self.name = name
        self.mesh_axis = mesh_axis
        self.mesh = mesh

    def refuse_slices(self, leaves: Sequence[Leaf]) -> None:
        """Raises ValueError for a parameter with factors that varies over the mesh axis of the enclosing shard_map."""
        axes = self._axes()
        if axes is None or not axes.manual:
            return
        for leaf in leaves:
            if any(leaf.sides):
                slices = "for slices of parameters use jax.jit in place of shard_map"
                refuse_varying(f"{self.name}: {leaf.where}", leaf.x, axes, slices)

    def decomposed(
        self,
        function: Decomposition,
        matrices: Sequence[jax.Array],
        kinds: Sequence[Hashable] | None = None,
        extras: Any = (),
    ) -> list[jax.Array]:
        """function(matrices, kind, *extras) for the matrices of each kind, whose results have the matrices' shapes.

        kinds: what function has to know of each array (..., n, n) when it is traced. extras: arrays and numbers.
        """
        kinds = [None] * len(matrices) if kinds is None else kinds
        results: list[Any] = [None] * len(matrices)
        for kind in dict.fromkeys(kinds):
            members = [index for index, matrix_kind in enumerate(kinds) if matrix_kind == kind]
            values = self._divided(function, [matrices[index] for index in members], kind, extras)
            for index, value in zip(members, values, strict=True):
                results[index] = value
        return results

    def _divided(
        self, function: Decomposition, matrices: Sequence[jax.Array], kind: Hashable, extras: Any
    ) -> list[jax.Array]:
        axes = self._axes()
        if axes is None:
            return function(matrices, kind, *extras)

        def decompose_parts(
            parts: Sequence[jax.Array], indices: Any, extras: Any, into: Any, dtypes: Any
        ) -> list[jax.Array]:
            del indices, into, dtypes
            return function(parts, kind, *extras)

        seconds = [_SECONDS_PER_N_CUBED * x.shape[-1] ** 3 for x in matrices]
        extras = [jax.numpy.asarray(x) for x in extras]
        return divided(decompose_parts, matrices, extras, seconds, axes, held=[None] * len(matrices))

    def _axes(self) -> MeshAxes | None:
        """The mesh axes if there are several devices along them, otherwise None."""
        axes = None if self.mesh_axis is None else mesh_axes(self.name, self.mesh_axis, self.mesh)
        return None if axes is None or axes.size == 1 else axes
