"""Divides matrices among devices so that all devices finish at about the same time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

# A stack of matrices is divided into at most this many pieces for each device: more pieces only take longer to trace.
_PIECES_PER_DEVICE = 8


class Piece(NamedTuple):
    """Matrices [start, stop) of the stack `array`; an array of rank 2 is a stack of one."""

    array: int
    start: int
    stop: int


def partition(counts: Sequence[int], seconds: Sequence[float], devices: int) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each device, by longest processing time first: each piece goes to the least busy device.

    The makespan is at most 4/3 of that of the best partition of these pieces (Graham 1969). The result depends on the
    arguments only, so that all processes of a program find the same partition.

    Args:
      counts: the number of matrices of each stack. An empty stack has no pieces.
      seconds: the time of one matrix of each stack.
      devices: the number of devices.
    """
    pieces = []  # pairs of a number of matrices and their stack
    for array, count in enumerate(counts):
        parts = min(count, _PIECES_PER_DEVICE * devices)
        pieces += [((part + 1) * count // parts - part * count // parts, array) for part in range(parts)]
    pieces.sort(key=lambda piece: (-piece[0] * seconds[piece[1]], piece[1]))
    busy = [(0.0, device) for device in range(devices)]
    taken = [[0] * len(counts) for _ in range(devices)]
    for matrices, array in pieces:
        until, device = heapq.heappop(busy)
        taken[device][array] += matrices
        heapq.heappush(busy, (until + matrices * seconds[array], device))
    # All matrices of a stack are equivalent, so that each device takes consecutive ones: one slice, which is one array.
    shares: list[tuple[Piece, ...]] = []
    starts = [0] * len(counts)
    for of_device in taken:
        ends = [start + matrices for start, matrices in zip(starts, of_device, strict=True)]
        ranges = enumerate(zip(starts, ends, strict=True))
        shares.append(tuple(Piece(array, start, stop) for array, (start, stop) in ranges if stop > start))
        starts = ends
    return tuple(shares)
