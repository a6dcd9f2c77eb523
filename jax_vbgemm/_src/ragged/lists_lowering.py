"""Packed rows times weights of different shapes: the custom call, and the form for platforms and dtypes without it.

That form unpacks the rows, pads the weights to one shape and calls ragged_dot, which may have a kernel there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_vbgemm import _core
from jax_vbgemm._src import backends, compat
from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.problem import LARGEST_SIZE
from jax_vbgemm._src.ragged.lists import Packed, batch_of, ragged_lists_p, stacked
from jax_vbgemm._src.ragged.lowering import kind_on, why_not_kernel
from jax_vbgemm._src.ragged.plan import PackedPlan, packed_plan
from jax_vbgemm._src.ragged.primitive import Ragged, ragged_dot_p
from jax_vbgemm._src.ragged.reference import Form, Rows, group_of, mapped, rows_of_groups


def _lower(platform: str, ctx: Any, *operands: Any, packed: Packed) -> Any:
    why = why_not_kernel(
        platform, backends.RAGGED_PLATFORMS, ctx, packed.implementation, packed.out_dtype, packed.precision
    )
    avals = ctx.avals_in
    if not why:
        sizes = [
            packed.rows,
            packed.y_size,
            *(x.size for x in avals),
            *(size for shape in packed.shapes for size in shape),
        ]
        if _is_empty(avals, packed):
            why = "nothing is to be multiplied"
        elif max(sizes) > _core.RAGGED_MOST_SIZE:
            why = f"a dimension exceeds {_core.RAGGED_MOST_SIZE}"
    planned = None
    if not why and platform in backends.GPU_PLATFORMS:
        kind, device = kind_on(platform, avals[0].dtype, packed.precision), backends.planning_device(platform)
        planned = packed_plan(
            kind, device, packed.shapes, packed.rows, packed.y_size, packed.contraction, packed.transpose_rhs
        )
        why = None if planned else "it has too many tiles"
    if why and packed.implementation == "kernel" and not _is_empty(avals, packed):
        raise NotImplementedError(f"ragged_matmul: implementation='kernel', but {why}")
    form = partial(_padded, packed=packed) if why else partial(_call, platform=platform, packed=packed, planned=planned)
    return mlir.lower_fun(form, multiple_results=True)(ctx, *operands)


def _lower_elsewhere(ctx: Any, *operands: Any, packed: Packed) -> Any:
    return _lower(" or ".join(ctx.module_context.platforms), ctx, *operands, packed=packed)


def _is_empty(operands: Sequence[Any], packed: Packed) -> bool:
    """Whether there are no products, so that all results are zeros."""
    return 0 in (packed.rows, packed.y_size, operands[0].size) or not any(k * n for k, n in packed.shapes)


def _padded(*operands: jax.Array, packed: Packed) -> list[jax.Array]:
    batch = batch_of(operands, packed)
    if _is_empty(operands, packed):
        return [jnp.zeros((*batch, *shape), packed.out_dtype) for shape in packed.results()]
    aligned = [
        x.reshape((*(1,) * (len(batch) + rank - x.ndim), *x.shape))
        for x, rank in zip(operands, packed.core_ranks(), strict=True)
    ]
    form: Form = partial(_padded_entry, packed)
    for _ in batch:
        form = mapped(form)
    results: list[jax.Array] = form(*aligned)
    return results


def _padded_entry(packed: Packed, x: jax.Array, group_sizes: jax.Array, *rest: jax.Array) -> list[jax.Array]:
    ks, ns = (np.array(sizes, np.int32) for sizes in zip(*packed.shapes, strict=True))
    sizes = _size_of(rows_of_groups(group_sizes, None, packed.rows, len(packed.shapes)))
    # A row that does not lie in x and in y completely is left out before anything is multiplied: zeros in its place
    # would still be multiplied by the matrix of its group, which may hold NaN.
    sizes = jnp.minimum(_complete(sizes, ks, x.size, packed.rows), _complete(sizes, ns, packed.y_size, packed.rows))
    rows = rows_of_groups(sizes, None, packed.rows, len(packed.shapes))
    product = Ragged(
        packed.out_dtype, len(ks), packed.contraction, precision=packed.precision,
        implementation="xla" if packed.implementation == "xla" else None,
    )  # fmt: skip
    if packed.contraction:
        factors = [_unpack(x, rows, ks, packed.rows), _unpack(rest[0], rows, ns, packed.rows)]
        sums = ragged_dot_p.bind(*factors, sizes, ragged=product)
        return [sums[i, :k, :n] for i, (k, n) in enumerate(packed.shapes)]
    weights = stacked([b.T for b in rest] if packed.transpose_rhs else rest)
    y = ragged_dot_p.bind(_unpack(x, rows, ks, packed.rows), weights, sizes, ragged=product)
    return [_pack(y, rows, ns, packed.y_size)]


def _size_of(rows: Rows) -> jax.Array:
    return rows.end - rows.begin


def _complete(sizes: jax.Array, widths: np.ndarray, elements: Any, count: Any) -> jax.Array:
    """How many rows of each group lie completely in so many elements, of `count` rows in all."""
    if compat.certainly(lambda: count * int(widths.max()) <= elements):
        return sizes
    _refuse_large(elements)
    elements = jnp.asarray(elements, jnp.int32)
    width = jnp.asarray(np.maximum(widths, 1))
    # Where a group ends, saturated at `elements`, as products and sums of sizes may exceed 32 bits.
    lengths = jnp.where(sizes > elements // width, elements, sizes * jnp.asarray(widths))
    ends = lax.associative_scan(lambda x, y: x + jnp.minimum(y, elements - x), lengths)
    begin = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends[:-1]])
    return jnp.where(widths == 0, sizes, jnp.minimum(sizes, (elements - begin) // width))


def _unpack(x: jax.Array, rows: Rows, widths: np.ndarray, count: Any) -> jax.Array:
    """Packed rows as an array (count, widest), with zeros beyond each group's width; rows after the last group's are
    not defined."""
    widest = int(widths.max())
    if np.ptp(widths) == 0 and compat.certainly(lambda: x.shape[0] >= count * widest):
        return lax.slice(x, (0,), (count * widest,)).reshape(count, widest)
    _refuse_large(x.size)
    width = jnp.asarray(widths)
    begin = _exclusive_sum(_size_of(rows) * width)
    row = lax.iota(jnp.int32, count)
    group = group_of(row, rows.end)
    first = begin[group] + (row - rows.begin[group]) * width[group]
    column = lax.iota(jnp.int32, widest)
    valid = (row < rows.end[-1])[:, None] & (column[None] < width[group][:, None])
    return jnp.where(valid, x.at[first[:, None] + column[None]].get(mode="clip"), jnp.zeros((), x.dtype))


def _pack(y: jax.Array, rows: Rows, widths: np.ndarray, size: Any) -> jax.Array:
    """The inverse of `_unpack`: the elements of each row, packed one row after another, and zeros after the last row,
    as y has."""
    if np.ptp(widths) == 0 and y.size == size:
        return y.reshape(-1)
    _refuse_large(size)
    width = jnp.asarray(np.maximum(widths, 1))
    lengths = _size_of(rows) * jnp.asarray(widths)
    begin = _exclusive_sum(lengths)
    place = lax.iota(jnp.int32, size)
    group = group_of(place, begin + lengths)
    row = rows.begin[group] + (place - begin[group]) // width[group]
    column = (place - begin[group]) % width[group]
    known = place < begin[-1] + lengths[-1]
    return jnp.where(known, y.at[row, column].get(mode="clip"), jnp.zeros((), y.dtype))


def _refuse_large(elements: Any) -> None:
    if compat.certainly(lambda: elements > LARGEST_SIZE):
        raise NotImplementedError(
            f"ragged_matmul: XLA packs up to {LARGEST_SIZE} elements, but x or the result has {elements}"
        )


def _exclusive_sum(lengths: jax.Array) -> jax.Array:
    return jnp.cumsum(lengths, dtype=jnp.int32) - lengths


def _call(*operands: jax.Array, platform: str, packed: Packed, planned: PackedPlan | None) -> list[jax.Array]:
    batch = batch_of(operands, packed)
    entries = int(np.prod(batch, dtype=np.int64))
    flat, is_shared = [], []
    for x, rank in zip(operands, packed.core_ranks(), strict=True):
        shared = int(np.prod(x.shape[: x.ndim - rank])) == 1
        core = x.shape[x.ndim - rank :]
        if not shared:
            x = jnp.broadcast_to(x, (*batch, *core))
        flat.append(x)
        is_shared.append(int(shared))
    attributes = {
        "kind": np.int64(KINDS.index(kind_on(platform, flat[0].dtype, packed.precision))),
        "contraction": np.int64(packed.contraction),
        "transpose_rhs": np.int64(packed.transpose_rhs),
        "sizes": np.array([packed.rows, operands[0].shape[-1], packed.y_size, entries], np.int64),
        "shapes": np.array(packed.shapes, np.int64).ravel(),
        "shared": np.array(is_shared, np.int64),
    }
    types = [jax.ShapeDtypeStruct((*batch, *shape), packed.out_dtype) for shape in packed.results()]
    name = backends.RAGGED_LISTS_TARGET_NAME
    if planned is not None:
        name = backends.GPU_RAGGED_LISTS_TARGET_NAME
        flat.append(jnp.array(packed.shapes, jnp.int32))
        attributes |= {"tile": np.int64(planned.tile), "catalogue": np.int64(_core.catalogue_hash())}
        types.append(jax.ShapeDtypeStruct((planned.workspace,), np.uint8))
    results: Sequence[jax.Array] = jax.ffi.ffi_call(name, types)(*flat, **attributes)
    return list(results[: len(packed.results())])


for _platform in backends.BACKENDS:
    mlir.register_lowering(ragged_lists_p, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(ragged_lists_p, _lower_elsewhere)
