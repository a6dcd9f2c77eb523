"""A dot_general as a batch of matrix products: the required reshapes, or the reason why XLA should compute it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.planner.tables.rules import CallCosts
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem
from jax_vbgemm._src.util import compat


class Side(NamedTuple):
    """The conversion of an operand to a batch of matrices: transposed to `order` unless that is None, then reshaped."""

    order: tuple[int, ...] | None
    shape: Shape
    transposed: bool

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x if self.order is None else jnp.transpose(x, self.order)
        return x if x.shape == self.shape else x.reshape(self.shape)


class Dot(NamedTuple):
    """A dot_general that a kernel can compute: its problem, operands and options.

    If it is `swapped`, rhs is the problem's first matrix, and the result that of the equation with its `row_axes`
    after those of the columns.
    """

    problem: Problem
    lhs: Side
    rhs: Side
    shape: Shape  # of the result
    row_axes: range
    dtype: Any  # of the operands
    out_dtype: Any
    precision: Any
    swapped: bool = False

    def transposed(self, order: Sequence[int]) -> Dot | None:
        """The dot with its result transposed to `order`, or None unless that exchanges rows and columns."""
        first, last, p = self.row_axes.start, self.row_axes.stop, self.problem
        columns = range(last, len(self.shape))
        if tuple(order) != (*range(first), *columns, *self.row_axes):
            return None
        return self._replace(
            problem=Problem(p.n, p.m, p.k, p.batch, not p.transpose_b, not p.transpose_a),
            shape=tuple(self.shape[axis] for axis in order),
            row_axes=range(first, first + len(columns)),
            swapped=not self.swapped,
        )


def dot_of(eqn: Any, dtypes: Sequence[str], costs: CallCosts) -> Dot | str:
    """The product of a dot_general equation, or the reason why no kernel (for operands of `dtypes`) should compute it;
    `costs` tells which products XLA fuses with the surrounding operations."""
    lhs, rhs, out = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    (contract, batch), precision = eqn.params["dimension_numbers"], canonical_precision(eqn.params["precision"])
    if not all(map(compat.is_static, (lhs.shape, rhs.shape))):
        return "its shapes are not static"
    if eqn.params.get("out_sharding") is not None or any(map(compat.explicit_axes_of_type, (lhs, rhs))):
        return "it is sharded over explicit mesh axes"
    if lhs.dtype != rhs.dtype or out.dtype not in (lhs.dtype, accumulator(lhs.dtype)) or lhs.dtype.name not in dtypes:
        return f"there is no kernel for {lhs.dtype} x {rhs.dtype} -> {out.dtype}"
    if isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm):
        return f"kernels don't implement the dot algorithm {precision}"
    if isinstance(precision, tuple):
        if len(set(precision)) > 1:
            return "its operands have different precisions"
        precision = precision[0]
    count, k = (math.prod(lhs.shape[axis] for axis in axes) for axes in (batch[0], contract[0]))
    if count * k * math.prod(out.shape) == 0:
        return "it is empty"
    m, n = (math.prod(x.shape) // (count * k) for x in (lhs, rhs))
    if k == 1:
        return "an outer product, which XLA fuses with what follows"
    if m == n == 1:
        return "an inner product, which XLA fuses with what is before it"
    largest = max(m * k, k * n, m * n) * count
    if min(m, n, k) < costs.fused_side and largest > costs.fused_elements:
        return f"a side is below {costs.fused_side}, so that XLA fuses it with what surrounds it"
    if max(m, n, k, count) > LARGEST_SIZE:
        return f"a dimension exceeds {LARGEST_SIZE}"
    left = _side(lhs.shape, batch[0], contract[0], (count, m, k), rows_first=True)
    right = _side(rhs.shape, batch[1], contract[1], (count, n, k), rows_first=False)
    problem = Problem(m, n, k, count, left.transposed, right.transposed)
    rows = range(len(batch[0]), len(lhs.shape) - len(contract[0]))
    return Dot(problem, left, right, out.shape, rows, lhs.dtype, out.dtype, precision)


def _side(
    shape: Shape, batch: Sequence[int], contract: Sequence[int], sizes: tuple[int, int, int], *, rows_first: bool
) -> Side:
    """The Side of an operand whose free dimensions are A's rows or B's columns; `sizes`: of the batch, free and
    contracted dimensions."""
    free = [axis for axis in range(len(shape)) if axis not in (*batch, *contract)]
    count, other, k = sizes
    lead = () if count == 1 else (count,)
    plain = (*batch, *free, *contract), (*lead, other, k)
    turned = (*batch, *contract, *free), (*lead, k, other)
    for (order, matrices), transposed in ((plain, not rows_first), (turned, rows_first)):
        moved = [axis for axis in order if shape[axis] != 1]
        if moved == sorted(moved):
            return Side(None, matrices, transposed)
    order, matrices = plain if rows_first else turned
    return Side(order, matrices, False)
