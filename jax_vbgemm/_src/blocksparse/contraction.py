"""A block-sparse contraction as one call: blocks become matrices, and pairs of blocks become terms of sums."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.blocksparse.axes import Axes, contracted_axes, free_axes
from jax_vbgemm._src.blocksparse.blocks import NAME, Blocks, Sector
from jax_vbgemm._src.matmul.api import batched_matmul_sum

Segments = dict[Sector, list[tuple[Sector, Sector]]]


def contract(a: Blocks, b: Blocks, axes: Any, **options: Any) -> dict[Sector, jax.Array]:
    """The result's blocks, for each sector to which at least one pair of blocks contributes."""
    if a.ndim is None or b.ndim is None:
        return {}
    axes_a, axes_b = contracted_axes(axes, a.ndim, b.ndim)
    a.check_contracted(axes_a, b, axes_b)
    try:
        jnp.result_type(a.dtype, b.dtype)
    except ValueError as error:  # under strict promotion the dtypes differ
        raise ValueError(f"{NAME}: a is {a.dtype} but b is {b.dtype}: {error}") from None
    free_a, free_b = free_axes(axes_a, a.ndim), free_axes(axes_b, b.ndim)
    segments = pair_blocks(a, b, (free_a, axes_a), (free_b, axes_b))
    if not segments:
        return {}
    used_a, used_b = ({pair[side]: None for pairs in segments.values() for pair in pairs} for side in (0, 1))

    # The contracted axes are merged to one axis, in any order that both tensors share. A tensor's blocks can be read in
    # place only in its own order of axes, so that the orders of a and of b are the only ones to try.
    def copied(order: tuple[Axes, Axes]) -> int:
        return _elements_copied(a, used_a, free_a, order[0]) + _elements_copied(b, used_b, free_b, order[1])

    pairs = list(zip(axes_a, axes_b, strict=True))
    orders = [sorted(pairs, key=lambda pair: pair[side]) for side in (0, 1)]
    axes_a, axes_b = min(((tuple(x for x, _ in order), tuple(y for _, y in order)) for order in orders), key=copied)

    left = {sector: _matrix(a.blocks[sector], free_a, axes_a) for sector in used_a}
    right = {sector: _matrix(b.blocks[sector], axes_b, free_b) for sector in used_b}
    results = batched_matmul_sum(
        {sector: matrix for sector, (matrix, _) in left.items()},
        {sector: matrix for sector, (matrix, _) in right.items()},
        segments=segments,
        transpose_a={sector: transposed for sector, (_, transposed) in left.items()},
        transpose_b={sector: transposed for sector, (_, transposed) in right.items()},
        **options,
    )
    shaped = {}
    for sector, (first, *_) in segments.items():
        shape_a, shape_b = a.blocks[first[0]].shape, b.blocks[first[1]].shape
        shape = (*(shape_a[axis] for axis in free_a), *(shape_b[axis] for axis in free_b))
        shaped[sector] = results[sector].reshape(shape)
    return shaped


def pair_blocks(a: Blocks, b: Blocks, split_a: tuple[Axes, Axes], split_b: tuple[Axes, Axes]) -> Segments:
    """The terms of each block of the result: pairs of blocks with equal contracted charges, in the order of a's
    sectors."""
    (free_a, axes_a), (free_b, axes_b) = split_a, split_b
    meeting = defaultdict(list)
    for sector in b.blocks:
        meeting[_charges(sector, axes_b)].append(sector)
    segments = defaultdict(list)
    for sector in a.blocks:
        for other in meeting.get(_charges(sector, axes_a), ()):
            segments[_charges(sector, free_a) + _charges(other, free_b)].append((sector, other))
    return {sector: segments[sector] for sector in sorted(segments)}


def _charges(sector: Sector, axes: Axes) -> Sector:
    return tuple(sector[axis] for axis in axes)


def _in_memory(shape: tuple[int, ...], order: Axes) -> bool:
    """Whether this order of a row-major array's axes is that in memory; axes of size 1 don't count."""
    long = [axis for axis in order if shape[axis] != 1]
    return long == sorted(long)


def _elements_copied(x: Blocks, sectors: Iterable[Sector], rows: Axes, columns: Axes) -> int:
    """The number of elements of the blocks that have to be copied: those that in place are neither a matrix of these
    rows and columns nor its transpose."""
    shapes = [x.blocks[sector].shape for sector in sectors]
    in_place = (_in_memory(shape, rows + columns) or _in_memory(shape, columns + rows) for shape in shapes)
    return sum(0 if found else math.prod(shape) for found, shape in zip(in_place, shapes, strict=True))


def _matrix(block: jax.Array, rows: Axes, columns: Axes) -> tuple[jax.Array, bool]:
    """The block as a matrix, and whether this is the transpose of the wanted matrix; a copy where neither is in
    place."""
    shape = block.shape
    m, n = (math.prod(shape[axis] for axis in axes) for axes in (rows, columns))
    if _in_memory(shape, rows + columns):
        return block.reshape(m, n), False
    if _in_memory(shape, columns + rows):
        return block.reshape(n, m), True
    return block.transpose(rows + columns).reshape(m, n), False
