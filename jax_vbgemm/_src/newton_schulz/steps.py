"""The steps of Newton-Schulz on matrices of one dtype, with X itself or with the small Gram matrix X X^H."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.elementwise.addition import add_scaled
from jax_vbgemm._src.elementwise.square_sums import real_accumulator
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import View, dense, is_view
from jax_vbgemm._src.newton_schulz.cost import segments
from jax_vbgemm._src.newton_schulz.norms import (
    divisors_of,
    norm_of,
    norms_of,
    rescale_aol,
    rescale_schatten,
    times,
)
from jax_vbgemm._src.util import compat

Gemm = Callable[..., Any]


@dataclass(frozen=True)
class Iteration:
    """How matrices are iterated.

    gemm: `batched_gemm` with its options. small: as in `norms_of`. dtype: that of the iterates; None: that of the
    matrices. gram: whether several steps are taken with the Gram matrix, before X is multiplied by their product.
    preconditioning: None if a first step has been done. result: the dtype of the results, if it is not that of the
    matrices.
    """

    gemm: Gemm
    preconditioning: str | None
    eps: Any
    small: int
    dtype: Any
    gram: bool
    result: Any = None


def looped(
    xs: list[Any], steps: jax.Array, row: Any, iteration: Iteration, factors: Any, norms: jax.Array | None
) -> list[jax.Array]:
    """The iteration with a traced number of steps, which all have the coefficients `row`. The last result is rounded
    to the iterates' dtype."""
    dtype = xs[0].dtype
    further = replace(iteration, preconditioning=None, dtype=None, gram=False)

    def with_first_step(xs: list[Any]) -> list[jax.Array]:
        return [x.astype(iteration.dtype or dtype) for x in iterated(xs, [row], iteration, norms=norms)]

    def without_steps(xs: list[Any]) -> list[jax.Array]:
        return [x.astype(iteration.dtype or dtype) for x in iterated(xs, [], iteration)]

    def step(_: Any, xs: list[jax.Array]) -> list[jax.Array]:
        return iterated(xs, [row], further)

    xs = jax.lax.fori_loop(1, steps, step, jax.lax.cond(steps > 0, with_first_step, without_steps, xs))
    return multiplied([x.astype(dtype) for x in xs], factors)


def iterated(
    matrices: Sequence[Any],
    coeffs: Sequence[Any],
    iteration: Iteration,
    factors: Any = None,
    norms: jax.Array | None = None,
    into: Sequence[View | None] | None = None,
) -> list[Any]:
    """The matrices after the steps, in their dtype or `iteration.result`.

    Args:
      matrices: arrays and views of one dtype.
      coeffs: a triple for each step.
      factors: a factor of each result in the accumulator's real dtype, or None.
      norms: the Frobenius norm of each matrix of rank 2, where it is known.
      into: for each matrix the view into which the last product writes, or None.
    """
    dtype = matrices[0].dtype
    tall = [is_tall(x.shape) for x in matrices]
    wide = [not flag for flag in tall]
    xs, divisors, deferred, units = _prepared(list(matrices), iteration, bool(coeffs), norms)
    # optax uses X X^T, not X X^H, in the first step of "schatten".
    transposed = iteration.preconditioning == "schatten" and jnp.issubdtype(dtype, jnp.complexfloating)
    rescaled = iteration.preconditioning in ("aol", "schatten")
    for segment in _segments(
        coeffs, iteration, transposed, dtype, (None if rescaled else deferred, deferred, units), factors
    ):
        conjugate = not (segment.is_first and transposed)
        others = [x.conj() if conjugate and jnp.iscomplexobj(x) else x for x in xs]
        symmetric = not (conjugate and jnp.iscomplexobj(xs[0]))  # or Hermitian
        gemm = functools.partial(iteration.gemm, symmetric=symmetric)
        grams = gemm(xs, others, alpha=segment.numbers.gram, transpose_a=tall, transpose_b=wide)
        if segment.is_first and rescaled:
            rescale = rescale_aol if iteration.preconditioning == "aol" else rescale_schatten
            pending = [1.0] * len(xs) if deferred is None else deferred
            pairs = [rescale(*parts) for parts in zip(xs, grams, tall, divisors, pending, strict=True)]
            xs, grams = [x for x, _ in pairs], [a for _, a in pairs]
        bs = _product(grams, segment, iteration.small, gemm)
        # A tall X is iterated as its transpose: (B X^T)^T = X B^T.
        left = [x if flag else b for x, b, flag in zip(xs, bs, tall, strict=True)]
        right = [b if flag else x for x, b, flag in zip(xs, bs, tall, strict=True)]
        added = {} if segment.whole else {"Cs": xs, "beta": segment.numbers.beta}
        options = {"transpose_b": tall, "into": into if segment.is_last else None}
        options["preferred_element_type"] = segment.dtype
        xs = iteration.gemm(left, right, alpha=segment.numbers.alpha, **added, **options)
    if not coeffs:
        xs = multiplied(xs, factors)
    return [x if is_view(x) else x.astype(iteration.result or dtype) for x in xs]


class _Step(NamedTuple):
    """The factors of a step's products: of Z = square R^2 + linear R, of Q Z + c0 Q, and of the next Gram matrix."""

    square: Any
    linear: Any
    c0: Any
    product: Any
    addend: Any


class _Numbers(NamedTuple):
    """The factors of a segment's products: of X X^H, of each step's, and of Q X + beta X."""

    gram: Any
    steps: list[_Step]
    alpha: Any
    beta: Any


class _Segment(NamedTuple):
    """Steps between one product with X and the next.

    rows: their coefficients. dtype: of the product with X. whole: whether X is multiplied by all of Q. Otherwise Q is
    that of a single step without c0 I, and the product has c0 X as an addend.
    """

    rows: Sequence[Any]
    is_first: bool
    is_last: bool
    dtype: Any
    whole: bool
    numbers: _Numbers


def _segments(
    coeffs: Sequence[Any],
    iteration: Iteration,
    transposed: bool,
    dtype: Any,
    divisors: tuple[Any, Any, Any],
    factors: Any,
) -> list[_Segment]:
    """The segments of all steps; all factors that are traced are views of one vector.

    divisors: of the first product with X (None: 1), of X in its first Gram matrix (None: 1), and the power of two by
    which the square root of that matrix is held larger. dtype: that of the matrices.
    """
    product_divisor, gram_divisor, units = divisors
    lengths = segments(len(coeffs), first=1 if transposed else 2) if iteration.gram else [1] * len(coeffs)
    iterates = iteration.dtype or dtype
    found = []
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        is_first, is_last = end == length, end == len(coeffs)
        square: Any = 1
        unit: Any = None  # None: 1
        if is_first and gram_divisor is not None:
            unit = units
            root = 1 / (gram_divisor / unit)  # XLA would otherwise reassociate (unit scale) (unit scale)
            square = root * root
        result_type = iterates
        if is_last and iteration.dtype is not None:
            result_type = iteration.result or result_dtype(iteration.dtype, dtype)
        # A C of another dtype than the result would have to be converted first.
        whole = length > 1 or result_type != iterates
        rows = coeffs[end - length : end]
        alpha = 1 / product_divisor if is_first and product_divisor is not None else None
        if is_last and factors is not None:
            alpha = factors if alpha is None else alpha * factors
        steps = []
        for c0, c1, c2 in rows:
            step = _Step(c2, c1, c0, 1, c0)
            if unit is not None:
                step = _Step(c2 / unit**4, c1 / unit**2, c0, 1 / unit**2, c0 / unit**2)
            steps.append(step if length > 1 else step._replace(c0=None, product=None, addend=None))
            unit = None
        beta = None if whole else rows[0][0] if alpha is None else rows[0][0] * alpha
        numbers = _Numbers(square, steps, 1 if alpha is None else alpha, beta)
        found.append(_Segment(rows, is_first, is_last, result_type, whole, numbers))
    together = _in_one_vector([segment.numbers for segment in found], dtype)
    return [segment._replace(numbers=numbers) for segment, numbers in zip(found, together, strict=True)]


def _in_one_vector(numbers: list[_Numbers], dtype: Any) -> list[_Numbers]:
    """The numbers, with traced ones replaced by views of one vector, which XLA computes in one kernel and products read
    in place. dtype: of the matrices."""
    leaves, structure = jax.tree.flatten(numbers)
    traced = {id(x): x for x in leaves if isinstance(x, jax.Array)}
    if traced:
        wide = real_accumulator(dtype)
        vector = jnp.concatenate([x.reshape(-1).astype(wide) for x in traced.values()])
        ends = np.cumsum([x.size for x in traced.values()])
        views = {
            key: View(vector, x.shape, offset=int(end) - x.size)
            for end, (key, x) in zip(ends, traced.items(), strict=True)
        }
        leaves = [views.get(id(x), x) for x in leaves]
    together: list[_Numbers] = jax.tree.unflatten(structure, leaves)
    return together


def _product(grams: list[Any], segment: _Segment, small: int, gemm: Gemm) -> list[Any]:
    """The product Q by which X is multiplied in these steps; or Q - c0 I for a single step, unless `segment.whole`.

    Algorithm of Zhang, Amsel, Chen and Dao, Gram Newton-Schulz (2026): with Z = c1 R + c2 R^2, a step multiplies X by
    Z + c0 I, so that the Gram matrix R becomes (Z + c0 I)^2 R. All of these matrices are polynomials of one Hermitian
    matrix: they commute, and their products are Hermitian.

    grams: R, the first times the factor `unit^2` of `_segments`. small: as in `Iteration`.
    """
    product: Any = None
    for index, step in enumerate(segment.numbers.steps):
        is_last = index == len(segment.rows) - 1
        zs: list[Any] = gemm(grams, grams, grams, alpha=step.square, beta=step.linear)
        if not segment.whole:
            return zs
        moved: Any = [] if is_last else list(grams)
        if product is None:
            product = _plus_identity(zs, segment.rows[0][0], small)
            moved = moved and gemm(moved, zs, moved, beta=step.c0)
        else:  # both in one call
            both = gemm(product + moved, zs + (zs if moved else []), product + moved, beta=step.c0)
            product, moved = both[: len(zs)], both[len(zs) :]
        if not is_last:
            grams = gemm(zs, moved, moved, alpha=step.product, beta=step.addend)
    return list(product)


def _plus_identity(zs: Sequence[jax.Array], number: Any, small: int) -> list[jax.Array]:
    """z + number * I for each matrix, rounded once: one call for all matrices of up to `small` elements, as for
    norms."""
    results: list[Any] = [None] * len(zs)
    together = [i for i, z in enumerate(zs) if small and z.size <= small]
    if together:
        shapes, dtype = {zs[i].shape for i in together}, zs[0].dtype
        # Constants of the program, because XLA would compute each one in a kernel.
        identities = {shape: np.broadcast_to(np.eye(shape[-1], dtype=dtype), shape) for shape in shapes}
        given = [identities[zs[i].shape] for i in together], [zs[i] for i in together]
        for i, total in zip(together, add_scaled(*given, number, 1, in_place=False), strict=True):
            results[i] = total
    for i in set(range(len(zs))) - set(together):  # XLA makes the identity while it adds it
        wide = accumulator(zs[i].dtype)
        identity = jnp.broadcast_to(jnp.eye(zs[i].shape[-1], dtype=bool), zs[i].shape)
        added = jnp.where(identity, jnp.asarray(number, wide), 0)
        results[i] = (zs[i].astype(wide) + added).astype(zs[i].dtype)
    return results


def _prepared(
    xs: list[Any], iteration: Iteration, has_steps: bool, norms: jax.Array | None
) -> tuple[list[Any], list[Any], Any, Any]:
    """The matrices before their first product, the divisor of each for "aol" and "schatten", the divisor of each that
    is still to be applied (None: 1), and the power of two by which the square root of the first A is held larger.

    X is not divided by its divisor. Instead, 1 / divisor is a factor of the first step's A and of its result. But a
    kernel takes one factor for each problem: a batch, which has several, is divided here. So is an X whose spectral
    norm is finite although X X^H overflows, and one that is rounded to another dtype, in which it may not be held.
    """
    divisors: list[Any] = [1.0] * len(xs)
    method = iteration.preconditioning
    if method is None or not (has_steps or method in ("frobenius", "spectral")):
        return xs, divisors, None, 1
    if has_steps and iteration.dtype is not None:
        return _rounded(xs, iteration, norms)
    deferred = [i for i, x in enumerate(xs) if x.ndim == 2 and has_steps and method != "spectral"]
    for i in set(range(len(xs))) - set(deferred):
        divisors[i] = divisors_of(norm_of(xs[i], method), method, iteration.eps)
        root = 1 / jnp.sqrt(divisors[i])[..., None, None]  # multiplied by twice, as 1 / divisor may be subnormal
        xs[i] = times(xs[i], root, root)
    if not deferred:
        return xs, divisors, None, 1
    if norms is None:
        norms = norms_of([xs[i] for i in deferred], iteration.small)
    late_values = divisors_of(norms, method, iteration.eps)
    late_divisors = late_values
    if len(deferred) < len(xs):
        late_divisors = jnp.ones(len(xs), late_values.dtype).at[np.array(deferred)].set(late_values)
    if method in ("aol", "schatten"):
        for place, i in enumerate(deferred):
            divisors[i] = late_values[place]
    # The square of 1 / norm may be subnormal, but not four times the square: A is then held 4 times as large.
    return xs, divisors, late_divisors, 2 if method == "frobenius" else 1


def _rounded(xs: list[Any], iteration: Iteration, norms: jax.Array | None) -> tuple[list[Any], list[Any], Any, Any]:
    """`_prepared` for matrices that are divided in their own dtype and then rounded to `iteration.dtype`.

    Divided by its Frobenius norm, a matrix of m rows has singular values of about m^-1/2, whose squares times 1 / m are
    the elements of A. float16 would lose them: X is held about sqrt(m) times as large, and A m times.
    """
    method: Any = iteration.preconditioning
    alone = [i for i, x in enumerate(xs) if x.ndim > 2 or method == "spectral"]
    matrices = sorted(set(range(len(xs))) - set(alone))
    # For every method except "spectral", sums of squares of X are at most 4 units^2.
    exponents = [0 if method == "spectral" else min(round(math.log2(_rows(x.shape)) / 2), 6) for x in xs]
    divisors: list[Any] = [None] * len(xs)
    rounded: list[Any] = [None] * len(xs)
    for i in alone:
        divisors[i] = divisors_of(norm_of(xs[i], method), method, iteration.eps) / 2.0 ** exponents[i]
        root = 1 / jnp.sqrt(divisors[i])[..., None, None]  # multiplied by twice, as 1 / divisor may be subnormal
        rounded[i] = times(dense(xs[i]), root, root, dtype=iteration.dtype)
    if matrices:
        norms = norms_of([xs[i] for i in matrices], iteration.small) if norms is None else norms
        of_matrices = divisors_of(norms, method, iteration.eps) / np.array(
            [2.0 ** exponents[i] for i in matrices], norms.dtype
        )
        factors = 1 / of_matrices
        if method in ("aol", "schatten"):
            for place, i in enumerate(matrices):
                divisors[i] = of_matrices[place]
        # In one call, except for views, which XLA reads in place.
        together = [place for place, i in enumerate(matrices) if iteration.small and not is_view(xs[i])]
        given = [xs[matrices[place]] for place in together]
        known_factors = factors if len(given) == len(matrices) else factors[np.array(together, int)]
        for place, x in zip(together, add_scaled(given, given, known_factors, 0, dtype=iteration.dtype), strict=True):
            rounded[matrices[place]] = x
        for place in set(range(len(matrices))) - set(together):
            i = matrices[place]
            rounded[i] = times(dense(xs[i]), factors[place], dtype=iteration.dtype)
    units = np.array([2.0**exponent for exponent in exponents], accumulator(xs[0].dtype))
    return rounded, divisors, units if method == "frobenius" else None, units


def _rows(shape: Sequence[Any]) -> int:
    """The smaller size of a matrix; 1 if it is 0 or symbolic."""
    return max(min(shape[-2:]), 1) if compat.is_static(shape[-2:]) else 1


def multiplied(xs: list[Any], factors: Any, dtype: Any = None) -> list[Any]:
    """The matrices times one number each, computed in the accumulator's dtype; dtype: of the results, None for that of
    the matrices."""
    dtype = dtype or xs[0].dtype
    if factors is None:
        return [x.astype(dtype) for x in xs]
    wide = accumulator(dtype)
    return [(jnp.asarray(f, wide) * x.astype(wide)).astype(dtype) for f, x in zip(factors, xs, strict=True)]


def result_dtype(dtype: Any, of_matrices: Any) -> Any:
    """The dtype of the last product: that of the matrices, or else that of the sums of iterates of `dtype`."""
    return of_matrices if of_matrices in (dtype, accumulator(dtype)) else accumulator(dtype)


def is_tall(shape: Sequence[Any]) -> bool:
    """Whether a matrix has more rows than columns; False if symbolic sizes don't determine it."""
    return compat.certainly(lambda: shape[-2] > shape[-1])
