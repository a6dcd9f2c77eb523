"""apply_updates: adds the updates to all parameters in one operation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.elementwise.addition import add_scaled
from jax_vbgemm._src.util.structure import difference, is_none, path_of


def apply_updates(params: Any, updates: Any) -> Any:
    """optax.apply_updates: params + updates, in the parameters' dtypes; a None among the parameters stays None.

    On a GPU this is one kernel for all leaves, which writes into the memory of the parameters: donate them, or XLA
    copies them first.

    Raises:
      ValueError, TypeError: the trees differ in structure, or an update cannot be added to its parameter; the message
        names it.

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
    for index, total in zip(fused, add_scaled([others[i] for i in fused], [leaves[i] for i in fused]), strict=True):
        results[index] = total
    return structure.unflatten(results)


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
