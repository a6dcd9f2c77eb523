"""Rows sorted by expert, on the devices that have the experts."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jax_vbgemm._src.exchange.ragged_exchange import ragged_exchange
from jax_vbgemm._src.ragged.segments import segment_of
from jax_vbgemm._src.util.mesh_axes import MeshAxes


@dataclass(frozen=True)
class RowExchange:
    """Sends rows to the owners of their experts, and their results back.

    counts: (devices, experts) int32, how many rows each device has for each expert. own: the number of experts of a
    device. rows: of a device, those of no expert included.
    """

    axes: MeshAxes
    counts: jax.Array
    own: int
    rows: int

    @classmethod
    def of(cls, axes: MeshAxes, group_sizes: jax.Array, own: int, rows: int) -> RowExchange:
        """`group_sizes[e]`: the number of this device's rows for expert e; the sum is at most `rows`."""
        return cls(axes, axes.gathered(group_sizes[None]), own, rows)

    @property
    def bound(self) -> int:
        """The maximum number of rows that a device can receive, if all devices send it all of theirs: no row is
        dropped."""
        return self.axes.size * self.rows

    @property
    def _counts_between(self) -> jax.Array:
        """(devices, devices): the number of rows that each device sends to each other device."""
        return self.counts.reshape(self.axes.size, self.axes.size, self.own).sum(axis=2, dtype=jnp.int32)

    def to_owners(self, rows: jax.Array) -> jax.Array:
        """Sends this device's rows (rows, columns), sorted by expert, and returns the rows for its own experts: (bound,
        columns), sorted by source device and then by expert, with zeros after the last one."""
        return ragged_exchange(rows, self._counts_between, self.bound, self.axes.names)

    def back(self, results: jax.Array) -> jax.Array:
        """Sends the results of received rows (bound, columns) back, and returns those of this device's rows: (rows,
        columns)."""
        return ragged_exchange(results, self._counts_between.T, self.rows, self.axes.names)

    def experts(self) -> tuple[jax.Array, jax.Array]:
        """The expert of each received row, counted from this device's first one, and whether there is a row."""
        here = self.counts.reshape(self.axes.size, self.axes.size, self.own)[:, self.axes.index()]
        segment = segment_of(jax.lax.iota(jnp.int32, self.bound), jnp.cumsum(here.reshape(-1), dtype=jnp.int32))
        return segment % self.own, segment < here.size
