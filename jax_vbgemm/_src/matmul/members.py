"""The static part of a RaggedArray: which arrays its buffer holds, and where."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm import _core
from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.view import View

ROW_BYTES: int = _core.VECTOR_LOAD_BYTES
"""Alignment of rows in bytes: the size of a kernel's vector load."""


@dataclass(frozen=True, eq=False)
class Members:
    """The static part of a RaggedArray: a tree, the shapes of its leaves, and the number of elements to whose multiples
    rows are padded.

    It is part of the key by which jit looks up a program at every call. As it may hold hundreds of shapes, its hash is
    computed once.
    """

    structure: Any
    shapes: tuple[Shape, ...]
    multiple: int

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.structure, self.shapes, self.multiple))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Members) and self.multiple == other.multiple and self.has_shapes_of(other)

    def has_shapes_of(self, other: Members) -> bool:
        """Whether both have the same tree of shapes; the padding of rows may differ."""
        return self.shapes == other.shapes and bool(self.structure == other.structure)

    @functools.cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout of each member in the buffer."""
        layouts, offset = [], 0
        for shape in self.shapes:
            pitch = pitch_of(shape, self.multiple)
            dimensions = [((shape[-1], 1),)] if shape else []
            stride = pitch
            for size in reversed(shape[:-1]):
                dimensions.insert(0, ((size, stride),))
                stride *= size
            layouts.append(Layout(tuple(dimensions), offset))
            offset += rows_of(shape) * pitch
        return tuple(layouts)

    @functools.cached_property
    def elements(self) -> int:
        """The number of elements of the buffer, padding included."""
        return sum(rows_of(shape) * pitch_of(shape, self.multiple) for shape in self.shapes)

    @functools.cached_property
    def _padded_pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """The last 16 bytes of each row that has padding: their index in the buffer, and how many of their elements
        belong to the row."""
        numbers, counts = [], []
        for shape, layout in zip(self.shapes, self.layouts, strict=True):
            pitch, length = pitch_of(shape, self.multiple), shape[-1] if shape else 1
            if pitch != length:
                ends = layout.offset + pitch * (1 + np.arange(rows_of(shape)))
                numbers.append(ends // self.multiple - 1)
                counts.append(np.full(len(ends), length % self.multiple, np.uint8))
        if not numbers:
            return np.zeros(0, np.int32), np.zeros(0, np.uint8)
        return np.concatenate(numbers).astype(np.int32), np.concatenate(counts)

    def views(self, buffer: Any) -> list[View]:
        """The members as views of the buffer."""
        return [View.tree_unflatten((layout, self.elements), (buffer,)) for layout in self.layouts]

    def span(self, index: int) -> tuple[int, int]:
        """Where member number `index` begins in the buffer, and how many elements it takes, padding included."""
        return self.layouts[index].offset, rows_of(self.shapes[index]) * pitch_of(self.shapes[index], self.multiple)

    def mask(self) -> jax.Array | None:
        """A mask of the buffer's elements that belong to members, or None if there is no padding."""
        pieces, counts = self._padded_pieces
        if not len(pieces):
            return None
        # The program holds five bytes for each padded row. To compute where rows end from a few numbers for each member
        # would take sums along the buffer, which XLA evaluates while it compiles: 50 s for 3.3 million elements.
        used = jnp.full(self.elements // self.multiple, self.multiple, jnp.uint8)
        used = used.at[jnp.asarray(pieces)].set(jnp.asarray(counts), indices_are_sorted=True, unique_indices=True)
        return (jnp.arange(self.multiple, dtype=jnp.uint8)[None] < used[:, None]).reshape(-1)


def members_of(structure: Any, shapes: Sequence[Shape], dtype: Any) -> Members:
    return Members(structure, tuple(shapes), row_multiple(dtype))


def row_multiple(dtype: Any) -> int:
    """The number of elements in ROW_BYTES, at least 1."""
    return max(1, ROW_BYTES // int(np.dtype(dtype).itemsize))


def rows_of(shape: Shape) -> int:
    return math.prod(shape[:-1])


def pitch_of(shape: Shape, multiple: int) -> int:
    """The distance from one row to the next, in elements."""
    length = shape[-1] if shape else 1
    return -(-length // multiple) * multiple
