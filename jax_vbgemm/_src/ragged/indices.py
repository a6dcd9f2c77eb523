"""Indices that are data: clamped to the legal range, where checkify reports those out of range, and sorted by group."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from jax_vbgemm._src import compat


def clamp(name: str, argument: str, index: jax.Array, size: Any) -> tuple[jax.Array, jax.Array]:
    """The indices as int32 clamped to [0, size), and how many were out of range; checkify's user checks report
    these. The size may be symbolic (jax.export)."""
    low = jnp.zeros((), index.dtype)
    largest = np.iinfo(index.dtype).max
    if compat.is_static((size,)):
        high = jnp.asarray(min(max(size - 1, 0), largest), index.dtype)
    else:
        high = jnp.clip(jnp.asarray(size - 1, jnp.int32), 0, min(largest, 2**31 - 1)).astype(index.dtype)
    outside = jnp.sum((index < low) | (index > high), dtype=jnp.int32)
    checkify.debug_check(
        outside == 0, f"{name}: {{outside}} of {argument} are outside [0, {size}): they are clamped", outside=outside
    )
    return jnp.clip(index, low, high).astype(jnp.int32), outside


def sorted_by_group(group: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The sizes of the groups [0, count), and the items in the order of their groups.

    `group` (items,) has the group of each item. The sort is stable, so that the same groups give the same order.
    """
    # A GPU sorts by radix, so that narrower keys take fewer passes.
    key = group.astype(jnp.uint8 if count <= 2**8 else jnp.uint16 if count <= 2**16 else jnp.uint32)
    key, order = jax.lax.sort((key, jax.lax.iota(jnp.int32, len(group))), num_keys=1)
    ends = jnp.searchsorted(key, jnp.arange(count).astype(key.dtype), side="right", method="sort").astype(jnp.int32)
    return jnp.diff(ends, prepend=jnp.zeros(1, jnp.int32)), order


def inverse_permutation(order: jax.Array) -> jax.Array:
    index = jax.lax.iota(jnp.int32, len(order))
    return jnp.zeros_like(order).at[order].set(index, unique_indices=True)
