"""The norms of a RaggedArray's members, in a few operations for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jax_vbgemm._src.elementwise.square_sums import squares
from jax_vbgemm._src.matmul.norms import root
from jax_vbgemm._src.matmul.packed import RaggedArray


def packed_norms(x: RaggedArray, indices: Sequence[int]) -> jax.Array:
    """The Frobenius norm of each of some members, (len(indices),), in the accumulator's real dtype; NaN where an
    element is infinite."""
    return root(x.member_sums(squares(x.without_padding()), indices))
