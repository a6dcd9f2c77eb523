"""divided: a function of many matrices, of which each device of a mesh axis computes a part; all devices get all
results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.many_devices.after import after
from jax_vbgemm._src.many_devices.partition import Piece, Round, in_rounds
from jax_vbgemm._src.matmul.members import row_multiple
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.mesh_axes import MeshAxes

Function = Callable[..., Sequence[jax.Array | View]]
Layouts = Mapping[Any, "BufferLayout"]  # by dtype


def divided(
    function: Function, arrays: Sequence[jax.Array], extras: Any, seconds: Sequence[float], axes: MeshAxes
) -> list[jax.Array]:
    """[f(x) for x in arrays], for an f that treats each matrix of (..., m, n) independently and keeps its shape.

    All devices run the same program. Where the number of devices divides the number of matrices of a shape, each device
    selects its own ones. Other matrices differ in shape between devices: a conditional has a branch for each device.
    Results lie in one buffer for each dtype, and one collective distributes them to all devices, while the results of
    the next round are computed.

    Args:
      function: (arrays, indices, extras, into) -> results, where indices, an array of integers that may be traced, are
        those of the arrays in `arrays`; called with a device's matrices, which may be a part of a stack. Results may be
        the views `into` of buffers into which they have been written; others are copied there.
      arrays: of rank 2 or more and of known shapes; inside a shard_map, the same on all devices.
      extras: a pytree of arrays that every device needs.
      seconds: the predicted time for one matrix of each array.
      axes: the mesh axes whose devices share the work. Devices along other axes do the same work.
    """
    stacks = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) if x.ndim > 3 else x for x in arrays]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    counts = [1 if x.ndim == 2 else len(x) for x in stacks]
    counts = [count if x.size else 0 for x, count in zip(stacks, counts, strict=True)]  # an empty array needs no work
    kinds = [(x.shape, x.dtype) if x.ndim == 2 else None for x in stacks]
    rounds = in_rounds(counts, kinds, seconds, axes.size)

    def on_device(stacks: Sequence[jax.Array], extras: Any) -> list[jax.Array]:
        # Each device reads only some operands, so that cotangents have to be summed over the devices, which the
        # transpose of this cast does.
        stacks, extras = jax.tree.map(lambda x: compat.varying(x, axes.names), (stacks, extras))
        stacks = compat.unite_varying(stacks)  # all results lie in one buffer
        found: list[list[tuple[Piece, jax.Array]]] = [[] for _ in arrays]
        sent: tuple[Layouts, list[jax.Array]] = {}, []
        for of_round in rounds:
            layouts = _layouts(of_round, arrays)
            buffers = _computed(function, of_round, layouts, stacks, extras, axes)
            # Else XLA might use the previous round's results before it computes this round's, and would wait for them.
            _collect(sent[0], [after(rows, buffers) for rows in sent[1]], found)
            sent = layouts, [x.sent(buffer, axes.names) for x, buffer in zip(layouts.values(), buffers, strict=True)]
        _collect(*sent, found)
        return [_joined(parts, x) for parts, x in zip(found, shapes, strict=True)]

    if axes.manual:
        results = on_device(stacks, extras)
    else:
        spread = jax.shard_map(
            on_device,
            mesh=axes.mesh,
            in_specs=jax.P(),
            out_specs=jax.P(),
            axis_names=axes.free,
        )
        results = spread([compat.replicated(x) for x in stacks], jax.tree.map(compat.replicated, extras))
    return [compat.placed_as(y, x) for y, x in zip(results, arrays, strict=True)]


def _layouts(of_round: Round, arrays: Sequence[jax.Array]) -> Layouts:
    """The layout of the round's results of each dtype."""
    dtypes = dict.fromkeys(arrays[p.array].dtype for share in of_round.shares for p in share)
    return {
        dtype: BufferLayout([[p for p in share if arrays[p.array].dtype == dtype] for share in of_round.shares], arrays)
        for dtype in dtypes
    }


def _computed(
    function: Function, of_round: Round, layouts: Layouts, stacks: Sequence[jax.Array], extras: Any, axes: MeshAxes
) -> list[jax.Array]:
    """The buffer of each layout, with the results of this device."""
    shares = [[p for layout in layouts.values() for p in layout.shares[device]] for device in range(axes.size)]
    index = jax.lax.axis_index(axes.names)

    def filled(parts: Sequence[jax.Array], indices: Any, extras: Any, device: int) -> list[jax.Array]:
        buffers = [compat.varying(layout.zeros(), axes.names) for layout in layouts.values()]
        pairs = list(zip(buffers, layouts.values(), strict=True))
        into = [view for buffer, layout in pairs for view in layout.views(buffer, device)]
        values = iter(function(parts, indices, extras, into))
        return [compat.varying(layout.filled(buffer, device, values), axes.names) for buffer, layout in pairs]

    def branch(device: int) -> Callable[..., list[jax.Array]]:
        def run(stacks: Sequence[jax.Array], extras: Any) -> list[jax.Array]:
            parts = [
                stacks[p.array] if stacks[p.array].ndim == 2 else stacks[p.array][p.start : p.stop]
                for p in shares[device]
            ]
            return filled(parts, np.array([p.array for p in shares[device]], int), extras, device)

        return run

    if not of_round.is_even:
        branches = [branch(device) for device in range(axes.size)]
        buffers: list[jax.Array] = jax.lax.switch(index, branches, stacks, extras)
        return buffers
    parts = [_selected(pieces, stacks, index) for pieces in zip(*shares, strict=True)]
    indices = jnp.array([[p.array for p in share] for share in shares])[index]
    return filled(parts, indices, extras, 0)  # all devices have the layout of the first one


def _selected(pieces: Sequence[Piece], stacks: Sequence[jax.Array], index: jax.Array) -> jax.Array:
    """The index-th piece."""
    first = pieces[0]
    if stacks[first.array].ndim == 2:
        return jax.lax.select_n(index, *(stacks[p.array] for p in pieces))
    start = jnp.array([p.start for p in pieces])[index]
    return jax.lax.dynamic_slice_in_dim(stacks[first.array], start, first.stop - first.start)


def _collect(layouts: Layouts, rows: Sequence[jax.Array], found: list[list[tuple[Piece, jax.Array]]]) -> None:
    """Adds the pieces of a round to those found for each array."""
    for of_dtype, layout in zip(rows, layouts.values(), strict=True):
        for piece, values in layout.collected(of_dtype):
            found[piece.array].append((piece, values))


def _joined(parts: Sequence[tuple[Piece, jax.Array]], shape: jax.ShapeDtypeStruct) -> jax.Array:
    """An array from the pieces of its stack."""
    values = [x for _, x in sorted(parts, key=lambda part: part[0].start)]
    if not values:
        return jnp.zeros(shape.shape, shape.dtype)
    return (values[0] if len(values) == 1 else jnp.concatenate(values)).reshape(shape.shape)


class BufferLayout:
    """The layout of the results of one dtype in the buffers of all devices.

    There are two collectives, and the cheaper one is used. An all-gather sends n times the largest part to every
    device. An all-reduce of buffers that are zero outside of the device's part (a reduce-scatter and an all-gather)
    sends twice the whole buffer.
    """

    def __init__(self, shares: Sequence[Sequence[Piece]], arrays: Sequence[jax.Array]) -> None:
        """arrays: those that the pieces name, of one dtype."""
        self.shares = shares
        pieces = [p for share in shares for p in share]
        stacked = {p: (p.stop - p.start,) if arrays[p.array].ndim > 2 else () for p in pieces}
        self.shapes = {p: (*stacked[p], *arrays[p.array].shape[-2:]) for p in pieces}
        self.dtype = arrays[pieces[0].array].dtype
        # Kernels write rows as vectors, if these are aligned.
        aligned = row_multiple(self.dtype)
        sizes = {p: -(-math.prod(shape) // aligned) * aligned for p, shape in self.shapes.items()}
        totals = [sum(sizes[p] for p in share) for share in shares]
        self.gathers = max(totals) * len(shares) <= 2 * sum(totals)
        self.length = max(totals) if self.gathers else sum(totals)
        self.starts: dict[Piece, int] = {}
        for device, share in enumerate(shares):
            start = 0 if self.gathers else sum(totals[:device])
            for piece in share:
                self.starts[piece] = start
                start += sizes[piece]

    def zeros(self) -> jax.Array:
        return jnp.zeros(self.length, self.dtype)

    def views(self, buffer: jax.Array, device: int) -> list[View]:
        """The places of the device's results in its buffer."""
        return [View(buffer, self.shapes[p], offset=self.starts[p]) for p in self.shares[device]]

    def filled(self, buffer: jax.Array, device: int, values: Iterator[jax.Array | View]) -> jax.Array:
        """The buffer with the device's results, which are taken from `values`."""
        results = dict(zip(self.shares[device], values, strict=False))
        for value in results.values():
            buffer = value.buffer if isinstance(value, View) else buffer  # all views are of one buffer
        for piece, value in results.items():
            if not isinstance(value, View):
                buffer = jax.lax.dynamic_update_slice(buffer, value.ravel(), (self.starts[piece],))
        return buffer

    def sent(self, buffer: jax.Array, names: tuple[str, ...]) -> jax.Array:
        """The buffers of all devices as rows, or one row with all results; on all devices."""
        return compat.all_gather(buffer, names) if self.gathers else jax.lax.psum(buffer, names)[None]

    def collected(self, rows: jax.Array) -> Iterator[tuple[Piece, jax.Array]]:
        """The results of all devices from what has been sent."""
        for device, share in enumerate(self.shares):
            for piece in share:
                start, shape = self.starts[piece], self.shapes[piece]
                yield piece, rows[device if self.gathers else 0, start : start + math.prod(shape)].reshape(shape)
