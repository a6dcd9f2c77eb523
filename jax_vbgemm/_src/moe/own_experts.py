"""Experts divided among devices: tokens go to the devices of their experts, and contributions of experts come back.

Each exchange gives an `OwnerExchange`: the tokens or rows that a device has received, their routing to its experts, and
a function that sends its experts' contributions back to the tokens' devices and adds them there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.exchange.choice import choose, traffic_of_tokens
from jax_vbgemm._src.exchange.rows import RowExchange
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.moe.routing import Routing, dispatched, factors_of_rows, routed, summed
from jax_vbgemm._src.native.backends import traced_target
from jax_vbgemm._src.util.integers import is_integer
from jax_vbgemm._src.util.mesh_axes import MeshAxes

Contributions = Callable[[jax.Array, Routing, bool], jax.Array]


def over_devices(
    contributions: Contributions, x: jax.Array, routing: Routing, results: Any, dtype: Any, axes: MeshAxes,
    exchange: str | None, chunks: int,
) -> jax.Array:  # fmt: skip
    """The sums of the experts' contributions to this device's tokens, (tokens, results), in `dtype`.

    contributions: from (x, routing, unrounded) to what this device's experts add to tokens, (tokens, results), of
    `dtype`, or of the accumulator's dtype if `unrounded`. exchange: None for the cheapest. chunks: of the tokens.
    """
    tokens, k = routing.slots.shape
    if exchange is None:
        sizes = np.dtype(dtype).itemsize, accumulator(dtype).itemsize
        traffic = traffic_of_tokens(tokens, x.shape[1], results, k, axes.size, *sizes)
        exchange = choose(traffic, traced_target()).exchange
    bounds = [(tokens * i // chunks, tokens * (i + 1) // chunks) for i in range(chunks)]
    # All chunks are sent before the first product, so that no exchange waits for another chunk's products.
    exchanges = [start_exchange(exchange, *_part(x, routing, *part, chunks), dtype, axes) for part in bounds]
    sums = [part.added(contributions(part.x, part.routing, part.unrounded)) for part in exchanges]
    return sums[0] if chunks == 1 else jnp.concatenate(sums)


def _part(x: jax.Array, routing: Routing, start: int, stop: int, chunks: int) -> tuple[jax.Array, Routing]:
    """The tokens from `start` to `stop` and their routing."""
    if chunks == 1:
        return x, routing
    count = routing.group_sizes.shape[0]
    return x[start:stop], routed(routing.experts[start:stop], routing.probabilities[start:stop], count)


def check_chunks(name: str, chunks: Any) -> None:
    """TypeError or ValueError if `chunks` is not a positive integer."""
    if not is_integer(chunks):
        raise TypeError(f"{name}: chunks must be an integer, not {chunks!r}")
    if chunks < 1:
        raise ValueError(f"{name}: chunks is {chunks}: it must be at least 1")


class OwnerExchange(NamedTuple):
    """The input of a device's own experts: rows or tokens and their routing.

    x: (tokens, d) that were received. routing: of these to the device's experts. unrounded: whether the
    contributions to each of them have to be of the accumulator's dtype. added: from the contributions (tokens, n) to
    the sums for the device's own tokens, (own tokens, n).
    """

    x: jax.Array
    routing: Routing
    unrounded: bool
    added: Callable[[jax.Array], jax.Array]


def start_exchange(exchange: str, x: jax.Array, routing: Routing, dtype: Any, axes: MeshAxes) -> OwnerExchange:
    """This device's tokens and their routing to all experts, exchanged by one of `EXCHANGES`; `dtype`: the sums'
    dtype."""
    own = routing.group_sizes.shape[0] // axes.size
    if exchange == "ragged_all_to_all":
        return _by_rows(x, routing, own, axes)
    received, local = axes.gathered(x), owner_routing(routing, own, axes)
    if exchange == "all_gather":
        return OwnerExchange(received, local, True, lambda y: axes.summed_parts(y).astype(dtype))
    return OwnerExchange(received, local, False, partial(_add_on_source, axes))


def owner_routing(routing: Routing, own: int, axes: MeshAxes) -> Routing:
    """The routing of the tokens of all devices to this device's experts.

    The choices of other devices' experts come after the last group and have the probability 0. Tokens are gathered, not
    their choices: k times fewer bytes than rows that are sorted by expert, and no exchange depends on the load of an
    expert.
    """
    experts, probabilities = axes.gathered(routing.experts), axes.gathered(routing.probabilities)
    local = experts - axes.index() * own
    here = (local >= 0) & (local < own)
    probabilities = jnp.where(here, probabilities, jnp.zeros((), probabilities.dtype))
    return routed(jnp.where(here, local, -1), probabilities, own)


def _add_on_source(axes: MeshAxes, contributions: jax.Array) -> jax.Array:
    """Adds contributions in the accumulator's dtype; each is rounded once to its token's dtype, like an expert's
    result."""
    parts = axes.exchanged_parts(contributions)
    parts = parts.reshape(axes.size, parts.shape[0] // axes.size, parts.shape[1])
    return parts.astype(accumulator(parts.dtype)).sum(axis=0).astype(parts.dtype)


def _by_rows(x: jax.Array, routing: Routing, own: int, axes: MeshAxes) -> OwnerExchange:
    """Sends a row for each choice of a token to the owner of the expert, and the row's result back."""
    rows = RowExchange.of(axes, routing.group_sizes, own, routing.order.shape[0])
    received = rows.to_owners(dispatched(x, routing))
    factors = rows.to_owners(factors_of_rows(routing)[:, None])
    expert, exists = rows.experts()
    local = routed(jnp.where(exists, expert, -1)[:, None], factors, own)
    return OwnerExchange(received, local, False, lambda y: summed(rows.back(y), routing))
