"""The layout of a view as a caller gives it: by sizes and strides, or by an einops pattern."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax_vbgemm._src.matmul.layout import Layout, Level, Levels, Shape
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import shown


def layout_of(shape: Any, strides: Any, offset: Any) -> Layout:
    """The layout of a view with these sizes, strides (None: row-major without gaps) and offset."""
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


def layout_of_pattern(shape: Shape, pattern: str, window: Any, sizes: Mapping[str, int]) -> Layout:
    """The layout of a view of an array of this shape by an einops pattern, as `View.of` describes it."""

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
    """The names of each axis; None if the text is not a list of names."""
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
