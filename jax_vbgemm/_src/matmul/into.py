"""Windows of the caller's arrays into which results are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.overlap import covers, overlap
from jax_vbgemm._src.matmul.primitive import Target, Window, target_of
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.util.arguments import refuse_explicit_axes, shown
from jax_vbgemm._src.util.distinct import distinct


def windows_into(
    views: Sequence[View | None], shapes: Sequence[Shape], arrays: list[Any]
) -> tuple[list[Window], list[Target]]:
    """The windows and targets for results of these shapes that are written into views; a result without a view (None)
    is a new array. `arrays`: those that the call reads; the bases of targets become the last ones.
    """
    buffers, numbers = distinct([view.buffer for view in views if view is not None])
    array_of = iter(numbers)
    writes: list[Window] = []
    own: list[Target] = []  # of the results that are arrays of their own
    for view, shape in zip(views, shapes, strict=True):
        if view is None:
            writes.append(Window(len(buffers) + len(own), Layout.row_major(shape)))
            own.append(Target(shape))
        else:
            writes.append(Window(next(array_of), view.layout))
    # A buffer that the windows cover completely need not be passed, as nothing of it is kept. It is passed where the
    # call reads it as an operand too: XLA can then update it in place.
    number = distinct([*buffers, *(x.buffer if isinstance(x, View) else x for x in arrays)])[1]
    targets = []
    for index, buffer in enumerate(buffers):
        layouts = tuple(window.layout for window in writes if window.array == index)
        is_kept = number[index] in number[len(buffers) :] or not covers(layouts, buffer.size)
        targets.append(target_of(buffer.shape, buffer if is_kept else None, arrays))
    return writes, targets + own


def check_windows(
    name: str, leaves: Sequence[Any], written: Any, result: Any, shapes: Sequence[Shape], dtypes: Sequence[Any]
) -> None:
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
