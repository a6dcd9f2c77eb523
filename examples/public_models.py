"""The mixture-of-experts layers of public models, on their weights as these are stored.

A layer is a function of the tokens (tokens, features) and of the weights of one layer by their names in the model's
checkpoint, without the prefix of the layer. docs/guides/from_other_models.md explains them, and
tests/moe/test_public_models.py compares each with the formula of its model.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm import moe


def load_stacked(checkpoint, name):
    """(experts, out, in): the matrices of all experts in one array, from a checkpoint that has them one by one."""
    experts = sum(key.startswith("experts.") and key.endswith(f".{name}.weight") for key in checkpoint)
    if not experts:
        raise KeyError(f"the checkpoint has no experts.0.{name}.weight, but {next(iter(checkpoint), 'nothing')}")
    return np.stack([checkpoint[f"experts.{expert}.{name}.weight"] for expert in range(experts)])


def three_ragged_dots(x, layer, k, ragged_dot=vb.ragged_dot):  # was: ragged_dot=jax.lax.ragged_dot
    probabilities, chosen = jax.lax.top_k(jax.nn.softmax(x @ layer["router.kernel"]), k)
    probabilities = probabilities / probabilities.sum(axis=-1, keepdims=True)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=layer["gate_proj"].shape[0])
    rows = x[order // k]
    gate = ragged_dot(rows, layer["gate_proj"], sizes)
    up = ragged_dot(rows, layer["up_proj"], sizes)
    results = ragged_dot(jax.nn.silu(gate) * up, layer["down_proj"], sizes)
    return jnp.einsum("tkd,tk->td", results[jnp.argsort(order)].reshape(len(x), k, -1), probabilities)


def tunix_qwen3(x, layer, k):
    routing = moe.route(x @ layer["router.kernel"], k)
    return moe.expert_mlp(x, (layer["gate_proj"], layer["up_proj"]), layer["down_proj"], routing)


def maxtext(x, layer, k):
    routing = moe.route(x @ layer["gate.kernel"], k)
    return moe.expert_mlp(x, (layer["wi_0"], layer["wi_1"]), layer["wo"], routing)


def mixtral(x, layer, k):
    routing = moe.route(x @ layer["gate.weight"].T, k)
    return moe.expert_mlp(x, (layer["w1"], layer["w3"]), layer["w2"], routing, transpose_rhs=True)


def qwen3_moe(x, layer, k, norm_topk_prob=True):
    routing = moe.route(x @ layer["gate.weight"].T, k, normalize=norm_topk_prob)
    gate_up = layer["gate_proj"], layer["up_proj"]
    return moe.expert_mlp(x, gate_up, layer["down_proj"], routing, transpose_rhs=True)


def transformers_5(x, layer, k):
    routing = moe.route(x @ layer["gate.weight"].T, k)
    gate_up, down = layer["experts.gate_up_proj"], layer["experts.down_proj"]
    return moe.expert_mlp(x, gate_up, down, routing, transpose_rhs=True)


def gpt_oss(x, layer, k):
    logits = x @ layer["router.weight"].T + layer["router.bias"]
    return moe.expert_mlp(
        x,
        layer["experts.gate_up_proj"],
        layer["experts.down_proj"],
        moe.route(logits, k),
        interleaved=True,
        gate=moe.clamped_swiglu,
        bias=(layer["experts.gate_up_proj_bias"], layer["experts.down_proj_bias"]),
    )


def deepseek_v3(x, layer, k, n_group=8, topk_group=4, routed_scaling_factor=2.5):
    logits = x.astype(jnp.float32) @ layer["gate.weight"].T.astype(jnp.float32)
    bias, groups = layer["gate.e_score_correction_bias"], (n_group, topk_group)
    routing = moe.route(logits, k, scores="sigmoid", bias=bias, groups=groups, scale=routed_scaling_factor)
    gate_up = layer["gate_proj"], layer["up_proj"]
    y = moe.expert_mlp(x, gate_up, layer["down_proj"], routing, transpose_rhs=True)
    gate, up, down = (layer[f"shared_experts.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return y + (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T


def tunix_gemma4(x, layer, k):
    variance = jnp.mean(x.astype(jnp.float32) ** 2, axis=-1, keepdims=True)
    normed = x * jax.lax.rsqrt(variance + 1e-6).astype(x.dtype)
    logits = normed * x.shape[-1] ** -0.5 * layer["router_scale"] @ layer["router_logits"]
    routing = moe.route(logits, k)
    scales = layer["per_expert_scale"][routing.experts]
    routing = routing._replace(probabilities=routing.probabilities * scales)
    experts, _, hidden, features = layer["gating_einsum"].shape
    gate_up = layer["gating_einsum"].reshape(experts, 2 * hidden, features)
    return moe.expert_mlp(x, gate_up, layer["linear"], routing, activation="gelu", transpose_rhs=(True, False))
