"""ragged_dot_general: translates JAX's RaggedDotDimensionNumbers to the two forms of the primitive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.arguments import refuse_explicit_axes
from jax_vbgemm._src.matmul.options import checked_implementation
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.ragged.api import (
    canonical_hint,
    factors,
    scalar_integer,
    sizes_argument,
)
from jax_vbgemm._src.ragged.primitive import Ragged, bind


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    groups: int | None = None,
    implementation: str | None = None,
    group_size_hint: int | Sequence[int] | None = None,
) -> jax.Array:
    """`jax.lax.ragged_dot_general`, differentiable to any order, with vmap over any operands.

    The kind of lhs's ragged dimension decides which product this is (b batch, m and n free, k contracting dimensions):

        free         [b..., m..., k...], [g, b..., k..., n...] -> [b..., m..., n...]     as in `ragged_dot`
        contracting  [b..., m..., k...], [b..., k..., n...] -> [g, b..., m..., n...]     the gradient of its weights
        batch        [b..., m..., k...], [b..., k..., n...] -> [b..., m..., n...]        jax.lax.dot_general

    Args:
      lhs, rhs: arrays, whose dtypes promote as in jnp.matmul.
      group_sizes: (g,), or with leading dimensions: the batch dimensions, then those dimensions of the ragged
        dimension's kind that come before it in lhs (contracting ones in the order of the dimension numbers).
      ragged_dot_dimension_numbers: as in JAX.
      group_offset: as in `ragged_dot`.
      groups: the number of groups in the result of a ragged contraction with a group_offset; by default all groups.
      precision, preferred_element_type, implementation, group_size_hint: as in `ragged_dot`.

    Returns:
      An array of the shape on the right of its row above.

    Raises:
      TypeError: as jax.lax.ragged_dot_general does, for dimension numbers that don't fit. Otherwise as `ragged_dot`.

    Examples:
      The gradient of the weights of two groups, of 1 and 2 rows:

      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> numbers = jax.lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
      >>> vb.ragged_dot_general(jnp.ones((3, 2)), jnp.ones((3, 1)), jnp.array([1, 2]), numbers).tolist()
      [[[1.0], [1.0]], [[2.0], [2.0]]]
    """
    name = "ragged_dot_general"
    lhs, rhs, precision, out_dtype = factors(name, lhs, rhs, precision, preferred_element_type)
    group_sizes = sizes_argument(name, group_sizes)
    refuse_explicit_axes(name, (lhs, rhs, group_sizes), ("lhs", "rhs", "group_sizes").__getitem__)
    numbers = ragged_dot_dimension_numbers
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    # JAX's own shape rule raises JAX's errors. It does not know group_offset, which is checked here.
    total = group_sizes.shape[-1] if group_sizes.ndim else 0
    weights = total
    if group_offset is not None and numbers.rhs_group_dimensions:
        weights = rhs.shape[numbers.rhs_group_dimensions[0]]
    jax.eval_shape(
        lambda lhs, rhs, sizes: jax.lax.ragged_dot_general(lhs, rhs, sizes, numbers),
        *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs)),
        jax.ShapeDtypeStruct((*group_sizes.shape[:-1], weights) if group_sizes.ndim else (), group_sizes.dtype),
    )
    ragged_dim = numbers.lhs_ragged_dimensions[0]
    if ragged_dim in lhs_batch:
        return jax.lax.dot_general(
            lhs, rhs, numbers.dot_dimension_numbers, precision=precision, preferred_element_type=out_dtype
        )
    contraction = ragged_dim in lhs_contract
    lhs_free = [d for d in range(lhs.ndim) if d not in (*lhs_contract, *lhs_batch)]
    rhs_free = [d for d in range(rhs.ndim) if d not in (*rhs_contract, *rhs_batch, *numbers.rhs_group_dimensions)]
    if contraction:
        weights = weights if groups is None else groups
    ragged = Ragged(
        out_dtype=np.dtype(out_dtype),
        groups=weights,
        contraction=contraction,
        extras=() if group_offset is None else ("group_offset",),
        precision=precision,
        hint=canonical_hint(name, group_size_hint, weights),
        implementation=checked_implementation(name, implementation),
    )
    extras = [] if group_offset is None else [scalar_integer(name, "group_offset", group_offset)]
    batch = [lhs.shape[d] for d in lhs_batch]

    if not contraction:
        # Free dimensions before the ragged one have group sizes of their own, those after it share the group sizes.
        # Both are batch dimensions that rhs does not have.
        place = lhs_free.index(ragged_dim)
        before, behind = lhs_free[:place], lhs_free[place + 1 :]
        outer = [lhs.shape[d] for d in before]
        inner = [lhs.shape[d] for d in behind]
        k, n = (math.prod(shape) for shape in (_shape(lhs, lhs_contract), _shape(rhs, rhs_free)))
        x = lhs.transpose([*lhs_batch, *before, *behind, ragged_dim, *lhs_contract])
        x = x.reshape([*batch, *outer, *inner, lhs.shape[ragged_dim], k])
        w = rhs.transpose([*rhs_batch, *numbers.rhs_group_dimensions, *rhs_contract, *rhs_free])
        w = w.reshape([*batch, *(1 for _ in (*outer, *inner)), weights, k, n])
        if group_sizes.ndim > 1:
            group_sizes = group_sizes.reshape([*batch, *outer, *(1 for _ in inner), total])
        y = bind([x, w, group_sizes, *extras], ragged)
        y = jnp.moveaxis(y, -2, len(batch) + len(outer))
        return y.reshape([*batch, *_shape(lhs, lhs_free), *_shape(rhs, rhs_free)])

    # Contracting dimensions before the ragged one have group sizes of their own: they are batch dimensions, over which
    # the result is summed. Those after it are merged with it, so that each row stands for several.
    place = lhs_contract.index(ragged_dim)
    before, behind = list(range(place)), list(range(place + 1, len(lhs_contract)))
    outer = [lhs.shape[lhs_contract[i]] for i in before]
    times = math.prod(lhs.shape[lhs_contract[i]] for i in behind)
    wide = ragged if not outer else ragged._replace(out_dtype=accumulator(out_dtype))
    rows = lhs.shape[ragged_dim] * times

    def turned(x: jax.Array, contract: Sequence[int], batch_dims: Sequence[int], free: Sequence[int]) -> jax.Array:
        order = [*batch_dims, *(contract[i] for i in (*before, place, *behind)), *free]
        return x.transpose(order).reshape([*batch, *outer, rows, math.prod(_shape(x, free))])

    if group_sizes.ndim > 1:
        group_sizes = group_sizes.reshape([*batch, *outer, total])
    sizes = jnp.minimum(group_sizes, jnp.asarray(lhs.shape[ragged_dim], group_sizes.dtype)) * times
    operands = [turned(lhs, lhs_contract, lhs_batch, lhs_free), turned(rhs, rhs_contract, rhs_batch, rhs_free)]
    y = bind([*operands, sizes.astype(group_sizes.dtype), *extras], wide)
    y = y.sum(axis=tuple(range(len(batch), len(batch) + len(outer)))).astype(out_dtype)
    y = jnp.moveaxis(y, -3, 0)
    return y.reshape([weights, *batch, *_shape(lhs, lhs_free), *_shape(rhs, rhs_free)])


def _shape(x: jax.Array, dims: Sequence[int]) -> list[Any]:
    return [x.shape[d] for d in dims]
