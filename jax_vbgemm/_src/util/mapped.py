"""Batching rules (vmap) of primitives that treat each row, or each array, independently."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.util import compat


def in_front(operands: Sequence[Any], dims: Sequence[Any]) -> tuple[int, list[jax.Array]]:
    """The size of the mapped axis, and all operands with this axis in front. Those that have none are repeated."""
    (size,) = {x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None}
    return size, [
        jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(compat.replicated(x), dim, 0)
        for x, dim in zip(operands, dims, strict=True)
    ]


def merged_rows(primitive: Any) -> Callable[..., tuple[jax.Array, int]]:
    """The batching rule of a primitive that computes row by row: the mapped axis is merged with the rows."""

    def rule(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[jax.Array, int]:
        size, moved = in_front(operands, dims)
        rows = moved[0].shape[1]
        flat = primitive.bind(*(x.reshape(size * rows, *x.shape[2:]) for x in moved), **params)
        return flat.reshape(size, rows, *flat.shape[1:]), 0

    return rule
