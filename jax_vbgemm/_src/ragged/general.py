"""ragged_dot_general: translates JAX's RaggedDotDimensionNumbers to the two forms of the primitive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.options import checked_implementation
from jax_vbgemm._src.ragged.api import (
    canonical_hint,
    check_groups,
    factors,
    scalar_integer,
    sizes_argument,
)
from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.util.arguments import as_array, refuse_explicit_axes, shown
from jax_vbgemm._src.util.integers import is_integer


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    groups: int | None = None,
    accumulator: Any = None,
    implementation: str | None = None,
    group_size_hint: int | Sequence[int] | None = None,
) -> jax.Array:
    """`jax.lax.ragged_dot_general`, differentiable to any order, with vmap over any operands.

    The kind of lhs's ragged dimension decides which product this is (b batch, m and n free, k contracting dimensions):

        free         [b..., m..., k...], [g, b..., k..., n...] -> [b..., m..., n...]     as in `ragged_dot`
        contracting  [b..., m..., k...], [b..., k..., n...] -> [g, b..., m..., n...]     the gradient of its weights
        batch        [b..., m..., k...], [b..., k..., n...] -> [b..., m..., n...]        jax.lax.dot_general

    Args:
      lhs, rhs: arrays, whose dtypes promote as in `ragged_dot`.
      group_sizes: (g,), or with leading dimensions: the batch dimensions, then those dimensions of the ragged
        dimension's kind that come before it in lhs (contracting ones in the order of the dimension numbers).
      ragged_dot_dimension_numbers: as in JAX.
      group_offset: as in `ragged_dot`.
      groups: the number of groups in the result of a ragged contraction with a group_offset; by default all groups.
      accumulator: an array of the result's dtype and shape to which a ragged contraction is added. On GPUs of compute
        capability 9.0 the kernel for bfloat16 and float16 operands and float32 results adds in place where the
        accumulator's memory is free (donated, or a loop's carry).
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

      The same, added to a float32 sum of bfloat16 operands' gradients:

      >>> lhs, cotangent = jnp.ones((3, 2), jnp.bfloat16), jnp.ones((3, 1), jnp.bfloat16)
      >>> options = {"accumulator": jnp.full((2, 2, 1), 10.0), "preferred_element_type": jnp.float32}
      >>> vb.ragged_dot_general(lhs, cotangent, jnp.array([1, 2]), numbers, **options).tolist()
      [[[11.0], [11.0]], [[12.0], [12.0]]]
    """
    name = "ragged_dot_general"
    lhs, rhs, precision, out_dtype = factors(name, lhs, rhs, precision, preferred_element_type)
    group_sizes = sizes_argument(name, group_sizes)
    total = None if accumulator is None else as_array(name, "accumulator", accumulator)
    operands = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes} | ({} if total is None else {"accumulator": total})
    refuse_explicit_axes(name, operands.values(), list(operands).__getitem__)
    numbers = ragged_dot_dimension_numbers
    if not isinstance(numbers, jax.lax.RaggedDotDimensionNumbers):
        raise TypeError(
            f"{name}: ragged_dot_dimension_numbers must be jax.lax.RaggedDotDimensionNumbers, not {shown(numbers)}"
        )
    check_groups(name, group_sizes=group_sizes.shape[-1:])
    weights = group_sizes.shape[-1] if group_sizes.ndim else 0
    if group_offset is not None and any(0 <= dim < rhs.ndim for dim in numbers.rhs_group_dimensions[:1]):
        weights = rhs.shape[numbers.rhs_group_dimensions[0]]
    _check_shapes(lhs, rhs, group_sizes, weights, numbers)
    ragged_dim = numbers.lhs_ragged_dimensions[0]
    (lhs_contract, _), (lhs_batch, _) = numbers.dot_dimension_numbers
    if total is not None and ragged_dim not in lhs_contract:
        raise ValueError(
            f"{name}: an accumulator is for ragged contractions, but dimension {ragged_dim} of lhs is not contracted"
        )
    if groups is not None:
        if not is_integer(groups) or groups < 0:
            raise ValueError(f"{name}: groups is {groups!r}: it must be a non-negative integer")
        if group_offset is None or ragged_dim not in lhs_contract:
            raise ValueError(f"{name}: groups is {groups}: it is for ragged contractions with a group_offset")
        weights = int(groups)
    if ragged_dim in lhs_batch:
        return jax.lax.dot_general(
            lhs, rhs, numbers.dot_dimension_numbers, precision=precision, preferred_element_type=out_dtype
        )
    ragged = Ragged(
        out_dtype=np.dtype(out_dtype),
        groups=weights,
        contraction=ragged_dim in lhs_contract,
        extras=() if group_offset is None else ("group_offset",),
        precision=precision,
        hint=canonical_hint(name, group_size_hint, weights),
        implementation=checked_implementation(name, implementation),
    )
    extras = [] if group_offset is None else [scalar_integer(name, "group_offset", group_offset)]
    if not ragged.contraction:
        return _ragged_rows(lhs, rhs, [group_sizes, *extras], numbers, ragged)
    return _ragged_contraction(lhs, rhs, [group_sizes, *extras], total, numbers, ragged)


def _check_shapes(lhs: Any, rhs: Any, group_sizes: Any, weights: int, numbers: Any) -> None:
    """Raises JAX's errors by JAX's shape rule, which does not know group_offset and gets the sizes of `weights`
    groups."""
    jax.eval_shape(
        lambda lhs, rhs, sizes: jax.lax.ragged_dot_general(lhs, rhs, sizes, numbers),
        *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs)),
        jax.ShapeDtypeStruct((*group_sizes.shape[:-1], weights) if group_sizes.ndim else (), group_sizes.dtype),
    )


def _ragged_rows(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes_and_offset: list[jax.Array],
    numbers: jax.lax.RaggedDotDimensionNumbers,
    ragged: Ragged,
) -> jax.Array:
    """The product whose ragged dimension is a free one of lhs.

    Free dimensions before the ragged one have group sizes of their own, those after it share the group sizes. Both are
    batch dimensions that rhs does not have.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    lhs_free = _others(lhs, *lhs_contract, *lhs_batch)
    rhs_free = _others(rhs, *rhs_contract, *rhs_batch, *numbers.rhs_group_dimensions)
    row = numbers.lhs_ragged_dimensions[0]
    place = lhs_free.index(row)
    before, trailing = lhs_free[:place], lhs_free[place + 1 :]
    batch, outer, inner = (_shape(lhs, dims) for dims in (lhs_batch, before, trailing))
    k, n = math.prod(_shape(lhs, lhs_contract)), math.prod(_shape(rhs, rhs_free))
    x = lhs.transpose([*lhs_batch, *before, *trailing, row, *lhs_contract])
    x = x.reshape([*batch, *outer, *inner, lhs.shape[row], k])
    w = rhs.transpose([*rhs_batch, *numbers.rhs_group_dimensions, *rhs_contract, *rhs_free])
    w = w.reshape([*batch, *(1 for _ in (*outer, *inner)), ragged.groups, k, n])
    group_sizes, *extras = sizes_and_offset
    if group_sizes.ndim > 1:
        group_sizes = group_sizes.reshape([*batch, *outer, *(1 for _ in inner), group_sizes.shape[-1]])
    y = bind([x, w, group_sizes, *extras], ragged)
    y = jnp.moveaxis(y, -2, len(batch) + len(outer))
    return y.reshape([*batch, *_shape(lhs, lhs_free), *_shape(rhs, rhs_free)])


def _ragged_contraction(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes_and_offset: list[jax.Array],
    total: jax.Array | None,
    numbers: jax.lax.RaggedDotDimensionNumbers,
    ragged: Ragged,
) -> jax.Array:
    """The product whose ragged dimension is contracted, added to `total` if it is given.

    Contracting dimensions before the ragged one have group sizes of their own: they are batch dimensions, over which
    the result is summed. Those after it are merged with it, so that one row represents several.
    """
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    place = lhs_contract.index(numbers.lhs_ragged_dimensions[0])
    batch, outer = _shape(lhs, lhs_batch), _shape(lhs, lhs_contract[:place])
    rows, *trailing = _shape(lhs, lhs_contract[place:])
    times = math.prod(trailing)
    lhs_free, rhs_free = _others(lhs, *lhs_contract, *lhs_batch), _others(rhs, *rhs_contract, *rhs_batch)

    def arranged(x: jax.Array, contract: Sequence[int], batch_dims: Sequence[int], free: Sequence[int]) -> jax.Array:
        shape = [*batch, *outer, rows * times, math.prod(_shape(x, free))]
        return x.transpose([*batch_dims, *contract, *free]).reshape(shape)

    operands = [arranged(lhs, lhs_contract, lhs_batch, lhs_free), arranged(rhs, rhs_contract, rhs_batch, rhs_free)]
    group_sizes, *extras = sizes_and_offset
    if group_sizes.ndim > 1:
        group_sizes = group_sizes.reshape([*batch, *outer, group_sizes.shape[-1]])
    sizes = jnp.minimum(group_sizes, jnp.asarray(rows, group_sizes.dtype)) * times
    shape = (ragged.groups, *batch, *_shape(lhs, lhs_free), *_shape(rhs, rhs_free))
    if total is not None and (total.shape, total.dtype) != (shape, ragged.out_dtype):
        raise ValueError(
            f"ragged_dot_general: accumulator is {total.dtype}{total.shape}: it must have the result's dtype "
            f"(preferred_element_type) and shape, {ragged.out_dtype}{shape}"
        )
    operands += [sizes.astype(group_sizes.dtype), *extras]
    if outer:
        y = bind(operands, ragged._replace(out_dtype=reference.accumulator(ragged.out_dtype)))
        y = y.sum(axis=tuple(range(len(batch), len(batch) + len(outer)))).astype(ragged.out_dtype)
        y = jnp.moveaxis(y, -3, 0).reshape(shape)
        return y if total is None else total + y
    if total is not None:
        ragged = ragged._replace(extras=(*ragged.extras, "accumulator"))
        group_totals = total.reshape(ragged.groups, *batch, operands[0].shape[-1], operands[1].shape[-1])
        operands.append(jnp.moveaxis(group_totals, 0, -3))
    return jnp.moveaxis(bind(operands, ragged), -3, 0).reshape(shape)


def _others(x: jax.Array, *dims: int) -> list[int]:
    """The dimensions of x that are not among `dims`."""
    return [d for d in range(x.ndim) if d not in dims]


def _shape(x: jax.Array, dims: Sequence[int]) -> list[Any]:
    return [x.shape[d] for d in dims]
