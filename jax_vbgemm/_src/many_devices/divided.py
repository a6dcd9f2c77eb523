"""divided: applies a function to many matrices, each device of a mesh axis computing a part of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.many_devices.after import after
from jax_vbgemm._src.many_devices.layouts import Layout, layout_of
from jax_vbgemm._src.many_devices.partition import Piece, Round, in_rounds, saved_seconds
from jax_vbgemm._src.many_devices.stack import Stack, axis_spec, stack_of, whole_shape
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.mesh_axes import MeshAxes

Function = Callable[..., Sequence[Any]]


def divided(
    function: Function,
    arrays: Sequence[jax.Array],
    extras: Any,
    seconds: Sequence[float],
    axes: MeshAxes,
    *,
    held: Sequence[int | None],
    sent: Any = None,
    least_saved: float = 0.0,
) -> list[jax.Array]:
    """[f(x) for x in arrays], for an f that treats each matrix of (..., m, n) independently and keeps its shape.

    All devices run the same program. If the number of devices divides the number of matrices of a shape, each device
    computes as many of them. Other matrices differ in shape between devices: a conditional has a branch for each
    device. What devices hold of the matrices decides what is sent (layouts.py): one collective for each dtype
    distributes the results, while the results of the next round are computed.

    Args:
      function: (arrays, indices, extras, into, dtypes) -> results, where indices, integers that may be traced, are
        those of the arrays in `arrays`; called with a device's matrices, which may be a part of a stack. `into` has
        None or a view of a buffer for each result, which is this view if it has been written there; `dtypes`, the dtype
        of each result.
      arrays: of rank 2 or more and of known shapes; inside a shard_map, what each device holds.
      extras: a pytree of arrays that every device needs.
      seconds: the predicted time for one matrix of each array.
      axes: the mesh axes whose devices share the work. Devices along other axes do the same work.
      held: for each array the axis, counted from the end, along which devices hold equal parts of it, and get those of
        the result; None: all devices hold the array, or it is gathered, and they get the result.
      sent: the dtype in which results are sent, and returned, if it is narrower than that of the array.
      least_saved: where dividing is predicted to save less time, and all devices hold all arrays, each device computes
        everything.
    """
    stacks = [
        stack_of(whole_shape(x.shape, axis, axes), x.dtype, axis, sent) for x, axis in zip(arrays, held, strict=True)
    ]
    kept = {index for index, stack in enumerate(stacks) if stack.axis == -3}
    rounds = in_rounds([x.count for x in stacks], [x.kind for x in stacks], seconds, axes.size, kept)
    pays = any(axis is not None for axis in held) or saved_seconds(rounds, seconds) >= least_saved

    def on_device(arrays: Sequence[jax.Array], extras: Any) -> list[jax.Array]:
        if not pays:
            all_inputs = np.arange(len(arrays)), extras, [None] * len(arrays), [x.dtype for x in arrays]
            return list(function(arrays, *all_inputs))
        local = [x.shape for x in arrays]
        # Each device reads only some operands, so cotangents must be summed over the devices. The transpose of this
        # cast does that.
        arrays, extras = jax.tree.map(lambda x: compat.varying(x, axes.names), (arrays, extras))
        arrays = compat.unite_varying(arrays)  # all results lie in one buffer
        arrays = [x.reshape(-1, *x.shape[-2:]) if x.ndim > 3 and x.size else x for x in arrays]
        found: list[list[tuple[Piece, jax.Array]]] = [[] for _ in arrays]
        layouts = [_layouts(this_round, stacks) for this_round in rounds]
        received = [[layout.received(arrays, axes.names) for layout in this_round] for this_round in layouts]
        sent: tuple[Sequence[Layout], Sequence[Any]] = (), ()
        waited: list[jax.Array] = []
        for this_round, round_layouts, operands in zip(rounds, layouts, received, strict=True):
            # Otherwise XLA might wait for the operands of this round before it computes the previous one, and for the
            # previous round's results before it computes this one.
            if waited:
                operands = jax.tree.map(lambda rows, waited=waited: after(rows, waited), operands)
            outgoing = _computed(function, this_round, round_layouts, arrays, operands, extras, axes)
            waited = jax.tree.leaves(outgoing)
            _collect(sent[0], jax.tree.map(lambda rows, waited=waited: after(rows, waited), sent[1]), found)
            pairs = zip(round_layouts, outgoing, strict=True)
            sent = round_layouts, [layout.sent(buffers, axes.names) for layout, buffers in pairs]
        _collect(*sent, found)
        return [_joined(*array_pieces) for array_pieces in zip(found, local, [x.result for x in stacks], strict=True)]

    if axes.manual:
        values = on_device(arrays, extras)
    else:
        specs = [axis_spec(x.ndim, axis, axes) for x, axis in zip(arrays, held, strict=True)]
        spread = jax.shard_map(
            on_device, mesh=axes.mesh, in_specs=(specs, jax.P()), out_specs=specs, axis_names=axes.free
        )
        placed = [compat.resharded(x, spec) for x, spec in zip(arrays, specs, strict=True)]
        values = spread(placed, jax.tree.map(compat.replicated, extras))
    return [compat.placed_as(y, x) for y, x in zip(values, arrays, strict=True)]


def _layouts(this_round: Round, stacks: Sequence[Stack]) -> list[Layout]:
    """The layouts of a round: one for each dtype and each way in which stacks are held."""
    shares: dict[Hashable, list[list[Piece]]] = defaultdict(lambda: [[] for _ in this_round.shares])
    for device, share in enumerate(this_round.shares):
        for piece in share:
            stack = stacks[piece.array]
            shares[stack.dtype, stack.result, stack.axis][device].append(piece)
    return [layout_of(layout_shares, stacks) for layout_shares in shares.values()]


def _computed(
    function: Function,
    this_round: Round,
    layouts: Sequence[Layout],
    arrays: Sequence[jax.Array],
    received: Sequence[Any],
    extras: Any,
    axes: MeshAxes,
) -> list[Any]:
    """The results that this device sends, for each layout."""
    shares = [[p.array for layout in layouts for p in layout.shares[device]] for device in range(axes.size)]
    axis_index = jax.lax.axis_index(axes.names)
    varying = tuple(dict.fromkeys((*axes.names, *sorted(jax.typeof(arrays[0]).mat.varying))))

    def filled(
        device: int | None, arrays: Sequence[jax.Array], received: Sequence[Any], indices: Any, extras: Any
    ) -> list[Any]:
        opened = [layout.opened(rows, device or 0) for layout, rows in zip(layouts, received, strict=True)]
        pairs = list(zip(layouts, opened, strict=True))
        parts = [x for layout, operands in pairs for x in layout.parts(arrays, operands, device, axis_index)]
        places = [layout.places(operands, device or 0) for layout, operands in pairs]
        into = [view for _, views in places for view in views]
        dtypes = [layout.result for layout in layouts for _ in layout.shares[device or 0]]
        values = iter(function(parts, indices, extras, into, dtypes))
        outgoing = [
            layout.outgoing(buffer, device or 0, values) for layout, (buffer, _) in zip(layouts, places, strict=True)
        ]
        typed: list[Any] = jax.tree.map(lambda x: compat.varying(x, varying), outgoing)
        return typed

    if this_round.is_even:
        return filled(None, arrays, received, jnp.array(shares)[axis_index], extras)

    def branch(device: int) -> Callable[..., list[Any]]:
        def run(arrays: Sequence[jax.Array], received: Sequence[Any], extras: Any) -> list[Any]:
            return filled(device, arrays, received, np.array(shares[device], int), extras)

        return run

    outgoing: list[Any] = jax.lax.switch(
        axis_index, [branch(device) for device in range(axes.size)], arrays, received, extras
    )
    return outgoing


def _collect(layouts: Sequence[Layout], rows: Sequence[Any], found: list[list[tuple[Piece, jax.Array]]]) -> None:
    """Adds the pieces of a round to those found for each array."""
    for layout, layout_shares in zip(layouts, rows, strict=True):
        for piece, values in layout.collected(layout_shares):
            found[piece.array].append((piece, values))


def _joined(parts: Sequence[tuple[Piece, jax.Array]], shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """An array from the pieces of its stack."""
    values = [x for _, x in sorted(parts, key=lambda part: part[0].start)]
    if not values:
        return jnp.zeros(shape, dtype)
    return (values[0] if len(values) == 1 else jnp.concatenate(values)).reshape(shape)
