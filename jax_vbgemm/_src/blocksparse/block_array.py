"""BlockArray: a block-sparse tensor whose blocks are windows of one buffer."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.blocksparse.axes import Axes
from jax_vbgemm._src.blocksparse.blocks import Blocks, Sector, is_block_array
from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.members import row_multiple
from jax_vbgemm._src.matmul.view import View, dense
from jax_vbgemm._src.util.shown import shown


@dataclass(frozen=True, eq=False)
class Structure:
    """The static part of a BlockArray: its sectors in ascending order, and where the block of each sector lies.

    The windows cover the buffer: there is no padding. Each window is a row-major array of the block's axes in the order
    `memory`, so that a block is a permutation of a contiguous window.
    """

    sectors: tuple[Sector, ...]
    layouts: tuple[Layout, ...]

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.sectors, self.layouts))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Structure) and self.sectors == other.sectors and self.layouts == other.layouts
        )

    @functools.cached_property
    def layout_of(self) -> dict[Sector, Layout]:
        return dict(zip(self.sectors, self.layouts, strict=True))

    @functools.cached_property
    def elements(self) -> int:
        """The number of elements of the buffer."""
        return sum(layout.size for layout in self.layouts)

    @functools.cached_property
    def in_buffer(self) -> tuple[int, ...]:
        """The blocks' indices in the order of the buffer."""
        return tuple(sorted(range(len(self.layouts)), key=lambda number: self.layouts[number].offset))

    def transpose(self, axes: Axes) -> Structure:
        """The structure of the tensor with its axes in this order, for the same buffer."""
        moved = sorted(
            (tuple(sector[axis] for axis in axes), layout.transpose(axes))
            for sector, layout in zip(self.sectors, self.layouts, strict=True)
        )
        return Structure(tuple(sector for sector, _ in moved), tuple(layout for _, layout in moved))


def structure_of(shapes: Mapping[Sector, Shape], dtype: Any, memory: Axes | None = None) -> Structure:
    """The structure of blocks of these shapes, each with its axes in the order `memory` (None: as they are).

    Blocks whose size in bytes is a multiple of a vector load come first, so that every block is as aligned as its size
    allows without padding.
    """
    unit = row_multiple(dtype)
    offset, layouts = 0, {}
    for sector in sorted(shapes, key=lambda sector: -math.gcd(math.prod(shapes[sector]), unit)):
        shape = shapes[sector]
        order = tuple(range(len(shape))) if memory is None else memory
        window = Layout.row_major(tuple(shape[axis] for axis in order))
        layouts[sector] = Layout(window.transpose(inverse(order)).dimensions, offset)
        offset += math.prod(shape)
    return Structure(tuple(shapes), tuple(layouts[sector] for sector in shapes))


def inverse(order: Axes) -> Axes:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


@jax.tree_util.register_pytree_with_keys_class
class Block(View):
    """A block of a `BlockArray`: a view of its buffer. Products read it in place; arithmetic and jax.numpy functions
    convert it to an array by a copy."""

    def transpose(self, axes: Sequence[int] | None = None) -> Block:
        """The block with its axes in this order (None: reversed), without a copy."""
        axes = range(self.ndim)[::-1] if axes is None else [operator.index(axis) % self.ndim for axis in axes]
        return Block.with_layout(self.buffer, self.layout.transpose(axes))

    @classmethod
    def with_layout(cls, buffer: Any, layout: Layout) -> Block:
        block: Block = cls.tree_unflatten((layout, buffer.size), (buffer,))  # type: ignore[assignment]
        return block

    def __jax_array__(self) -> jax.Array:
        return self.dense()

    def __neg__(self) -> jax.Array:
        return -self.dense()


def _define_arithmetic() -> None:
    def method(name: str) -> Any:
        def apply(self: Block, other: Any) -> Any:
            return getattr(self.dense(), name)(dense(other))

        return apply

    for name in ("add", "sub", "mul", "truediv", "pow"):
        for prefix in ("", "r"):
            setattr(Block, f"__{prefix}{name}__", method(f"__{prefix}{name}__"))


_define_arithmetic()


@jax.tree_util.register_pytree_with_keys_class
class BlockArray(Mapping[Sector, Block]):
    """A block-sparse tensor in one buffer; `pack` makes one, and products of BlockArrays are BlockArrays.

    A mapping from sectors to blocks, in ascending order, each block a window of the buffer. To JAX it is a pytree whose
    one leaf is the buffer: a jitted function of hundreds of blocks has one argument, and `jax.tree.map` (sums,
    multiples, optax's updates, a scan's carry, donation) is one operation. There is no padding, so that the norm of the
    buffer is that of the tensor.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm import blocksparse
      >>> a = blocksparse.pack({(0, 0): jnp.ones((2, 3)), (1, 1): jnp.ones((4, 1))})
      >>> a.buffer.shape, a.sectors, a[1, 1].shape
      ((10,), ((0, 0), (1, 1)), (4, 1))
      >>> product = blocksparse.tensordot(a.transpose((1, 0)), a, 1)
      >>> product.unpack()[1, 1].tolist()
      [[4.0]]
    """

    def __init__(self, buffer: Any, structure: Structure) -> None:
        self.buffer, self.structure = buffer, structure

    @property
    def sectors(self) -> tuple[Sector, ...]:
        """The sectors, in ascending order."""
        return self.structure.sectors

    @property
    def dtype(self) -> Any:
        """The dtype of all blocks."""
        return self.buffer.dtype

    def check_buffer(self) -> None:
        """Raises ValueError if the buffer does not have the blocks' size, as after vmap or scan have stacked it."""
        shape = getattr(self.buffer, "shape", None)
        if shape != (self.structure.elements,):
            raise ValueError(
                f"BlockArray: its buffer is {shape} where its blocks take {self.structure.elements} elements: after "
                "vmap or scan, jax.vmap a function of the BlockArray"
            )

    def __getitem__(self, sector: Sector) -> Block:
        self.check_buffer()
        return Block.with_layout(self.buffer, self.structure.layout_of[sector])

    def __iter__(self) -> Iterator[Sector]:
        return iter(self.sectors)

    def __len__(self) -> int:
        return len(self.sectors)

    __eq__ = object.__eq__  # comparing arrays gives arrays, so tensors are equal only if they are one object
    __hash__ = object.__hash__

    def transpose(self, axes: Sequence[int]) -> BlockArray:
        """The tensor with its axes in this order, in the same buffer.

        Raises:
          ValueError: `axes` is not a permutation of the tensor's axes.
        """
        ndim = len(self.sectors[0]) if self.sectors else len(axes)
        order = tuple(operator.index(axis) for axis in axes)
        if sorted(order) != list(range(ndim)):
            raise ValueError(f"BlockArray: axes {order} are not a permutation of 0 to {ndim - 1}")
        return BlockArray(self.buffer, self.structure.transpose(order))

    def conj(self) -> BlockArray:
        """The complex conjugate."""
        return BlockArray(jnp.conj(self.buffer), self.structure)

    def unpack(self) -> dict[Sector, jax.Array]:
        """A dict with each block as an array of its own."""
        self.check_buffer()
        return dict(zip(self.sectors, _arrays_of(self.buffer, self.structure), strict=True))

    def __repr__(self) -> str:
        shapes = {sector: layout.shape for sector, layout in self.structure.layout_of.items()}
        return f"BlockArray({getattr(self.buffer, 'dtype', None)}, {shapes})"

    def tree_flatten_with_keys(self) -> tuple[Any, Structure]:
        return ((jax.tree_util.GetAttrKey("buffer"), self.buffer),), self.structure

    @classmethod
    def tree_unflatten(cls, structure: Structure, children: Any) -> BlockArray:
        return cls(children[0], structure)


def pack(blocks: Any) -> Any:
    """A block-sparse tensor with its blocks in one buffer.

    Products of such tensors read and write the blocks in place, and permutations of their axes are views. A chain of
    contractions is then a chain of calls without operations between them. Differentiable, and works under every
    transformation.

    Args:
      blocks: a dict {sector: block}, as `tensordot` takes it, or an array of symmray.

    Returns:
      A `BlockArray`; or an array of symmray whose blocks are views of one buffer. JAX does not know the latter as a
      pytree: pack it inside the jitted function.

    Raises:
      ValueError: the blocks differ in dtype or number of axes, or a charge has different sizes in one axis.
      TypeError: `blocks` is neither a dict nor one of symmray's arrays with blocks, or a sector is not a tuple.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm import blocksparse
      >>> blocksparse.pack({(0, 1): jnp.ones((2, 3))})
      BlockArray(float32, {(0, 1): (2, 3)})
    """
    if is_block_array(blocks):
        return blocks.copy_with(blocks=dict(pack(blocks.blocks)))
    if not isinstance(blocks, Mapping):
        raise TypeError(
            f"pack: blocks must be a dict of blocks or an array of symmray that has blocks, not {shown(blocks)}"
        )
    checked = Blocks("pack", "blocks", blocks)
    dtype = jnp.zeros(()).dtype if checked.dtype is None else checked.dtype
    shapes = {sector: tuple(block.shape) for sector, block in checked.blocks.items()}
    structure = structure_of(shapes, dtype)
    return BlockArray(_buffer([dense(block) for block in checked.blocks.values()], structure, dtype), structure)


def packed_again(blocks: Mapping[Sector, Any], structure: Structure, dtype: Any) -> BlockArray:
    """Blocks of any kind in one buffer with this structure."""
    return BlockArray(_buffer([dense(blocks[sector]) for sector in structure.sectors], structure, dtype), structure)


@functools.partial(jax.jit, static_argnames=("structure", "dtype"))
def _buffer(blocks: Sequence[jax.Array], structure: Structure, dtype: Any) -> jax.Array:
    if not blocks:
        return jnp.zeros(0, dtype)
    return jnp.concatenate(
        [blocks[number].transpose(_memory(structure.layouts[number])).reshape(-1) for number in structure.in_buffer]
    )


@functools.partial(jax.jit, static_argnames="structure")
def _arrays_of(buffer: jax.Array, structure: Structure) -> list[jax.Array]:
    """All blocks as arrays, by one split: its transpose is one concatenation, whereas the transpose of each slice would
    be an array as large as the buffer."""
    if not structure.layouts:
        return []
    pieces = jax.lax.split(buffer, [structure.layouts[number].size for number in structure.in_buffer])
    blocks: dict[int, jax.Array] = {}
    for number, piece in zip(structure.in_buffer, pieces, strict=True):
        layout = structure.layouts[number]
        order = _memory(layout)
        blocks[number] = piece.reshape([layout.shape[axis] for axis in order]).transpose(inverse(order))
    return [blocks[number] for number in range(len(pieces))]


def _memory(layout: Layout) -> Axes:
    """The axes in memory order, outermost first."""
    return tuple(sorted(range(len(layout.dimensions)), key=lambda axis: -layout.dimensions[axis][0][1]))
