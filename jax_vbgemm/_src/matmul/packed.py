"""RaggedArray: arrays of different shapes in one buffer."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.members import Members, members_of, pitch_of, row_multiple, rows_of
from jax_vbgemm._src.matmul.norms import root, run_sums
from jax_vbgemm._src.matmul.packed_state import register_with_flax
from jax_vbgemm._src.matmul.view import View, dense, is_view
from jax_vbgemm._src.native.arithmetic import accumulator_of
from jax_vbgemm._src.util.arguments import as_array, shown


@jax.tree_util.register_pytree_with_keys_class
class RaggedArray:
    """A pytree of arrays of one dtype, held in one buffer; `jax_vbgemm.pack` makes one.

    To JAX it is a pytree with one leaf, the buffer: a jitted function of hundreds of arrays has one argument, and an
    elementwise operation on all arrays (`jax.tree.map`, optax's updates, a scan's carry, donation) is one operation.
    Every row is padded to a multiple of 16 bytes, the alignment that kernels read fastest. Products take a RaggedArray
    in place of a list and then return their results as one. `pack`, `map` and arithmetic keep the padding zero; other
    operations on the buffer, such as `jax.tree.map`, may leave other numbers there. The padding is never part of a
    member, a product or a norm.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> weights = vb.pack({"down": jnp.ones((2, 3)), "up": jnp.full((3, 5), 2.0)})
      >>> len(weights), weights.shapes, weights["up"].shape
      (2, ((2, 3), (3, 5)), (3, 5))
      >>> (2 * weights)["down"].tolist()
      [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
      >>> vb.batched_gram(weights).shapes
      ((2, 2), (3, 3))
    """

    buffer: Any
    members: Members
    __array_ufunc__ = None  # a NumPy scalar on the left leaves the arithmetic to this class
    __contains__ = None  # `in` could mean a key or a member, so it is not supported

    def __init__(self, buffer: Any, members: Members) -> None:
        self.buffer, self.members = buffer, members
        register_with_flax(RaggedArray)

    @property
    def structure(self) -> Any:
        """The tree's definition."""
        return self.members.structure

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The members' shapes, in the order of the tree's leaves."""
        return self.members.shapes

    @property
    def dtype(self) -> Any:
        """The dtype of all members."""
        return self.buffer.dtype

    def __len__(self) -> int:
        return len(self.shapes)

    def __iter__(self) -> Iterator[jax.Array]:
        """The members, in the order of the tree's leaves."""
        self.check_buffer()
        return iter(_members_of(self.buffer, self.members))

    def __getitem__(self, key: Any) -> Any:
        """Member number `key`, or the array or subtree that the tree has under a key or a tuple of keys."""
        if isinstance(key, int | np.integer):
            return self.view(operator.index(key)).dense()
        self.check_buffer()
        numbers = jax.tree.unflatten(self.structure, range(len(self)))
        for step in key if isinstance(key, tuple) else (key,):
            try:
                numbers = numbers[step]
            except (KeyError, IndexError, TypeError):
                raise KeyError(f"RaggedArray: there is no member {key!r}") from None
        views = self.members.views(self.buffer)
        return jax.tree.map(lambda number: views[number].dense(), numbers)

    def view(self, index: int) -> View:
        """Member number `index` as a view of the buffer; IndexError if there is no such member."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"RaggedArray: there is no member {index}: it has {len(self)}")
        self.check_buffer()
        return self.members.views(self.buffer)[index]

    def check_buffer(self) -> None:
        """Raises ValueError if the buffer does not have the members' size, as after vmap or scan have stacked it."""
        shape = getattr(self.buffer, "shape", None)
        if shape != (self.members.elements,):
            raise ValueError(
                f"RaggedArray: its buffer is {shape} where its members take {self.members.elements} elements: after "
                "vmap or scan, jax.vmap a function of the RaggedArray"
            )

    def views(self) -> Any:
        """The tree with each member as a view of the buffer."""
        return jax.tree.unflatten(self.structure, self.members.views(self.buffer))

    def unpack(self) -> Any:
        """The tree with each member as an array of its own."""
        return jax.tree.unflatten(self.structure, list(self))

    def map(self, f: Callable[..., Any], *others: RaggedArray) -> RaggedArray:
        """The elementwise function f applied to all members in one operation.

        f gets the elements of all members as one array. The caller must ensure that f treats each element
        independently: only the shape of its result is checked, so jnp.cumsum would sum across members.

        `others` have members of the same shapes, and their elements are the further arguments of f.

        In place of the padding f gets ones, and the padding of the result is zero. If f changes the dtype, rows are
        padded for the new dtype.

        Raises:
          ValueError: another RaggedArray has other members, or f changes the shape.
          TypeError: one of `others` is not a RaggedArray.
        """
        for other in others:
            if not isinstance(other, RaggedArray):
                raise TypeError(
                    f"RaggedArray: further arguments of map must be RaggedArrays, not {shown(other)}: use pack"
                )
            if not self.members.has_shapes_of(other.members):
                raise ValueError(f"RaggedArray: the members {other.shapes} are not those of {self.shapes}")
        buffers = [self.buffer, *(x._with_rows_of(self.members.multiple).buffer for x in others)]
        mask = self.members.mask()
        if mask is not None:
            buffers = [jnp.where(mask, x, jnp.ones((), x.dtype)) for x in buffers]
        values = f(*buffers)
        if values.shape != self.buffer.shape:
            raise ValueError(f"RaggedArray: map made {values.shape} of {self.buffer.shape}: f must be elementwise")
        if mask is not None:
            values = jnp.where(mask, values, jnp.zeros((), values.dtype))
        return RaggedArray(values, self.members)._with_rows_of(row_multiple(values.dtype))

    def astype(self, dtype: Any) -> RaggedArray:
        """The members in another dtype, with rows padded for that dtype."""
        return RaggedArray(self.buffer.astype(dtype), self.members)._with_rows_of(row_multiple(dtype))

    def _with_rows_of(self, multiple: int) -> RaggedArray:
        """The same members with rows padded to multiples of `multiple` elements."""
        if multiple == self.members.multiple:
            return self
        return _packed(list(self), replace(self.members, multiple=multiple), self.dtype)

    def norms(self) -> jax.Array:
        """The Frobenius norm of each member: a 1-D array in the accumulator's dtype."""
        return root(self.member_sums(self._squares()))

    def norm(self) -> jax.Array:
        """The norm of all elements."""
        return root(jnp.sum(self._squares()))

    def _squares(self) -> jax.Array:
        wide = np.dtype(accumulator_of(np.dtype(self.dtype).name))
        return jnp.square(jnp.abs(self.without_padding().astype(wide)))

    def without_padding(self) -> jax.Array:
        """The buffer with zeros in place of the padding, whatever the padding holds."""
        self.check_buffer()
        mask = self.members.mask()
        return self.buffer if mask is None else jnp.where(mask, self.buffer, jnp.zeros((), self.dtype))

    def member_sums(self, values: jax.Array, indices: Sequence[int] | None = None) -> jax.Array:
        """The sum of each member's elements of `values`, an array like the buffer with zeros in the padding; for the
        members at `indices`, or for all."""
        spans = [self.members.span(index) for index in (range(len(self)) if indices is None else indices)]
        starts, lengths = np.array(spans, int).reshape(-1, 2).T
        return run_sums(values, starts, starts + lengths)

    def __add__(self, other: Any) -> RaggedArray:
        return self._combined(jnp.add, other)

    def __radd__(self, other: Any) -> RaggedArray:
        return self._combined(jnp.add, other)

    def __sub__(self, other: Any) -> RaggedArray:
        return self._combined(jnp.subtract, other)

    def __rsub__(self, other: Any) -> RaggedArray:
        return self._combined(lambda x, y: jnp.subtract(y, x), other)

    def __mul__(self, other: Any) -> RaggedArray:
        return self._combined(jnp.multiply, other)

    def __rmul__(self, other: Any) -> RaggedArray:
        return self._combined(jnp.multiply, other)

    def __truediv__(self, other: Any) -> RaggedArray:
        return self._combined(jnp.divide, other)

    def __rtruediv__(self, other: Any) -> RaggedArray:
        return self._combined(lambda x, y: jnp.divide(y, x), other)

    def __pow__(self, other: Any) -> RaggedArray:
        return self._combined(jnp.power, other)

    def __neg__(self) -> RaggedArray:
        return RaggedArray(-self.buffer, self.members)

    def _combined(self, f: Callable[[Any, Any], Any], other: Any) -> RaggedArray:
        if isinstance(other, RaggedArray):
            return self.map(f, other)
        if not isinstance(other, jax.Array | np.ndarray | np.generic | int | float | complex) or np.ndim(other) != 0:
            raise TypeError(
                f"RaggedArray: the other operand is {shown(other)}: it must be a number, or a RaggedArray, "
                "as pack makes one"
            )
        return self.map(lambda x: f(x, other))

    def __array__(self, *_: Any, **__: Any) -> Any:
        # Without this method NumPy would try to stack the members.
        raise TypeError(
            "RaggedArray: it holds many arrays: take one (packed[0]), all of them (unpack()), or its buffer"
        )

    def __repr__(self) -> str:
        dtype = getattr(self.buffer, "dtype", None)
        return f"RaggedArray({dtype}, {jax.tree.unflatten(self.structure, self.shapes)})"

    def __reduce__(self) -> Any:
        numbers = jax.tree.unflatten(self.structure, range(len(self)))
        return _restored, (np.asarray(self.buffer), numbers, self.members.shapes, self.members.multiple)

    def tree_flatten_with_keys(self) -> tuple[Any, Members]:
        return ((jax.tree_util.GetAttrKey("buffer"), self.buffer),), self.members

    @classmethod
    def tree_unflatten(cls, members: Members, children: Any) -> RaggedArray:
        return cls(children[0], members)


def pack(tree: Any) -> RaggedArray:
    """The leaves of a pytree in one buffer, as a `RaggedArray`; its `unpack` gives them back.

    Differentiable, and works under every transformation.

    Args:
      tree: pytree of arrays of one dtype and of any rank; a leaf may be a `jax_vbgemm.View`.

    Returns:
      A `RaggedArray` with the structure of `tree`. Its rows are padded with zeros to multiples of 16 bytes.

    Raises:
      ValueError: two leaves differ in dtype; the message names them.
      TypeError: a leaf is not an array of numbers.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> packed = vb.pack([jnp.ones((2, 3)), jnp.ones(4)])
      >>> [leaf.shape for leaf in jax.tree.leaves(packed)]
      [(12,)]
      >>> [x.shape for x in packed.unpack()]
      [(2, 3), (4,)]
    """
    named, structure = jax.tree.flatten_with_path(tree, is_leaf=is_view)
    names = ["tree" + jax.tree_util.keystr(path) for path, _ in named]
    leaves = [packable("pack", name, x) for name, (_, x) in zip(names, named, strict=True)]
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.dtype != leaves[0].dtype:
            raise ValueError(
                f"pack: {name} is {leaf.dtype} but {names[0]} is {leaves[0].dtype}: one buffer has one dtype"
            )
    dtype = leaves[0].dtype if leaves else jnp.zeros(()).dtype
    return _packed(leaves, members_of(structure, [leaf.shape for leaf in leaves], dtype), dtype)


def packable(name: str, written: str, x: Any) -> jax.Array:
    """A leaf as an array that a buffer can hold; TypeError if it is none. `name`, `written`: as for `as_array`."""
    array = dense(x) if is_view(x) else as_array(name, written, x)
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise TypeError(f"{name}: {written} is {array.dtype}: a buffer holds numbers (jax.random.key_data makes some)")
    return array


@functools.partial(jax.jit, static_argnames="members")
def _members_of(buffer: Any, members: Members) -> list[jax.Array]:
    """All members as arrays, by one split: its transpose is one concatenation, whereas the transpose of each slice
    would be an array as large as the buffer."""
    if not members.shapes:
        return []
    pitches = [pitch_of(shape, members.multiple) for shape in members.shapes]
    rows = [rows_of(shape) for shape in members.shapes]
    pieces = jax.lax.split(buffer, [count * pitch for count, pitch in zip(rows, pitches, strict=True)])
    return [
        piece.reshape(count, pitch)[:, : shape[-1] if shape else 1].reshape(shape)
        for piece, count, pitch, shape in zip(pieces, rows, pitches, members.shapes, strict=True)
    ]


def pack_as(tree: Any, members: Members) -> RaggedArray:
    """`pack` for leaves of one dtype, with rows padded as in a RaggedArray with these members."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return _packed(leaves, members, leaves[0].dtype) if leaves else _packed([], members, jnp.zeros(()).dtype)


def unpacked(tree: Any) -> Any:
    """The tree of views of a RaggedArray; any other value unchanged."""
    return tree.views() if isinstance(tree, RaggedArray) else tree


def _packed(leaves: Sequence[jax.Array], members: Members, dtype: Any) -> RaggedArray:
    return RaggedArray(_buffer(tuple(leaves), members, dtype), members)


@functools.partial(jax.jit, static_argnames=("members", "dtype"))
def _buffer(leaves: Sequence[jax.Array], members: Members, dtype: Any) -> jax.Array:
    """The buffer of these leaves, by a jitted function: outside jit, each member would otherwise compile a program."""
    rows = []
    for leaf, shape in zip(leaves, members.shapes, strict=True):
        length = shape[-1] if shape else 1
        matrix = leaf.reshape(rows_of(shape), length)
        rows.append(jnp.pad(matrix, ((0, 0), (0, pitch_of(shape, members.multiple) - length))).reshape(-1))
    return jnp.concatenate(rows) if rows else jnp.zeros(0, dtype)


def _restored(buffer: Any, numbers: Any, shapes: tuple[Shape, ...], multiple: int) -> RaggedArray:
    return RaggedArray(jnp.asarray(buffer), Members(jax.tree.structure(numbers), shapes, multiple))
