"""apply_updates: adds the updates to all parameters in one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.elementwise.addition import add_scaled
from jax_vbgemm._src.many_devices.parts import on_parts
from jax_vbgemm._src.many_devices.specs import specs_of
from jax_vbgemm._src.many_devices.stack import check_spec
from jax_vbgemm._src.util.mesh_axes import MeshAxes, mesh_axes
from jax_vbgemm._src.util.structure import difference, is_none, path_of


def apply_updates(params: Any, updates: Any, *, mesh: Any = None, shardings: Any = None) -> Any:
    """optax.apply_updates: params + updates, in the parameters' dtypes; a None among the parameters stays None.

    On a GPU this is one kernel for all leaves, which writes into the memory of the parameters: donate them, or XLA
    copies them first. On a mesh with automatic axes and outside of shard_map, `shardings` must say how parameters are
    sharded, as for `muon`, and `mesh` on which mesh, where jax.set_mesh does not define it: otherwise XLA adds each
    leaf by itself.

    Raises:
      ValueError, TypeError: the trees differ in structure, an update cannot be added to its parameter, or shardings
        don't fit the parameters or the mesh; the message names the leaf.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
      >>> updates = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
      >>> jax_vbgemm.optax.apply_updates(params, updates)["w"].tolist()
      [[2.0, 2.0], [2.0, 2.0]]
    """
    leaves = jax.tree.leaves(params, is_leaf=is_none)
    structure: Any = jax.tree.structure(params, is_leaf=is_none)
    try:
        others = structure.flatten_up_to(updates)
    except ValueError as error:
        why = difference("params", params, "updates", updates, prefix=True) or error
        raise ValueError(f"apply_updates: {why}") from None
    fused = [i for i, (p, u) in enumerate(zip(leaves, others, strict=True)) if _can_fuse(p, u)]
    summed = set(fused)
    results: list[Any] = [
        None if p is None or index in summed else _sum(structure, index, p, u)
        for index, (p, u) in enumerate(zip(leaves, others, strict=True))
    ]
    axes, leaf_specs = _placement(params, leaves, mesh, shardings)
    sums, _ = on_parts(
        lambda updates, params, _: (add_scaled(updates, params), None),
        ([others[i] for i in fused], [leaves[i] for i in fused]), None, [leaf_specs[i] for i in fused], axes,
    )  # fmt: skip
    for index, total in zip(fused, sums, strict=True):
        results[index] = total
    return structure.unflatten(results)


def _placement(params: Any, leaves: Sequence[Any], mesh: Any, shardings: Any) -> tuple[MeshAxes | None, list[Any]]:
    """All axes of the mesh, and the PartitionSpec of each leaf; None without shardings, and inside shard_map."""
    ambient = jax.sharding.get_abstract_mesh()
    if shardings is None or ambient.manual_axes:
        return None, [None] * len(leaves)
    if mesh is None and ambient.empty:
        raise ValueError("apply_updates: shardings without a mesh: pass it as mesh, or use jax.set_mesh")
    axes = mesh_axes("apply_updates", tuple((ambient if mesh is None else mesh).axis_names), mesh)
    given = iter(specs_of("apply_updates", shardings, params, axes, of="params"))
    specs = [None if p is None else next(given) for p in leaves]
    for index, (p, spec) in enumerate(zip(leaves, specs, strict=True)):
        if spec is not None:
            where = "apply_updates: params" + path_of(jax.tree.structure(params, is_leaf=is_none), index)
            check_spec(where, jnp.shape(p), spec, axes)
    return axes, specs


def _sum(structure: Any, index: int, p: Any, u: Any) -> jax.Array:
    """Leaf `index` of the parameters and its update, as optax adds them."""
    try:
        return jnp.asarray(p + u).astype(jnp.asarray(p).dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"apply_updates: params{path_of(structure, index)} and its update: {error}") from None


def _can_fuse(p: Any, u: Any) -> bool:
    """Whether the sum needs no conversion and no broadcast, so that `add_scaled` can compute it."""
    if not (isinstance(p, jax.Array) and isinstance(u, jax.Array)):
        return False
    return p.dtype == u.dtype and p.shape == u.shape and jnp.issubdtype(p.dtype, jnp.inexact)
