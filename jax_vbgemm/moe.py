"""Mixtures of experts: routing, products of tokens with their experts' weights, and the auxiliary losses of routers."""

from jax_vbgemm._src.moe.layer import combine, dispatch, expert_mlp, gated_dot
from jax_vbgemm._src.moe.routing import Auxiliary, Routing, load_balance_loss, route, router_z_loss

__all__ = [
    "Auxiliary",
    "Routing",
    "combine",
    "dispatch",
    "expert_mlp",
    "gated_dot",
    "load_balance_loss",
    "route",
    "router_z_loss",
]
