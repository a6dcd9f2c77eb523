"""Addresses the operands and results of sums in place where descriptors can express it, and through copies
elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.addresses import Address, Group, Place, addresses, factors
from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.layout import dense as dense_layout
from jax_vbgemm._src.matmul.primitive import Epilogue, Term, Window
from jax_vbgemm._src.matmul.view import View, dense
from jax_vbgemm._src.problem import Problem

Operand = jax.Array | View


class Sum(NamedTuple):
    """A result of the call: a sum of terms, its shape, its epilogue, and where the result is written."""

    terms: Sequence[Term]
    shape: Shape
    epilogue: Epilogue | None
    window: Window | None  # its window of a target; None: an array of its own


class Use(NamedTuple):
    """An operand as the call reads it: in place, or as a dense copy of shape `copy`."""

    operand: int
    copy: Shape | None = None


class Placed(NamedTuple):
    """A sum with everything that its descriptors need."""

    products: list[Address]
    pairs: list[tuple[Use, Use]]  # the factors of each product
    window: Window | None
    source: Use | None
    problem: Problem


class _Attempt(NamedTuple):
    """One way to place a sum: how its factors and its source are read, and where the result goes."""

    factor: Callable[[int], Use]
    source: Callable[[int], Use]
    window: Window | None


def place(operands: Sequence[Operand], of_sum: Sum) -> Placed:
    """The sum with as few copies as descriptors need. Its `problem` is one product whose K is that of all terms
    together."""
    for attempt in _attempts(operands, of_sum):
        pairs = [(attempt.factor(term.lhs), attempt.factor(term.rhs)) for term in of_sum.terms]
        source = None
        if of_sum.epilogue is not None and of_sum.epilogue.source is not None:
            source = attempt.source(of_sum.epilogue.source)
        group = _addressed(operands, of_sum, pairs, source, attempt.window)
        if group is not None:
            break
    assert group is not None, "descriptors can say what is dense"
    products = [product for _, product in group.products]
    problem = _problem(operands, of_sum, products, is_cut=group.is_cut)
    return Placed(products, [pairs[index] for index, _ in group.products], attempt.window, source, problem)


def array_of(operands: Sequence[Operand], use: Use) -> jax.Array:
    """The array that is passed to the call for a use of an operand."""
    x = operands[use.operand]
    if use.copy is None:
        return x.buffer if isinstance(x, View) else x
    x = dense(x)
    return x if x.shape == use.copy else jnp.broadcast_to(x, use.copy)


def layout_of(operands: Sequence[Operand], use: Use) -> Layout:
    """The layout of the operand in the array that `array_of` gives."""
    x = operands[use.operand]
    if use.copy is not None:
        return dense_layout(use.copy)
    return x.layout if isinstance(x, View) else dense_layout(x.shape)


def _attempts(operands: Sequence[Operand], of_sum: Sum) -> list[_Attempt]:
    """The attempts in the order in which they are tried: first without copies, last with a copy of every operand, which
    descriptors can always express."""
    batch, window = of_sum.shape[:-2], of_sum.window

    def in_place(index: int) -> Use:
        return Use(index)

    def copied(index: int) -> Use:
        return Use(index, operands[index].shape) if isinstance(operands[index], View) else Use(index)

    def broadcast(index: int) -> Use:
        shape = (*batch, *operands[index].shape[-2:])
        return copied(index) if shape == operands[index].shape else Use(index, shape)

    return [
        _Attempt(in_place, in_place, window),
        _Attempt(copied, in_place, window),
        _Attempt(broadcast, in_place, window),
        _Attempt(broadcast, copied, None),
    ]


def _addressed(
    operands: Sequence[Operand],
    of_sum: Sum,
    pairs: Sequence[tuple[Use, Use]],
    source: Use | None,
    window: Window | None,
) -> Group | None:
    bias = None if of_sum.epilogue is None or of_sum.epilogue.bias is None else Use(of_sum.epilogue.bias)
    read = [(layout_of(operands, lhs), layout_of(operands, rhs)) for lhs, rhs in pairs]
    return addresses(
        tuple(factors(*layouts, term) for layouts, term in zip(read, of_sum.terms, strict=True)),
        dense_layout(of_sum.shape) if window is None else window.layout,
        *(None if use is None else layout_of(operands, use) for use in (source, bias)),
    )


def _problem(operands: Sequence[Operand], of_sum: Sum, products: Sequence[Address], *, is_cut: bool) -> Problem:
    """The sum as the problem that planners see."""

    def transposed(side: int) -> bool:
        uses = [(term[side], getattr(term, ("transpose_a", "transpose_b")[side])) for term in of_sum.terms]
        # transpose flags do not tell along which axis a view is contiguous
        if any(isinstance(operands[index], View) for index, _ in uses):
            return all(x.row_stride < x.col_stride for x in ((p.a, p.b)[side] for p in products))
        return all(flag for _, flag in uses)

    symmetric = not is_cut and all(term.symmetric for term in of_sum.terms)
    first, depth = products[0], sum(product.k for product in products)
    places = [place for p in products for place in (p.a, p.b, p.c)]
    has_views = of_sum.window is not None or any(
        isinstance(operands[i], View) for term in of_sum.terms for i in term[:2]
    )
    line = math.gcd(*(number for place in places for number in _distances(place))) if has_views else None
    return Problem(first.m, first.n, depth, first.batch, transposed(0), transposed(1), symmetric, line)


def _distances(place: Place) -> tuple[int, ...]:
    """Where a place's rows begin and how far they are apart, in elements; 1 where no dimension is contiguous."""
    strides = (place.row_stride, place.col_stride)
    return (place.offset, *place.batch_strides, max(strides) if 1 in strides else 1)
