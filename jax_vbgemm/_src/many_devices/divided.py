"""divided: a function of many matrices, of which each device of a mesh axis computes a part; all devices get all
results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src import compat
from jax_vbgemm._src.many_devices.mesh_axes import MeshAxes
from jax_vbgemm._src.many_devices.partition import Piece, partition
from jax_vbgemm._src.matmul.packed import row_multiple
from jax_vbgemm._src.matmul.view import View

Function = Callable[..., Sequence[jax.Array | View]]

# Results are distributed in rounds, so that a round is sent while the next one is computed. More rounds are smaller
# batches, and each costs a conditional, and a collective for each dtype.
_MOST_ROUNDS = 2
_SECONDS_OF_ROUND = 2e-4  # the predicted time from which on a round is worth that


def divided(
    function: Function, arrays: Sequence[jax.Array], extras: Any, seconds: Sequence[float], axes: MeshAxes
) -> list[jax.Array]:
    """[f(x) for x in arrays], for an f that treats each matrix of (..., m, n) independently and keeps its shape.

    Devices have matrices of different shapes, yet all devices run the same program: a conditional with a branch for
    each device. Its results lie in one buffer for each dtype, and one collective distributes them to all devices.

    Args:
      function: (arrays, indices, extras, into) -> results, where indices are those of the arrays in `arrays`; called
        for each device with that device's matrices, which may be a part of a stack. Results may be the views `into`
        of buffers into which they have been written; others are copied there.
      arrays: of rank 2 or more and of known shapes; inside a shard_map, the same on all devices.
      extras: a pytree of arrays that every device needs.
      seconds: the predicted time for one matrix of each array.
      axes: the mesh axes whose devices share the work. Devices along other axes do the same work.
    """
    stacks = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) if x.ndim > 3 else x for x in arrays]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    counts = [1 if x.ndim == 2 else len(x) for x in stacks]
    counts = [count if x.size else 0 for x, count in zip(stacks, counts, strict=True)]  # an empty array needs no work
    rounds = [
        {
            dtype: Layout([[p for p in share if arrays[p.array].dtype == dtype] for share in shares], arrays)
            for dtype in dict.fromkeys(arrays[p.array].dtype for share in shares for p in share)
        }
        for shares in in_rounds(counts, seconds, axes.size)
    ]

    def branch(device: int, layouts: Mapping[Any, Layout]) -> Callable[..., list[jax.Array]]:
        def run(stacks: Sequence[jax.Array], extras: Any) -> list[jax.Array]:
            buffers = [compat.varying(layout.zeros(), axes.names) for layout in layouts.values()]
            pieces = [p for layout in layouts.values() for p in layout.shares[device]]
            into = [
                view
                for buffer, layout in zip(buffers, layouts.values(), strict=True)
                for view in layout.views(buffer, device)
            ]
            parts = [
                stacks[p.array] if stacks[p.array].ndim == 2 else stacks[p.array][p.start : p.stop] for p in pieces
            ]
            values = iter(function(parts, [p.array for p in pieces], extras, into))
            return [
                compat.varying(layout.filled(buffer, device, values), axes.names)
                for buffer, layout in zip(buffers, layouts.values(), strict=True)
            ]

        return run

    def on_device(stacks: Sequence[jax.Array], extras: Any) -> list[jax.Array]:
        # Each device reads only some operands, so that cotangents have to be summed over the devices, which the
        # transpose of this cast does.
        stacks, extras = jax.tree.map(lambda x: compat.varying(x, axes.names), (stacks, extras))
        index = jax.lax.axis_index(axes.names)
        found: list[list[tuple[Piece, jax.Array]]] = [[] for _ in arrays]
        for layouts in rounds:
            branches = [branch(device, layouts) for device in range(axes.size)]
            for buffer, layout in zip(jax.lax.switch(index, branches, stacks, extras), layouts.values(), strict=True):
                for piece, values in layout.collected(buffer, axes.names):
                    found[piece.array].append((piece, values))
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


def in_rounds(counts: Sequence[int], seconds: Sequence[float], devices: int) -> list[tuple[tuple[Piece, ...], ...]]:
    """For each round of results, the pieces of each device."""
    whole = partition(counts, seconds, devices)
    longest = _makespan(whole, seconds)
    for rounds in range(min(_MOST_ROUNDS, int(longest / _SECONDS_OF_ROUND)), 1, -1):
        parts = partition(counts, seconds, devices * rounds)
        shares = [parts[index::rounds] for index in range(rounds)]
        if sum(_makespan(share, seconds) for share in shares) <= 1.02 * longest:
            return shares
    return [whole]


def _makespan(shares: Sequence[Sequence[Piece]], seconds: Sequence[float]) -> float:
    return max(sum((p.stop - p.start) * seconds[p.array] for p in share) for share in shares)


def _joined(parts: Sequence[tuple[Piece, jax.Array]], shape: jax.ShapeDtypeStruct) -> jax.Array:
    """An array from the pieces of its stack."""
    values = [x for _, x in sorted(parts, key=lambda part: part[0].start)]
    if not values:
        return jnp.zeros(shape.shape, shape.dtype)
    return (values[0] if len(values) == 1 else jnp.concatenate(values)).reshape(shape.shape)


class Layout:
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

    def collected(self, buffer: jax.Array, names: tuple[str, ...]) -> Iterator[tuple[Piece, jax.Array]]:
        """The results of all devices, on all devices."""
        rows = compat.all_gather(buffer, names) if self.gathers else jax.lax.psum(buffer, names)[None]
        for device, share in enumerate(self.shares):
            for piece in share:
                start, shape = self.starts[piece], self.shapes[piece]
                yield piece, rows[device if self.gathers else 0, start : start + math.prod(shape)].reshape(shape)
