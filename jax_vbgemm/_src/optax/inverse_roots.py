"""Inverse p-th roots of many symmetric positive semidefinite matrices, by one coupled Newton iteration for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul.api import batched_matmul
from jax_vbgemm._src.util import compat

# The constants of Google's distributed_shampoo.
_TOLERANCE = 1e-6  # of the largest entry of M - I, and of the largest eigenvalue
_MAX_ITERATIONS = 100
_MAX_GROWTH = 1.2  # maximum growth of the error per iteration; beyond it rounding dominates
_LEAST_EIGENVALUE = 1e-6  # to which the ridge is relative


def inverse_roots(
    matrices: Sequence[jax.Array], roots: Sequence[int], ridge: Any, options: dict[str, Any]
) -> tuple[list[jax.Array], list[jax.Array]]:
    """(A + ridge max(lambda_max, 1e-6) I)^(-1/p) of every A, and the largest entry of M - I after the last iteration.

    H -> A^(-1/p) and M = H^p A -> I (Higham, Functions of Matrices, eq. 7.18). Matrices of one size, p and dtype are
    stacked; each product is one operation for all matrices, and a matrix no longer changes once it has converged.

    Args:
      matrices: arrays (..., n, n), n > 0, float32 or float64. roots: p for each. options: of `batched_matmul`.

    Returns:
      Arrays of the matrices' shapes, and the errors, (...).
    """
    indices_by_key: dict[Any, list[int]] = {}
    for index, (a, p) in enumerate(zip(matrices, roots, strict=True)):
        indices_by_key.setdefault((a.shape[-1], p, a.dtype), []).append(index)
    stacks, counts = [], []
    for (size, _, _), members in indices_by_key.items():
        parts = [matrices[index].reshape(-1, size, size) for index in members]
        stacks.append(jnp.concatenate(parts))
        counts.append([len(part) for part in parts])
    found, errors = _batched_roots(stacks, [p for _, p, _ in indices_by_key], ridge, options)
    results: list[Any] = [None] * len(matrices)
    ends: list[Any] = [None] * len(matrices)
    for members, sizes, stack, error in zip(indices_by_key.values(), counts, found, errors, strict=True):
        splits = np.cumsum(sizes)[:-1].tolist()
        for index, part, e in zip(members, jnp.split(stack, splits), jnp.split(error, splits), strict=True):
            results[index] = part.reshape(matrices[index].shape)
            ends[index] = e.reshape(matrices[index].shape[:-2])
    return results, ends


def _batched_roots(
    stacks: list[jax.Array], roots: list[int], ridge: Any, options: dict[str, Any]
) -> tuple[list[jax.Array], list[jax.Array]]:
    eyes = [jnp.eye(a.shape[-1], dtype=a.dtype)[None] for a in stacks]
    largest = _largest_eigenvalues(stacks, options)
    ms, hs = [], []
    for a, eye, p, value in zip(stacks, eyes, roots, largest, strict=True):
        damped = a + (jnp.asarray(ridge, a.dtype) * jnp.maximum(value, _LEAST_EIGENVALUE))[:, None, None] * eye
        z = (1 + p) / (2 * jnp.linalg.norm(damped, axis=(-2, -1)))[:, None, None]
        ms.append(damped * z)
        hs.append(eye * z ** (1 / p))
    errors = [jnp.max(jnp.abs(m - eye), axis=(-2, -1)) for m, eye in zip(ms, eyes, strict=True)]
    error_growths = [_typed(jnp.ones_like(error), error) for error in errors]

    def running(errors: list[jax.Array], error_growths: list[jax.Array]) -> list[jax.Array]:
        return [(e > _TOLERANCE) & (g < _MAX_GROWTH) for e, g in zip(errors, error_growths, strict=True)]

    def unfinished(state: Any) -> jax.Array:
        count, _, _, errors, error_growths = state
        keeps_going: jax.Array = (count < _MAX_ITERATIONS) & jnp.any(jnp.concatenate(running(errors, error_growths)))
        return keeps_going

    def iterate(state: Any) -> Any:
        count, ms, hs, errors, error_growths = state
        steps = [(1 + 1 / p) * eye - m / p for m, eye, p in zip(ms, eyes, roots, strict=True)]
        powers = _powers(steps, roots, options)
        new = batched_matmul([*powers, *hs], [*ms, *steps], **options)
        new_ms, new_hs = new[: len(ms)], new[len(ms) :]
        active = running(errors, error_growths)
        new_errors = [jnp.max(jnp.abs(m - eye), axis=(-2, -1)) for m, eye in zip(new_ms, eyes, strict=True)]
        error_growths = [
            jnp.where(on, n / e, g) for on, n, e, g in zip(active, new_errors, errors, error_growths, strict=True)
        ]
        errors = [jnp.where(on, n, e) for on, n, e in zip(active, new_errors, errors, strict=True)]
        # Steps that increase the error are discarded.
        taken = [(on & (g < _MAX_GROWTH))[:, None, None] for on, g in zip(active, error_growths, strict=True)]
        hs = [jnp.where(yes, n, h) for yes, n, h in zip(taken, new_hs, hs, strict=True)]
        ms = [jnp.where(yes, n, m) for yes, n, m in zip(taken, new_ms, ms, strict=True)]
        return count + 1, ms, hs, errors, error_growths

    if not stacks:
        return [], []
    _, _, hs, errors, _ = jax.lax.while_loop(unfinished, iterate, (jnp.int32(0), ms, hs, errors, error_growths))
    return hs, errors


def _powers(matrices: list[jax.Array], exponents: Sequence[int], options: dict[str, Any]) -> list[jax.Array]:
    """X^p of every X by repeated squaring: one or two operations for each binary digit of the largest p."""
    results: list[Any] = [None] * len(matrices)
    squares = dict(enumerate(matrices))
    for digit in range(max(exponents, default=1).bit_length()):
        if digit:
            keeps_going = [i for i in squares if exponents[i] >> digit]
            values = [squares[i] for i in keeps_going]
            squares = dict(zip(keeps_going, batched_matmul(values, values, **options), strict=True))
        chosen = [i for i in squares if exponents[i] >> digit & 1]
        multiplied = [i for i in chosen if results[i] is not None]
        products = batched_matmul([results[i] for i in multiplied], [squares[i] for i in multiplied], **options)
        results = [squares[i] if i in chosen and r is None else r for i, r in enumerate(results)]
        for index, product in zip(multiplied, products, strict=True):
            results[index] = product
    return results


def _largest_eigenvalues(stacks: list[jax.Array], options: dict[str, Any]) -> list[jax.Array]:
    """The largest eigenvalue of every matrix, by one power iteration for all: (batch,) for each stack."""

    def start(a: jax.Array) -> jax.Array:
        v = np.random.default_rng(a.shape[-1]).uniform(-1, 1, a.shape[-1])
        return jnp.broadcast_to(jnp.asarray(v / np.linalg.norm(v), a.dtype)[:, None], (*a.shape[:-1], 1))

    def unfinished(state: Any) -> jax.Array:
        count, _, values, before = state
        moving = [jnp.abs(x - y) > _TOLERANCE * jnp.abs(x) for x, y in zip(values, before, strict=True)]
        keeps_going: jax.Array = (count < 2) | ((count < _MAX_ITERATIONS) & jnp.any(jnp.concatenate(moving)))
        return keeps_going

    def iterate(state: Any) -> Any:
        count, vs, before, _ = state
        products = batched_matmul(stacks, vs, **options)
        values = [jnp.sum(v * product, axis=(-2, -1)) for v, product in zip(vs, products, strict=True)]
        norms = [jnp.linalg.norm(product, axis=-2, keepdims=True) for product in products]
        vs = [jnp.where(n > 0, x / jnp.where(n > 0, n, 1), v) for v, x, n in zip(vs, products, norms, strict=True)]
        return count + 1, vs, values, before

    if not stacks:
        return []
    vs = [_typed(start(a), a) for a in stacks]
    zeros = [_typed(jnp.zeros(len(a), a.dtype), a) for a in stacks]
    return jax.lax.while_loop(unfinished, iterate, (jnp.int32(0), vs, zeros, zeros))[2]


def _typed(x: jax.Array, like: jax.Array) -> jax.Array:
    """x with a type that varies over the mesh axes of `like`, which is the type that a loop's body returns."""
    return compat.varying(x, tuple(sorted(jax.typeof(like).mat.varying)))
