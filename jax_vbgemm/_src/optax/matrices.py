"""Views leaves as matrices, or as batches of matrices, by their dimension numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from optax.contrib import MuonDimensionNumbers

from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.optax.splitting import Part, joined, sliced, windows
from jax_vbgemm._src.util.mesh_axes import names_of


class Matrices:
    """A leaf as matrices (reduction, output) or a batch of them, by its dimension numbers.

    spec: the PartitionSpec of the matrices, where that of the leaf is given. Rows and columns of a matrix may be
    permuted before it is orthogonalised: what devices hold of the leaf becomes rows or columns that lie together.
    """

    def __init__(self, x: jax.Array, numbers: MuonDimensionNumbers | None, spec: Any = None) -> None:
        self.shape = x.shape
        self.spec = spec
        self.permutation: tuple[int, ...] | None = None  # None: the leaf is a matrix already
        if x.ndim != 2 and not isinstance(numbers, MuonDimensionNumbers):
            raise ValueError(
                "Input must have shape (m, n) or weight dimension numbers must be provided."
                f" Got shape={x.shape} and dimension_numbers={numbers!r}."
            )
        if x.ndim == 2:  # valid for any dimension numbers: the polar factor of X^T is the transpose of X's polar factor
            return
        if x.ndim < 2:
            raise ValueError(f"Muon optimized parameters must have rank >= 2, got x.ndim={x.ndim}")
        reduction, output = axes_of(x, numbers)
        if set(reduction) & set(output):
            raise ValueError(
                f"Normalized reduction axes and output axes must be disjoint, got {reduction} and {output}."
                f" Originally dim_nums={numbers} and x.shape={x.shape}"
            )
        batch = tuple(axis for axis in range(x.ndim) if axis not in (*reduction, *output))
        names = dict(enumerate(map(names_of, spec or ())))  # of the mesh axes, by axis
        folded = [sorted(axes, key=lambda axis: not names.get(axis)) for axes in (batch, reduction, output)]
        self.permutation = tuple(axis for axes in folded for axis in axes)
        sizes = [math.prod(x.shape[axis] for axis in axes) for axes in folded]
        entries = [tuple(name for axis in axes for name in names.get(axis, ())) or None for axes in folded]
        kept = slice(0 if sizes[0] != 1 or entries[0] else 1, 3)
        self.matrices = tuple(sizes[kept])
        self.spec = None if spec is None else jax.P(*entries[kept])

    def of(self, x: jax.Array) -> jax.Array:
        return x if self.permutation is None else x.transpose(self.permutation).reshape(self.matrices)

    def back(self, y: jax.Array) -> jax.Array:
        if self.permutation is None:
            return y
        inverse = sorted(range(len(self.shape)), key=self.permutation.__getitem__)
        return y.reshape([self.shape[axis] for axis in self.permutation]).transpose(inverse)


class Fused:
    """A leaf as the matrices, or batches of matrices, that are orthogonalised: one, or one for each of its parts.

    operands: the matrices; views of a 2-D leaf. specs: the PartitionSpec of each, or None. into: where each result is
    written, or None.
    """

    def __init__(
        self, x: jax.Array, numbers: MuonDimensionNumbers | None, parts: Sequence[Part] | None, spec: Any = None
    ) -> None:
        self.parts = parts
        self.specs: list[Any] = [None] * len(parts or [x])
        self.into: list[View | None]
        if parts is not None and x.ndim == 2:
            self.operands: list[Any] = windows(x, parts)
            self.into = list(windows(jnp.zeros_like(x), parts))
            return
        pieces = [x] if parts is None else sliced(x, parts)
        self.matrices = [Matrices(piece, numbers, spec) for piece in pieces]
        self.specs = [matrix.spec for matrix in self.matrices]
        self.operands = [matrix.of(piece) for matrix, piece in zip(self.matrices, pieces, strict=True)]
        self.into = [None] * len(pieces)

    def result(self, values: Sequence[Any]) -> Any:
        """The leaf's result from its matrices' results."""
        if self.into[0] is not None:
            return values[0].buffer
        pieces = [matrix.back(y) for matrix, y in zip(self.matrices, values, strict=True)]
        return pieces[0] if self.parts is None else joined(pieces, self.parts)


def axes_of(x: Any, numbers: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Reduction and output axes, counted from 0."""
    reduction, output = ((axes,) if isinstance(axes, int) else axes for axes in numbers)
    for axis in (*reduction, *output):
        if x.ndim > 1 and not -x.ndim <= axis < x.ndim:  # a vector is refused for its rank, as by optax
            raise ValueError(f"{numbers} names axis {axis} of a parameter of shape {x.shape}")
    return tuple(axis % x.ndim for axis in reduction), tuple(axis % x.ndim for axis in output)
