"""expert_parallel: sends rows to the devices that have their experts' weights, and the results back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src import compat
from jax_vbgemm._src.arguments import as_array
from jax_vbgemm._src.many_devices.mesh_axes import MeshAxes, mesh_axes
from jax_vbgemm._src.ragged.api import sizes_argument
from jax_vbgemm._src.ragged.segments import segment_of


def expert_parallel(
    function: Callable[[jax.Array, jax.Array], jax.Array], lhs: Any, group_sizes: Any, *, mesh_axis: Any
) -> jax.Array:
    """Applies `function` to each row on the device that has the weights of the row's expert.

    For use inside jax.shard_map, where each device holds rows of all experts, in the experts' order, and the weights of
    its own experts: with n devices along the axis and E experts, device i has experts [i E / n, (i + 1) E / n). On each
    device `function` gets the rows of these experts from all devices, in the experts' order, and the number of rows of
    each expert. The results are sent back to the devices of the rows, in the order of the rows.

    There is no capacity, no row is dropped, and the host never reads the sizes. Where the platform has it (CUDA),
    `jax.lax.ragged_all_to_all` sends exactly the rows; elsewhere `jax.lax.all_to_all` sends blocks as long as lhs.
    Differentiable as often as `function` is.

    Args:
      function: (rows, group_sizes) -> results: rows (n t, k), sizes (E / n,), results (n t, p). Each result may
        depend on its own row only. Rows after the last group are zeros, and their results are not used.
      lhs: (t, k), this device's rows; t is the same on all devices.
      group_sizes: (E,) integers: how many of this device's rows each expert has. As in `ragged_dot` a negative size
        counts as 0, and rows from t on don't exist.
      mesh_axis: the axis of the enclosing shard_map along which the experts are divided, or a tuple of axes.

    Returns:
      (t, p), with zeros in rows after the last group.

    Raises:
      ValueError: mesh_axis is not an axis of the enclosing shard_map, the axis does not divide the experts, or lhs,
        group_sizes or the function's results have other shapes.
      TypeError: lhs is not an array, or sizes are not integers.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax.sharding import PartitionSpec as P
      >>> import jax_vbgemm as vb
      >>> mesh = jax.make_mesh((1,), ("expert",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
      >>> def on_device(lhs, rhs, sizes):
      ...     def product(rows, sizes):
      ...         return vb.ragged_dot(rows, rhs, sizes)
      ...
      ...     return vb.expert_parallel(product, lhs, sizes, mesh_axis="expert")
      >>> spread = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=P("expert"), out_specs=P("expert")))
      >>> spread(jnp.ones((3, 2)), jnp.stack([jnp.eye(2), 10 * jnp.eye(2)]), jnp.array([2, 1])).tolist()
      [[1.0, 1.0], [1.0, 1.0], [10.0, 10.0]]
    """
    name = "expert_parallel"
    lhs, sizes = as_array(name, "lhs", lhs), sizes_argument(name, group_sizes)
    axes = mesh_axes(name, mesh_axis)
    if not axes.manual:
        raise ValueError(f"{name}: mesh_axis={mesh_axis!r}, but there is no enclosing shard_map over it")
    if lhs.ndim != 2 or sizes.ndim != 1:
        raise ValueError(f"{name}: lhs must be (t, k) and group_sizes (E,), but they are {lhs.shape} and {sizes.shape}")
    rows, devices, experts = lhs.shape[0], axes.size, len(sizes)
    if not experts or experts % devices:
        raise ValueError(
            f"{name}: group_sizes is {sizes.shape}: mesh_axis={mesh_axis!r} has {devices} devices, which don't divide "
            f"{experts} experts"
        )
    # The ends of groups saturate at t, so that sizes of any value become sizes of existing rows. A plain sum might
    # overflow.
    wide = jnp.minimum(jnp.maximum(sizes, 0), rows).astype(jnp.int32)
    ends = jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, rows), wide)
    sizes = jnp.diff(ends, prepend=jnp.zeros(1, jnp.int32)).reshape(devices, experts // devices)

    lhs = compat.varying(lhs, axes.names)
    sizes = compat.varying(sizes, axes.names)
    arriving = jax.lax.all_to_all(sizes, axes.names, 0, 0)  # (devices, own experts): the sizes from each device
    sent, received = _sum(sizes, 1), _sum(arriving, 1)
    blocks = _exchanged(lhs, _starts(sent), sent, received, rows, axes)
    order = _expert_order(arriving, rows)
    total = _sum(received)
    own = jnp.where((_index(devices * rows) < total)[:, None], blocks[order], jnp.zeros((), lhs.dtype))
    results = function(own, _sum(arriving, 0))
    if results.ndim != 2 or len(results) != len(own):
        raise ValueError(
            f"{name}: function returned {results.shape} for rows {own.shape}: it must return one row for each"
        )
    # Results of rows after the last group are dropped, as their index is out of range.
    places = jnp.where(_index(len(own)) < total, order, len(own))
    blocks = jnp.zeros_like(results).at[places].set(results, mode="drop")
    offsets = _index(devices) * rows
    blocks = _exchanged(blocks, offsets, received, sent, rows, axes)
    row = _index(rows)
    device = jnp.minimum(segment_of(row, _ends(sent)), devices - 1)
    first = _starts(sent)
    back = blocks.at[device * rows + row - first[device]].get(mode="fill", fill_value=0)
    return jnp.where((row < _sum(sent))[:, None], back, jnp.zeros((), back.dtype))


def _index(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


def _sum(sizes: jax.Array, axis: int = 0) -> jax.Array:
    return jnp.sum(sizes, axis, dtype=jnp.int32)


def _ends(sizes: jax.Array, axis: int = 0) -> jax.Array:
    """The end of each of several consecutive segments: the prefix sums of their sizes."""
    return jnp.cumsum(sizes, axis, dtype=jnp.int32)


def _starts(sizes: jax.Array) -> jax.Array:
    return _ends(sizes) - sizes


def _expert_order(arriving: jax.Array, rows: int) -> jax.Array:
    """For each row in the experts' order, its index in the received blocks; `arriving` is (devices, experts)."""
    devices, experts = arriving.shape
    starts = (_ends(arriving, 1) - arriving) + _index(devices)[:, None] * rows
    lengths, starts = arriving.T.ravel(), starts.T.ravel()  # of the segments, sorted by expert and then by device
    index = _index(devices * rows)
    segment = jnp.minimum(segment_of(index, _ends(lengths)), devices * experts - 1)
    places: jax.Array = starts[segment] + index - _starts(lengths)[segment]
    return jnp.clip(places, 0, devices * rows - 1)


def _exchanged(
    values: jax.Array, starts: jax.Array, sent: jax.Array, received: jax.Array, bound: int, axes: MeshAxes
) -> jax.Array:
    """Sends rows [starts[i], starts[i] + sent[i]) to device i; from device i come received[i], to rows from i bound on.

    bound: an upper bound of the rows that one device sends to another. Rows of the result that receive nothing are
    zeros.
    """
    devices, columns = axes.size, values.shape[1]

    def ragged(values: jax.Array, starts: jax.Array, sent: jax.Array, received: jax.Array) -> jax.Array:
        zeros = jnp.zeros((devices * bound, columns), values.dtype)
        # Values may also vary over other mesh axes than those of the exchange.
        zeros = compat.unite_varying([compat.varying(zeros, axes.names), values])[0]
        here = jax.lax.axis_index(axes.names).astype(jnp.int32)
        places = jnp.broadcast_to(here * bound, (devices,))
        names = axes.names if len(axes.names) > 1 else axes.names[0]
        result: jax.Array = jax.lax.ragged_all_to_all(values, zeros, starts, sent, places, received, axis_name=names)
        return result

    def bounded(values: jax.Array, starts: jax.Array, sent: jax.Array, received: jax.Array) -> jax.Array:
        del received
        row = _index(bound)[None]
        blocks = values.at[starts[:, None] + row].get(mode="fill", fill_value=0)
        blocks = jnp.where((row < sent[:, None])[..., None], blocks, jnp.zeros((), values.dtype))
        result: jax.Array = jax.lax.all_to_all(blocks, axes.names, 0, 0)
        return result.reshape(devices * bound, columns)

    result: jax.Array = jax.lax.platform_dependent(values, starts, sent, received, cuda=ragged, default=bounded)
    return result
