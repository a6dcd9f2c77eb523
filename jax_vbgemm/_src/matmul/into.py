"""Windows of the caller's arrays into which results are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jax_vbgemm._src.arguments import refuse_explicit_axes, shown
from jax_vbgemm._src.distinct import distinct
from jax_vbgemm._src.matmul.contract import Into, into_zeros
from jax_vbgemm._src.matmul.layout import Shape, covers, dense, overlap
from jax_vbgemm._src.matmul.packed import Members
from jax_vbgemm._src.matmul.primitive import Window
from jax_vbgemm._src.matmul.view import View


class Windows(NamedTuple):
    """The view into which each result is written; None where the result is an array of its own."""

    views: tuple[View | None, ...]
    members: Members | None = None  # the members, where the views are those of a RaggedArray
    is_new: bool = False  # whether the RaggedArray is a new one, whose buffer holds zeros

    def into(self, shapes: Sequence[Shape], read: Sequence[jax.Array]) -> Into:
        """The windows in the form that the primitive takes, for results of these shapes. `read`: the arrays the call
        reads."""
        buffers, index = distinct([view.buffer for view in self.views if view is not None])
        array_of = iter(index)
        writes, target_shapes = [], [buffer.shape for buffer in buffers]
        for view, shape in zip(self.views, shapes, strict=True):
            if view is None:
                writes.append(Window(len(target_shapes), dense(shape)))
                target_shapes.append(shape)
            else:
                writes.append(Window(next(array_of), view.layout))
        if self.is_new:
            return into_zeros(writes, target_shapes, [buffer.dtype for buffer in buffers])
        # A buffer that the windows cover completely need not be passed, as nothing of it is kept. It is passed where
        # the call reads it as an operand too: XLA can then update it in place.
        number = distinct([*buffers, *read])[1]
        bases: list[Any] = [
            None
            if covers(tuple(w.layout for w in writes if w.array == index), buffer.size)
            and number[index] not in number[len(buffers) :]
            else buffer
            for index, buffer in enumerate(buffers)
        ]
        bases += [None] * (len(target_shapes) - len(buffers))
        return Into(writes, target_shapes, bases)

    def results(self, writes: Sequence[Window], targets: Sequence[jax.Array]) -> list[Any]:
        """Each result: a view of its updated buffer, or the array."""
        return [
            targets[window.array] if view is None else View.with_layout(targets[window.array], view.layout)
            for view, window in zip(self.views, writes, strict=True)
        ]


def checked_windows(
    name: str, leaves: Sequence[Any], written: Any, result: Any, shapes: Sequence[Shape], dtypes: Sequence[Any]
) -> Windows:
    """Checks that results of these shapes and dtypes can be written into the views `leaves`.

    ValueError or TypeError name the view that is wrong. `written`, `result`: the names of leaf i of `into` and of
    result i in messages.
    """
    for index, (view, shape, dtype) in enumerate(zip(leaves, shapes, dtypes, strict=True)):
        if view is None:
            continue
        if not isinstance(view, View):
            raise TypeError(f"{name}: {written(index)} must be a View or None, but is {shown(view)}")
        if view.shape != shape or view.dtype != dtype:
            raise ValueError(
                f"{name}: {written(index)} is {view.dtype}{view.shape} but {result(index)} is {dtype}{shape}: they "
                "must be the same"
            )
        why = view.misfit()
        if why:
            raise ValueError(f"{name}: {written(index)} doesn't fit its buffer: {why}")
        if not view.layout.is_injective():
            raise ValueError(f"{name}: {written(index)} overlaps itself: two of its elements lie in one place")
    views = [(index, view) for index, view in enumerate(leaves) if view is not None]
    refuse_explicit_axes(name, [view for _, view in views], lambda place: written(views[place][0]))
    array_of = distinct([view.buffer for _, view in views])[1]
    for buffer in set(array_of):
        members = [(index, view.layout) for (index, view), at in zip(views, array_of, strict=True) if at == buffer]
        found = overlap(tuple(layout for _, layout in members))
        if found:
            first, second = (written(members[place][0]) for place in found)
            raise ValueError(f"{name}: {first} and {second} overlap in their buffer: results must not")
    return Windows(tuple(leaves))
