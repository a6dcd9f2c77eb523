"""Indices that are data: clamped to the legal range, with those out of range counted and reported by checkify."""

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
