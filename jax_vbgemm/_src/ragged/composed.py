"""Parts of a product as work of XLA before and after it: for derivatives, and for kernels without these parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.reference import accumulator, activated
from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.ragged.reference import finish, mapped, rows_with_weights
from jax_vbgemm._src.ragged.select_rows import select_rows


def gathered(*operands: jax.Array, ragged: Ragged) -> jax.Array:
    """The product of rows that are copied before it."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    rows = selected_rows(lhs, extras.pop("gather"), extras.pop("slots", None))
    return bind([rows, rhs, group_sizes, *extras.values()], ragged._replace(extras=tuple(extras)))


def selected_rows(lhs: jax.Array, index: jax.Array, slots: jax.Array | None) -> jax.Array:
    """The rows that `gather` names, with batch dimensions, which broadcast."""
    parts = [lhs, index] if slots is None else [lhs, index[..., None], slots]
    ranks = [2, 1] if slots is None else [2, 2, 2]
    depth = max(x.ndim - rank for x, rank in zip(parts, ranks, strict=True))
    form: Callable[..., jax.Array] = partial(jnp.take, axis=0, mode="clip") if slots is None else select_rows
    for _ in range(depth):
        form = mapped(form)
    aligned = (x.reshape((*(1,) * (depth + rank - x.ndim), *x.shape)) for x, rank in zip(parts, ranks, strict=True))
    rows: jax.Array = form(*aligned)
    return rows


def accumulated(*operands: jax.Array, ragged: Ragged) -> jax.Array:
    """The sum of an accumulator and a contraction that is rounded before it."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    total = extras.pop("accumulator")
    product = bind([lhs, rhs, group_sizes, *extras.values()], ragged._replace(extras=tuple(extras)))
    product, total = jnp.broadcast_arrays(product, total)
    return product + total


def gated(*operands: jax.Array, ragged: Ragged) -> jax.Array:
    """row_scale activation(gate) up, where one product computes (gate, up); both are rounded to the result's dtype."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    scale = extras.pop("row_scale", None)
    product = ragged._replace(extras=tuple(extras), activation=None, gated=False)
    both = bind([lhs, rhs, group_sizes, *extras.values()], product)
    value = activated(both.astype(accumulator(ragged.out_dtype)), ragged.activation, halves=True)
    if scale is None:
        return value.astype(ragged.out_dtype)  # rows without weights are zero: their `up` is
    return _scaled(value, scale, lhs, group_sizes, extras, ragged)


def scaled(*operands: jax.Array, ragged: Ragged) -> jax.Array:
    """row_scale activation(product + bias), of which the product's kernel computes all but the scale, without rounding
    before it."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    scale = extras.pop("row_scale")
    wide = accumulator(ragged.out_dtype)
    if "bias" in extras:
        extras["bias"] = extras["bias"].astype(wide)
    product = ragged._replace(extras=tuple(extras), out_dtype=wide)
    value = bind([lhs, rhs, group_sizes, *extras.values()], product)
    return _scaled(value, scale, lhs, group_sizes, extras, ragged)


def _scaled(
    value: jax.Array,
    scale: jax.Array,
    lhs: jax.Array,
    group_sizes: jax.Array,
    extras: dict[str, jax.Array],
    ragged: Ragged,
) -> jax.Array:
    known = rows_with_weights(group_sizes, extras.get("group_offset"), lhs.shape[-2], ragged.groups)
    scale, known = (jnp.broadcast_to(x, value.shape[:-1]) for x in (scale, known))
    return finish(value, scale, None, known, ragged.out_dtype)
