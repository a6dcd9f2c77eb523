"""`SymmetricContraction`: a polynomial of the features of each row, with weights that rows choose by an index."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.irreps.monomials import ONE, Monomials, monomials, sum_of_monomials
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array
from jax_vbgemm._src.util.integers import is_integer

NAME = "SymmetricContraction"


class SymmetricContraction:
    """A weighted polynomial of the components of each channel: the symmetric contraction of MACE.

    With x (dim_in, channels) and weights (num_weights, channels) of a row, and a term (w, (i, j, ...), k, coefficient)
    for each product, the result (dim_out, channels) of the row is

      result[k, u] = sum over terms of coefficient * weights[w, u] * x[i, u] * x[j, u] * ...

    There are many more terms than products of x: a product has a term for each weight and for each order of its
    factors. Libraries multiply out all terms for each row. Here coefficients and weights meet first, once for each
    species instead of once for each atom, and what is left is one polynomial with a coefficient for each product of x,
    a fifth of the terms for MACE's usual settings. Differentiable to any order in weights and x, in both modes, and
    supports vmap. XLA computes it.

    Args:
      num_weights, dim_in, dim_out: the weights, and the components of x and of the result.
      terms: (index of a weight, indices of components of x, index of a component of the result, coefficient). Those
        of a polynomial of cuequivariance, such as `descriptors.symmetric_contraction`'s, are in
        `polynomial.operations`; `benchmarks/whole_programs_real.py` does so for mace-jax.

    Raises:
      ValueError: an index is out of range, and the message names the term; or a size is negative.
      TypeError: terms are no such tuples, a coefficient is complex, or a size is no integer.

    Examples:
      The squared lengths of vectors, times a weight for each of two species:

      >>> import jax.numpy as jnp
      >>> from jax_vbgemm.irreps import SymmetricContraction
      >>> squares = SymmetricContraction(1, 3, 1, [(0, (i, i), 0, 1.0) for i in range(3)])
      >>> x, weights = jnp.ones((5, 3, 8)), jnp.array([[[1.0] * 8], [[10.0] * 8]])
      >>> squares(weights, x, indices=jnp.array([0, 1, 1, 0, 1]))[:, 0, 0]
      Array([ 3., 30., 30.,  3., 30.], dtype=float32)
    """

    def __init__(self, num_weights: int, dim_in: int, dim_out: int, terms: Iterable[Any]) -> None:
        for what, size in {"num_weights": num_weights, "dim_in": dim_in, "dim_out": dim_out}.items():
            if not is_integer(size):
                raise TypeError(f"{NAME}: {what} is {size!r}: it must be an integer")
            if size < 0:
                raise ValueError(f"{NAME}: {what} is {size}: it must not be negative")
        self.num_weights, self.dim_in, self.dim_out = bounds = int(num_weights), int(dim_in), int(dim_out)
        if not isinstance(terms, Iterable):
            raise TypeError(f"{NAME}: terms must be tuples (weight, components of x, component, coefficient)")
        checked = [_checked_term(number, term, bounds) for number, term in enumerate(terms)]
        self.degree = max([1, *(len(factors) for _, factors, _, _ in checked)])
        products: dict[Any, int] = {}
        places = [
            products.setdefault((*sorted(factors), *[ONE] * (self.degree - len(factors)), k), len(products))
            for _, factors, k, _ in checked
        ]
        self._coefficients = np.zeros((len(products), num_weights))
        for place, (w, _, _, coefficient) in zip(places, checked, strict=True):
            self._coefficients[place, w] += coefficient
        components = np.array([[i, *product] for product, i in products.items()], np.int32)
        self._polynomial: Monomials = monomials(
            (1, self.degree), (len(products), dim_in, dim_out), components, np.ones(len(products))
        )

    def __repr__(self) -> str:
        return (
            f"{NAME}({self.num_weights} weights, {self.dim_in} to {self.dim_out} components, "
            f"{len(self._coefficients)} products of degree {self.degree} at most)"
        )

    def __call__(self, weights: Any, x: Any, *, indices: Any = None) -> jax.Array:
        """The polynomial of each row.

        Args:
          weights: (num_weights, channels); with indices (species, num_weights, channels).
          x: (..., dim_in, channels): layout `ir_mul`.
          indices: integers (...), which weights each row takes. Negative ones count from the end, and those out of
            range take the nearest.

        Products and sums are float32 or wider, rounded once to the arguments' dtype but for the sums of coefficients
        times weights, which are rounded too.

        Returns:
          (..., dim_out, channels), in the dtype to which weights and x promote.

        Raises:
          ValueError: an argument has other axes, or is sharded over explicit mesh axes (use `jax.shard_map`).
          TypeError: an argument is no array, indices are no integers, or neither weights nor x is floating-point or
            complex.
        """
        given = {"weights": weights, "x": x} | ({} if indices is None else {"indices": indices})
        arrays = {name: as_array(NAME, name, value) for name, value in given.items()}
        for name, array in arrays.items():
            if compat.explicit_axes(array):
                raise ValueError(f"{NAME}: {name} is sharded over explicit mesh axes: use jax.shard_map")
        weights, x = arrays["weights"], arrays["x"]
        if x.ndim < 2 or x.shape[-2] != self.dim_in:
            raise ValueError(f"{NAME}: x is {x.shape}: it must be (..., {self.dim_in}, channels)")
        (*leading, _, channels), rows = x.shape, math.prod(x.shape[:-2])
        expected = (self.num_weights, channels)
        if weights.ndim != 2 + (indices is not None) or weights.shape[-2:] != expected:
            species = "" if indices is None else "species, "
            raise ValueError(
                f"{NAME}: weights are {weights.shape}: they must be ({species}{expected[0]}, {channels}) "
                f"{'without' if indices is None else 'with'} indices"
            )
        if indices is not None and rows and not weights.shape[0]:
            raise ValueError(f"{NAME}: weights are {weights.shape}: {rows} rows choose among no species")
        dtype = jnp.result_type(weights, x)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(f"{NAME}: weights and x are {dtype}: one of them must be floating-point or complex")
        wide = accumulator(dtype)
        merged = jnp.einsum(
            "qw,...wu->...qu",
            jnp.asarray(self._coefficients, wide),
            weights.astype(wide),
            precision=jax.lax.Precision.HIGHEST,
        ).astype(dtype)
        if indices is None:
            merged = jnp.broadcast_to(merged, (rows, *merged.shape))
        else:
            chosen = _rows_of(arrays["indices"], tuple(leading), rows)
            merged = _channels_last(merged).at[chosen].get(mode="clip")
        operands = merged, _channels_last(x.astype(dtype).reshape(rows, self.dim_in, channels))
        y = _channels_last(sum_of_monomials(operands, self._polynomial))
        return y.reshape(*leading, self.dim_out, channels)


def _channels_last(x: jax.Array) -> jax.Array:
    """x (rows, components, channels) with neighbouring channels side by side in memory, as threads read them. XLA might
    leave it in the order that a transposition before or after it has."""
    rows, components, channels = x.shape
    flat: jax.Array = jax.lax.optimization_barrier(x.reshape(rows, components * channels))
    return flat.reshape(rows, components, channels)


def _rows_of(indices: jax.Array, leading: tuple[int, ...], rows: int) -> jax.Array:
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f"{NAME}: indices are {indices.dtype}{indices.shape}: they must be integers")
    if indices.shape != leading:
        raise ValueError(f"{NAME}: indices are {indices.shape}: they must be {leading}, as x's leading axes")
    return indices.reshape(rows)


def _checked_term(number: int, term: Any, sizes: tuple[int, int, int]) -> tuple[int, list[int], int, float]:
    try:
        w, factors, k, coefficient = term
        w, factors, k = operator.index(w), [operator.index(i) for i in factors], operator.index(k)
        if np.iscomplexobj(coefficient):  # NumPy's would lose their imaginary parts
            raise TypeError
        coefficient = float(coefficient)
    except (TypeError, ValueError):
        raise TypeError(
            f"{NAME}: terms[{number}] must be (weight, components of x, component of the result, coefficient), real"
        ) from None
    for what, found, size in zip(("weight", "component of x", "component"), ([w], factors, [k]), sizes, strict=True):
        for index in found:
            if not 0 <= index < size:
                raise ValueError(f"{NAME}: terms[{number}] has {what} {index}, but there are {size}")
    return w, factors, k, coefficient
