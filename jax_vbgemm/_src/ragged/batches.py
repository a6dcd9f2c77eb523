"""A batch of ragged products as one product, as kernels receive it (csrc/ragged_call.h).

The entries' rows and matrices follow each other. Each entry has its groups between two groups without weights: one of
the rows before them, and one of those behind them. So there is no group_offset, and every row has a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

from jax_vbgemm._src.ragged.composed import rounded_up
from jax_vbgemm._src.ragged.primitive import OPERANDS, SCALED, Ragged, RaggedSizes, Shape
from jax_vbgemm._src.ragged.reference import rows_of_groups


def as_one(sizes: RaggedSizes) -> RaggedSizes:
    """The sizes of a batch as one product, in which no operand repeats."""
    entries = math.prod(sizes.batch)
    if entries == 1:
        return sizes._replace(batch=())
    return sizes._replace(
        batch=(),
        lhs_rows=sizes.lhs_rows * entries,
        m=sizes.m * entries,
        groups=sizes.groups * entries,
        total_groups=(sizes.groups + 2) * entries,
    )


def order_of_dimensions(given: Mapping[str, jax.Array], sizes: RaggedSizes, ragged: Ragged) -> tuple[int, ...]:
    """The order of the batch's dimensions in which a kernel computes its entries.

    Matrices repeat from the first entry on, hence not along dimensions within those that they have. There the other
    dimensions come first, if transposing the rows of lhs and of the result moves fewer elements than copying matrices.
    """
    order = tuple(range(len(sizes.batch)))
    if ragged.contraction or sizes.groups * sizes.k * sizes.columns <= sizes.m * (sizes.k + sizes.n):
        return order
    weights = [given[name].shape[:-3] for name in ("rhs", "second") if name in given]
    return tuple(sorted(order, key=lambda axis: any(_aligned(leading, sizes)[axis] > 1 for leading in weights)))


def in_order(given: Mapping[str, jax.Array], sizes: RaggedSizes, ragged: Ragged, order: Shape) -> dict[str, jax.Array]:
    """The operands with the batch's dimensions in this order."""
    ordered = {}
    for name, x in given.items():
        leading = x.shape[: x.ndim - len(ragged.core(OPERANDS[name]))]
        core = x.shape[len(leading) :]
        axes = (*order, *range(len(order), len(order) + len(core)))
        ordered[name] = x.reshape(*_aligned(leading, sizes), *core).transpose(axes)
    return ordered


def operands_as_one(given: Mapping[str, jax.Array], sizes: RaggedSizes, ragged: Ragged) -> dict[str, jax.Array]:
    """The operands of a batch as those of one product.

    The kernels let rows of lhs and matrices of rhs repeat, but no others: they are copied for each entry.
    """
    entries = math.prod(sizes.batch)
    core = {name: ragged.core(OPERANDS[name]) for name in given}
    if entries == 1:
        return {name: x.reshape(x.shape[x.ndim - len(core[name]) :]) for name, x in given.items()}
    repeats = {"rhs", "second"} if not ragged.contraction else set()
    if "lhs_scale" not in given and not (ragged.contraction and ragged.transpose_rhs):
        repeats.add("lhs")
    leading = {name: x.shape[: x.ndim - len(core[name])] for name, x in given.items()}
    own = {name: _own_batch(leading[name], sizes.batch) if name in repeats else sizes.batch for name in given}
    if "second" in given:  # rhs and second have equally many matrices
        own["rhs"] = own["second"] = max(own["rhs"], own["second"], key=len)
    merged = {}
    for name, x in given.items():
        if name in ("group_sizes", "group_offset"):
            continue
        batch, shape = own[name], x.shape[len(leading[name]) :]
        x = x.reshape(*leading[name][max(len(leading[name]) - len(batch), 0) :], *shape)
        x = jnp.broadcast_to(x, (*batch, *shape)).reshape(-1, *shape)
        if name == "gather":  # counts the rows of lhs of all entries
            rows = math.prod(own["lhs"]) * sizes.lhs_rows
            first = lax.iota(jnp.int32, entries) * sizes.lhs_rows % rows
            x = jnp.clip(x, 0, sizes.lhs_rows - 1) + first[:, None]
        axis = next(i for i, size in enumerate(core[name]) if size in _merged_sizes(ragged))
        if core[name][axis] == "rhs_k_blocks" and sizes.rhs_k_blocks == 1:  # one scale for all rows of an entry
            x = jnp.repeat(x, -(-sizes.m // SCALED), axis + 1)
        x = jnp.moveaxis(x, 0, axis)
        merged[name] = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    merged["group_sizes"] = _group_sizes(given, sizes, ragged)
    return {name: merged[name] for name in given if name in merged}


def _aligned(leading: Shape, sizes: RaggedSizes) -> Shape:
    """An operand's batch dimensions, all that the batch has."""
    return (1,) * (len(sizes.batch) - len(leading)) + tuple(leading)


def _own_batch(batch: Shape, whole: Shape) -> Shape:
    """The last dimensions of a batch from the first one on that an operand has."""
    own = len(batch)
    while own and batch[len(batch) - own] == 1:
        own -= 1
    return whole[len(whole) - own :]


def _merged_sizes(ragged: Ragged) -> tuple[str, ...]:
    """The sizes that count those of all entries."""
    of_rows = ("lhs_rows", "m", *(["rhs_k_blocks"] if ragged.contraction else []))
    return (*of_rows, "groups", "rhs_groups")


def _group_sizes(given: Mapping[str, jax.Array], sizes: RaggedSizes, ragged: Ragged) -> jax.Array:
    """The sizes of all groups, of which each entry's sum to its number of rows."""
    group_sizes = jnp.broadcast_to(given["group_sizes"], (*sizes.batch, sizes.total_groups))
    if ragged.contraction and ragged.transpose_rhs:
        group_sizes = rounded_up(group_sizes, sizes.m)
    offset = given.get("group_offset")
    if offset is not None:
        offset = jnp.broadcast_to(offset, sizes.batch).reshape(-1)

    def of_entry(group_sizes: jax.Array, offset: jax.Array | None) -> jax.Array:
        rows = rows_of_groups(group_sizes, offset, sizes.m, sizes.groups)
        ends = jnp.concatenate([rows.begin[:1], rows.end, jnp.full((1,), sizes.m, jnp.int32)])
        return jnp.diff(ends, prepend=0)

    return jax.vmap(of_entry)(group_sizes.reshape(-1, sizes.total_groups), offset).reshape(-1)
