"""Ragged products in jnp: their definition, and the form for platforms and dtypes without a kernel.

The rows of each group are cut into tiles of a fixed number of rows. Ragged rows gather the tiles into one batch and
multiply it by the weights of their groups in one batched product, or in several where the copies of weights for all
tiles would take more memory than the weights; a ragged contraction adds the tiles' products one after another. Both do
about the work that the sizes require, where the expansion of jax.lax.ragged_dot multiplies each row by the weights of
all groups. Rows are selected by index and mask, never by multiplication with 0, so that NaN does not spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_vbgemm._src.epilogue import Epilogue, finished
from jax_vbgemm._src.matmul.reference import accumulator, factor
from jax_vbgemm._src.native.arithmetic import DTYPES
from jax_vbgemm._src.ragged.primitive import Ragged, sizes_of
from jax_vbgemm._src.ragged.segments import ends_of, segment_of
from jax_vbgemm._src.util import compat

Form = Callable[..., Any]


class Rows(NamedTuple):
    """The first row and the end of each group with weights: int32 (groups,) each, within [0, m], ascending."""

    begin: jax.Array
    end: jax.Array


def rows_of_groups(group_sizes: jax.Array, group_offset: jax.Array | None, m: Any, groups: int) -> Rows:
    """The rows of each group that has weights. For any sizes, they are in bounds and don't overlap."""
    most = jnp.asarray(m, jnp.int32).astype(group_sizes.dtype)
    ends = ends_of(jnp.clip(group_sizes, 0, most).astype(jnp.int32), m)
    bounds = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends])
    if group_offset is None:
        return Rows(bounds[:-1], bounds[1:])
    # Groups outside [0, total) are empty. They lie at row 0 if before, at the last end if after.
    total = len(ends)
    index = lax.iota(jnp.int32, groups) + jnp.clip(group_offset, -groups, total).astype(jnp.int32)
    return Rows(bounds[jnp.clip(index, 0, total)], bounds[jnp.clip(index + 1, 0, total)])


def rows_with_weights(group_sizes: jax.Array, group_offset: jax.Array | None, m: Any, groups: int) -> jax.Array:
    """Bool (..., m): which rows belong to a group that has weights. Both arguments may have batch dimensions."""
    if groups == 0:
        return jnp.zeros((m,), bool)
    if group_sizes.ndim > 1 or (group_offset is not None and group_offset.ndim > 0):
        batch = jnp.broadcast_shapes(group_sizes.shape[:-1], () if group_offset is None else group_offset.shape)
        if group_offset is not None:
            group_offset = jnp.broadcast_to(group_offset, batch)
        group_sizes = jnp.broadcast_to(group_sizes, (*batch, group_sizes.shape[-1]))
        return jax.vmap(lambda sizes, offset: rows_with_weights(sizes, offset, m, groups))(group_sizes, group_offset)
    rows = rows_of_groups(group_sizes, group_offset, m, groups)
    row = lax.iota(jnp.int32, m)
    return (row >= rows.begin[0]) & (row < rows.end[-1])


def finish(
    total: jax.Array, epilogue: Epilogue, operands: Mapping[str, jax.Array], valid: jax.Array, dtype: Any
) -> jax.Array:
    """The result of a sum in `dtype`, computed in total's dtype, and zeros in rows without weights. The bias is given
    for each row."""
    if epilogue.row_scale is not None:
        row_scale = operands[epilogue.row_scale]
        operands = {**operands, epilogue.row_scale: jnp.where(valid, row_scale, jnp.zeros((), row_scale.dtype))}
    value = finished(total, epilogue, operands, total.dtype)
    return zeros_elsewhere(value, valid).astype(dtype)


def zeros_elsewhere(x: jax.Array, known: jax.Array) -> jax.Array:
    """x (..., m, n) in the rows that are known (..., m), and zeros in the others, whose cotangents are zeros too."""
    return jnp.where(known[..., None], x, jnp.zeros((), x.dtype))


def result(*operands: jax.Array, ragged: Ragged) -> jax.Array:
    """The whole call, with its batch dimensions."""
    sizes = sizes_of([operand.shape for operand in operands], ragged)
    shape = sizes.result(ragged)
    if any(compat.is_static((size,)) and size == 0 for size in (*shape, sizes.m, ragged.groups, sizes.total_groups)):
        return jnp.zeros(shape, ragged.out_dtype)
    rank = len(sizes.batch)
    aligned = [
        x.reshape((*(1,) * (rank + core_rank - x.ndim), *x.shape))
        for x, core_rank in zip(operands, ragged.core_ranks(), strict=True)
    ]
    form: Form = partial(_contraction if ragged.contraction else _rows, ragged)
    for _ in sizes.batch:
        form = mapped(form)
    whole: jax.Array = form(*aligned)
    return whole


def mapped(form: Form) -> Form:
    """`form` over one more leading batch dimension, along which operands of size 1 are shared."""

    def over_batch(*operands: jax.Array) -> Any:
        shared = [compat.is_static(x.shape[:1]) and x.shape[0] == 1 for x in operands]
        values = [x[0] if yes else x for x, yes in zip(operands, shared, strict=True)]
        if all(shared):
            return jax.tree.map(lambda result: result[None], form(*values))
        return jax.vmap(form, in_axes=[None if yes else 0 for yes in shared])(*values)

    return over_batch


class Tiles(NamedTuple):
    """The tiles of all groups, in the order of the groups.

    group: (tiles,) the group of each tile. rows: (tiles, tile rows) the row indices, and valid: which of them exist.
    group_tiles: the number of tiles of each group; end: its prefix sums, each group included.
    """

    group: jax.Array
    rows: jax.Array
    valid: jax.Array
    group_tiles: jax.Array
    end: jax.Array


def tile_rows(m: Any, groups: int, typical: int | None) -> int:
    """The rows of a tile: half of a typical group's, so that few rows of the groups' last tiles are padding."""
    if typical is None:
        typical = m // groups if compat.is_static((m,)) else 128
    return max(8, 1 << (typical // 2).bit_length() - 1) if typical > 1 else 8


def _tiles(rows: Rows, m: Any, ragged: Ragged) -> Tiles:
    size = tile_rows(m, ragged.groups, ragged.typical_rows)
    tiles = m // size + ragged.groups
    if compat.is_static((m,)):
        tiles = min(tiles, m)
    count = (rows.end - rows.begin + (size - 1)) // size
    end = jnp.cumsum(count, dtype=jnp.int32)
    tile = lax.iota(jnp.int32, tiles)
    group = group_of(tile, end)
    first_row = rows.begin[group] + (tile - (end - count)[group]) * size
    row = first_row[:, None] + lax.iota(jnp.int32, size)[None]
    valid = (tile < end[-1])[:, None] & (row < rows.end[group][:, None])
    return Tiles(group, row, valid, count, end)


def group_of(index: jax.Array, end: jax.Array) -> jax.Array:
    """The first group whose end lies beyond each index, or the last group."""
    return jnp.minimum(segment_of(index, end), len(end) - 1)


# Weights of up to this many bytes are always copied at once: a loop would cost time and save little.
_SMALL_COPY = 2**24


def _parts(tiles: Any, rhs: jax.Array, wide: Any) -> int:
    """The number of parts in which the tiles are multiplied: the weights copied for a part, in the accumulator's dtype,
    take at most half of the memory of rhs."""
    if not compat.is_static((tiles, *rhs.shape)):
        return 1
    tile_bytes = max(math.prod(rhs.shape[1:]), 1) * np.dtype(wide).itemsize
    at_once: int = max(rhs.size * rhs.dtype.itemsize // 2, _SMALL_COPY) // tile_bytes
    parts: int = -(-tiles // max(at_once, 1))
    return max(parts, 1)


def _selected_bits(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index]. XLA's CPU backend selects narrow floats as wider ones: it would convert all of x before a loop."""
    if x.dtype.name not in DTYPES or not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize > 2:
        return x[index]
    bits = np.uint16 if x.dtype.itemsize == 2 else np.uint8
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, bits)[index], x.dtype)


def _in_parts(products: Callable[..., jax.Array], tiles: Tiles, parts: int) -> jax.Array:
    """The products of all tiles, by group and rows, one part of the tiles after another."""
    if parts == 1:
        return products(tiles.group, tiles.rows)
    tiles_per_part = -(-len(tiles.group) // parts)
    missing = tiles_per_part * parts - len(tiles.group)
    group = jnp.pad(tiles.group, (0, missing)).reshape(parts, tiles_per_part)
    rows = jnp.pad(tiles.rows, ((0, missing), (0, 0))).reshape(parts, tiles_per_part, -1)
    done: jax.Array = lax.map(lambda part: products(*part), (group, rows))
    return done.reshape(parts * tiles_per_part, *done.shape[2:])


def _rows(ragged: Ragged, *operands: jax.Array) -> jax.Array:
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    m = lhs.shape[0]
    rows = rows_of_groups(group_sizes, extras.get("group_offset"), m, ragged.groups)
    tiles = _tiles(rows, m, ragged)
    wide = accumulator(ragged.out_dtype)
    parts = _parts(tiles.group.shape[0], rhs, wide)

    def products(group: jax.Array, rows: jax.Array) -> jax.Array:
        weights = rhs[group] if parts == 1 else _selected_bits(rhs, group)
        return jnp.einsum(
            "tik,tnk->tin" if ragged.transpose_rhs else "tik,tkn->tin",
            factor(lhs.at[rows].get(mode="clip"), wide),
            factor(weights, wide),
            precision=ragged.precision,
            preferred_element_type=wide,
        )

    total = _in_parts(products, tiles, parts)
    row = lax.iota(jnp.int32, m)
    group = group_of(row, rows.end)
    size = tiles.rows.shape[1]
    slot = (tiles.end - tiles.group_tiles)[group] * size + row - rows.begin[group]
    total = total.reshape(-1, total.shape[-1]).at[slot].get(mode="clip")
    if "bias" in extras:
        extras["bias"] = extras["bias"][group]
    valid = (row >= rows.begin[group]) & (row < rows.end[group])
    return finish(total, ragged.epilogue, extras, valid, ragged.out_dtype)


def _contraction(ragged: Ragged, *operands: jax.Array) -> jax.Array:
    """lhs^T rhs over each group's rows: (groups, k, n)."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    rows = rows_of_groups(group_sizes, extras.get("group_offset"), lhs.shape[0], ragged.groups)
    tiles = _tiles(rows, lhs.shape[0], ragged)

    def tile_of(x: jax.Array, tile: Any) -> jax.Array:
        return jnp.where(tiles.valid[tile][:, None], x.at[tiles.rows[tile]].get(mode="clip"), jnp.zeros((), x.dtype))

    wide = accumulator(ragged.out_dtype)

    # The tiles' products are added one after another: a scatter-add of all products has no fixed order.
    def add(tile: Any, sums: jax.Array) -> jax.Array:
        product = jnp.einsum(
            "ik,in->kn",
            factor(tile_of(lhs, tile), wide),
            factor(tile_of(rhs, tile), wide),
            precision=ragged.precision,
            preferred_element_type=wide,
        )
        return sums.at[tiles.group[tile]].add(product)

    zeros = jnp.zeros((ragged.groups, lhs.shape[1], rhs.shape[1]), wide)
    # inside shard_map a loop's carry must vary over the mesh axes from the start
    sums = compat.unite_varying([zeros, lhs])[0]
    result: jax.Array = lax.fori_loop(0, tiles.end[-1], add, sums).astype(ragged.out_dtype)
    return result
