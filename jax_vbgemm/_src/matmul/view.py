"""View: a part of a buffer that products read and write in place."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jax_vbgemm._src import compat
from jax_vbgemm._src.arguments import as_array, shown
from jax_vbgemm._src.matmul.layout import Layout, Level, Levels, Shape


@jax.tree_util.register_pytree_with_keys_class
class View:
    """A window of a buffer as an operand or a result of this package's products, which read and write it in place.

    A pytree whose one leaf is the buffer: jit, grad, vmap, scan and `jax.tree.map` go through it, and a gradient with
    respect to a view is a view of the buffer's gradient, zeros outside the window.

    Args:
      buffer: any jax.Array, seen as its elements in row-major order. Views of the same array share one buffer.
      shape: (batch..., rows, columns). A dimension may be a tuple of sizes, outermost first: ((nodes, 3), channels) has
        3 nodes rows. Sizes may be symbolic (jax.export).
      strides: the distance from one element to the next in each dimension, in elements of the buffer, in the form of
        `shape`. None: row-major without gaps.
      offset: where the first element lies.

    Raises:
      ValueError: the window reaches past the buffer, a size, stride or the offset is negative, or `strides` don't have
        the form of `shape`.
      TypeError: `buffer` is not a jax.Array, or a size, stride or the offset is no integer.

    Examples:
      The four 2 x 2 blocks on the diagonal of an 8 x 8 matrix:

      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> x = jnp.arange(64.0).reshape(8, 8)
      >>> blocks = vb.View(x, (4, 2, 2), (18, 8, 1))
      >>> blocks.dense()[1].tolist()
      [[18.0, 19.0], [26.0, 27.0]]

      Vectors of 5 nodes and 7 channels, laid out (node, channel, 3), as matrices of 15 rows:

      >>> vectors = vb.View(jnp.ones((5, 21)), shape=((5, 3), 7), strides=((21, 1), 3))
      >>> vb.batched_matmul([vectors], [jnp.ones((7, 4))])[0].shape
      (15, 4)
    """

    buffer: Any
    layout: Layout
    elements: int  # the buffer's size when the view was made; vmap and scan may stack buffers

    def __init__(self, buffer: Any, shape: Any, strides: Any = None, offset: Any = 0) -> None:
        self.buffer = _checked_buffer("View", "buffer", buffer)
        self.layout, self.elements = _layout_of(shape, strides, offset), buffer.size
        why = self.misfit()
        if why:
            raise ValueError(f"View: {why}")

    @classmethod
    def of(cls, x: Any, pattern: str, *, window: Any = None, **sizes: int) -> View:
        """A view of x by an einops pattern: "node (mul c) -> (node c) mul", with the sizes that x does not tell.

        Args:
          x: the array whose axes the left side names.
          pattern: each axis of x on the left, as a name or as names in parentheses; the view's dimensions on the right,
            of the same names.
          window: slices of x's axes, as in x[window]: np.s_[..., 3:9]. They may not reach past x.
          sizes: of the names in parentheses on the left, of which one of each group may be left out.

        Raises:
          ValueError: the pattern, its sizes or the window don't fit x.
          TypeError: x is not a jax.Array.

        Examples:
          One irrep of many, 4 vectors in columns 8 to 20 of 5 nodes' features, with channels for columns:

          >>> import jax.numpy as jnp
          >>> import numpy as np
          >>> import jax_vbgemm as vb
          >>> x = jnp.arange(100.0).reshape(5, 20)
          >>> vb.View.of(x, "node (mul c) -> (node c) mul", window=np.s_[:, 8:], c=3).shape
          (15, 4)

          Heads of an array (batch, time, head, channel):

          >>> q = jnp.ones((2, 7, 4, 16))
          >>> vb.View.of(q, "b t h c -> b h t c").shape
          (2, 4, 7, 16)
        """
        _checked_buffer("View.of", "x", x)
        return cls.with_layout(x, _layout_of_pattern(x.shape, pattern, window, sizes))

    @classmethod
    def with_layout(cls, buffer: Any, layout: Layout) -> View:
        """The view of a buffer with this layout, without any check."""
        return cls.tree_unflatten((layout, buffer.size), (buffer,))

    @property
    def shape(self) -> Shape:
        """(batch..., rows, columns), each dimension as one number."""
        return self.layout.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.layout.dimensions)

    @property
    def size(self) -> int:
        """The number of elements of the view."""
        return self.layout.size

    @property
    def dtype(self) -> Any:
        """The buffer's dtype."""
        return self.buffer.dtype

    def dense(self) -> jax.Array:
        """The view's elements copied into an array of shape `shape`.

        Raises:
          ValueError: the view does not fit its buffer any more, as after vmap or scan.
        """
        why = self.misfit()
        if why:
            raise ValueError(f"View: {why}")
        return self.layout.take(self.buffer)

    def astype(self, dtype: Any) -> jax.Array | View:
        return self if self.dtype == dtype else self.dense().astype(dtype)

    def reshape(self, *shape: Any) -> View:
        return View.with_layout(self.buffer, self.layout.reshape(shape[0] if len(shape) == 1 else shape))

    def transpose(self, axes: Sequence[int]) -> View:
        return View.with_layout(self.buffer, self.layout.transpose(axes))

    def misfit(self) -> str | None:
        """Why the view does not fit its buffer; None where it fits."""
        end, found = self.layout.end, self.buffer.size
        if not compat.certainly(lambda: end <= found):
            return f"its last element is number {end - 1} of a buffer of {found} elements"
        if found != self.elements:
            return (
                f"it is a window of {self.elements} elements, but its buffer is {tuple(self.buffer.shape)}: after "
                "vmap or scan, take its buffer, or jax.vmap a function of the view"
            )
        return None

    def __array__(self, *_: Any, **__: Any) -> Any:
        # Without this method NumPy would make an array of one object.
        raise TypeError("View: it does not become an array by itself: call its dense(), which copies its elements")

    def __repr__(self) -> str:
        buffer = self.buffer
        described = f"{buffer.dtype}{list(buffer.shape)}" if hasattr(buffer, "shape") else repr(buffer)
        return f"View({described}, shape={self.shape}, offset={self.layout.offset}, levels={self.layout.dimensions})"

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[Layout, int]]:
        return ((jax.tree_util.GetAttrKey("buffer"), self.buffer),), (self.layout, self.elements)

    @classmethod
    def tree_unflatten(cls, static: tuple[Layout, int], children: Any) -> View:
        view = object.__new__(cls)
        view.buffer, (view.layout, view.elements) = children[0], static
        return view


def is_view(x: Any) -> bool:
    return isinstance(x, View)


def as_operand(name: str, written: str, value: Any) -> jax.Array | View:
    """The value as an array or a view; ValueError where a view does not fit its buffer, TypeError where the value is
    neither array nor view. `name`, `written`: as for `as_array`."""
    if not isinstance(value, View):
        return as_array(name, written, value)
    why = value.misfit()
    if why:
        raise ValueError(f"{name}: {written} doesn't fit its buffer: {why}")
    return value


def dense(x: Any) -> jax.Array:
    """The array, or the elements of the view copied into an array."""
    array: jax.Array = x.dense() if isinstance(x, View) else x
    return array


def _checked_buffer(name: str, argument: str, buffer: Any) -> jax.Array:
    """The buffer; TypeError where it is not a jax.Array."""
    if isinstance(buffer, View):
        raise TypeError(f"{name}: {argument} is a View already: take its buffer, or its dense() as an array of its own")
    if not isinstance(buffer, jax.Array):
        # A NumPy array would be converted to another buffer for each of its views.
        raise TypeError(f"{name}: {argument} must be a jax.Array, as jnp.asarray makes one, but is {shown(buffer)}")
    return buffer


def _layout_of(shape: Any, strides: Any, offset: Any) -> Layout:
    if not isinstance(shape, Sequence):
        raise TypeError(f"View: shape must be a tuple of sizes, not {shown(shape)}")
    sizes = [_integers("shape", entry) for entry in shape]
    offset = _integer("offset", offset)
    if strides is None:
        stride, found = 1, []
        for entry in reversed(sizes):
            levels: list[Level] = []
            for size in reversed(entry):
                levels.append((size, stride))
                stride *= size
            found.append(tuple(reversed(levels)))
        return Layout(tuple(reversed(found)), offset)
    if not isinstance(strides, Sequence):
        raise TypeError(f"View: strides must be a tuple, not {shown(strides)}")
    steps = [_integers("strides", entry) for entry in strides]
    if [len(entry) for entry in steps] != [len(entry) for entry in sizes]:
        raise ValueError(f"View: strides {tuple(strides)} don't have the form of shape {tuple(shape)}")
    return Layout(tuple(tuple(zip(*pair, strict=True)) for pair in zip(sizes, steps, strict=True)), offset)


def _integers(what: str, entry: Any) -> tuple[int, ...]:
    return tuple(_integer(what, x) for x in entry) if isinstance(entry, tuple | list) else (_integer(what, entry),)


def _integer(what: str, x: Any) -> int:
    try:
        number = x if compat.is_symbolic(x) else operator.index(x)
        if isinstance(x, bool):
            raise TypeError
    except TypeError:
        raise TypeError(f"View: {what} must hold integers that are known at trace time, not {shown(x)}") from None
    if not compat.certainly(lambda: number >= 0):
        raise ValueError(f"View: {what} holds {number}: it must not be negative")
    return number


def _layout_of_pattern(shape: Shape, pattern: str, window: Any, sizes: Mapping[str, int]) -> Layout:
    def refuse(why: str) -> ValueError:
        return ValueError(f"View.of: {pattern!r}: {why}")

    sides = [_names(side) for side in pattern.split("->")]
    if len(sides) != 2 or None in sides:
        raise refuse("it must be two lists of names, of which some may be in parentheses, with -> between them")
    left, right = (list(side or []) for side in sides)
    names, wanted = list(itertools.chain(*left)), list(itertools.chain(*right))
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        raise refuse("each name must stand once on each side")
    unknown = set(sizes) - set(names)
    if unknown:
        raise refuse(f"there is no {min(unknown)!r} to have a size")
    if len(left) != len(shape):
        raise refuse(f"the left side names {len(left)} axes of an array of shape {shape}")
    level_of: dict[str, Level] = {}
    offset, stride = 0, 1
    for group, full, (first, length, step) in reversed(
        list(zip(left, shape, _slices(shape, window, refuse), strict=True))
    ):
        offset += first * stride
        inner = stride * step
        known = [_integer(name, sizes[name]) for name in group if name in sizes]
        missing = [name for name in group if name not in sizes]
        product = 1
        for size in known:
            product *= size
        if len(missing) > 1:
            raise refuse(f"say the size of {missing[0]!r} or of {missing[1]!r}")
        if (length % product != 0 if missing and product else length != product) or (missing and not product):
            raise refuse(f"an axis of {length} cannot be {' x '.join(_shown(name, sizes) for name in group)}")
        for name in reversed(group):
            size = _integer(name, sizes[name] if name in sizes else length // product)
            level_of[name] = (size, inner)
            inner *= size
        stride *= full
    dimensions: list[Levels] = [tuple(level_of[name] for name in group) for group in right]
    return Layout(tuple(dimensions), offset)


def _shown(name: str, sizes: Mapping[str, int]) -> str:
    return f"{name}={sizes[name]}" if name in sizes else name


def _names(side: str) -> list[tuple[str, ...]] | None:
    """The names of each axis; None where the text is not a list of names."""
    groups = re.findall(r"\(\s*[^()]*\)|[^\s()]+", side)
    if re.sub(r"\s", "", "".join(groups)) != re.sub(r"\s", "", side) or side.count("(") != side.count(")"):
        return None
    names = [tuple(group.strip("()").split()) for group in groups]
    return names if all(name.isidentifier() for group in names for name in group) else None


def _slices(shape: Shape, window: Any, refuse: Any) -> list[tuple[int, int, int]]:
    """(first, length, step) of each axis."""
    given = list(window) if isinstance(window, tuple) else [] if window is None else [window]
    for part in given:
        if not isinstance(part, slice) and part is not Ellipsis:
            raise refuse(f"window must hold slices, not {shown(part)}")
    if given.count(Ellipsis) > 1 or len(given) - given.count(Ellipsis) > len(shape):
        raise refuse(f"window {window!r} has more slices than an array of shape {shape} has axes")
    at = given.index(Ellipsis) if Ellipsis in given else len(given)
    missing = len(shape) - (len(given) - given.count(Ellipsis))
    given[at : at + given.count(Ellipsis)] = [slice(None)] * missing
    found = []
    for axis, (part, size) in enumerate(zip(given, shape, strict=True)):
        if compat.is_symbolic(size):
            if part != slice(None):
                raise refuse(f"window takes {part.start}:{part.stop} of axis {axis}, whose size {size} is symbolic")
            found.append((0, size, 1))
            continue
        first, end, step = (None if x is None else operator.index(x) for x in (part.start, part.stop, part.step))
        if step is not None and step < 1:
            raise refuse(f"window goes through axis {axis} in steps of {step}: they must be positive")
        if any(x is not None and not -size <= x <= size for x in (first, end)):
            raise refuse(f"window {part.start}:{part.stop} reaches past axis {axis} of {size}")
        picked = range(size)[slice(first, end, step)]
        found.append((picked.start, len(picked), picked.step))
    return found
