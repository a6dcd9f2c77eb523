"""A block-sparse contraction: blocks become matrices, and pairs of blocks become terms of sums."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.blocksparse.axes import Axes, free_axes
from jax_vbgemm._src.blocksparse.block_array import Block, Structure, inverse, structure_of
from jax_vbgemm._src.blocksparse.blocks import Blocks, Sector
from jax_vbgemm._src.blocksparse.rearrangement import Rearrangement
from jax_vbgemm._src.matmul.api import batched_matmul_sum
from jax_vbgemm._src.matmul.layout import Layout, Levels, Shape, merge
from jax_vbgemm._src.matmul.view import Operand, View
from jax_vbgemm._src.util.distinct import distinct

Segments = dict[Sector, list[tuple[Sector, Sector]]]


class Form(NamedTuple):
    """How a block becomes a matrix of the axes `rows` and `columns`: a view is reshaped in place; an array is
    transposed to `order`, unless that is None, and reshaped.

    shape: of the wanted matrix. transposed: whether the block holds the transpose of it.
    """

    order: Axes | None
    shape: tuple[int, int]
    transposed: bool
    rows: Axes
    columns: Axes

    def __call__(self, block: Operand) -> Operand:
        if isinstance(block, View):
            dimensions = _levels(block.layout, self.rows), _levels(block.layout, self.columns)
            return View.with_layout(block.buffer, Layout(dimensions, block.layout.offset))
        block = block if self.order is None else block.transpose(self.order)
        return block.reshape(self.shape[::-1] if self.transposed else self.shape)


class Contraction:
    """The products of a contraction, by the shapes of the blocks.

    segments: the pairs of sectors whose products add up to each block of the result. left, right: the forms of the
    blocks that are used. passed: the number of the array or buffer that each of these blocks is passed in, for a and b.
    axes_a, axes_b: the contracted axes, in the order in which they are merged. free_a, free_b: the free axes. rows,
    columns: the free axes in the order in which they are merged, which is the order in memory. moved: for a and b, the
    structure of a copy of the tensor whose blocks are matrices; None if its blocks are read in place.
    """

    def __init__(self, a: Blocks, b: Blocks, axes: tuple[Axes, Axes], *, packed: bool = False) -> None:
        self.segments: Segments = {}
        self.left: dict[Sector, Form] = {}
        self.right: dict[Sector, Form] = {}
        self.dtypes, self.packed = (a.dtype, b.dtype), packed
        self.moved: tuple[Structure | None, Structure | None] = None, None
        self.axes_a, self.axes_b = axes
        self.free_a: Axes = ()
        self.free_b: Axes = ()
        self.rows: Axes = ()
        self.columns: Axes = ()
        if a.ndim is None or b.ndim is None:
            return
        a.check_contracted(self.axes_a, b, self.axes_b)
        try:
            jnp.result_type(a.dtype, b.dtype)
        except ValueError as error:  # under strict promotion the dtypes differ
            raise ValueError(f"{a.function}: a is {a.dtype} but b is {b.dtype}: {error}") from None
        self.free_a, self.free_b = free_axes(self.axes_a, a.ndim), free_axes(self.axes_b, b.ndim)
        memory_a, memory_b = a.memory, b.memory
        self.rows = tuple(axis for axis in memory_a if axis in self.free_a)
        self.columns = tuple(axis for axis in memory_b if axis in self.free_b)
        self.segments = pair_blocks(a, b, (self.free_a, self.axes_a), (self.free_b, self.axes_b))
        used_a, used_b = used(self.segments.values())

        # The contracted axes are merged to one axis, in any order that both tensors share. A tensor's blocks can be
        # read in place as matrices only in their own order of axes, so that the orders of a and of b are the only ones
        # to try.
        def copied(order: tuple[Axes, Axes]) -> int:
            copied_a = _strided_elements(a, used_a, self.rows, order[0], contracted=order[0])
            return copied_a + _strided_elements(b, used_b, order[1], self.columns, contracted=order[1])

        pairs = list(zip(self.axes_a, self.axes_b, strict=True))
        orders = [
            sorted(pairs, key=lambda pair: memory_a.index(pair[0])),
            sorted(pairs, key=lambda pair: memory_b.index(pair[1])),
        ]
        merged = ((tuple(x for x, _ in order), tuple(y for _, y in order)) for order in orders)
        self.axes_a, self.axes_b = min(merged, key=copied)
        self.left = {sector: _form(a.blocks[sector], self.rows, self.axes_a) for sector in used_a}
        self.right = {sector: _form(b.blocks[sector], self.axes_b, self.columns) for sector in used_b}
        arrays = [_array(a.blocks[sector]) for sector in used_a] + [_array(b.blocks[sector]) for sector in used_b]
        numbers = iter(distinct(arrays)[1])
        self.passed = tuple({sector: next(numbers) for sector in sectors} for sectors in (used_a, used_b))
        self.moved = (
            _moved(a, used_a, (*self.rows, *self.axes_a), contracted=self.axes_a),
            _moved(b, used_b, (*self.axes_b, *self.columns), contracted=self.axes_b),
        )

    def results(
        self, a: Blocks, b: Blocks, by_xla: Collection[Sector], preferred_element_type: Any = None, **options: Any
    ) -> dict[Sector, Operand]:
        """The result's blocks, for each sector to which at least one pair of blocks contributes; XLA computes those of
        the sectors `by_xla` by dots. The other ones are windows of one buffer if the contraction is `packed`."""
        left, right = (
            {
                sector: form(block)
                for (sector, form), block in zip(forms.items(), _in_place(x, forms, moved), strict=True)
            }
            for x, forms, moved in zip((a, b), (self.left, self.right), self.moved, strict=True)
        )
        options["preferred_element_type"] = preferred_element_type

        def products(segments: Segments, into: Any = None, **options: Any) -> dict[Sector, Any]:
            used_a, used_b = used(segments.values())
            found: dict[Sector, Any] = batched_matmul_sum(
                {sector: left[sector] for sector in used_a},
                {sector: right[sector] for sector in used_b},
                segments=segments,
                transpose_a={sector: self.left[sector].transposed for sector in used_a},
                transpose_b={sector: self.right[sector].transposed for sector in used_b},
                into=into,
                **options,
            )
            return found

        shapes = {sector: self._shape(a, b, pairs[0]) for sector, pairs in self.segments.items()}
        in_call = {sector: pairs for sector, pairs in self.segments.items() if sector not in by_xla}
        dot_segments = {sector: pairs for sector, pairs in self.segments.items() if sector in by_xla}
        blocks: dict[Sector, Operand] = {}
        if in_call and self.packed:
            dtype = jnp.dtype(preferred_element_type or jnp.result_type(*self.dtypes))
            structure = self.structure({sector: shapes[sector] for sector in in_call}, dtype)
            buffer = jnp.zeros(structure.elements, dtype)  # overwritten by the results: not read
            windows = {
                sector: View.with_layout(buffer, self._matrix(layout)) for sector, layout in structure.layout_of.items()
            }
            written = products(in_call, windows, **options)
            for sector, layout in structure.layout_of.items():
                blocks[sector] = Block.with_layout(written[sector].buffer, layout)
        elif in_call:
            blocks = self._in_shape(products(in_call, **options), shapes)
        if dot_segments:
            blocks |= self._in_shape(products(dot_segments, **(options | {"implementation": "xla"})), shapes)
        return {sector: blocks[sector] for sector in self.segments}

    def structure(self, shapes: dict[Sector, Shape], dtype: Any) -> Structure:
        """The result's structure in one buffer. In memory each block is the product of the two matrices, whose rows and
        columns have the axes in the order of the factors."""
        return structure_of(shapes, dtype, self._merged)

    @property
    def _merged(self) -> Axes:
        """The result's axes in the order of a product: first `rows`, then `columns`."""
        places = {axis: place for place, axis in enumerate(self.free_a)}
        others = {axis: len(places) + place for place, axis in enumerate(self.free_b)}
        return (*(places[axis] for axis in self.rows), *(others[axis] for axis in self.columns))

    def _matrix(self, layout: Layout) -> Layout:
        """A block of the result as a matrix of rows and columns."""
        rows, columns = self._merged[: len(self.rows)], self._merged[len(self.rows) :]
        return Layout((_levels(layout, rows), _levels(layout, columns)), layout.offset)

    def _in_shape(self, found: dict[Sector, jax.Array], shapes: dict[Sector, Shape]) -> dict[Sector, Operand]:
        """Products as blocks of the result."""
        order = self._merged
        is_sorted = order == tuple(range(len(order)))
        blocks: dict[Sector, Operand] = {}
        for sector, product in found.items():
            block = product.reshape([shapes[sector][axis] for axis in order])
            blocks[sector] = block if is_sorted else block.transpose(inverse(order))
        return blocks

    def _shape(self, a: Blocks, b: Blocks, pair: tuple[Sector, Sector]) -> Shape:
        shape_a, shape_b = a.blocks[pair[0]].shape, b.blocks[pair[1]].shape
        return (*(shape_a[axis] for axis in self.free_a), *(shape_b[axis] for axis in self.free_b))


def used(segments: Iterable[Iterable[tuple[Sector, Sector]]]) -> tuple[dict[Sector, None], dict[Sector, None]]:
    """The sectors of a and of b in these pairs, in their order."""
    pairs = [pair for each in segments for pair in each]
    return dict.fromkeys(sector for sector, _ in pairs), dict.fromkeys(sector for _, sector in pairs)


def pair_blocks(a: Blocks, b: Blocks, split_a: tuple[Axes, Axes], split_b: tuple[Axes, Axes]) -> Segments:
    """The terms of each block of the result: pairs of blocks with equal contracted charges, in the order of a's
    sectors."""
    (free_a, axes_a), (free_b, axes_b) = split_a, split_b
    pairs_by_sector = defaultdict(list)
    for sector in b.blocks:
        pairs_by_sector[charges(sector, axes_b)].append(sector)
    segments = defaultdict(list)
    for sector in a.blocks:
        for other in pairs_by_sector.get(charges(sector, axes_a), ()):
            segments[charges(sector, free_a) + charges(other, free_b)].append((sector, other))
    return {sector: segments[sector] for sector in sorted(segments)}


def charges(sector: Sector, axes: Axes) -> Sector:
    """The charges of these axes."""
    return tuple(sector[axis] for axis in axes)


def _array(block: Operand) -> Any:
    return block.buffer if isinstance(block, View) else block


def _levels(layout: Layout, axes: Axes) -> Levels:
    """The levels of one dimension that joins these axes."""
    return tuple(level for axis in axes for level in layout.dimensions[axis]) or ((1, 1),)


def _in_memory(shape: tuple[int, ...], order: Axes) -> bool:
    """Whether this order of a row-major array's axes is that in memory; axes of size 1 don't count."""
    long = [axis for axis in order if shape[axis] != 1]
    return long == sorted(long)


def _strided_elements(x: Blocks, sectors: Iterable[Sector], rows: Axes, columns: Axes, *, contracted: Axes) -> int:
    """The number of elements of arrays that must be copied, because in place they are neither a matrix of these rows
    and columns nor its transpose, and of views whose contracted axes do not share one stride, which turns each product
    into several."""
    strided = 0
    for sector in sectors:
        block = x.blocks[sector]
        if isinstance(block, View):
            strided += block.size if _needs_several_strides(block, contracted) else 0
        else:
            form = _form(block, rows, columns)
            strided += 0 if form.order is None else math.prod(form.shape)
    return strided


def _needs_several_strides(view: View, axes: Axes) -> bool:
    """Whether the elements of these axes do not lie at multiples of one stride."""
    return len(merge((size, (stride,)) for size, stride in _levels(view.layout, axes))) > 1


def _moved(x: Blocks, sectors: Collection[Sector], order: Axes, *, contracted: Axes) -> Structure | None:
    """The structure of a copy with the axes in this order in memory; None if it is better to read blocks in place.

    A product of views whose contracted axes do not share one stride becomes several products, each with a part of K. If
    these views have most of the elements, one copy of all blocks takes less time: on a CPU, 100 us in place of 700 for
    85 blocks of 32,000 numbers. A copy of views of different buffers would be several operations.
    """
    blocks = [x.blocks[sector] for sector in sectors]
    views = [block for block in blocks if isinstance(block, View)]
    strided = sum(view.size for view in views if _needs_several_strides(view, contracted))
    if len(views) < len(blocks) or len(distinct([view.buffer for view in views])[0]) != 1:
        return None
    if 2 * strided <= sum(view.size for view in views):
        return None
    return structure_of({sector: x.blocks[sector].shape for sector in sectors}, x.dtype, order)


def _in_place(x: Blocks, sectors: Iterable[Sector], moved: Structure | None) -> list[Operand]:
    """The blocks of these sectors, as they are or in a copy with the structure `moved`."""
    blocks = [x.blocks[sector] for sector in sectors]
    if moved is None:
        return blocks
    views = [block for sector in moved.sectors if isinstance(block := x.blocks[sector], View)]
    buffer = views[0].buffer
    copy = Rearrangement(tuple(view.layout for view in views), buffer.size, moved.layouts, moved.elements)
    flat = copy(buffer.reshape(-1))
    return [View.with_layout(flat, moved.layout_of[sector]) for sector in sectors]


def _form(block: Operand, rows: Axes, columns: Axes) -> Form:
    """The form of a block as a matrix of these rows and columns: of an array a copy where neither the matrix nor its
    transpose is in place."""
    shape = block.shape
    m, n = (math.prod(shape[axis] for axis in axes) for axes in (rows, columns))
    if isinstance(block, View) or _in_memory(shape, rows + columns):
        return Form(None, (m, n), False, rows, columns)
    if _in_memory(shape, columns + rows):
        return Form(None, (m, n), True, rows, columns)
    return Form(rows + columns, (m, n), False, rows, columns)
