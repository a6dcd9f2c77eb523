"""The one primitive: ragged products over flat operands, described by static terms.

Everything the package does binds `batched_matmul_p`: the call itself, its tangents, its cotangents and its vmaps.
Shared inputs are one operand used by several terms; sums of products are several terms with one `out`. The rules are
in rules.py, the lowering in lowering.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm._src import compat
from jax_vbgemm._src.distinct import distinct

Shape = tuple[int, ...]


class Term(NamedTuple):
    """The product op(operands[lhs]) @ op(operands[rhs]), added to results[out].

    Operands are (..., rows, columns); leading dimensions broadcast. A transpose flag swaps an operand's last two axes.
    `symmetric`: each matrix of the result is its own transpose, by the caller's word, before and after its epilogue.
    """

    lhs: int
    rhs: int
    out: int
    transpose_a: bool = False
    transpose_b: bool = False
    symmetric: bool = False


Scalar = complex | float | tuple[int, int]
"""A number known at trace time (an int for integer results), or (operand, element) of a one-dimensional operand in the
accumulator's dtype."""


class Epilogue(NamedTuple):
    """What happens to a sum on its way to its result: activation(alpha sum + beta operands[source] + operands[bias]).

    The source has the result's shape and dtype, the bias its dtype and a shape that broadcasts to it. Where beta is 0
    the source is not read, so NaN there doesn't matter.
    """

    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    source: int | None = None
    bias: int | None = None
    activation: str | None = None

    def operands(self) -> list[int]:
        """The operands it refers to."""
        scalars = [scalar[0] for scalar in (self.alpha, self.beta) if isinstance(scalar, tuple)]
        return [index for index in (self.source, self.bias, *scalars) if index is not None]


class Sizes(NamedTuple):
    """What a term computes: C (*batch, m, n) = sum over k."""

    batch: Shape
    m: int
    n: int
    k: int


def sizes_of(lhs: Shape, rhs: Shape, term: Term) -> Sizes:
    """The sizes of one term over operands of these shapes; ValueError where they don't fit."""
    m, k = (lhs[-1], lhs[-2]) if term.transpose_a else (lhs[-2], lhs[-1])
    n, rhs_k = (rhs[-2], rhs[-1]) if term.transpose_b else (rhs[-1], rhs[-2])
    if k != rhs_k:
        raise ValueError(f"inner dimensions {k} and {rhs_k} must match")
    batch = lhs[:-2]
    if batch != rhs[:-2]:
        try:
            static = compat.is_static(batch) and compat.is_static(rhs[:-2])
            batch = (np if static else jnp).broadcast_shapes(batch, rhs[:-2])
        except ValueError:
            raise ValueError(f"leading dimensions {lhs[:-2]} and {rhs[:-2]} must broadcast") from None
    return Sizes(batch, m, n, k)


batched_matmul_p = jex_core.Primitive("batched_matmul")
batched_matmul_p.multiple_results = True
batched_matmul_p.def_impl(partial(compat.apply_primitive, batched_matmul_p))


@batched_matmul_p.def_abstract_eval
def _abstract_eval(
    *operands: Any, terms: tuple[Term, ...], out_dtypes: tuple[Any, ...], epilogues: tuple[Epilogue, ...], **_: Any
) -> list[Any]:
    shapes: list[Any] = [None] * len(out_dtypes)
    factors: list[list[Any]] = [[] for _ in out_dtypes]
    for term in terms:
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        sizes = sizes_of(lhs.shape, rhs.shape, term)
        shape = (*sizes.batch, sizes.m, sizes.n)
        if shapes[term.out] not in (None, shape):
            raise ValueError(f"terms of one sum must agree in shape: {shapes[term.out]} and {shape}")
        shapes[term.out] = shape
        factors[term.out] += [lhs, rhs]
    for out, epilogue in enumerate(epilogues):
        factors[out] += [operands[index] for index in epilogue.operands()]
    return [compat.shaped_array(*result) for result in zip(shapes, out_dtypes, factors, strict=True)]


def compact(
    terms: Sequence[Term], epilogues: Sequence[Epilogue] = ()
) -> tuple[list[int], list[int], list[Term], list[Epilogue]]:
    """The operands and results these terms use, and the terms and their epilogues renumbered over just those."""
    outs = sorted({term.out for term in terms})
    epilogues = [epilogues[out] for out in outs] if epilogues else []
    used = {index for term in terms for index in term[:2]} | {i for e in epilogues for i in e.operands()}
    operands = sorted(used)
    operand_at, out_at = ({index: place for place, index in enumerate(kept)} for kept in (operands, outs))
    renumbered = [
        term._replace(lhs=operand_at[term.lhs], rhs=operand_at[term.rhs], out=out_at[term.out]) for term in terms
    ]
    return operands, outs, renumbered, [renumber_epilogue(epilogue, operand_at) for epilogue in epilogues]


def contract(
    operands: Sequence[jax.Array],
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    *,
    epilogues: Sequence[Epilogue] = (),
    **options: Any,
) -> list[jax.Array]:
    """Binds the primitive once for these terms, in a form with as few and as plain problems as they allow.

    Operands that nothing uses are dropped, equal ones are passed once, and a product whose right factor has no batch
    becomes one tall product: C[b] = A[b] @ B for all b is (b m, k) @ (k, n), unless C[b] is symmetric. That saves
    tiles, and it makes the gradient of B one product with a long K instead of a batch of products and a sum.
    `epilogues`: one a result or none, which is the same where each leaves its sum as it is.
    """
    if not terms:
        return []
    if all(epilogue == Epilogue() for epilogue in epilogues):
        epilogues = ()
    operands, terms, epilogues = _unite_varying(list(operands), list(terms), list(epilogues))
    shapes = [operand.shape for operand in operands]
    sizes = [sizes_of(shapes[term.lhs], shapes[term.rhs], term) for term in terms]
    tall = [True] * len(out_dtypes)
    for term, size in zip(terms, sizes, strict=True):
        plain = not term.transpose_a and not term.symmetric
        tall[term.out] &= bool(size.batch) and plain and math.prod(shapes[term.rhs][:-2]) == 1

    arrays, array_of = distinct(operands)
    position: dict[tuple[int, Shape], int] = {}

    def use(index: int, shape: Shape) -> int:
        return position.setdefault((array_of[index], shape), len(position))

    bound: list[Term] = []
    result_shapes: list[Shape] = [()] * len(out_dtypes)
    bound_shapes: list[Shape] = [()] * len(out_dtypes)
    for term, (batch, m, n, k) in zip(terms, sizes, strict=True):
        lhs_shape, rhs_shape = shapes[term.lhs], shapes[term.rhs]
        result_shapes[term.out] = bound_shapes[term.out] = (*batch, m, n)
        if tall[term.out]:
            lhs_shape, rhs_shape = (math.prod(batch) * m, k), rhs_shape[-2:]
            bound_shapes[term.out] = (math.prod(batch) * m, n)
        bound.append(term._replace(lhs=use(term.lhs, lhs_shape), rhs=use(term.rhs, rhs_shape)))

    bound_epilogues = []
    for out, epilogue in enumerate(epilogues):
        bias = epilogue.bias
        if bias is not None:
            shape = (1,) * (2 - len(shapes[bias])) + shapes[bias]
            if math.prod(shape[:-2]) == 1 and not (tall[out] and shape[-2] > 1):
                shape = shape[-2:]  # one bias for the whole batch
            else:
                shape = bound_shapes[out]
                if shapes[bias] != result_shapes[out]:
                    arrays.append(jnp.broadcast_to(operands[bias], result_shapes[out]))
                    array_of.append(len(arrays) - 1)
                    bias = len(array_of) - 1
            bias = use(bias, shape)
        source = None if epilogue.source is None else use(epilogue.source, bound_shapes[out])
        alpha, beta = (
            (use(scalar[0], shapes[scalar[0]]), scalar[1]) if isinstance(scalar, tuple) else scalar
            for scalar in (epilogue.alpha, epilogue.beta)
        )
        bound_epilogues.append(Epilogue(alpha, beta, source, bias, epilogue.activation))
    flat = [arrays[i] if arrays[i].shape == shape else arrays[i].reshape(shape) for i, shape in position]
    results = batched_matmul_p.bind(
        *flat, terms=tuple(bound), out_dtypes=tuple(out_dtypes), epilogues=tuple(bound_epilogues), **options
    )
    return [
        result if result.shape == shape else result.reshape(shape)
        for result, shape in zip(results, result_shapes, strict=True)
    ]


def _unite_varying(
    operands: list[jax.Array], terms: list[Term], epilogues: list[Epilogue]
) -> tuple[list[jax.Array], list[Term], list[Epilogue]]:
    """Inside shard_map, makes all operands of one result vary over the same mesh axes; elsewhere does nothing."""
    if not any(compat.varies(operand) for operand in operands):
        return operands, terms, epilogues
    for out in {term.out for term in terms}:
        members = {index for term in terms if term.out == out for index in term[:2]}
        members |= set(epilogues[out].operands()) if epilogues else set()
        united = compat.unite_varying([operands[index] for index in members])
        at = {index: len(operands) + place for place, index in enumerate(members)}
        operands = [*operands, *united]
        terms = [t._replace(lhs=at[t.lhs], rhs=at[t.rhs]) if t.out == out else t for t in terms]
        if epilogues:
            epilogues[out] = renumber_epilogue(epilogues[out], at)
    return operands, terms, epilogues


def renumber_epilogue(epilogue: Epilogue, at: Mapping[int, int] | Sequence[int]) -> Epilogue:
    """The epilogue with its operands renumbered."""

    def scalar(value: Scalar) -> Scalar:
        return (at[value[0]], value[1]) if isinstance(value, tuple) else value

    return epilogue._replace(
        alpha=scalar(epilogue.alpha),
        beta=scalar(epilogue.beta),
        source=None if epilogue.source is None else at[epilogue.source],
        bias=None if epilogue.bias is None else at[epilogue.bias],
    )
