"""The one primitive: ragged products over flat operands, described by static terms.

Everything the package does binds `batched_matmul_p`: the call itself, its tangents, its cotangents and its vmaps.
Shared inputs are one operand used by several terms; sums of products are several terms with one `out`. The rules are
in rules.py, the lowering in lowering.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm import compat

Shape = tuple[int, ...]


class Term(NamedTuple):
    """The product op(operands[lhs]) @ op(operands[rhs]), added to results[out].

    Operands are (..., rows, columns); leading dimensions broadcast. A flag swaps an operand's last two axes.
    """

    lhs: int
    rhs: int
    out: int
    transpose_a: bool = False
    transpose_b: bool = False


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
            batch = np.broadcast_shapes(batch, rhs[:-2])
        except ValueError:
            raise ValueError(f"leading dimensions {lhs[:-2]} and {rhs[:-2]} must broadcast") from None
    return Sizes(batch, m, n, k)


batched_matmul_p = jex_core.Primitive("batched_matmul")
batched_matmul_p.multiple_results = True
batched_matmul_p.def_impl(partial(compat.apply_primitive, batched_matmul_p))


@batched_matmul_p.def_abstract_eval
def _abstract_eval(*operands: Any, terms: tuple[Term, ...], out_dtypes: tuple[Any, ...], **_: Any) -> list[Any]:
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
    return [compat.shaped_array(*result) for result in zip(shapes, out_dtypes, factors, strict=True)]


def compact(terms: Sequence[Term]) -> tuple[list[int], list[int], list[Term]]:
    """The operands and results these terms use, and the terms renumbered over just those."""
    operands = sorted({index for term in terms for index in term[:2]})
    outs = sorted({term.out for term in terms})
    operand_at, out_at = ({index: place for place, index in enumerate(kept)} for kept in (operands, outs))
    renumbered = [
        term._replace(lhs=operand_at[term.lhs], rhs=operand_at[term.rhs], out=out_at[term.out]) for term in terms
    ]
    return operands, outs, renumbered


def contract(
    operands: Sequence[jax.Array], terms: Sequence[Term], out_dtypes: Sequence[Any], **options: Any
) -> list[jax.Array]:
    """Binds the primitive once for these terms, in a form with as few and as plain problems as they allow.

    Operands that no term uses are dropped, equal ones are passed once, and a product whose right factor has no batch
    becomes one tall product: C[b] = A[b] @ B for all b is (b m, k) @ (k, n). That saves tiles, and it makes the
    gradient of B one product with a long K instead of a batch of products and a sum.
    """
    if not terms:
        return []
    operands, terms = _unite_varying(list(operands), terms)
    shapes = [operand.shape for operand in operands]
    sizes = [sizes_of(shapes[term.lhs], shapes[term.rhs], term) for term in terms]
    tall = [True] * len(out_dtypes)
    for term, size in zip(terms, sizes, strict=True):
        tall[term.out] &= bool(size.batch) and not term.transpose_a and math.prod(shapes[term.rhs][:-2]) == 1

    flat: list[jax.Array] = []
    position: dict[tuple[int, Shape], int] = {}

    def use(index: int, shape: Shape) -> int:
        operand = operands[index]
        key = (id(operand), shape)
        if key not in position:
            position[key] = len(flat)
            flat.append(operand if operand.shape == shape else operand.reshape(shape))
        return position[key]

    bound: list[Term] = []
    result_shapes: list[Shape] = [()] * len(out_dtypes)
    for term, (batch, m, n, k) in zip(terms, sizes, strict=True):
        lhs_shape, rhs_shape = shapes[term.lhs], shapes[term.rhs]
        if tall[term.out]:
            lhs_shape, rhs_shape = (math.prod(batch) * m, k), rhs_shape[-2:]
        result_shapes[term.out] = (*batch, m, n)
        bound.append(term._replace(lhs=use(term.lhs, lhs_shape), rhs=use(term.rhs, rhs_shape)))
    results = batched_matmul_p.bind(*flat, terms=tuple(bound), out_dtypes=tuple(out_dtypes), **options)
    return [
        result if result.shape == shape else result.reshape(shape)
        for result, shape in zip(results, result_shapes, strict=True)
    ]


def _unite_varying(operands: list[jax.Array], terms: Sequence[Term]) -> tuple[list[jax.Array], Sequence[Term]]:
    """Inside shard_map, makes all factors of one result vary over the same mesh axes; elsewhere does nothing."""
    if not any(compat.varies(operand) for operand in operands):
        return operands, terms
    united = []
    for out in {term.out for term in terms}:
        members = [index for index, term in enumerate(terms) if term.out == out]
        factors = [operands[i] for index in members for i in terms[index][:2]]
        first = len(operands)
        operands = operands + list(compat.unite_varying(factors))
        united += [
            terms[index]._replace(lhs=first + 2 * place, rhs=first + 2 * place + 1)
            for place, index in enumerate(members)
        ]
    return operands, united
