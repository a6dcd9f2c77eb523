"""How the matrices of a round reach the devices that compute them, and how results reach the devices that want
them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.many_devices.partition import Piece
from jax_vbgemm._src.many_devices.stack import Stack
from jax_vbgemm._src.matmul.members import row_multiple
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.util import compat

Shares = Sequence[Sequence[Piece]]


def layout_of(shares: Shares, stacks: Sequence[Stack]) -> Layout:
    """The layout of pieces whose stacks share one dtype and are held in the same way."""
    axis = next(stacks[p.array].axis for share in shares for p in share)
    return {None: Copies, -3: Layers}.get(axis, Slices)(shares, stacks)


class Layout:
    """Each device's pieces in one round, of stacks of one dtype that devices hold in the same way.

    The methods are for use inside a shard_map, where `arrays` are what the device holds of each stack. `device` is the
    device whose part is requested; None: the device that runs the program, if the pieces of all devices have the same
    kinds.
    """

    def __init__(self, shares: Shares, stacks: Sequence[Stack]) -> None:
        self.shares = shares
        pieces = [p for share in shares for p in share]
        stacked = {p: (p.stop - p.start,) if len(stacks[p.array].shape) > 2 else () for p in pieces}
        self.shapes = {p: (*stacked[p], *stacks[p.array].shape[-2:]) for p in pieces}
        self.dtype, self.result = stacks[pieces[0].array].dtype, stacks[pieces[0].array].result
        # Kernels write rows as vectors, if these are aligned.
        self.aligned = row_multiple(self.result)

    def received(self, arrays: Sequence[jax.Array], names: tuple[str, ...]) -> Any:
        """The operands that devices send each other before the round."""
        del arrays, names

    def opened(self, received: Any, device: int) -> Any:
        """What the device has received, in the order of its own memory."""
        del device
        return received

    def parts(
        self, arrays: Sequence[jax.Array], opened: Any, device: int | None, axis_index: jax.Array
    ) -> list[jax.Array]:
        """The matrices of a device's pieces. axis_index: the number of the device that runs the program."""
        raise NotImplementedError

    def places(self, opened: Any, device: int) -> tuple[Any, list[View | None]]:
        """Buffers for the results, whose values don't matter, and the position of each result in one of them."""
        return None, [None] * len(self.shares[device])

    def outgoing(self, buffer: Any, device: int, values: Iterator[Any]) -> Any:
        """The part of the results in `values` that the device sends."""
        raise NotImplementedError

    def sent(self, outgoing: Any, names: tuple[str, ...]) -> Any:
        """The buffer that a device has after the results have been sent."""
        raise NotImplementedError

    def collected(self, rows: Any) -> Iterator[tuple[Piece, jax.Array]]:
        """From the received buffer, the results for the part of each stack that the device holds."""
        raise NotImplementedError


class Layers(Layout):
    """Each device holds the matrices that are its pieces: nothing is sent."""

    def __init__(self, shares: Shares, stacks: Sequence[Stack]) -> None:
        super().__init__(shares, stacks)
        self.counts = {p.array: stacks[p.array].shape[0] // len(shares) for p in shares[0]}  # of one device

    def parts(
        self, arrays: Sequence[jax.Array], opened: Any, device: int | None, axis_index: jax.Array
    ) -> list[jax.Array]:
        found = []
        for piece in self.shares[device or 0]:
            start = piece.start % self.counts[piece.array]
            found.append(arrays[piece.array][start : start + piece.stop - piece.start])
        return found

    def outgoing(self, buffer: Any, device: int, values: Iterator[Any]) -> Any:
        return [next(values) for _ in self.shares[device]]

    def sent(self, outgoing: Any, names: tuple[str, ...]) -> Any:
        return outgoing

    def collected(self, rows: Any) -> Iterator[tuple[Piece, jax.Array]]:
        yield from zip(self.shares[0], rows, strict=True)


class Slices(Layout):
    """Each device holds a slice of each matrix, some rows or some columns.

    An all-to-all sends the slices of a matrix to the device that computes it, another one the slices of the result
    back. Row i of a buffer is for device i before it is sent, and from device i afterwards. In a row, slices of equal
    shape lie together, so that one transposition makes matrices of all of them.
    """

    def __init__(self, shares: Shares, stacks: Sequence[Stack]) -> None:
        super().__init__(shares, stacks)
        self.devices = len(shares)
        self.side: int = stacks[next(iter(self.shapes)).array].axis or -1  # along which matrices are cut
        self.groups: list[dict[tuple[int, ...], _Group]] = []  # of each device, by the shape of a matrix
        self.starts: dict[Piece, int] = {}
        ends = []
        for share in shares:
            groups: dict[tuple[int, ...], _Group] = {}
            for piece in share:
                groups.setdefault(self.shapes[piece][-2:], _Group(0, 0, {})).add(piece)
            end = 0
            for shape, group in groups.items():
                size = math.prod(shape) // self.devices
                group.start = end
                self.starts |= {piece: end + first * size for piece, first in group.first.items()}
                end += _aligned(group.count * size, self.aligned)
            self.groups.append(groups)
            ends.append(end)
        self.length = max(ends)

    def received(self, arrays: Sequence[jax.Array], names: tuple[str, ...]) -> jax.Array:
        rows = jnp.zeros(self.devices * self.length, self.dtype)
        for device, share in enumerate(self.shares):
            for piece in share:
                start = device * self.length + self.starts[piece]
                rows = jax.lax.dynamic_update_slice(rows, _piece_values(arrays[piece.array], piece).ravel(), (start,))
        return _exchanged(rows.reshape(self.devices, self.length), names)

    def opened(self, received: jax.Array, device: int) -> list[jax.Array]:
        found = []
        for shape, group in self.groups[device].items():
            sizes = list(shape)
            sizes[self.side] //= self.devices
            rows = received[:, group.start : group.start + group.count * math.prod(sizes)]
            slices = rows.reshape(self.devices, group.count, *sizes)
            found.append(jnp.moveaxis(slices, 0, self.side - 1).reshape(group.count, *shape))
        # Otherwise XLA would transpose each matrix by itself.
        return list(jax.lax.optimization_barrier(found))

    def parts(
        self, arrays: Sequence[jax.Array], opened: list[jax.Array], device: int | None, axis_index: jax.Array
    ) -> list[jax.Array]:
        found = {}
        for matrices, group in zip(opened, self.groups[device or 0].values(), strict=True):
            for piece, first in group.first.items():
                stacked = matrices[first : first + piece.stop - piece.start]
                found[piece] = stacked.reshape(self.shapes[piece])
        return [found[piece] for piece in self.shares[device or 0]]

    def places(self, opened: list[jax.Array], device: int) -> tuple[list[jax.Array], list[View | None]]:
        buffers, views = [], {}
        for matrices, (shape, group) in zip(opened, self.groups[device].items(), strict=True):
            # The operands' memory, which the last product may overwrite, or that of zeros if it has another size.
            buffer = matrices if self.result == self.dtype else jnp.zeros(matrices.shape, self.result)
            buffers.append(buffer.ravel())
            for piece, first in group.first.items():
                views[piece] = View(buffers[-1], self.shapes[piece], offset=first * math.prod(shape))
        return buffers, [views[piece] for piece in self.shares[device]]

    def outgoing(self, buffers: Sequence[jax.Array], device: int, values: Iterator[Any]) -> jax.Array:
        results = dict(zip(self.shares[device], values, strict=False))
        rows, end = [], 0
        for buffer, (shape, group) in zip(buffers, self.groups[device].items(), strict=True):
            starts = {piece: first * math.prod(shape) for piece, first in group.first.items()}
            written = _written(buffer, {piece: results[piece] for piece in starts}, starts)
            sizes = [group.count, *shape]
            sizes[self.side] //= self.devices
            sizes.insert(len(sizes) + self.side, self.devices)
            slices = jnp.moveaxis(written.reshape(sizes), self.side - 1, 0).reshape(self.devices, -1)
            rows += [jnp.zeros((self.devices, group.start - end), self.result), slices]
            end = group.start + slices.shape[1]
        rows.append(jnp.zeros((self.devices, self.length - end), self.result))
        return jnp.concatenate([row for row in rows if row.size], axis=1)

    def sent(self, outgoing: jax.Array, names: tuple[str, ...]) -> jax.Array:
        return _exchanged(outgoing, names)

    def collected(self, rows: jax.Array) -> Iterator[tuple[Piece, jax.Array]]:
        for device, share in enumerate(self.shares):
            for piece in share:
                shape = list(self.shapes[piece])
                shape[self.side] //= self.devices
                start = self.starts[piece]
                yield piece, rows[device, start : start + math.prod(shape)].reshape(shape)


@dataclass
class _Group:
    """Slices of equal shape that one device receives.

    start: their position in a row. count: the number of matrices. first: for each piece the first of its matrices.
    """

    start: int
    count: int
    first: dict[Piece, int]

    def add(self, piece: Piece) -> None:
        self.first[piece] = self.count
        self.count += piece.stop - piece.start


class Copies(Layout):
    """Each device holds all matrices and gets all results.

    There are two collectives, and the cheaper one is used. An all-gather sends n times the largest part to every
    device. An all-reduce of buffers that are zero outside of the device's part (a reduce-scatter and an all-gather)
    sends twice the whole buffer.
    """

    def __init__(self, shares: Shares, stacks: Sequence[Stack]) -> None:
        super().__init__(shares, stacks)
        sizes = {p: _aligned(math.prod(shape), self.aligned) for p, shape in self.shapes.items()}
        totals = [sum(sizes[p] for p in share) for share in shares]
        self.gathers = max(totals) * len(shares) <= 2 * sum(totals)
        self.length = max(totals) if self.gathers else sum(totals)
        self.starts: dict[Piece, int] = {}
        for device, share in enumerate(shares):
            first = 0 if self.gathers else sum(totals[:device])
            for piece, start in zip(share, _starts([sizes[p] for p in share]), strict=True):
                self.starts[piece] = first + start

    def parts(
        self, arrays: Sequence[jax.Array], opened: Any, device: int | None, axis_index: jax.Array
    ) -> list[jax.Array]:
        if device is None:
            return [_selected(pieces, arrays, axis_index) for pieces in zip(*self.shares, strict=True)]
        return [_piece_values(arrays[p.array], p) for p in self.shares[device]]

    def places(self, opened: Any, device: int) -> tuple[jax.Array, list[View | None]]:
        buffer = jnp.zeros(self.length, self.result)
        return buffer, [View(buffer, self.shapes[p], offset=self.starts[p]) for p in self.shares[device]]

    def outgoing(self, buffer: jax.Array, device: int, values: Iterator[Any]) -> jax.Array:
        return _written(buffer, dict(zip(self.shares[device], values, strict=False)), self.starts)

    def sent(self, outgoing: jax.Array, names: tuple[str, ...]) -> jax.Array:
        return compat.all_gather(outgoing, names) if self.gathers else jax.lax.psum(outgoing, names)[None]

    def collected(self, rows: jax.Array) -> Iterator[tuple[Piece, jax.Array]]:
        for device, share in enumerate(self.shares):
            for piece in share:
                start, shape = self.starts[piece], self.shapes[piece]
                yield piece, rows[device if self.gathers else 0, start : start + math.prod(shape)].reshape(shape)


def _written(buffer: jax.Array, results: dict[Piece, Any], starts: dict[Piece, int]) -> jax.Array:
    """The buffer with all results. Those that are views are in it already: all of these are of its newest form."""
    for value in results.values():
        buffer = value.buffer if isinstance(value, View) else buffer
    for piece, value in results.items():
        if not isinstance(value, View):
            buffer = jax.lax.dynamic_update_slice(buffer, value.ravel(), (starts[piece],))
    return buffer


def _piece_values(array: jax.Array, piece: Piece) -> jax.Array:
    return array if array.ndim == 2 else array[piece.start : piece.stop]


def _selected(pieces: Sequence[Piece], arrays: Sequence[jax.Array], axis_index: jax.Array) -> jax.Array:
    """The piece of the device `axis_index`."""
    first = pieces[0]
    if arrays[first.array].ndim == 2:
        return jax.lax.select_n(axis_index, *(arrays[p.array] for p in pieces))
    start = jnp.array([p.start for p in pieces])[axis_index]
    return jax.lax.dynamic_slice_in_dim(arrays[first.array], start, first.stop - first.start)


def _exchanged(rows: jax.Array, names: tuple[str, ...]) -> jax.Array:
    result: jax.Array = jax.lax.all_to_all(rows, names, split_axis=0, concat_axis=0, tiled=True)
    return result


def _aligned(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:index]) for index in range(len(sizes))]
