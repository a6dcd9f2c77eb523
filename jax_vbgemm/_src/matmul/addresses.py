"""Turns layouts into the addresses that descriptors hold: a row stride, a column stride and two batch strides.

Where the rows or the columns have several levels, the longest level stays and the other levels become batch dimensions:
irreps data with many nodes times 2l + 1 components becomes a batch of 2l + 1 products over all nodes. If K has
several levels, the longest one stays and the product becomes a sum of products over the other levels.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from jax_vbgemm._src.matmul.layout import Layout, Levels, Refined, Shape, merge, refine
from jax_vbgemm._src.matmul.primitive import Term, TermSizes

MAX_PRODUCTS_OF_K = 16
"""How many products a product with several levels of K may become; beyond that, a copy with one level is cheaper."""

LARGEST_STRIDE = 2**31 - 1
"""Upper bound of a row or column stride: tiles hold strides as 32-bit integers (Part in csrc/descriptor.h)."""


class Place(NamedTuple):
    """The position of a batch of matrices in its buffer, in elements."""

    offset: int
    row_stride: int
    col_stride: int
    batch_strides: tuple[int, int]


class Address(NamedTuple):
    """One product in a descriptor's form: batch index i means (i // inner_batch, i % inner_batch).

    pair: the index of the pair of factors from which the product comes.
    """

    m: int
    n: int
    k: int
    batch: int
    inner_batch: int
    a: Place
    b: Place
    c: Place
    source: Place | None = None
    bias: Place | None = None
    pair: int = 0


def address(lhs: Shape, rhs: Shape, term: Term, sizes: TermSizes) -> Address | None:
    """The address of a product of dense operands; None if the batch dimensions need more than two strides."""
    out = Layout.row_major(sizes.result)
    products = addresses((factors(Layout.row_major(lhs), Layout.row_major(rhs), term),), out)
    return None if products is None else products[0]


def factors(lhs: Layout, rhs: Layout, term: Term) -> tuple[Layout, Layout]:
    """op(A) and op(B)."""
    return (_swapped(lhs) if term.transpose_a else lhs), (_swapped(rhs) if term.transpose_b else rhs)


def _swapped(layout: Layout) -> Layout:
    *batch, rows, columns = layout.dimensions
    return Layout((*batch, columns, rows), layout.offset)


@functools.lru_cache(maxsize=4096)
def addresses(
    pairs: tuple[tuple[Layout, Layout], ...], out: Layout, source: Layout | None = None, bias: Layout | None = None
) -> tuple[Address, ...] | None:
    """The products of the sum of op(A) op(B) over these pairs of factors; None if no descriptor can express them.

    The result is (*batch, m, n). The factors' batch dimensions, the source and the bias broadcast to that shape.
    """
    results = [out, *(_broadcast(x, out.shape) for x in (source, bias) if x is not None)]
    row_dimensions = [*(a.dimensions[-2] for a, _ in pairs), *(x.dimensions[-2] for x in results)]
    col_dimensions = [*(b.dimensions[-1] for _, b in pairs), *(x.dimensions[-1] for x in results)]
    rows, cols = refine(row_dimensions), refine(col_dimensions)
    if rows is None or cols is None:
        return None
    (m, row_strides), row_rest = _longest(rows, row_dimensions)
    (n, col_strides), col_rest = _longest(cols, col_dimensions)
    batch = out.shape[:-2]
    products: list[Address] = []
    for index, (lhs, rhs) in enumerate(pairs):
        a, b = _broadcast(lhs, (*batch, *lhs.shape[-2:])), _broadcast(rhs, (*batch, *rhs.shape[-2:]))
        levels: Refined = []
        for dimensions in zip(*(x.dimensions[:-2] for x in (a, b, *results)), strict=True):
            found = refine(dimensions)
            if found is None:
                return None
            levels += found
        levels += [(size, (s[index], 0, *s[len(pairs) :])) for size, s in row_rest]
        levels += [(size, (0, s[index], *s[len(pairs) :])) for size, s in col_rest]
        levels = merge(levels)
        depth_dimensions = [a.dimensions[-1], b.dimensions[-2]]
        depth = refine(depth_dimensions)
        if len(levels) > 2 or depth is None:
            return None
        (k, k_strides), k_rest = _longest(depth, depth_dimensions)
        if math.prod(size for size, _ in k_rest) > MAX_PRODUCTS_OF_K:
            return None
        (outer, outer_strides), (inner, inner_strides) = [(1, (0,) * (2 + len(results)))] * (2 - len(levels)) + levels
        batch_strides = list(zip(outer_strides, inner_strides, strict=True))
        places = [
            Place(x.offset, row_strides[len(pairs) + i], col_strides[len(pairs) + i], batch_strides[2 + i])
            for i, x in enumerate(results)
        ]
        given = iter(places[1:])
        source_address, bias_address = (None if x is None else next(given) for x in (source, bias))
        for digits in itertools.product(*(range(size) for size, _ in k_rest)):
            at = [sum(d * s[side] for d, (_, s) in zip(digits, k_rest, strict=True)) for side in (0, 1)]
            place_a = Place(a.offset + at[0], row_strides[index], k_strides[0], batch_strides[0])
            place_b = Place(b.offset + at[1], k_strides[1], col_strides[index], batch_strides[1])
            if max(*place_a[1:3], *place_b[1:3], *(s for x in places for s in x[1:3])) > LARGEST_STRIDE:
                return None
            products.append(
                Address(m, n, k, outer * inner, inner, place_a, place_b, places[0], source_address, bias_address, index)
            )
    return tuple(products)


def _broadcast(layout: Layout, shape: Shape) -> Layout:
    """The layout broadcast to that shape: a dimension of size 1 and a missing dimension get stride 0."""
    missing = len(shape) - len(layout.dimensions)
    dimensions: list[Levels] = [((size, 0),) for size in shape[:missing]]
    for levels, size, wanted in zip(layout.dimensions, layout.shape, shape[missing:], strict=True):
        dimensions.append(((wanted, 0),) if size == 1 != wanted else levels)
    return Layout(tuple(dimensions), layout.offset)


def _longest(levels: Refined, dimensions: Sequence[Levels]) -> tuple[tuple[int, tuple[int, ...]], Refined]:
    """The longest level and the other levels; for dimensions of size 1, one level with the strides they have."""
    if not levels:
        return (1, tuple(levels[-1][1] if levels else 1 for levels in dimensions)), []
    longest = max(range(len(levels)), key=lambda index: levels[index][0])
    return levels[longest], [*levels[:longest], *levels[longest + 1 :]]
