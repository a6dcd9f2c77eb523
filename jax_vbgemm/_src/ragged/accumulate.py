"""A ragged product whose derivative adds the gradient of its weights to a `jax.Ref`, in place."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.ragged.reference import finish
from jax_vbgemm._src.ragged.rules import bias_of_rows, gradient_of_rhs, in_one_dtype, known_rows
from jax_vbgemm._src.util import compat


def product(ragged: Ragged, total: Any, *operands: jax.Array) -> jax.Array:
    """Ragged rows; a derivative adds the gradient of rhs to the Ref `total`. XLA applies an epilogue to the
    rounded product."""
    # A cotangent must vary over the mesh axes of its operand, so these are united before the derivative's rule.
    lhs, rhs, group_sizes, extras = ragged.split(compat.unite_varying(operands))
    plain, kept = ragged.without_epilogue(ragged.out_dtype, extras)
    result: jax.Array = _product(plain, total, lhs, rhs, group_sizes, *kept)
    if not ragged.has_epilogue:
        return result
    if "bias" in extras:
        extras["bias"] = bias_of_rows(extras["bias"], lhs, group_sizes, extras, plain)
    known = known_rows(group_sizes, extras, lhs, ragged)
    wide = result.astype(accumulator(ragged.out_dtype))
    return finish(wide, ragged.epilogue, extras, known, ragged.out_dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(ragged: Ragged, total: Any, *operands: jax.Array) -> jax.Array:
    del total  # only a derivative uses it
    return bind(operands, ragged)


def _forward(ragged: Ragged, total: Any, *operands: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
    return _product(ragged, total, *operands), (total, *operands)


def _backward(ragged: Ragged, residuals: tuple[Any, ...], cotangent: jax.Array) -> tuple[Any, ...]:
    total, lhs, rhs, *integers = residuals
    factors, contraction = gradient_of_rhs(*in_one_dtype(lhs, cotangent), ragged)
    adding = contraction._replace(out_dtype=total.dtype, extras=(*ragged.extras, "accumulator"))
    total[...] = bind([*factors, *integers, total[...]], adding)
    transpose_lhs = jax.linear_transpose(lambda x: bind([x, rhs, *integers], ragged), lhs)
    # The ordinary gradient of rhs. If only `total` is used, the compiler removes it.
    transpose_rhs = jax.linear_transpose(lambda x: bind([lhs, x, *integers], ragged), rhs)
    return None, *transpose_lhs(cotangent), *transpose_rhs(cotangent), *(None for _ in integers)


_product.defvjp(_forward, _backward)
