"""The norms of a RaggedArray's members, computed as products in one operation."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_vbgemm._src.elementwise.square_sums import squares
from jax_vbgemm._src.matmul.api import batched_matmul
from jax_vbgemm._src.matmul.packed import RaggedArray
from jax_vbgemm._src.matmul.view import View


def packed_norms(x: RaggedArray, indices: Sequence[int]) -> jax.Array:
    """The Frobenius norm of each of some members, (len(indices),), in the accumulator's real dtype; NaN where an
    element is infinite.

    The sum of a member's squares is the product of their row with a column of ones, as the padding is zero.
    """
    if not indices:
        return jnp.zeros(0, squares(jnp.zeros(0, x.dtype)).dtype)
    all_squares = squares(x.buffer)
    spans = [x.span(index) for index in indices]
    ones = jnp.ones(max(length for _, length in spans), all_squares.dtype)
    sums = jnp.zeros(len(indices), all_squares.dtype)
    written = batched_matmul(
        [View(all_squares, (1, length), None, offset) for offset, length in spans],
        [View(ones, (length, 1)) for _, length in spans],
        precision="highest",
        into=[View(sums, (1, 1), None, place) for place in range(len(indices))],
    )
    result: jax.Array = written[0].buffer
    return jnp.sqrt(result)
