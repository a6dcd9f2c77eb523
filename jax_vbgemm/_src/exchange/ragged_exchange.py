"""ragged_exchange: sends some of this device's rows to each device; the row counts are runtime values.

The transpose is the exchange with the transposed counts: it sends cotangents back to the devices of their rows. JAX's
own rule for `ragged_all_to_all` has to ask the other devices for its offsets again; here every device knows all counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.ragged.segments import segment_of
from jax_vbgemm._src.util import compat


def ragged_exchange(rows: jax.Array, counts: jax.Array, size: int, axes: tuple[str, ...]) -> jax.Array:
    """The rows that all devices send to this one, ordered by device: (size, columns), padded with zeros.

    For use inside a shard_map over the axes. Derivatives of any order, and vmap over any operand.

    Args:
      rows: (m, columns): those for the first device, those for the second one, and so on; m is the same on all devices.
      counts: (devices, devices) int32, equal on all devices: counts[i, j] rows go from device i to device j.
      size: an upper bound of the rows that a device receives.
      axes: the mesh axes along which the devices lie.
    """
    if rows.shape[0] == 0 or size == 0:
        return jnp.zeros_like(rows, shape=(size, *rows.shape[1:]))
    operands: Sequence[jax.Array] = rows, counts
    if any(compat.varies(operand) for operand in operands):
        operands = compat.unite_varying([compat.varying(operand, axes) for operand in operands])
    result: jax.Array = ragged_exchange_p.bind(*operands, size=size, axes=axes)
    return result


def _exclusive_sums(counts: jax.Array, axis: int) -> jax.Array:
    """Exclusive prefix sums along an axis."""
    return jnp.cumsum(counts, axis, dtype=jnp.int32) - counts


def _by_ragged_all_to_all(rows: jax.Array, counts: jax.Array, *, size: int, axes: tuple[str, ...]) -> jax.Array:
    device = lax.axis_index(axes)
    output = compat.varying(jnp.zeros((size, *rows.shape[1:]), rows.dtype), tuple(jax.typeof(rows).mat.varying))
    send_offset, write_offset = _exclusive_sums(counts, 1)[device], _exclusive_sums(counts, 0)[device]
    result: jax.Array = lax.ragged_all_to_all(
        rows, output, send_offset, counts[device], write_offset, counts[:, device], axis_name=axes
    )
    return result


def _by_all_gather(rows: jax.Array, counts: jax.Array, *, size: int, axes: tuple[str, ...]) -> jax.Array:
    """For CPUs, where XLA has no ragged all-to-all: each device takes its rows from those of all devices."""
    device = lax.axis_index(axes)
    gathered = lax.all_gather(rows, axes, tiled=True)
    received, first = counts[:, device], _exclusive_sums(counts, 1)[:, device]
    end = jnp.cumsum(received, dtype=jnp.int32)
    place = lax.iota(jnp.int32, size)
    source = jnp.minimum(segment_of(place, end), counts.shape[0] - 1)
    index = source * rows.shape[0] + first[source] + place - (end - received)[source]
    exists = (place < end[-1])[:, None]
    return jnp.where(exists, gathered.at[index].get(mode="clip"), jnp.zeros((), rows.dtype))


ragged_exchange_p = jex_core.Primitive("ragged_exchange")
ragged_exchange_p.def_impl(partial(compat.apply_primitive, ragged_exchange_p))


@ragged_exchange_p.def_abstract_eval
def _abstract_eval(rows: Any, counts: Any, *, size: int, axes: tuple[str, ...]) -> Any:
    return compat.shaped_array((size, *rows.shape[1:]), rows.dtype, (rows, counts))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    rows, counts = primals
    result = ragged_exchange(rows, counts, **parameters)
    if isinstance(tangents[0], ad.Zero):
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
    return result, ragged_exchange(tangents[0], counts, **parameters)


def _transpose(cotangent: Any, rows: Any, counts: jax.Array, *, size: int, axes: tuple[str, ...]) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(rows.aval.to_ct_aval()), None]
    return [ragged_exchange(cotangent, counts.T, rows.aval.shape[0], axes), None]


def _batch(operands: Sequence[Any], dims: Sequence[Any], **parameters: Any) -> tuple[jax.Array, int]:
    rows, counts = operands
    if dims[1] is None:  # all members send the same rows, so the members' columns are concatenated
        rows = jnp.moveaxis(rows, dims[0], 1)
        result = ragged_exchange(rows.reshape(rows.shape[0], -1), counts, **parameters)
        return result.reshape(-1, *rows.shape[1:]), 1
    members = [None if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)]

    def one(member: Any) -> jax.Array:
        own = [x if part is None else part for x, part in zip(operands, member, strict=True)]
        return ragged_exchange(*own, **parameters)

    return lax.map(one, members), 0


ad.primitive_jvps[ragged_exchange_p] = _jvp
ad.primitive_transposes[ragged_exchange_p] = _transpose
batching.primitive_batchers[ragged_exchange_p] = _batch
for _form, _platform in ((_by_ragged_all_to_all, None), (_by_all_gather, "cpu")):
    mlir.register_lowering(ragged_exchange_p, mlir.lower_fun(_form, multiple_results=False), platform=_platform)
