"""A sum of products over a batch as one product with a long K.

The cotangent of a factor that all batch entries share is sum_b A[b] B[b]. A batch of products followed by a sum needs a
temporary array of batch x m x n elements. One product needs none: its K is (batch, k).
"""

from __future__ import annotations

import math

from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.primitive import Term, sizes_of
from jax_vbgemm._src.matmul.view import Operand, View
from jax_vbgemm._src.util import compat


def fold_batch(lhs: Operand, rhs: Operand, term: Term, batch: Shape) -> tuple[Operand, Operand, Term] | None:
    """Factors and term of one product that sums over the batch axes in which `batch` is missing or 1.

    None if there is no such axis, where a factor is broadcast along such an axis, or where the factors would have to
    be copied and the copies are larger than the array of products that the folding saves.
    """
    if not (compat.is_static(lhs.shape) and compat.is_static(rhs.shape)):
        return None
    sizes = sizes_of(lhs.shape, rhs.shape, term)
    rank = len(sizes.batch)
    kept = (1,) * (rank - len(batch)) + tuple(batch)
    summed = [axis for axis in range(rank) if kept[axis] == 1 and sizes.batch[axis] > 1]
    shapes = [(1,) * (rank + 2 - x.ndim) + x.shape for x in (lhs, rhs)]
    if not summed or any(shape[axis] == 1 for shape in shapes for axis in summed):
        return None
    # K is the last but one axis of A where A is transposed, and of B where B is not.
    k_first = [term.transpose_a, not term.transpose_b]
    copied = sum(
        x.size
        for x, first in zip((lhs, rhs), k_first, strict=True)
        if not first and sizes.k > 1 and not isinstance(x, View)
    )
    if copied >= math.prod(sizes.batch) * sizes.m * sizes.n:
        return None
    others = [axis for axis in range(rank) if axis not in summed]

    def fold(x: Operand, shape: Shape, k_first: bool) -> Operand:
        """(batch..., k, columns) or (batch..., columns, k) as (kept batch..., summed batch x k, columns)."""
        k, columns = (rank, rank + 1) if k_first else (rank + 1, rank)
        x = x.reshape(shape).transpose((*others, *summed, k, columns))
        leading = [1 if axis in summed else shape[axis] for axis in range(rank - len(batch), rank)]
        return x.reshape((*leading, math.prod(shape[axis] for axis in (*summed, k)), shape[columns]))

    folded = [fold(*each) for each in zip((lhs, rhs), shapes, k_first, strict=True)]
    return folded[0], folded[1], term._replace(transpose_a=True, transpose_b=False)
