"""Indices that are data: clamped to the legal range, with those out of range counted and reported by checkify."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify


def clamp(name: str, argument: str, index: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The indices as int32 clamped to [0, size), and how many were out of range; checkify's user checks report
    these."""
    low = jnp.zeros((), index.dtype)
    high = jnp.asarray(min(max(size - 1, 0), np.iinfo(index.dtype).max), index.dtype)
    outside = jnp.sum((index < low) | (index > high), dtype=jnp.int32)
    checkify.debug_check(
        outside == 0, f"{name}: {{outside}} of {argument} are outside [0, {size}): they are clamped", outside=outside
    )
    return jnp.clip(index, low, high).astype(jnp.int32), outside
