"""Divides matrices among devices so that all devices finish at about the same time."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

# A stack of matrices is divided into at most this many pieces for each device: more pieces only take longer to trace.
_PIECES_PER_DEVICE = 8

# Results are distributed in rounds, so that a round is sent while the next one is computed. More rounds are smaller
# batches, and each costs a collective for each dtype: on H200s three rounds are slower than two, and two unequal ones
# than two equal ones (docs/design/jax.md, J10). A round takes at least so many seconds of a step, as predicted.
_MOST_ROUNDS = 2
_SECONDS_OF_ROUND = 1e-4


class Piece(NamedTuple):
    """Matrices [start, stop) of the stack `array`; an array of rank 2 is a stack of one."""

    array: int
    start: int
    stop: int

    def part(self, start: int, stop: int) -> Piece:
        """Its matrices [start, stop)."""
        return Piece(self.array, self.start + start, self.start + stop)


class Round(NamedTuple):
    """Pieces that are computed together, for each device. If the round is even, the i-th pieces of all devices are
    of the same kind and length."""

    shares: tuple[tuple[Piece, ...], ...]
    is_even: bool


def in_rounds(
    counts: Sequence[int],
    kinds: Sequence[Hashable],
    seconds: Sequence[float],
    devices: int,
    held: Collection[int] = (),
) -> list[Round]:
    """All matrices, in rounds; only the first round may be uneven.

    Args:
      counts: the number of matrices of each stack. An empty stack has no pieces.
      kinds: stacks of one matrix are of one kind if these are equal; of other stacks, None.
      seconds: the predicted time of one matrix of each stack.
      devices: the number of devices.
      held: the stacks of which the i-th device holds the i-th of equal parts, which it keeps.
    """
    slots, left = _slots(counts, kinds, devices)
    lengths = [slot[0].stop - slot[0].start for slot in slots]
    costs = [seconds[slot[0].array] for slot in slots]
    total = sum(length * cost for length, cost in zip(lengths, costs, strict=True))
    if any(left) and total < 2 * _SECONDS_OF_ROUND:  # a round of their own would take longer
        remaining = [0 if array in held else count for array, count in enumerate(counts)]
        kept = [slot for slot in slots if slot[0].array in held]
        shares = partition(remaining, seconds, devices)
        return [Round(tuple((*share, *(slot[i] for slot in kept)) for i, share in enumerate(shares)), False)]
    rounds = []
    if any(left):
        last = [Piece(array, counts[array] - count, counts[array]) for array, count in enumerate(left)]
        shares = partition(left, seconds, devices)
        rounds.append(Round(tuple(tuple(last[p.array].part(p.start, p.stop) for p in x) for x in shares), False))
    for parts in partition(lengths, costs, max(1, min(_MOST_ROUNDS, int(total / _SECONDS_OF_ROUND)))):
        if parts:
            slot_pieces = [[piece.part(p.start, p.stop) for piece in slots[p.array]] for p in parts]
            rounds.append(Round(tuple(zip(*slot_pieces, strict=True)), True))
    return rounds


Slot = tuple[Piece, ...]  # one piece for each device, of one kind and length


def _slots(counts: Sequence[int], kinds: Sequence[Hashable], devices: int) -> tuple[list[Slot], list[int]]:
    """The slots that can be filled, and the number of matrices left over in each stack, which are its last ones."""
    slots = [
        tuple(Piece(array, device * each, (device + 1) * each) for device in range(devices))
        for array, each in enumerate(count // devices for count in counts)
        if each
    ]
    left = [count % devices for count in counts]
    equal = defaultdict(list)
    for array, kind in enumerate(kinds):
        if left[array] and kind is not None:
            equal[kind].append(array)
    for arrays in equal.values():
        for first in range(0, len(arrays) - devices + 1, devices):
            slots.append(tuple(Piece(array, 0, 1) for array in arrays[first : first + devices]))
            for piece in slots[-1]:
                left[piece.array] = 0
    return slots, left


def saved_seconds(rounds: Sequence[Round], seconds: Sequence[float]) -> float:
    """The predicted time of all matrices less that of the busiest device."""
    devices = zip(*(this_round.shares for this_round in rounds), strict=True)
    busy: list[float] = [
        sum((p.stop - p.start) * seconds[p.array] for share in device_shares for p in share)
        for device_shares in devices
    ]
    return sum(busy) - max(busy, default=0.0)


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
        free_at, device = heapq.heappop(busy)
        taken[device][array] += matrices
        heapq.heappush(busy, (free_at + matrices * seconds[array], device))
    # All matrices of a stack are equivalent, so each device takes consecutive ones, which are one slice.
    shares: list[tuple[Piece, ...]] = []
    starts = [0] * len(counts)
    for device_shares in taken:
        ends = [start + matrices for start, matrices in zip(starts, device_shares, strict=True)]
        ranges = enumerate(zip(starts, ends, strict=True))
        shares.append(tuple(Piece(array, start, stop) for array, (start, stop) in ranges if stop > start))
        starts = ends
    return tuple(shares)
