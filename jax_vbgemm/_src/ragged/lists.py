"""The primitive of packed rows times weights of different shapes, with its derivatives and vmap.

Group i has weights of its own shape, op(B_i) (k_i, n_i). Its rows have length k_i in x and n_i in y, and all rows are
packed one after another without gaps. Like ragged_dot, it has two forms whose derivatives are products of both forms:

    packed rows         y = x op(B)     the k_i elements of each row in x become n_i elements in y
    packed contraction  D_i = x^T y     (k_i, n_i), summed over the rows of group i

The rows of group i begin at element sum_{j < i} size_j k_j of x and sum_{j < i} size_j n_j of y, which is known when
the call runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching

from jax_vbgemm._src import compat
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.transpose import sum_broadcast
from jax_vbgemm._src.ragged.rules import mapped_first

Shape = tuple[Any, ...]


class Packed(NamedTuple):
    """The static description of a call. (...) are batch dimensions, which broadcast among all operands.

    Operands: x (..., x_size), group_sizes (..., groups), then each B_i (..., k_i, n_i), or (..., n_i, k_i) where
    `transpose_rhs`; the result is y (..., y_size). A `contraction` has the operands x, group_sizes and y, and a result
    (..., k_i, n_i) for each group. `shapes` holds (k_i, n_i); `rows` is an upper bound of the rows of all groups
    together. It, x_size and y_size may be symbolic (jax.export).
    """

    out_dtype: Any
    shapes: tuple[tuple[int, int], ...]
    rows: Any
    y_size: Any
    contraction: bool = False
    transpose_rhs: bool = False
    precision: Any = None
    implementation: str | None = None

    def core_ranks(self) -> list[int]:
        """The rank of each operand without its batch dimensions."""
        return [1, 1, 1] if self.contraction else [1, 1, *(2 for _ in self.shapes)]

    def results(self) -> list[Shape]:
        """The shapes of the results without their batch dimensions."""
        return list(self.shapes) if self.contraction else [(self.y_size,)]

    def turned(self) -> tuple[tuple[int, int], ...]:
        """The shapes with x and y exchanged."""
        return tuple((n, k) for k, n in self.shapes)


def batch_of(operands: Sequence[Any], packed: Packed) -> Shape:
    """The broadcast batch dimensions of a call."""
    leading = [x.shape[: x.ndim - rank] for x, rank in zip(operands, packed.core_ranks(), strict=True)]
    static = all(map(compat.is_static, leading))
    batch: Shape = (np if static else jnp).broadcast_shapes(*leading)
    return batch


def stacked(matrices: Sequence[jax.Array]) -> jax.Array:
    """Matrices of different shapes as one array, padded by zeros to the largest number of rows and of columns."""
    k, n = (max(sizes) for sizes in zip(*(x.shape for x in matrices), strict=True))
    return jnp.stack([jnp.pad(x, ((0, k - x.shape[0]), (0, n - x.shape[1]))) for x in matrices])


ragged_lists_p = jex_core.Primitive("ragged_matmul")
ragged_lists_p.multiple_results = True
ragged_lists_p.def_impl(partial(compat.apply_primitive, ragged_lists_p))


@ragged_lists_p.def_abstract_eval
def _abstract_eval(*operands: Any, packed: Packed) -> list[Any]:
    batch = batch_of(operands, packed)
    return [compat.shaped_array((*batch, *shape), packed.out_dtype, operands) for shape in packed.results()]


def bind(operands: Sequence[jax.Array], packed: Packed) -> list[jax.Array]:
    """Binds the primitive; inside shard_map, with all operands made varying over the union of their mesh axes."""
    if any(compat.varies(operand) for operand in operands):
        operands = compat.unite_varying(operands)
    results: list[jax.Array] = ragged_lists_p.bind(*operands, packed=packed)
    return results


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, packed: Packed) -> tuple[list[Any], list[Any]]:
    """Both forms are linear in the first operand, and jointly linear in the operands after the sizes."""
    results = bind(primals, packed)
    x, group_sizes, *rest = primals
    d_x, _, *d_rest = tangents
    parts = []
    if not isinstance(d_x, ad.Zero):
        parts.append(bind([d_x, group_sizes, *rest], packed))
    if not all(isinstance(tangent, ad.Zero) for tangent in d_rest):
        parts.append(bind([x, group_sizes, *map(ad.instantiate_zeros, d_rest)], packed))
    if not parts:
        return results, [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    return results, [sum(values[1:], start=values[0]) for values in zip(*parts, strict=True)]


def _transpose(cotangents: Sequence[Any], *operands: Any, packed: Packed) -> list[Any]:
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    results: list[Any] = [
        ad.Zero(x.aval.to_ct_aval()) if yes else None for x, yes in zip(operands, linear, strict=True)
    ]
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return results
    if linear[0] and any(linear[2:]):
        raise NotImplementedError("jax_vbgemm: a product of two linear values cannot be transposed")
    x, group_sizes, *rest = operands
    others = [*(rest if linear[0] else [x]), *(ad.instantiate_zeros(cotangent) for cotangent in cotangents)]
    dtype = max((other.dtype for other in others), key=lambda dtype: dtype.itemsize)
    known, cts = others[: len(others) - len(cotangents)], others[len(others) - len(cotangents) :]
    known, cts = ([x.astype(dtype) for x in values] for values in (known, cts))
    if packed.contraction:
        # For D = x^T y, the cotangents are dx = y dD^T and dy = x dD.
        size = x.aval.shape[-1] if linear[0] else packed.y_size
        shapes = packed.turned() if linear[0] else packed.shapes
        form = packed._replace(shapes=shapes, y_size=size, contraction=False, transpose_rhs=linear[0])
        factors = [known[0], group_sizes, *cts]
    elif linear[0]:
        form = packed._replace(shapes=packed.turned(), y_size=x.aval.shape[-1], transpose_rhs=not packed.transpose_rhs)
        factors = [cts[0], group_sizes, *known]
    else:
        form = packed._replace(contraction=True, transpose_rhs=False)
        factors = [known[0], group_sizes, cts[0]]
        if packed.transpose_rhs:
            form = form._replace(shapes=packed.turned(), y_size=x.shape[-1])
            factors = [cts[0], group_sizes, known[0]]
    # The primitive rounds to the primals' dtype unless cotangents are to be summed over broadcast batch dimensions:
    # these stay in the accumulator's dtype until they are summed.
    targets = [0] if linear[0] else list(range(2, len(operands)))
    batch = batch_of(factors, form)
    done = all(
        (*batch, *shape) == operands[index].aval.shape and operands[index].aval.dtype == dtype
        for index, shape in zip(targets, form.results(), strict=True)
        if linear[index]
    )
    values = bind(factors, form._replace(out_dtype=dtype if done else accumulator(dtype)))
    for index, value in zip(targets, values, strict=True):
        if linear[index]:
            aval = operands[index].aval
            results[index] = sum_broadcast(value, aval.shape).astype(aval.dtype)
    return results


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, packed: Packed) -> tuple[list[jax.Array], list[int]]:
    results = bind(mapped_first(operands, dims, packed.core_ranks()), packed)
    return results, [0] * len(results)


ad.primitive_jvps[ragged_lists_p] = _jvp
ad.primitive_transposes[ragged_lists_p] = _transpose
batching.primitive_batchers[ragged_lists_p] = _batch
