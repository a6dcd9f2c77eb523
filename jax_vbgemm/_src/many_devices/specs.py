"""specs_of: the PartitionSpecs that the argument `shardings` gives to the leaves of a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jax_vbgemm._src.util.mesh_axes import MeshAxes, names_of
from jax_vbgemm._src.util.structure import difference


def specs_of(
    function: str,
    given: Any,
    tree: Any,
    axes: MeshAxes | None,
    is_leaf: Callable[[Any], bool] | None = None,
    of: str = "tree",
) -> list[Any]:
    """The PartitionSpec of each leaf of a tree, or None.

    given: a PartitionSpec, a NamedSharding or None for each leaf or subtree, or a function of the tree that returns
    that. A SingleDeviceSharding is None if the mesh has one device. function, of: the
    names of the caller and of the tree in messages.

    Raises:
      TypeError: a leaf is given something else.
      ValueError: given has another structure than the tree, there are no axes, a spec names an axis twice, or a leaf
        lies on one device and the mesh has more.
    """
    if given is None:
        return [None] * len(jax.tree.leaves(tree, is_leaf=is_leaf))
    if axes is None:
        raise ValueError(f"{function}: shardings without mesh_axis: the mesh axes whose devices share the work")
    given = given(tree) if callable(given) else given
    prefix: list[Any] = jax.tree.leaves(given, is_leaf=_is_sharding)
    prefix_structure: Any = jax.tree.structure(given, is_leaf=_is_sharding)
    try:
        parts = prefix_structure.flatten_up_to(tree)
    except ValueError as error:
        entries = jax.tree.map(lambda _: 0, given, is_leaf=_is_sharding)  # None is an entry, too
        where = difference("shardings", entries, of, tree, prefix=True) or error
        raise ValueError(
            f"{function}: shardings don't fit the {of}: {where}; each leaf needs an entry, its own or that of a "
            "subtree, and leaves that are replicated or not orthogonalised the entry None"
        ) from None
    counts = [len(jax.tree.leaves(part, is_leaf=is_leaf)) for part in parts]
    leaf_shardings = [sharding for sharding, count in zip(prefix, counts, strict=True) for _ in range(count)]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree, is_leaf=is_leaf)]
    return [
        _spec(f"{function}: {of}{path}", sharding, axes) for path, sharding in zip(paths, leaf_shardings, strict=True)
    ]


def _spec(where: str, sharding: Any, axes: MeshAxes) -> Any:
    """The PartitionSpec for the sharding given for a leaf, or None."""
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        if axes.mesh.size == 1:
            return None
        raise ValueError(
            f"{where} has a SingleDeviceSharding, but the mesh has {axes.mesh.size} devices: shardings must be of "
            "leaves that were placed on the mesh (jax.device_put), or None for leaves that are replicated"
        )
    spec = sharding.spec if isinstance(sharding, jax.sharding.NamedSharding) else sharding
    if spec is None:
        return None
    if not isinstance(spec, jax.P):
        raise TypeError(f"{where} has the sharding {sharding!r}: it must be a PartitionSpec, a NamedSharding or None")
    names = [name for entry in spec for name in names_of(entry)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where} has the sharding {spec}, which names {name!r} twice")
    return spec


def _is_sharding(x: Any) -> bool:
    return x is None or isinstance(x, jax.P | jax.sharding.Sharding)
