"""Which device takes which matrices, so that all are done at about the same time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

# A stack of matrices is divided into at most this many pieces a device: finer ones would only take longer to trace.
_PIECES_PER_DEVICE = 8


class Piece(NamedTuple):
    """Matrices [start, stop) of the stack `array`; an array of rank 2 is a stack of one."""

    array: int
    start: int
    stop: int


def partition(counts: Sequence[int], seconds: Sequence[float], devices: int) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each device, in order: longest processing time first, each to the device that is least busy.

    The last device is done at most 4/3 as late as in the best partition of these pieces (Graham 1969). The answer
    follows from the arguments alone, so that all processes of a program find the same one.

    Args:
      counts: how many matrices each stack holds. An empty stack has no pieces.
      seconds: of one matrix of each stack.
      devices: how many there are.
    """
    pieces = []  # matrices and the stack that they are of
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
    # Which matrices of a stack is all the same, so each device takes consecutive ones: one slice and one array.
    shares: list[tuple[Piece, ...]] = []
    starts = [0] * len(counts)
    for of_device in taken:
        ends = [start + matrices for start, matrices in zip(starts, of_device, strict=True)]
        ranges = enumerate(zip(starts, ends, strict=True))
        shares.append(tuple(Piece(array, start, stop) for array, (start, stop) in ranges if stop > start))
        starts = ends
    return tuple(shares)
