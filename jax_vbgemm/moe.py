"""Mixtures of experts: routing, products of tokens with their experts' weights, and the auxiliary losses of routers."""

from jax_vbgemm._src.many_devices.expert_parallel import expert_parallel
from jax_vbgemm._src.moe.gated import clamped_swiglu, gated_dot
from jax_vbgemm._src.moe.layer import combine, dispatch, expert_mlp
from jax_vbgemm._src.moe.losses import Auxiliary, balanced_bias, load_balance_loss, router_z_loss
from jax_vbgemm._src.moe.quantized import QuantizedExperts, quantize_experts
from jax_vbgemm._src.moe.routing import Routing, route
from jax_vbgemm._src.moe.scores import ExpertGroups

__all__ = [
    "Auxiliary",
    "ExpertGroups",
    "QuantizedExperts",
    "Routing",
    "balanced_bias",
    "clamped_swiglu",
    "combine",
    "dispatch",
    "expert_mlp",
    "expert_parallel",
    "gated_dot",
    "load_balance_loss",
    "quantize_experts",
    "route",
    "router_z_loss",
]
