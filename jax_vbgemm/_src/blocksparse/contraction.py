"""A block-sparse contraction: blocks become matrices, and pairs of blocks become terms of sums."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.blocksparse.axes import Axes, contracted_axes, free_axes
from jax_vbgemm._src.blocksparse.blocks import NAME, Blocks, Sector
from jax_vbgemm._src.matmul.api import batched_matmul_sum

Segments = dict[Sector, list[tuple[Sector, Sector]]]


class Form(NamedTuple):
    """How a block becomes a matrix: transposed to `order` unless that is None, and then reshaped.

    shape: of the wanted matrix. transposed: whether the block holds the transpose of it.
    """

    order: Axes | None
    shape: tuple[int, int]
    transposed: bool

    def __call__(self, block: jax.Array) -> jax.Array:
        block = block if self.order is None else block.transpose(self.order)
        return block.reshape(self.shape[::-1] if self.transposed else self.shape)


class Contraction:
    """The products of a contraction, by the shapes of the blocks.

    segments: the pairs of sectors whose products add up to each block of the result. left, right: the forms of the
    blocks that are used. axes_a, axes_b: the contracted axes, in the order in which they are merged.
    """

    def __init__(self, a: Blocks, b: Blocks, axes: Any) -> None:
        self.segments: Segments = {}
        self.left: dict[Sector, Form] = {}
        self.right: dict[Sector, Form] = {}
        self.dtypes = a.dtype, b.dtype
        if a.ndim is None or b.ndim is None:
            return
        axes_a, axes_b = contracted_axes(axes, a.ndim, b.ndim)
        a.check_contracted(axes_a, b, axes_b)
        try:
            jnp.result_type(a.dtype, b.dtype)
        except ValueError as error:  # under strict promotion the dtypes differ
            raise ValueError(f"{NAME}: a is {a.dtype} but b is {b.dtype}: {error}") from None
        self.free_a, self.free_b = free_a, free_b = free_axes(axes_a, a.ndim), free_axes(axes_b, b.ndim)
        self.segments = pair_blocks(a, b, (free_a, axes_a), (free_b, axes_b))
        used_a, used_b = used(self.segments.values())

        # The contracted axes are merged to one axis, in any order that both tensors share. A tensor's blocks can be
        # read in place only in its own order of axes, so that the orders of a and of b are the only ones to try.
        def copied(order: tuple[Axes, Axes]) -> int:
            return _elements_copied(a, used_a, free_a, order[0]) + _elements_copied(b, used_b, free_b, order[1])

        pairs = list(zip(axes_a, axes_b, strict=True))
        orders = [sorted(pairs, key=lambda pair: pair[side]) for side in (0, 1)]
        merged = ((tuple(x for x, _ in order), tuple(y for _, y in order)) for order in orders)
        self.axes_a, self.axes_b = min(merged, key=copied)
        self.left = {sector: _form(a.blocks[sector].shape, free_a, self.axes_a) for sector in used_a}
        self.right = {sector: _form(b.blocks[sector].shape, self.axes_b, free_b) for sector in used_b}

    def results(self, a: Blocks, b: Blocks, by_xla: Collection[Sector], **options: Any) -> dict[Sector, jax.Array]:
        """The result's blocks, for each sector to which at least one pair of blocks contributes; XLA computes those of
        the sectors `by_xla` by dots."""
        left = {sector: form(a.blocks[sector]) for sector, form in self.left.items()}
        right = {sector: form(b.blocks[sector]) for sector, form in self.right.items()}
        found: dict[Sector, jax.Array] = {}

        def add(segments: Segments, **options: Any) -> None:
            used_a, used_b = used(segments.values())
            found.update(
                batched_matmul_sum(
                    {sector: left[sector] for sector in used_a},
                    {sector: right[sector] for sector in used_b},
                    segments=segments,
                    transpose_a={sector: self.left[sector].transposed for sector in used_a},
                    transpose_b={sector: self.right[sector].transposed for sector in used_b},
                    **options,
                )
            )

        in_call = {sector: pairs for sector, pairs in self.segments.items() if sector not in by_xla}
        of_xla = {sector: pairs for sector, pairs in self.segments.items() if sector in by_xla}
        if in_call:
            add(in_call, **options)
        if of_xla:
            add(of_xla, **(options | {"implementation": "xla"}))
        shaped = {}
        for sector, (first, *_) in self.segments.items():
            shape_a, shape_b = a.blocks[first[0]].shape, b.blocks[first[1]].shape
            shape = (*(shape_a[axis] for axis in self.free_a), *(shape_b[axis] for axis in self.free_b))
            shaped[sector] = found[sector].reshape(shape)
        return shaped


def used(segments: Iterable[Iterable[tuple[Sector, Sector]]]) -> tuple[dict[Sector, None], dict[Sector, None]]:
    """The sectors of a and of b in these pairs, in their order."""
    pairs = [pair for each in segments for pair in each]
    return dict.fromkeys(sector for sector, _ in pairs), dict.fromkeys(sector for _, sector in pairs)


def pair_blocks(a: Blocks, b: Blocks, split_a: tuple[Axes, Axes], split_b: tuple[Axes, Axes]) -> Segments:
    """The terms of each block of the result: pairs of blocks with equal contracted charges, in the order of a's
    sectors."""
    (free_a, axes_a), (free_b, axes_b) = split_a, split_b
    meeting = defaultdict(list)
    for sector in b.blocks:
        meeting[charges(sector, axes_b)].append(sector)
    segments = defaultdict(list)
    for sector in a.blocks:
        for other in meeting.get(charges(sector, axes_a), ()):
            segments[charges(sector, free_a) + charges(other, free_b)].append((sector, other))
    return {sector: segments[sector] for sector in sorted(segments)}


def charges(sector: Sector, axes: Axes) -> Sector:
    """The charges of these axes."""
    return tuple(sector[axis] for axis in axes)


def _in_memory(shape: tuple[int, ...], order: Axes) -> bool:
    """Whether this order of a row-major array's axes is that in memory; axes of size 1 don't count."""
    long = [axis for axis in order if shape[axis] != 1]
    return long == sorted(long)


def _elements_copied(x: Blocks, sectors: Iterable[Sector], rows: Axes, columns: Axes) -> int:
    """The number of elements of the blocks that have to be copied: those that in place are neither a matrix of these
    rows and columns nor its transpose."""
    forms: Mapping[Sector, Form] = {sector: _form(x.blocks[sector].shape, rows, columns) for sector in sectors}
    return sum(0 if form.order is None else math.prod(form.shape) for form in forms.values())


def _form(shape: tuple[int, ...], rows: Axes, columns: Axes) -> Form:
    """The form of a block as a matrix of these rows and columns; a copy where neither it nor its transpose is in
    place."""
    m, n = (math.prod(shape[axis] for axis in axes) for axes in (rows, columns))
    if _in_memory(shape, rows + columns):
        return Form(None, (m, n), False)
    if _in_memory(shape, columns + rows):
        return Form(None, (m, n), True)
    return Form(rows + columns, (m, n), False)
