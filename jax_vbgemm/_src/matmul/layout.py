"""Layouts: where the elements of an array lie in a flat buffer.

A dimension is a tuple of levels (size, stride), outermost first, as in CuTe. It needs several levels where no single
stride leads from one index to the next: the rows of irreps data stored as (node, mul, 2l + 1) are pairs (node,
component). Sizes and strides are in elements and known at trace time.

Under jax.export sizes may be symbolic, for programs without kernels. If an answer depends on their values, a layout
counts as no box, as not injective, and as overlapping another one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.util import compat

Shape = tuple[int, ...]
Level = tuple[int, int]
"""(size, stride)."""
Levels = tuple[Level, ...]


class Layout(NamedTuple):
    """Maps element (i, j, ...) to the buffer position offset + sum(digit * stride) over the levels of all dimensions.

    The digits of an index are its coordinates in the levels of its dimension.
    """

    dimensions: tuple[Levels, ...]
    offset: int = 0

    @classmethod
    def row_major(cls, shape: Shape) -> Layout:
        """The layout of an array without gaps."""
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return cls(tuple(((size, stride),) for size, stride in zip(shape, strides, strict=True)))

    @property
    def is_static(self) -> bool:
        """Whether no size, stride or offset is symbolic."""
        return compat.is_static((self.offset, *(number for level in self.levels for number in level)))

    @property
    def shape(self) -> Shape:
        return tuple(math.prod(size for size, _ in levels) for levels in self.dimensions)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def levels(self) -> list[Level]:
        """The levels of all dimensions that are longer than 1, outermost first."""
        return [level for levels in self.dimensions for level in levels if level[0] != 1]

    @property
    def end(self) -> int:
        """One past the largest buffer position of an element."""
        return self.offset + 1 + sum((size - 1) * stride for size, stride in self.levels) if self.size else 0

    def is_same(self, other: Layout) -> bool:
        """Whether both layouts have the same shape and put each element at the same position."""
        runs = [merge((size, (stride,)) for size, stride in x.levels) for x in (self, other)]
        return self.shape == other.shape and self.offset == other.offset and runs[0] == runs[1]

    def is_dense(self, elements: int) -> bool:
        """Whether the layout is a whole buffer of this many elements in row-major order."""
        runs = merge((size, (stride,)) for size, stride in self.levels)
        if self.offset != 0 or self.size != elements:
            return False
        return runs == [(elements, (1,))] or compat.certainly(lambda: elements < 2)

    def is_injective(self) -> bool:
        """Whether no two elements lie at the same position."""
        return compat.certainly(self._is_injective)

    def _is_injective(self) -> bool:
        reach = 0
        for size, stride in sorted(self.levels, key=lambda level: level[1]):
            if stride <= reach:
                return self.size == 0 or (
                    self.is_static and bool(np.bincount(self.positions().reshape(-1) - self.offset).max() == 1)
                )
            reach += (size - 1) * stride
        return True

    def positions(self) -> NDArray[np.int64]:
        """The position of each element, as an array with one dimension for each level."""
        index = np.full((), self.offset, np.int64)
        for size, stride in self.levels:
            index = np.add.outer(index, np.arange(size, dtype=np.int64) * stride)
        return index

    def transpose(self, axes: Sequence[int]) -> Layout:
        return Layout(tuple(self.dimensions[axis] for axis in axes), self.offset)

    def batched(self, size: int, stride: int) -> Layout:
        """The layout with one more dimension in front."""
        return Layout((((size, stride),), *self.dimensions), self.offset)

    def reshape(self, shape: Sequence[int]) -> Layout:
        """The same elements in the same order in another shape; ValueError if a level cannot be divided as the shape
        needs."""
        if math.prod(shape) != self.size:
            raise ValueError(f"{self.shape} does not have the elements of {tuple(shape)}")
        if self.size == 0:
            return Layout.row_major(tuple(shape))
        rest = self.levels
        dimensions: list[Levels] = []
        for wanted in reversed(shape):
            taken: list[Level] = []
            while wanted != 1:
                size, stride = rest.pop()
                part = wanted if size % wanted == 0 else size
                if wanted % part != 0:
                    raise ValueError(f"{self.shape} with {self.levels} cannot be seen as {tuple(shape)}")
                taken.append((part, stride))
                if size != part:
                    rest.append((size // part, stride * part))
                wanted //= part
            dimensions.append(tuple(reversed(taken)) or ((1, 0),))
        return Layout(tuple(reversed(dimensions)), self.offset)

    def take(self, buffer: jax.Array) -> jax.Array:
        """The elements of the buffer as an array of the layout's shape."""
        if self.is_dense(buffer.size):
            return buffer.reshape(self.shape)
        flat = buffer.reshape(-1)
        box = _box(self, buffer.size)
        if box is None:
            return flat[_indices(self, buffer.size)]
        values = jax.lax.slice(_cut(flat, box), box.starts, [a + n for a, n in zip(box.starts, box.sizes, strict=True)])
        return values.reshape(box.sizes[: len(box.order)]).transpose(_inverse(box.order)).reshape(self.shape)

    def put(self, buffer: jax.Array, values: jax.Array, *, apart: bool = False) -> jax.Array:
        """The buffer with these values at the elements' positions.

        `apart`: the values were computed from positions of this buffer that the update overwrites, and the update is a
        scatter. If a program uses a buffer in two shapes, XLA's CPU compiler (jaxlib 0.10 to 0.12) fuses the product
        with an update in place and reads elements that it has just written; it does not fuse scatters.
        """
        if self.size == 0:
            return buffer
        if self.is_dense(buffer.size):
            return values.reshape(buffer.shape)
        flat = buffer.reshape(-1)
        box = None if apart else _box(self, buffer.size)
        if box is None:
            return flat.at[_indices(self, buffer.size)].set(values, unique_indices=True).reshape(buffer.shape)
        sorted_values = values.reshape([size for size, _ in self.levels]).transpose(box.order).reshape(box.sizes)
        part = jax.lax.dynamic_update_slice(_cut(flat, box), sorted_values, box.starts).reshape(-1)
        if part.size != flat.size:
            part = jax.lax.dynamic_update_slice(flat, part, (box.begin,))
        return part.reshape(buffer.shape)

    def add(self, buffer: jax.Array, values: jax.Array) -> jax.Array:
        """The buffer with these values added at the elements' positions; several elements may lie at one position."""
        if self.is_injective():
            return self.put(buffer, self.take(buffer) + values)
        return buffer.reshape(-1).at[_indices(self, buffer.size)].add(values).reshape(buffer.shape)


Refined = list[tuple[int, tuple[int, ...]]]
"""Levels that several layouts share: (size, the stride of each), outermost first."""


def merge(levels: Any) -> Refined:
    """Merges neighbouring levels wherever one stride leads through both levels in every layout."""
    merged: Refined = []
    for size, strides in levels:
        if size == 1:
            continue
        if merged and all(outer == size * inner for outer, inner in zip(merged[-1][1], strides, strict=True)):
            size *= merged.pop()[0]
        merged.append((size, tuple(strides)))
    return merged


def refine(dimensions: Sequence[Levels]) -> Refined | None:
    """Several layouts' dimensions of one length as the fewest common levels; None if there are no common levels."""
    if all(len(levels) == 1 for levels in dimensions):
        size = dimensions[0][0][0]
        return [] if size == 1 else [(size, tuple(levels[0][1] for levels in dimensions))]
    if any(size == 0 for levels in dimensions for size, _ in levels):
        return [(0, (1,) * len(dimensions))]
    rest = [[level for level in levels if level[0] != 1] for levels in dimensions]
    found: Refined = []
    while any(rest):
        part = min(levels[-1][0] for levels in rest)
        if any(levels[-1][0] % part for levels in rest):
            return None
        found.append((part, tuple(levels[-1][1] for levels in rest)))
        for levels in rest:
            size, stride = levels.pop()
            if size > part:
                levels.append((size // part, stride * part))
    return merge(reversed(found))


def _indices(layout: Layout, elements: int) -> jax.Array:
    """The position of each element in a buffer of `elements`, computed by the program instead of stored as a
    constant."""
    sizes = [size for size, _ in layout.levels]
    dtype: Any = np.int32 if compat.certainly(lambda: elements < 2**31) else np.int64
    if not compat.is_static((elements,)):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise NotImplementedError(
            f"jax_vbgemm: without a kernel, this view of a buffer of {elements} elements needs 64-bit indices: set "
            "jax_enable_x64"
        )
    index = jnp.full(sizes, jnp.asarray(layout.offset, dtype))
    for axis, (_, stride) in enumerate(layout.levels):
        index += jax.lax.broadcasted_iota(dtype, sizes, axis) * jnp.asarray(stride, dtype)
    return index.reshape(layout.shape)


class _Box(NamedTuple):
    """A layout as a box of a multi-dimensional array.

    The array is a contiguous part of the buffer in the shape that the strides give, so that taking the box is a slice.
    """

    begin: int  # where the part of the buffer begins
    array: Shape
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]  # the level of each axis of the box


def _box(layout: Layout, elements: int) -> _Box | None:
    """The layout as a box; None if it is not one, or may not be one."""
    try:
        return _sure_box(layout, elements)
    except compat.InconclusiveSizes:
        return None


@functools.lru_cache(maxsize=1024)
def _sure_box(layout: Layout, elements: int) -> _Box | None:
    levels = layout.levels
    order = tuple(sorted(range(len(levels)), key=lambda index: -levels[index][1]))
    sizes, strides = [levels[i][0] for i in order], [levels[i][1] for i in order]
    if not levels or 0 in strides or layout.size == 0:
        return None
    tries = [(0, elements, layout.offset)]
    if layout.offset + sizes[0] * strides[0] <= elements:
        tries.append((layout.offset, sizes[0] * strides[0], 0))
    for begin, count, offset in tries:
        bounds = [count, *strides, 1]
        if any(outer % inner for outer, inner in itertools.pairwise(bounds)):
            continue
        array = [outer // inner for outer, inner in itertools.pairwise(bounds)]
        starts = []
        for stride in bounds[1:]:
            digit, offset = divmod(offset, stride)
            starts.append(digit)
        if all(first + size <= full for first, size, full in zip(starts, [*sizes, 1], array, strict=True)):
            return _Box(begin, tuple(array), tuple(starts), (*sizes, 1), order)
    return None


def _cut(flat: jax.Array, box: _Box) -> jax.Array:
    count = math.prod(box.array)
    part = flat if count == flat.size else jax.lax.slice(flat, (box.begin,), (box.begin + count,))
    return part.reshape(box.array)


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
