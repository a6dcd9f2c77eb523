"""Low-rank adapters as two products, each adapter for its own tokens, which may be chosen at run time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.flax.groups import check_counts
from jax_vbgemm._src.matmul.members import row_multiple
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.ragged.api import ragged_dot, sizes_argument
from jax_vbgemm._src.ragged.flat_rows import only_own_columns, stacked
from jax_vbgemm._src.ragged.group_order import inverse_permutation, sorted_by_id
from jax_vbgemm._src.ragged.reference import group_of, rows_of_groups
from jax_vbgemm._src.ragged.select_rows import select_rows
from jax_vbgemm._src.util.arguments import shown


def scales_of(where: str, scale: Any, count: int) -> tuple[float, ...] | None:
    """The scale of each adapter's result, from one number for all or a sequence; None without scales."""
    if scale is None:
        return None
    given = list(scale) if np.ndim(scale) else [scale] * count
    for index, value in enumerate(given):
        if isinstance(value, bool | jax.core.Tracer) or not isinstance(value, int | float | np.number):
            raise TypeError(f"{where}: scale[{index}] is {shown(value)}: it must be a number")
    if len(given) != count:
        raise ValueError(f"{where}: scale has {len(given)} entries but there are {count} adapters")
    return tuple(map(float, given))


def static_sizes(where: str, group_sizes: Any, adapter_ids: Any) -> Sequence[int] | None:
    """The group sizes if they are static; None if they are only known at run time. ValueError if the arguments don't
    say which tokens an adapter has."""
    if (group_sizes is None) == (adapter_ids is None):
        given = "neither is given" if group_sizes is None else "both are given"
        raise ValueError(f"{where}: give either group_sizes or adapter_ids: {given}")
    sizes: Sequence[int] | None = None if isinstance(group_sizes, jax.Array) else group_sizes
    return sizes


def scaled(parts: Sequence[jax.Array], scales: Sequence[float] | None) -> list[jax.Array]:
    """The hidden rows of each adapter times its scale, for static group sizes."""
    if scales is None:
        return list(parts)
    return [part * factor for part, factor in zip(parts, scales, strict=True)]


def adapted(
    where: str, x: jax.Array, downs: Sequence[jax.Array], ups: Sequence[jax.Array], group_sizes: Any = None, *,
    adapter_ids: Any = None, scales: Sequence[float] | None = None, precision: Any = None,
) -> jax.Array:  # fmt: skip
    """scales[i] x down[i] up[i] for the tokens of adapter i, zeros for tokens without an adapter; x (tokens, ...,
    features).

    Tokens are sorted by adapter where group_sizes are given: those after the last group have no adapter. Otherwise
    adapter_ids has the adapter of each token, as for `MultiLoRA`.
    """
    if x.ndim < 2:
        raise ValueError(f"{where}: inputs has shape {x.shape}: it must be (tokens, ..., features)")
    rows = x.reshape(-1, x.shape[-1])
    order = slots = None
    if adapter_ids is None:
        sizes = sizes_argument(where, check_counts(where, "adapters", group_sizes, len(downs)))
        sizes = jnp.clip(sizes, 0, jnp.asarray(x.shape[0], sizes.dtype)).astype(jnp.int32)
        sizes *= jnp.asarray(math.prod(x.shape[1:-1]), jnp.int32)
    else:
        sizes, order = sorted_by_id(where, "adapter_ids", adapter_ids, x.shape[:-1], len(downs))
        slots = inverse_permutation(order)
    ranks = [down.shape[1] for down in downs]
    on_gpu = backends.traced_target().platform in backends.GPU_PLATFORMS
    # GPUs read rows as vectors of 16 bytes; rows of 16-bit elements that are shorter are read element by element.
    width = max(ranks) + (-max(ranks) % row_multiple(rows.dtype) if on_gpu else 0)
    gather = None if order is None or slots is None else (order, slots[:, None])
    hidden = ragged_dot(rows, stacked(downs, columns=width), sizes, precision=precision, gather=gather)
    if min(ranks) < width:  # infinity times the zeros of the padding is NaN, which must not reach y
        hidden = only_own_columns(hidden, sizes, ranks)
    factors = None if scales is None else _row_scales(scales, sizes, hidden)
    y = ragged_dot(hidden, stacked(ups, rows=width), sizes, precision=precision, row_scale=factors)
    if order is not None and slots is not None:
        y = select_rows(y, slots[:, None], order[:, None])
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _row_scales(scales: Sequence[float], sizes: jax.Array, lines: jax.Array) -> jax.Array:
    """The scale of each line's adapter, in the accumulator's dtype; an arbitrary one for lines without an adapter."""
    end = rows_of_groups(sizes, None, lines.shape[0], len(scales)).end
    factors = jnp.array(scales, np.finfo(accumulator(lines.dtype)).dtype)
    return factors[group_of(jax.lax.iota(jnp.int32, lines.shape[0]), end)]
