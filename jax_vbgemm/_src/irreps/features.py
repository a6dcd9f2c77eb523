"""Features: rows that hold irreps, in one array or in one array an irrep, and each irrep of all rows as a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.arguments import as_array
from jax_vbgemm._src.irreps.irreps import Irreps, MulIrrep, dim, shown, starts
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.view import View

PATTERNS = {"mul_ir": "row (mul c) -> (row c) mul", "ir_mul": "row (c mul) -> (row c) mul"}
"""By layout: an irrep's columns as a matrix to be multiplied by weights (mul_in, mul_out), two-level rows."""


class Features(NamedTuple):
    """Rows of irreps. `arrays`: (rows, dim) with all irreps, or where `is_list` one array (rows, mul * c) for each."""

    irreps: Irreps
    layout: str
    arrays: Sequence[jax.Array]
    is_list: bool
    leading: Shape
    """The user's axes that rows are."""

    def matrices(self) -> list[View]:
        """Each irrep of all rows, where it lies: (rows * c, mul)."""
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

    def value(self) -> Any:
        """What the user gave, or gets."""
        if not self.is_list:
            return self.arrays[0].reshape(*self.leading, dim(self.irreps))
        return [
            array.reshape(*self.leading, *core_shape(x, self.layout))
            for x, array in zip(self.irreps, self.arrays, strict=True)
        ]

    def map(self, f: Any) -> Features:
        """With f of each array; f keeps rows rows."""
        return self._replace(arrays=[f(array) for array in self.arrays])

    def broadcast(self, leading: Shape) -> Features:
        """With these leading axes, to which those that there are broadcast."""
        if leading == self.leading:
            return self

        def broadcast(array: jax.Array) -> jax.Array:
            width = array.shape[1]
            missing = (1,) * (len(leading) - len(self.leading))
            shaped = array.reshape(*missing, *self.leading, width)
            return jnp.broadcast_to(shaped, (*leading, width)).reshape(math.prod(leading), width)

        return self.map(broadcast)._replace(leading=leading)

    def zeros(self, irreps: Irreps, dtype: Any) -> Features:
        """Zeros of other irreps, with the same rows."""
        rows = math.prod(self.leading)
        widths = [x.dim for x in irreps] if self.is_list else [dim(irreps)]
        return self._replace(irreps=irreps, arrays=[jnp.zeros((rows, width), dtype) for width in widths])


def core_shape(x: MulIrrep, layout: str) -> Shape:
    """Of one row of one irrep, in an array of its own."""
    return (x.mul, x.irrep_dim) if layout == "mul_ir" else (x.irrep_dim, x.mul)


def features_of(name: str, irreps: Irreps, layout: str, x: Any) -> Features:
    """What the user gave as x; ValueError where it has not the shape of the irreps."""
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
