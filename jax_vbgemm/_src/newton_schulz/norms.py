"""Norms and rescalings that bound matrices' singular values before the first Newton-Schulz step."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.elementwise.square_sums import square_sums, squares
from jax_vbgemm._src.matmul.norms import root
from jax_vbgemm._src.matmul.packed import RaggedArray
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import dense, is_view
from jax_vbgemm._src.native import backends

_RESCALING_EPS = 1e-8  # for "aol" and "schatten", the same constant as in optax


def divisors_of(norms: jax.Array, preconditioning: str, eps: Any) -> jax.Array:
    """The divisor of each matrix before the first product; infinite if the product would overflow."""
    largest = float(np.finfo(norms.dtype).max)
    if preconditioning == "spectral":
        return norms + jnp.asarray(eps, norms.dtype)
    # Because of rounding, an element of X X^H may overflow when the sum of squares just does not.
    norms = jnp.where(norms >= (1 - 2**-10) * largest**0.5, jnp.inf, norms)
    if preconditioning == "frobenius":
        return norms + jnp.asarray(eps, norms.dtype)
    # "aol" and "schatten" divide by a norm of X X^H later. Here X is divided by a power of two that brings its norm
    # into [1, 2), so that A fits float16; the power is at least 2^-30, below which the method's eps dominates.
    exponents = jnp.maximum(jnp.frexp(norms)[1] - 1, -30)
    return jnp.where(jnp.isfinite(norms), jnp.ldexp(jnp.ones_like(norms), exponents), norms)


def norm_of(x: jax.Array, preconditioning: str) -> Any:
    """The spectral or Frobenius norm of each matrix of x (*batch, m, n): (*batch,) in the accumulator's real dtype."""
    if preconditioning != "spectral":
        return root(jnp.sum(squares(x), axis=(-2, -1)))
    # Divided by a power of two, since cuSOLVER squares large elements without the scaling that LAPACK does. The power
    # is from the middle of the range, as XLA multiplies by its inverse, which must not be subnormal.
    wide = x.astype(accumulator(x.dtype))
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(wide), axis=(-2, -1), keepdims=True, initial=0))
    limit = int(np.finfo(largest.dtype).maxexp) * 3 // 4
    scale = jnp.ldexp(jnp.ones_like(largest), jnp.clip(jnp.frexp(largest)[1], -limit, limit))
    return scale[..., 0, 0] * jnp.linalg.norm(wide / scale.astype(wide.dtype), ord=2, axis=(-2, -1))


def small_size() -> int:
    """The largest number of elements of a small matrix, for `norms_of`."""
    # On a GPU, reading a matrix of that size once more takes less time than launching a separate kernel. On a CPU the
    # reduction reads each matrix once anyway.
    rules = backends.traced_target().rules
    return 0 if rules is None else rules.small_array


def norms_of(xs: list[Any], small: int) -> jax.Array:
    """The Frobenius norm of each matrix, (len(xs),): one call for all matrices of up to `small` elements, and a
    reduction for each larger one, and for each view, which it reads in place."""
    small_indices = [i for i, x in enumerate(xs) if small and 0 < x.size <= small and not is_view(x)]
    others = sorted(set(range(len(xs))) - set(small_indices))
    norms = []
    if small_indices:
        norms.append(root(square_sums([xs[i] for i in small_indices])))
    if others:
        norms.append(jnp.stack([norm_of(dense(xs[i]), "frobenius") for i in others]))
    return norms[0] if len(norms) == 1 else jnp.concatenate(norms)[np.argsort(small_indices + others)]


def packed_norms(x: RaggedArray, indices: Sequence[int]) -> jax.Array:
    """The Frobenius norms of the members at `indices`, (len(indices),), in a few operations; NaN if an element is
    infinite."""
    return root(x.member_sums(squares(x.without_padding()), indices))


def rescale_aol(x: jax.Array, a: jax.Array, tall: bool, divisor: Any, pending: Any) -> tuple[jax.Array, jax.Array]:
    """X with each row times 1 / sqrt of its row sum of |A| ("almost orthogonal layers"), and A; A is that of X /
    divisor, and x that of X times pending / divisor."""
    s = _inverse_root(jnp.abs(a.astype(accumulator(a.dtype))).sum(axis=-1), divisor)
    rows, columns = s[..., :, None], s[..., None, :]
    return times(x, (columns if tall else rows) / pending), times(a, rows, columns)


def rescale_schatten(x: jax.Array, a: jax.Array, tall: bool, divisor: Any, pending: Any) -> tuple[jax.Array, jax.Array]:
    """X times 1 / sqrt of A's Frobenius norm (the Schatten-4 norm of X squared), and A; otherwise as `rescale_aol`."""
    del tall
    squares_of_a = jnp.square(jnp.abs(a.astype(accumulator(a.dtype))))
    s = _inverse_root(root(jnp.sum(squares_of_a, axis=(-2, -1))), divisor)[..., None, None]
    return times(x, s / pending), times(a, s, s)


def _inverse_root(values: jax.Array, divisor: Any) -> jax.Array:
    """1 / sqrt of values that were divided by divisor^2, clipped as optax clips the undivided values."""
    least = jnp.maximum(_RESCALING_EPS / divisor / divisor, np.finfo(values.dtype).tiny).astype(values.dtype)
    return jax.lax.rsqrt(jnp.maximum(values, least[..., None] if values.ndim > least.ndim else least))


def times(x: jax.Array, *factors: jax.Array, dtype: Any = None) -> jax.Array:
    """The product of x and the factors in the accumulator's dtype, rounded once; dtype: None for that of x."""
    wide = x.astype(accumulator(x.dtype))
    product = functools.reduce(operator.mul, [factor.astype(wide.dtype) for factor in factors], wide)
    return product.astype(dtype or x.dtype)
