"""divided: a function of many matrices, of which each device of a mesh axis computes a part; all devices get all
results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src import compat
from jax_vbgemm._src.many_devices.mesh_axes import MeshAxes
from jax_vbgemm._src.many_devices.partition import Piece, partition

Function = Callable[..., Sequence[jax.Array]]


def divided(
    function: Function, arrays: Sequence[jax.Array], extras: Any, seconds: Sequence[float], axes: MeshAxes
) -> list[jax.Array]:
    """[f(x) for x in arrays], for an f that treats each matrix of (..., m, n) independently and keeps its shape.

    Devices have matrices of different shapes, yet all devices run the same program: a conditional with a branch for
    each device. Results are packed into one buffer for each dtype, and one collective distributes them to all devices.

    Args:
      function: (arrays, indices, extras) -> results, where indices are those of the arrays in `arrays`; called once for
        each device with that device's matrices, which may be a part of a stack.
      arrays: of rank 2 or more and of known shapes; inside a shard_map, the same on all devices.
      extras: a pytree of arrays that every device needs.
      seconds: the predicted time for one matrix of each array.
      axes: the mesh axes whose devices share the work. Devices along other axes do the same work.
    """
    stacks = [x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) if x.ndim > 3 else x for x in arrays]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    counts = [1 if x.ndim == 2 else len(x) for x in stacks]
    counts = [count if x.size else 0 for x, count in zip(stacks, counts, strict=True)]  # an empty array needs no work
    shares = partition(counts, seconds, axes.size)
    layouts = {
        dtype: _Layout(
            [[p for p in share if arrays[p.array].dtype == dtype] for share in shares],
            [math.prod(x.shape[-2:]) for x in arrays],
        )
        for dtype in dict.fromkeys(x.dtype for x in arrays)
    }

    def branch(device: int) -> Callable[..., list[jax.Array]]:
        share = shares[device]

        def run(stacks: Sequence[jax.Array], extras: Any) -> list[jax.Array]:
            parts = [stacks[p.array] if stacks[p.array].ndim == 2 else stacks[p.array][p.start : p.stop] for p in share]
            values = function(parts, [p.array for p in share], extras)
            results = dict(zip(share, values, strict=True))
            return [
                compat.varying(layout.pack(device, results, dtype), axes.names) for dtype, layout in layouts.items()
            ]

        return run

    def on_device(stacks: Sequence[jax.Array], extras: Any) -> list[jax.Array]:
        # Each device reads only some operands, so that cotangents have to be summed over the devices, which the
        # transpose of this cast does.
        stacks, extras = jax.tree.map(lambda x: compat.varying(x, axes.names), (stacks, extras))
        index = jax.lax.axis_index(axes.names)
        packed = jax.lax.switch(index, [branch(device) for device in range(axes.size)], stacks, extras)
        buffers = {
            dtype: layout.collect(buffer, axes.names)
            for buffer, (dtype, layout) in zip(packed, layouts.items(), strict=True)
        }
        return [
            layouts[x.dtype].unpack(buffers[x.dtype], array).reshape(x.shape) if x.size else jnp.zeros(x.shape, x.dtype)
            for array, x in enumerate(shapes)
        ]

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


class _Layout:
    """The layout of the results of one dtype in a buffer.

    There are two collectives, and the cheaper one is used. An all-gather sends n times the largest part to every
    device. An all-reduce of buffers that are zero outside of the device's part (a reduce-scatter and an all-gather)
    sends twice the whole buffer.
    """

    def __init__(self, shares: Sequence[Sequence[Piece]], elements: Sequence[int]) -> None:
        self.shares = shares
        self.elements = elements  # the elements of one matrix of each array
        totals = [sum(map(self.size, share)) for share in shares]
        self.gathers = max(totals) * len(shares) <= 2 * sum(totals)
        self.length = max(totals) if self.gathers else sum(totals)
        self.starts = [0] * len(shares) if self.gathers else [sum(totals[:device]) for device in range(len(shares))]

    def size(self, piece: Piece) -> int:
        return (piece.stop - piece.start) * self.elements[piece.array]

    def pack(self, device: int, results: dict[Piece, jax.Array], dtype: Any) -> jax.Array:
        """The buffer of one device."""
        values = [results[piece].ravel() for piece in self.shares[device]]
        before, after = self.starts[device], self.length - self.starts[device] - sum(x.size for x in values)
        zeros = [jnp.zeros(before, dtype), jnp.zeros(after, dtype)]
        return jnp.concatenate([zeros[0], *values, zeros[1]])

    def collect(self, buffer: jax.Array, names: tuple[str, ...]) -> jax.Array:
        """The results of all devices, on all devices: one row for each device, or a single row."""
        if self.gathers:
            return compat.all_gather(buffer, names)
        total: jax.Array = jax.lax.psum(buffer, names)
        return total[None]

    def unpack(self, rows: jax.Array, array: int) -> jax.Array:
        """The matrices of one array as a flat array."""
        parts = []
        for device, share in enumerate(self.shares):
            sizes = [self.size(piece) for piece in share]
            starts = self.starts[device] + np.cumsum([0, *sizes])
            for piece, start, size in zip(share, starts, sizes, strict=False):
                if piece.array == array:
                    row = device if self.gathers else 0
                    parts.append(rows[row, int(start) : int(start) + size])
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
