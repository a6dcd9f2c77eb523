"""expert_parallel: applies a function to each row on the device that has the weights of the row's expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.exchange.choice import check_exchange, choose, traffic_of_rows
from jax_vbgemm._src.exchange.rows import RowExchange
from jax_vbgemm._src.native.backends import traced_target
from jax_vbgemm._src.ragged.api import sizes_argument
from jax_vbgemm._src.ragged.group_order import inverse_permutation, sorted_with_rest
from jax_vbgemm._src.ragged.reference import rows_of_groups
from jax_vbgemm._src.ragged.segments import segment_of
from jax_vbgemm._src.ragged.select_rows import select_rows
from jax_vbgemm._src.util.arguments import as_array
from jax_vbgemm._src.util.mesh_axes import mesh_axes


def expert_parallel(
    function: Callable[[jax.Array, jax.Array], jax.Array],
    lhs: Any,
    group_sizes: Any,
    *,
    mesh_axis: Any,
    exchange: str | None = None,
) -> jax.Array:
    """Applies `function` to each row on the device that has the weights of the row's expert.

    For use inside jax.shard_map, where each device holds rows of all experts, in the experts' order, and the weights of
    its own experts: with n devices along the axis and E experts, device i has experts [i E / n, (i + 1) E / n). On each
    device `function` gets the rows of these experts from all devices, in the experts' order, and the number of rows of
    each expert. The results are sent back to the devices of the rows, in the order of the rows.

    There is no capacity, no row is dropped, and the host never reads the sizes: a device has room for the rows of all
    devices. `jax_vbgemm.moe.expert_mlp` with `mesh_axis` can send tokens in place of rows, of which a token has one for
    each of its experts. Differentiable as often as `function` is.

    Args:
      function: (rows, group_sizes) -> results: rows (n t, k), sizes (E / n,), results (n t, p). Each result may
        depend on its own row only. Rows after the last group are zeros, and their results are not used.
      lhs: (t, k), this device's rows; t is the same on all devices.
      group_sizes: (E,) integers: how many of this device's rows each expert has. As in `ragged_dot` a negative size
        counts as 0, and rows from t on don't exist.
      mesh_axis: the axis of the enclosing shard_map along which the experts are divided, or a tuple of axes.
      exchange: "all_gather": each device gathers the rows of all devices and takes those of its experts, and
        `jax.lax.psum_scatter` brings the results back, to each of which one device contributes. So each device receives
        n - 1 times its own rows, whatever the sizes are. "ragged_all_to_all": each device receives the rows of its
        experts only, and their results are sent back; on CPUs, where XLA does not have this collective, rows are
        gathered. None: the cheaper one by measured rates of the device's collectives; "all_gather" where they were not
        measured.

    Returns:
      (t, p), with zeros in rows after the last group.

    Raises:
      ValueError: mesh_axis is not an axis of the enclosing shard_map, the axis does not divide the experts, exchange is
        unknown, or lhs, group_sizes or the function's results have other shapes.
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
      ...     return vb.moe.expert_parallel(product, lhs, sizes, mesh_axis="expert")
      >>> spread = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=P("expert"), out_specs=P("expert")))
      >>> spread(jnp.ones((3, 2)), jnp.stack([jnp.eye(2), 10 * jnp.eye(2)]), jnp.array([2, 1])).tolist()
      [[1.0, 1.0], [1.0, 1.0], [10.0, 10.0]]
    """
    name = "expert_parallel"
    lhs, sizes = as_array(name, "lhs", lhs), sizes_argument(name, group_sizes)
    axes = mesh_axes(name, mesh_axis, manual=True)
    if lhs.ndim != 2 or sizes.ndim != 1:
        raise ValueError(f"{name}: lhs must be (t, k) and group_sizes (E,), but they are {lhs.shape} and {sizes.shape}")
    own = axes.divide(f"{name}: group_sizes is {sizes.shape}", sizes.shape[0], "experts")
    traffic = traffic_of_rows(lhs.shape[0], lhs.shape[1], axes.size, lhs.dtype.itemsize)
    check_exchange(name, exchange, traffic)
    groups = rows_of_groups(sizes, None, lhs.shape[0], sizes.shape[0])
    back: Callable[[jax.Array], jax.Array]
    if (exchange or choose(traffic, traced_target()).exchange) == "ragged_all_to_all":
        between = RowExchange.of(axes, groups.end - groups.begin, own, lhs.shape[0])
        rows, (local, here), back = between.to_owners(lhs), between.experts(), between.back
    else:
        expert = segment_of(jax.lax.iota(jnp.int32, lhs.shape[0]), groups.end)
        rows, local, back = axes.gathered(lhs), axes.gathered(expert) - axes.index() * own, axes.summed_parts
        here = (local >= 0) & (local < own)  # other devices compute the rest
    own_sizes, order = sorted_with_rest(local, here, own)
    exists = (jax.lax.iota(jnp.int32, order.shape[0]) < jnp.sum(own_sizes, dtype=jnp.int32))[:, None]
    selected, places = order[:, None], inverse_permutation(order)[:, None]
    rows = jnp.where(exists, select_rows(rows, selected, places), jnp.zeros((), rows.dtype))
    results = function(rows, own_sizes)
    if results.ndim != 2 or results.shape[0] != rows.shape[0]:
        raise ValueError(
            f"{name}: function returned {results.shape} for rows {rows.shape}: it must return one row for each"
        )
    if not jnp.issubdtype(results.dtype, jnp.number):
        raise ValueError(f"{name}: function returned {results.dtype}: its results must be numbers, which are added")
    results = jnp.where(exists, results, jnp.zeros((), results.dtype))
    return back(select_rows(results, places, selected))
