"""Sums over runs of one array, and a square root whose derivative at 0 is 0: the parts of norms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_WIDTH = 32  # elements that one level of `run_sums` adds up


def root(x: jax.Array) -> jax.Array:
    """The square root with derivative 0 at 0, which norms need: a vector times its norm then has the right derivative
    at the zero vector, where jnp.sqrt would give NaN."""
    zero = x == 0
    found = jnp.sqrt(jnp.where(zero, jnp.ones_like(x), x))
    return jnp.where(zero, jnp.zeros_like(found), found)


def run_sums(values: jax.Array, starts: np.ndarray, ends: np.ndarray) -> jax.Array:
    """The sum of values[start:end] for every run, in a few operations whatever the number of runs.

    Sums of 32 neighbours, of 32 such sums and so on are computed for the whole array. A run takes the largest of these
    sums that lie within it, so that no run reads an element of another one. The order of the additions depends only on
    the sizes.
    """
    totals = jnp.zeros(len(starts), values.dtype)
    while (starts < ends).any():
        # The elements from `first` to `last` are left to the next level.
        first = np.minimum(-(-starts // _WIDTH) * _WIDTH, ends)
        last = np.maximum(ends // _WIDTH * _WIDTH, first)
        for begin, end in ((starts, first), (last, ends)):
            if (begin < end).any():
                places = jnp.asarray(begin)[:, None] + jnp.arange(_WIDTH)[None]
                found = jnp.take(values, places, mode="clip")
                totals += jnp.sum(jnp.where(places < jnp.asarray(end)[:, None], found, 0), axis=1, dtype=totals.dtype)
        starts, ends = first // _WIDTH, last // _WIDTH
        if (starts < ends).any():
            values = jnp.pad(values, (0, -len(values) % _WIDTH)).reshape(-1, _WIDTH).sum(axis=1, dtype=totals.dtype)
    return totals
