"""View: a part of a buffer that products read and write in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.view_layout import layout_of, layout_of_pattern
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array, shown


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
      TypeError: `buffer` is not a jax.Array, or a size, stride or the offset is not an integer.

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
    elements: int  # the buffer's size at the view's creation; vmap and scan may stack buffers

    def __init__(self, buffer: Any, shape: Any, strides: Any = None, offset: Any = 0) -> None:
        self.buffer = _checked_buffer("View", "buffer", buffer)
        self.layout, self.elements = layout_of(shape, strides, offset), buffer.size
        why = self.misfit()
        if why:
            raise ValueError(f"View: {why}")

    @classmethod
    def of(cls, x: Any, pattern: str, *, window: Any = None, **sizes: int) -> View:
        """A view of x by an einops pattern: "node (mul c) -> (node c) mul", with the sizes that x's shape does not
        determine.

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
        return cls.with_layout(x, layout_of_pattern(x.shape, pattern, window, sizes))

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
        """The reason why the view does not fit its buffer; None if it fits."""
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


Operand = jax.Array | View
"""An operand of a product."""


def is_view(x: Any) -> bool:
    return isinstance(x, View)


def as_operand(name: str, written: str, value: Any) -> Operand:
    """The value as an array or a view; ValueError if a view does not fit its buffer, TypeError if the value is
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
    """The buffer; TypeError if it is not a jax.Array."""
    if isinstance(buffer, View):
        raise TypeError(f"{name}: {argument} is a View already: take its buffer, or its dense() as an array of its own")
    if not isinstance(buffer, jax.Array):
        # Each view of a NumPy array would convert it to a new buffer.
        raise TypeError(f"{name}: {argument} must be a jax.Array, as jnp.asarray makes one, but is {shown(buffer)}")
    return buffer
