"""Addresses the operands and results of sums in place where descriptors can express it, and through copies
elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.matmul.addresses import Address, Place, addresses, factors
from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.primitive import Term, Window
from jax_vbgemm._src.matmul.view import Operand, View, dense
from jax_vbgemm._src.problem import Problem


@dataclass(eq=False)
class Sum:
    """Products that are added up to a result, or to a part of one: by one kernel call, or a single product by XLA."""

    terms: list[Term]
    shape: Shape
    dtypes: tuple[Any, Any] | None  # of both factors of each product; None: XLA computes the product
    depth: int  # the total K of the products
    epilogue: Epilogue | None = None  # the epilogue that the kernel applies to the sum
    window: Window | None = None  # the window of a target into which the kernel writes it; None: an array of its own
    value: Any = None  # the result, once it is computed, if it is an array of its own


class Use(NamedTuple):
    """An operand as the call reads it: in place, or as a dense copy of shape `copy`."""

    operand: int
    copy: Shape | None = None


class Placed(NamedTuple):
    """A sum with all data that its descriptors need."""

    sum: Sum
    products: tuple[Address, ...]
    pairs: list[tuple[Use, Use]]  # the factors of each product
    window: Window | None  # that of the sum; None also if the result is copied into it later
    source: Use | None
    problem: Problem


def place(operands: Sequence[Operand], x: Sum) -> Placed:
    """The sum with as few copies as descriptors need. Its `problem` is one product whose K is that of all terms
    together."""
    for factor, place_source, window in _attempts(operands, x):
        pairs = [(factor(term.lhs), factor(term.rhs)) for term in x.terms]
        source = None if x.epilogue is None or x.epilogue.source is None else place_source(x.epilogue.source)
        products = _addressed(operands, x, pairs, source, window)
        if products is not None:
            break
    assert products is not None, "descriptors can say what is dense"
    return Placed(
        x, products, [pairs[product.pair] for product in products], window, source, _problem(operands, x, products)
    )


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
        return Layout.row_major(use.copy)
    return x.layout if isinstance(x, View) else Layout.row_major(x.shape)


def _attempts(
    operands: Sequence[Operand], x: Sum
) -> list[tuple[Callable[[int], Use], Callable[[int], Use], Window | None]]:
    """The placements to try for factors, source and result, in order: first without copies, last with a copy of every
    operand, which descriptors can always express."""

    def in_place(index: int) -> Use:
        return Use(index)

    def copied(index: int) -> Use:
        return Use(index, operands[index].shape) if isinstance(operands[index], View) else Use(index)

    def broadcast(index: int) -> Use:
        shape = (*x.shape[:-2], *operands[index].shape[-2:])
        return copied(index) if shape == operands[index].shape else Use(index, shape)

    return [
        (in_place, in_place, x.window),
        (copied, in_place, x.window),
        (broadcast, in_place, x.window),
        (broadcast, copied, None),
    ]


def _addressed(
    operands: Sequence[Operand],
    x: Sum,
    pairs: Sequence[tuple[Use, Use]],
    source: Use | None,
    window: Window | None,
) -> tuple[Address, ...] | None:
    bias = None if x.epilogue is None or x.epilogue.bias is None else Use(x.epilogue.bias)
    read = [(layout_of(operands, lhs), layout_of(operands, rhs)) for lhs, rhs in pairs]
    return addresses(
        tuple(factors(*layouts, term) for layouts, term in zip(read, x.terms, strict=True)),
        Layout.row_major(x.shape) if window is None else window.layout,
        *(None if use is None else layout_of(operands, use) for use in (source, bias)),
    )


def _problem(operands: Sequence[Operand], x: Sum, products: Sequence[Address]) -> Problem:
    """The sum as the problem that planners see."""

    def transposed(side: int) -> bool:
        uses = [(term[side], getattr(term, ("transpose_a", "transpose_b")[side])) for term in x.terms]
        # for a view, transpose flags do not determine the contiguous axis
        if any(isinstance(operands[index], View) for index, _ in uses):
            return all(place.row_stride < place.col_stride for place in ((p.a, p.b)[side] for p in products))
        return all(flag for _, flag in uses)

    first, depth = products[0], sum(product.k for product in products)
    is_whole = (first.m, first.n) == x.shape[-2:]  # no matrix of the result is computed by several products
    symmetric = is_whole and all(term.symmetric for term in x.terms)
    places = [place for p in products for place in (p.a, p.b, p.c)]
    has_views = x.window is not None or any(isinstance(operands[i], View) for term in x.terms for i in term[:2])
    line = math.gcd(*(number for place in places for number in _distances(place))) if has_views else None
    return Problem(first.m, first.n, depth, first.batch, transposed(0), transposed(1), symmetric, line)


def _distances(place: Place) -> tuple[int, ...]:
    """The offset of a place's rows and the distance between them, in elements; 1 if no dimension is contiguous."""
    strides = (place.row_stride, place.col_stride)
    return (place.offset, *place.batch_strides, max(strides) if 1 in strides else 1)
