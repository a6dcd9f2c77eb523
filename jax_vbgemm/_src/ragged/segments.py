"""Consecutive segments: where each ends, and the segment of each index."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_vbgemm._src.util import compat

# XLA's CPU backend fuses the comparison with up to this many ends, and stores all of its results in memory for more
# (JAX 0.10.2: 1 GB for 4 million indices and 64 ends).
_FEW_SEGMENTS = 32

# Up to this many sums are each a sum of all terms before it, which on a GPU is one kernel of 2 to 3 us. The scan of 64
# terms took 20 us where XLA fused its levels into one kernel that computes each of them again (H200, jax 0.11.2), and
# compiles for 0.26 s in place of 0.06 s.
_FEW_TERMS = 256


def ends_of(sizes: jax.Array, most: Any) -> jax.Array:
    """The sums of the first sizes, (n,) int32 for sizes (n,) in [0, most]. They saturate at `most`, because ordinary
    sums of large sizes might overflow."""
    count = len(sizes)
    if compat.is_static((most,)) and count <= _FEW_TERMS and count * most < 2**31:
        index = jnp.arange(count, dtype=jnp.int32)
        terms = jnp.where(index[:, None] >= index[None], sizes[None], 0)
        return jnp.minimum(jnp.sum(terms, axis=1, dtype=jnp.int32), most)
    limit = jnp.asarray(most, jnp.int32)
    ends: jax.Array = lax.associative_scan(lambda x, y: x + jnp.minimum(y, limit - x), sizes)
    return ends


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
