"""Experts divided among devices: the tokens of all devices, routed to the experts of this device."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_vbgemm._src.moe.routing import Routing
from jax_vbgemm._src.ragged.group_order import inverse_permutation, sorted_with_rest
from jax_vbgemm._src.util.mesh_axes import MeshAxes


def routed_to_own(name: str, routing: Routing, axes: MeshAxes) -> Routing:
    """The routing of the tokens of all devices to this device's experts.

    The choices of other devices' experts come after the last group and have the probability 0. Tokens are gathered, not
    their choices: k times fewer bytes than rows that are sorted by expert, and no exchange depends on the load of an
    expert.
    """
    own = axes.divide(f"{name}: mesh_axis", routing.group_sizes.shape[0], "experts")
    experts, probabilities = axes.gathered(routing.experts), axes.gathered(routing.probabilities)
    local = experts - axes.index() * own
    here = (local >= 0) & (local < own)
    sizes, order = sorted_with_rest(local.reshape(-1), here.reshape(-1), own)
    slots = inverse_permutation(order).reshape(experts.shape)
    probabilities = jnp.where(here, probabilities, jnp.zeros((), probabilities.dtype))
    clamped: jax.Array = jnp.zeros_like(sizes[0])
    return Routing(sizes, order, slots, jnp.clip(local, 0, own - 1), probabilities, clamped)
