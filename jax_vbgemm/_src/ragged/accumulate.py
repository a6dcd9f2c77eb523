"""A ragged product whose derivative adds the gradient of its weights to an accumulator, in place."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.ragged.rules import gradient_of_rhs, in_one_dtype


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(
    ragged: Ragged, lhs: jax.Array, rhs: jax.Array, total: jax.Array, group_sizes: jax.Array, *offset: jax.Array
) -> jax.Array:
    """Ragged rows without an epilogue. The cotangent of `total` is `total` plus the gradient of rhs, and that of rhs
    is zero: a sum over micro-batches so becomes part of the kernel that computes the gradient."""
    return bind([lhs, rhs, group_sizes, *offset], ragged)


def _forward(ragged: Ragged, *operands: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return product(ragged, *operands), operands


def _backward(ragged: Ragged, operands: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[Any, ...]:
    lhs, rhs, total, group_sizes, *offset = operands
    of_lhs = jax.linear_transpose(lambda x: bind([x, rhs, group_sizes, *offset], ragged), lhs)
    factors, contraction = gradient_of_rhs(*in_one_dtype(lhs, cotangent), ragged)
    contraction = contraction._replace(out_dtype=total.dtype, extras=(*ragged.extras, "accumulator"))
    d_total = bind([*factors, group_sizes, *offset, total], contraction)
    return *of_lhs(cotangent), None, d_total, None, *(None for _ in offset)


product.defvjp(_forward, _backward)
