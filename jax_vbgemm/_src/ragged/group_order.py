"""Items sorted by the group that each belongs to."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_vbgemm._src.ragged.segments import segment_of


def sorted_by_group(group: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The sizes of the groups [0, count), and the items in the order of their groups.

    `group` (items,) has the group of each item. The sort is stable, so that the same groups give the same order.
    """
    # A GPU sorts by radix, so that narrower keys take fewer passes.
    key = group.astype(jnp.uint8 if count <= 2**8 else jnp.uint16 if count <= 2**16 else jnp.uint32)
    key, order = jax.lax.sort((key, jax.lax.iota(jnp.int32, group.shape[0])), num_keys=1)
    ends = segment_of(jax.lax.iota(jnp.int32, count), key.astype(jnp.int32))
    return jnp.diff(ends, prepend=jnp.zeros(1, jnp.int32)), order


def inverse_permutation(order: jax.Array) -> jax.Array:
    index = jax.lax.iota(jnp.int32, order.shape[0])
    return jnp.zeros_like(order).at[order].set(index, unique_indices=True)
