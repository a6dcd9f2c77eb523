"""Epilogues as elementwise work of XLA after a product: for derivatives, and for kernels without them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.reference import ACTIVATIONS, accumulator
from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.ragged.reference import finish, rows_with_weights


def gated(*operands: jax.Array, ragged: Ragged) -> jax.Array:
    """row_scale activation(gate) up, where one product computes (gate, up); both are rounded to the result's dtype."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    assert ragged.activation is not None
    scale = extras.pop("row_scale", None)
    product = ragged._replace(extras=tuple(extras), activation=None, gated=False)
    both = bind([lhs, rhs, group_sizes, *extras.values()], product)
    gate, up = jnp.split(both.astype(accumulator(ragged.out_dtype)), 2, axis=-1)
    value = ACTIVATIONS[ragged.activation](gate) * up
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
    return finish(value, scale, None, known, ragged.out_dtype)
