"""Features: rows of irreps, in one array or in one array for each irrep, and views of each irrep as a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.irreps.irreps import Irreps, MulIrrep, dim, shown, starts
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.util.arguments import as_array

PATTERNS = {"mul_ir": "row (mul c) -> (row c) mul", "ir_mul": "row (c mul) -> (row c) mul"}
"""For each layout, the einops pattern of a view of an irrep's columns as a matrix with two-level rows, which is
multiplied by weights (mul_in, mul_out)."""


class Features(NamedTuple):
    """Rows of irreps. `arrays`: (rows, dim) with all irreps, or where `is_list` one array (rows, mul * c) for each."""

    irreps: Irreps
    layout: str
    arrays: Sequence[jax.Array]
    is_list: bool
    leading: Shape
    """The leading axes of the user's arrays, which are flattened to rows."""

    def matrices(self) -> list[View]:
        """Views (rows * c, mul) of each irrep of all rows."""
        firsts = [0] * len(self.irreps) if self.is_list else starts(self.irreps)
        return [
            View.of(
                self.arrays[index if self.is_list else 0],
                PATTERNS[self.layout],
                window=np.s_[:, first : first + x.dim],
                mul=x.mul,
                c=x.irrep_dim,
            )
            for index, (x, first) in enumerate(zip(self.irreps, firsts, strict=True))
        ]

    def chunks(self) -> list[jax.Array]:
        """An array (rows, mul, c), or (rows, c, mul) where the layout is "ir_mul", for each irrep."""
        firsts = [0] * len(self.irreps) if self.is_list else starts(self.irreps)
        rows = math.prod(self.leading)
        return [
            self.arrays[index if self.is_list else 0][:, first : first + x.dim].reshape(
                rows, *core_shape(x, self.layout)
            )
            for index, (x, first) in enumerate(zip(self.irreps, firsts, strict=True))
        ]

    def of_chunks(self, chunks: Sequence[jax.Array]) -> Features:
        """Features like these with the values of `chunks`."""
        rows = math.prod(self.leading)
        parts = [chunk.reshape(rows, x.dim) for x, chunk in zip(self.irreps, chunks, strict=True)]
        if self.is_list or not parts:
            return self._replace(arrays=parts if self.is_list else self.arrays)
        return self._replace(arrays=[jnp.concatenate(parts, axis=1)])

    def value(self) -> Any:
        """The features in the user's form: one array, or a list of arrays."""
        if not self.is_list:
            return self.arrays[0].reshape(*self.leading, dim(self.irreps))
        return [
            array.reshape(*self.leading, *core_shape(x, self.layout))
            for x, array in zip(self.irreps, self.arrays, strict=True)
        ]

    def map(self, f: Any) -> Features:
        """The features with f applied to each array; f must keep the axis of rows."""
        return self._replace(arrays=[f(array) for array in self.arrays])

    def broadcast(self, leading: Shape) -> Features:
        """The features broadcast to these leading axes."""
        if leading == self.leading:
            return self

        def broadcast_array(array: jax.Array) -> jax.Array:
            width = array.shape[1]
            missing = (1,) * (len(leading) - len(self.leading))
            shaped = array.reshape(*missing, *self.leading, width)
            return jnp.broadcast_to(shaped, (*leading, width)).reshape(math.prod(leading), width)

        return self.map(broadcast_array)._replace(leading=leading)

    def zeros(self, irreps: Irreps, dtype: Any) -> Features:
        """Features of other irreps that are zero, with the same rows."""
        rows = math.prod(self.leading)
        widths = [x.dim for x in irreps] if self.is_list else [dim(irreps)]
        return self._replace(irreps=irreps, arrays=[jnp.zeros((rows, width), dtype) for width in widths])


def core_shape(x: MulIrrep, layout: str) -> Shape:
    """The shape of one row of one irrep in an array of its own."""
    return (x.mul, x.irrep_dim) if layout == "mul_ir" else (x.irrep_dim, x.mul)


def features_of(name: str, irreps: Irreps, layout: str, x: Any) -> Features:
    """The features that the user gave as x.

    Raises ValueError if x does not have the shape of the irreps, and TypeError if it is not an array, as where it
    is an array of e3nn or cuequivariance.
    """
    if not isinstance(x, jax.Array) and isinstance(getattr(x, "array", None), jax.Array):
        raise TypeError(f"{name}: x is of type {type(x).__name__}: pass its array, x.array")
    if not isinstance(x, list | tuple):
        array = as_array(name, "x", x)
        if array.ndim < 1 or array.shape[-1] != dim(irreps):
            raise ValueError(
                f"{name}: x is {array.shape}, but {shown(irreps)} have {dim(irreps)} numbers: its last axis"
            )
        leading = array.shape[:-1]
        return Features(irreps, layout, [array.reshape(math.prod(leading), dim(irreps))], False, leading)
    if len(x) != len(irreps):
        raise ValueError(f"{name}: x has {len(x)} arrays, but {shown(irreps)} are {len(irreps)}: one for each irrep")
    arrays = [as_array(name, f"x[{index}]", part) for index, part in enumerate(x)]
    leading = arrays[0].shape[:-2] if arrays else ()
    for index, (array, of) in enumerate(zip(arrays, irreps, strict=True)):
        wanted = (*leading, *core_shape(of, layout))
        if array.shape != wanted:
            raise ValueError(f"{name}: x[{index}] is {array.shape}, but for {of} it must be {wanted}")
    rows = math.prod(leading)
    return Features(
        irreps, layout, [a.reshape(rows, of.dim) for a, of in zip(arrays, irreps, strict=True)], True, leading
    )
