"""Gradients of the weights of 8-bit products: contractions over rows in groups that begin at multiples of SCALED.

8-bit tensor cores read both factors along the rows, and a scale is of SCALED rows of one group. So rows are moved and
transposed while they are rounded to 8 bits, and zeros fill what is left of the last SCALED rows of each group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.ragged.primitive import SCALED, Ragged, bind
from jax_vbgemm._src.ragged.reference import rows_of_groups
from jax_vbgemm._src.ragged.segments import ends_of, segment_of
from jax_vbgemm._src.scaled.blocks import Rounded
from jax_vbgemm._src.util import compat


class AlignedGroups(NamedTuple):
    """sizes: int32 (groups,), the rows of each group that exist. rows: int32, the row at each position of the aligned
    layout, in which groups begin at multiples of SCALED, or -1."""

    sizes: jax.Array
    rows: jax.Array


def aligned_groups(group_sizes: jax.Array, m: Any) -> AlignedGroups:
    """The aligned positions of m rows in groups, with room for any sizes."""
    groups = len(group_sizes)
    begin, end = rows_of_groups(group_sizes, None, m, groups)
    sizes = end - begin
    rounded = -(-sizes // SCALED) * SCALED
    most = min(groups, m) if compat.is_static((m,)) else groups  # groups with rows
    positions = -(-(m + (SCALED - 1) * most) // SCALED) * SCALED
    ends = ends_of(rounded, positions)
    place = jnp.arange(positions, dtype=jnp.int32)
    group = segment_of(place, ends)
    known = jnp.minimum(group, groups - 1)
    row = place + (begin + rounded - ends)[known]
    return AlignedGroups(sizes, jnp.where((group < groups) & (row < end[known]), row, -1))


def quantized_contraction(
    lhs: Rounded, rhs: Rounded, sizes: jax.Array, dtype: Any, implementation: str | None
) -> jax.Array:
    """The sum over each group of lhs[i]^T rhs[i]: (groups, lhs columns, rhs columns) in bfloat16 or float32.

    Both factors are transposed (`jax_vbgemm._src.scaled.blocks`), their rows in aligned groups of these sizes.
    """
    form = Ragged(
        np.dtype(dtype), len(sizes), contraction=True, transpose_rhs=True, extras=("lhs_scale", "rhs_scale"),
        precision=jax.lax.Precision.HIGHEST,  # precision of XLA's product if the kernel cannot compute it
        implementation=implementation,
    )  # fmt: skip
    values, scales = (
        [getattr(x, name)[0] for x in (lhs, rhs)] for name in ("transposed", "block_scales")
    )  # without the dimension of matrices
    return bind([*values, sizes, *scales], form)
