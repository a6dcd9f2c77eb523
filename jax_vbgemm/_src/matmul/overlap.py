"""Whether windows of one buffer have elements in common.

If the answer depends on the values of symbolic sizes, they count as overlapping.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.util import compat


@functools.lru_cache(maxsize=1024)
def overlap(layouts: tuple[Layout, ...]) -> tuple[int, int] | None:
    """The indices of two layouts that have a position in common; None if all layouts are disjoint."""
    if not all(layout.is_static for layout in layouts):
        pairs = itertools.combinations(range(len(layouts)), 2)
        return next((pair for pair in pairs if not _are_provably_disjoint(*(layouts[index] for index in pair))), None)
    spans = sorted((x.offset, x.end, index) for index, x in enumerate(layouts) if x.size)
    reaching: list[int] = []  # indices of the layouts whose end lies past the beginning of the current one
    for begin, _, index in spans:
        reaching = [other for other in reaching if layouts[other].end > begin]
        for other in reaching:
            if _overlap_two(layouts[other], layouts[index]):
                return min(other, index), max(other, index)
        reaching.append(index)
    return None


def covers(layouts: tuple[Layout, ...], elements: int) -> bool:
    """Whether layouts that are disjoint and injective contain every element of a buffer."""
    return sum(x.size for x in layouts) == elements


def _are_provably_disjoint(one: Layout, other: Layout) -> bool:
    """Whether two layouts have no position in common for any values of symbolic sizes."""
    return compat.certainly(lambda: not _overlap_two(one, other))


def _overlap_two(one: Layout, other: Layout) -> bool:
    """Whether two layouts have a position in common.

    If both consist of rows of one pitch and no row crosses a multiple of the pitch, comparing the rows is enough;
    otherwise all positions are compared.
    """
    if one.size == 0 or other.size == 0:
        return False
    if compat.certainly(lambda: one.offset >= other.end) or compat.certainly(lambda: other.offset >= one.end):
        return False
    pitch = max((stride for x in (one, other) for _, stride in x.levels), default=0)
    if pitch:
        (begin, count, row), (other_begin, other_count, other_row) = (_by_pitch(x, pitch) for x in (one, other))
        if max(row.end, other_row.end) <= pitch:
            meet = begin < other_begin + other_count and other_begin < begin + count
            return meet and _overlap_two(row, other_row)
    if not (one.is_static and other.is_static):
        return True
    return bool(np.intersect1d(one.positions(), other.positions()).size)


def _by_pitch(layout: Layout, pitch: int) -> tuple[int, int, Layout]:
    """The layout cut into rows of this pitch: the first row, the number of rows, and the layout within one row."""
    begin, offset = divmod(layout.offset, pitch)
    count = 1 + sum(size - 1 for size, stride in layout.levels if stride == pitch)
    return begin, count, Layout((tuple(level for level in layout.levels if level[1] != pitch),), offset)
