"""Items sorted by the group that each belongs to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.ragged.indices import clamp
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array
from jax_vbgemm._src.util.integers import saturated


def sorted_by_group(group: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The sizes of the groups [0, count), and the items in the order of their groups.

    `group` (items,) has the group of each item. The sort is stable, so that the same groups give the same order.
    """
    # A GPU sorts by radix, so that narrower keys take fewer passes.
    key = group.astype(jnp.uint8 if count <= 2**8 else jnp.uint16 if count <= 2**16 else jnp.uint32)
    _, order = jax.lax.sort((key, jnp.arange(group.shape[0], dtype=jnp.int32)), num_keys=1)
    return _sizes_of(group, count), order


_COMPARED = 2**8
"""On a GPU, up to this many groups are counted by comparing each item with each group. A scatter adds to a group's size
item by item: 131072 items in 64 groups take 39 us, and 4 by comparison, 32768 in 128 take 7.5 and 3 (H200)."""


def _sizes_of(group: jax.Array, count: int) -> jax.Array:
    if count <= _COMPARED and backends.traced_target().platform != "cpu":
        return jnp.sum(group[:, None] == jnp.arange(count, dtype=group.dtype)[None], axis=0, dtype=jnp.int32)
    return jnp.zeros((count,), jnp.int32).at[group].add(1)


def sorted_with_rest(group: jax.Array, has_group: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """`sorted_by_group`, where the items without a group come after the last one."""
    sizes, order = sorted_by_group(jnp.where(has_group, group, count), count + 1)
    return sizes[:count], order


def sorted_by_id(where: str, argument: str, ids: Any, rows: Shape, count: int) -> tuple[jax.Array, jax.Array]:
    """The number of rows of each group, and the rows sorted by group, followed by the rows without a group.

    ids: integers, the group of each row, -1 for none; of the shape `rows`, or of its first dimensions, where one id is
    that of all rows below it. Other ids out of range are clamped, and reported to checkify.
    """
    ids = as_array(where, argument, saturated(ids))
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"{where}: {argument} is {ids.dtype}{ids.shape}: it must be integers")
    if not 1 <= ids.ndim <= len(rows) or ids.shape != rows[: ids.ndim]:
        raise ValueError(
            f"{where}: {argument} is {ids.shape} but the rows of the input are {rows}: it must be {rows}, or the first "
            "dimensions of it"
        )
    present = jnp.ones(ids.shape, bool)
    if jnp.issubdtype(ids.dtype, jnp.signedinteger):
        present = ids != -1
        ids = jnp.where(present, ids, jnp.zeros((), ids.dtype))
    ids, _ = clamp(where, argument, ids, count)
    ids, present = (
        jnp.broadcast_to(array.reshape(*array.shape, *[1] * (len(rows) - array.ndim)), rows).reshape(-1)
        for array in (ids, present)
    )
    if compat.is_static(ids.shape) and ids.size * count <= _COUNTED and backends.traced_target().platform != "cpu":
        return _counted(ids, present, count)
    return sorted_with_rest(ids, present, count)


_COUNTED = 2**16
"""On a GPU, up to this many rows times groups are sorted by counting. XLA's sort is a library's, of six kernels, which
ends a command buffer: with 6000 rows of 7 types, networks by type took 416 us and 391 by counting (H200)."""


def _counted(group: jax.Array, present: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """`sorted_with_rest` for few items: the place of an item is the number of items before it in the order."""
    is_in = jnp.where(present, group.astype(jnp.int32), count)[:, None] == jnp.arange(count + 1, dtype=jnp.int32)[None]
    rank_in_group = jnp.cumsum(is_in, axis=0, dtype=jnp.int32)  # in its own group, with itself
    sizes = rank_in_group[-1] if rank_in_group.shape[0] else jnp.zeros((count + 1,), jnp.int32)
    first = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    slots = jnp.sum(jnp.where(is_in, rank_in_group - 1 + first[None], 0), axis=1, dtype=jnp.int32)
    return sizes[:count], inverse_permutation(slots)


def inverse_permutation(order: jax.Array) -> jax.Array:
    return jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=jnp.int32), unique_indices=True)
