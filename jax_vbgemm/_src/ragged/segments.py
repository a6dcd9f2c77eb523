"""Finds the segment of each index among consecutive segments."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# XLA's CPU backend fuses the comparison with up to this many ends, and stores all of its results in memory for more
# (JAX 0.10.2: 1 GB for 4 million indices and 64 ends).
_FEW_SEGMENTS = 32


def segment_of(index: jax.Array, end: jax.Array) -> jax.Array:
    """The number of ends at or before each index: (m,) int32, for indices (m,) and ascending ends (n,).

    That is the number of the first segment that ends after the index, or n if there is none.
    """
    # jnp.searchsorted fails in a shard_map that is manual over some of the mesh's axes only (JAX 0.10.2 to 0.11.2), and
    # its search is a loop, of many kernels on a GPU.
    count = len(end)
    if count <= _FEW_SEGMENTS:
        return jnp.sum(end[:, None] <= index[None], axis=0, dtype=jnp.int32)
    found = jnp.zeros(index.shape, jnp.int32)
    step = 1 << count.bit_length() - 1
    while step:
        further = found + step
        passed = (further <= count) & (end.at[further - 1].get(mode="clip") <= index)
        found = jnp.where(passed, further, found)
        step //= 2
    return found
