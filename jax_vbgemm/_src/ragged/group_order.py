"""Items sorted by the group that each belongs to."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sorted_by_group(group: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The sizes of the groups [0, count), and the items in the order of their groups.

    `group` (items,) has the group of each item. The sort is stable, so that the same groups give the same order.
    """
    # A GPU sorts by radix, so that narrower keys take fewer passes.
    key = group.astype(jnp.uint8 if count <= 2**8 else jnp.uint16 if count <= 2**16 else jnp.uint32)
    _, order = jax.lax.sort((key, jnp.arange(group.shape[0], dtype=jnp.int32)), num_keys=1)
    return jnp.zeros((count,), jnp.int32).at[group].add(1), order


def sorted_with_rest(group: jax.Array, has_group: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """`sorted_by_group`, where the items without a group come after the last one."""
    sizes, order = sorted_by_group(jnp.where(has_group, group, count), count + 1)
    return sizes[:count], order


def inverse_permutation(order: jax.Array) -> jax.Array:
    return jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=jnp.int32), unique_indices=True)
