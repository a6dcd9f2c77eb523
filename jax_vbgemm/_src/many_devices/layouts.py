"""How the matrices of a round reach the devices that compute them, and how results reach the devices that want
them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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

    def parts(
        self, arrays: Sequence[jax.Array], received: Any, device: int | None, index: jax.Array
    ) -> list[jax.Array]:
        """The matrices of a device's pieces."""
        raise NotImplementedError

    def places(self, device: int) -> tuple[Any, list[View | None]]:
        """An empty buffer for the results, and the position of each result in it."""
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
        self, arrays: Sequence[jax.Array], received: Any, device: int | None, index: jax.Array
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
    back. Row i of a buffer is for device i before it is sent, and from device i afterwards.
    """

    def __init__(self, shares: Shares, stacks: Sequence[Stack]) -> None:
        super().__init__(shares, stacks)
        self.devices = len(shares)
        self.side: int = stacks[next(iter(self.shapes)).array].axis or -1  # along which matrices are cut
        self.sliced: dict[Piece, tuple[int, ...]] = {}  # shapes of slices
        for piece, shape in self.shapes.items():
            slices = list(shape)
            slices[self.side] //= self.devices
            self.sliced[piece] = tuple(slices)
        sizes = {p: _aligned(math.prod(shape), self.aligned) for p, shape in self.sliced.items()}
        self.starts: dict[Piece, int] = {}
        for share in shares:
            for piece, start in zip(share, _starts([sizes[p] for p in share]), strict=True):
                self.starts[piece] = start
        self.length = max(sum(sizes[p] for p in share) for share in shares)

    def received(self, arrays: Sequence[jax.Array], names: tuple[str, ...]) -> jax.Array:
        flat: list[jax.Array] = []
        for share in self.shares:
            slices = [_piece_values(arrays[p.array], p).ravel() for p in share]
            flat += self._padded(slices, share, (), self.dtype)
        return _exchanged(jnp.concatenate(flat).reshape(self.devices, self.length), names)

    def parts(
        self, arrays: Sequence[jax.Array], received: jax.Array, device: int | None, index: jax.Array
    ) -> list[jax.Array]:
        found = []
        for piece in self.shares[device or 0]:
            start, shape = self.starts[piece], self.sliced[piece]
            slices = received[:, start : start + math.prod(shape)].reshape(self.devices, *shape)
            found.append(jnp.moveaxis(slices, 0, self.side - 1).reshape(self.shapes[piece]))
        return found

    def outgoing(self, buffer: Any, device: int, values: Iterator[Any]) -> jax.Array:
        share = self.shares[device]
        rows = []
        for piece, value in zip(share, values, strict=False):
            sizes = list(self.sliced[piece])
            sizes.insert(len(sizes) + self.side, self.devices)
            rows.append(jnp.moveaxis(value.reshape(sizes), self.side - 1, 0).reshape(self.devices, -1))
        return jnp.concatenate(self._padded(rows, share, (self.devices,), self.result), axis=-1)

    def sent(self, outgoing: jax.Array, names: tuple[str, ...]) -> jax.Array:
        return _exchanged(outgoing, names)

    def collected(self, rows: jax.Array) -> Iterator[tuple[Piece, jax.Array]]:
        for device, share in enumerate(self.shares):
            for piece in share:
                start, shape = self.starts[piece], self.sliced[piece]
                yield piece, rows[device, start : start + math.prod(shape)].reshape(shape)

    def _padded(
        self, values: Sequence[jax.Array], share: Sequence[Piece], lead: tuple[int, ...], dtype: Any
    ) -> list[jax.Array]:
        """The values (*lead, size), padded with zeros so that each begins at its position in `starts`."""
        ends = [*(self.starts[p] for p in share), self.length]
        filled: list[jax.Array] = []
        position = 0
        for end, value in zip(ends, [*values, None], strict=True):
            if end > position:
                filled.append(jnp.zeros((*lead, end - position), dtype))
            if value is not None:
                filled.append(value)
                position = end + value.shape[-1]
        return filled


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
        self, arrays: Sequence[jax.Array], received: Any, device: int | None, index: jax.Array
    ) -> list[jax.Array]:
        if device is None:
            return [_selected(pieces, arrays, index) for pieces in zip(*self.shares, strict=True)]
        return [_piece_values(arrays[p.array], p) for p in self.shares[device]]

    def places(self, device: int) -> tuple[jax.Array, list[View | None]]:
        buffer = jnp.zeros(self.length, self.result)
        return buffer, [View(buffer, self.shapes[p], offset=self.starts[p]) for p in self.shares[device]]

    def outgoing(self, buffer: jax.Array, device: int, values: Iterator[Any]) -> jax.Array:
        results = dict(zip(self.shares[device], values, strict=False))
        for value in results.values():
            buffer = value.buffer if isinstance(value, View) else buffer  # all views are of one buffer
        for piece, value in results.items():
            if not isinstance(value, View):
                buffer = jax.lax.dynamic_update_slice(buffer, value.ravel(), (self.starts[piece],))
        return buffer

    def sent(self, outgoing: jax.Array, names: tuple[str, ...]) -> jax.Array:
        return compat.all_gather(outgoing, names) if self.gathers else jax.lax.psum(outgoing, names)[None]

    def collected(self, rows: jax.Array) -> Iterator[tuple[Piece, jax.Array]]:
        for device, share in enumerate(self.shares):
            for piece in share:
                start, shape = self.starts[piece], self.shapes[piece]
                yield piece, rows[device if self.gathers else 0, start : start + math.prod(shape)].reshape(shape)


def _piece_values(array: jax.Array, piece: Piece) -> jax.Array:
    return array if array.ndim == 2 else array[piece.start : piece.stop]


def _selected(pieces: Sequence[Piece], arrays: Sequence[jax.Array], index: jax.Array) -> jax.Array:
    """The index-th piece."""
    first = pieces[0]
    if arrays[first.array].ndim == 2:
        return jax.lax.select_n(index, *(arrays[p.array] for p in pieces))
    start = jnp.array([p.start for p in pieces])[index]
    return jax.lax.dynamic_slice_in_dim(arrays[first.array], start, first.stop - first.start)


def _exchanged(rows: jax.Array, names: tuple[str, ...]) -> jax.Array:
    result: jax.Array = jax.lax.all_to_all(rows, names, split_axis=0, concat_axis=0, tiled=True)
    return result


def _aligned(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:index]) for index in range(len(sizes))]
