"""Flat rows (rows of different lengths, one after another without gaps in a one-dimensional array), and matrices of
different shapes.

`ragged_dot` takes rows of one length and matrices of one shape. So flat rows are padded to the longest row's length
before it and become flat rows again after it, and matrices are padded by zeros. Padding is removed by index and mask,
never by multiplication with 0, so that no NaN or infinity gets out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_vbgemm._src.problem import LARGEST_SIZE
from jax_vbgemm._src.ragged.reference import Rows, group_of, rows_of_groups
from jax_vbgemm._src.ragged.segments import ends_of
from jax_vbgemm._src.util import compat


def stacked(matrices: Sequence[jax.Array], *, columns: int = 0, rows: int = 0) -> jax.Array:
    """Matrices of different shapes as one array, padded with zeros to the largest number of rows and columns, and at
    least to the given ones."""
    k, n = (max(sizes) for sizes in zip((rows, columns), *(x.shape for x in matrices), strict=True))
    return jnp.stack([jnp.pad(x, ((0, k - x.shape[0]), (0, n - x.shape[1]))) for x in matrices])


def only_own_columns(padded: jax.Array, group_sizes: jax.Array, widths: Sequence[int]) -> jax.Array:
    """Padded rows (rows, columns) with zeros beyond the width of each row's group; rows after the last group stay."""
    own = lax.iota(jnp.int32, padded.shape[1])[None] < width_of_rows(padded, group_sizes, widths)[:, None]
    return jnp.where(own, padded, jnp.zeros((), padded.dtype))


def width_of_rows(padded: jax.Array, group_sizes: jax.Array, widths: Sequence[int]) -> jax.Array:
    """(rows,): the width of each row's group; arbitrary for rows after the last group."""
    rows = rows_of_groups(group_sizes, None, padded.shape[0], len(widths))
    return jnp.array(widths, jnp.int32)[group_of(lax.iota(jnp.int32, padded.shape[0]), rows.end)]


def whole_rows(group_sizes: jax.Array, widths: np.ndarray, elements: Any, count: Any) -> jax.Array:
    """The number of each group's rows, of `count` rows in all, that lie completely within `elements` elements."""
    sizes = _size_of(rows_of_groups(group_sizes, None, count, len(widths)))
    if compat.certainly(lambda: count * int(widths.max()) <= elements):
        return sizes
    _refuse_large(elements)
    most = jnp.asarray(elements, jnp.int32)
    width = jnp.asarray(np.maximum(widths, 1))
    # Where a group ends, saturated at `elements`, as products and sums of sizes may exceed 32 bits.
    lengths = jnp.where(sizes > most // width, most, sizes * jnp.asarray(widths))
    begin = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends_of(lengths, elements)[:-1]])
    return jnp.where(widths == 0, sizes, jnp.minimum(sizes, (most - begin) // width))


def to_padded_rows(x: jax.Array, group_sizes: jax.Array, widths: np.ndarray, count: Any) -> jax.Array:
    """Flat rows, which all lie in x, as an array (count, widest), with zeros beyond each group's width and after the
    last row."""
    widest = int(widths.max())
    if np.ptp(widths) == 0 and compat.certainly(lambda: x.shape[0] >= count * widest):
        return lax.slice(x, (0,), (count * widest,)).reshape(count, widest)
    place = _places(group_sizes, widths, count, x.shape[0])
    return x.at[place].get(mode="fill", fill_value=0, unique_indices=True)


def to_flat_rows(padded: jax.Array, group_sizes: jax.Array, widths: np.ndarray, size: Any) -> jax.Array:
    """The inverse of `to_padded_rows`: flat rows in an array of `size` elements, and zeros after the last row."""
    place = _places(group_sizes, widths, padded.shape[0], size)
    return jnp.zeros((size,), padded.dtype).at[place].set(padded, mode="drop", unique_indices=True)


def _places(group_sizes: jax.Array, widths: np.ndarray, count: Any, size: Any) -> jax.Array:
    """The index in the flat array of each element of the padded rows (count, widest); `size` if it does not exist."""
    _refuse_large(size)
    rows = rows_of_groups(group_sizes, None, count, len(widths))
    width = jnp.asarray(widths)
    lengths = _size_of(rows) * width
    begin = jnp.cumsum(lengths, dtype=jnp.int32) - lengths
    row = lax.iota(jnp.int32, count)
    group = group_of(row, rows.end)
    first = begin[group] + (row - rows.begin[group]) * width[group]
    column = lax.iota(jnp.int32, int(widths.max()))
    exists = (row < rows.end[-1])[:, None] & (column[None] < width[group][:, None])
    return jnp.where(exists, first[:, None] + column[None], jnp.asarray(size, jnp.int32))


def _size_of(rows: Rows) -> jax.Array:
    return rows.end - rows.begin


def _refuse_large(elements: Any) -> None:
    if compat.certainly(lambda: elements > LARGEST_SIZE):
        raise NotImplementedError(
            f"ragged_matmul: flat rows may have {LARGEST_SIZE} elements, but x or the result has {elements}"
        )
