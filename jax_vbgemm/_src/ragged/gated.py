"""Gated products as a product and elementwise work: their definition, for derivatives and where there is no kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.reference import ACTIVATIONS, accumulator
from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.ragged.reference import finish, rows_with_weights


def composed(*operands: jax.Array, ragged: Ragged) -> jax.Array:
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
    known = rows_with_weights(group_sizes, extras.get("group_offset"), lhs.shape[-2], ragged.groups)
    return finish(value, scale, None, known, ragged.out_dtype)
