"""Shared by the nnx and Linen layers for groups of rows with runtime sizes.

The groups are the tokens of an adapter, the rows of a type, or the tokens of an expert.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Activation, gated_product, resolve_activation
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.moe.layer import expert_mlp
from jax_vbgemm._src.moe.losses import Auxiliary, load_balance_loss, router_z_loss
from jax_vbgemm._src.moe.routing import Routing, route
from jax_vbgemm._src.moe.scores import ExpertGroups, Scores, check_groups, check_scores
from jax_vbgemm._src.networks.typed import typed_layer
from jax_vbgemm._src.util.arguments import as_array
from jax_vbgemm._src.util.integers import is_integer, saturated

STACK_INIT = jax.nn.initializers.lecun_normal(batch_axis=(0,))  # the fan-in of one matrix of the stack
ROUTER_INIT = jax.nn.initializers.lecun_normal()


def check_counts(where: str, what: str, group_sizes: Any, count: int) -> jax.Array:
    """The group sizes as an array (count,) of integers, one for each adapter or type."""
    sizes = as_array(where, "group_sizes", saturated(group_sizes))
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise TypeError(f"{where}: group_sizes is {sizes.dtype}{sizes.shape}: it must be integers")
    if sizes.shape != (count,):
        raise ValueError(f"{where}: group_sizes is {sizes.shape} but there are {count} {what}: it must be ({count},)")
    return sizes


def check_positive(where: str, **sizes: Any) -> None:
    """Each argument must be an integer of at least 1."""
    for name, size in sizes.items():
        if not is_integer(size) or size < 1:
            raise ValueError(f"{where}: {name} is {size!r}: it must be an integer of at least 1")


def check_experts(
    where: str, experts: Any, router: Router, shared_features: Any, activation: Activation, **sizes: Any
) -> None:
    """The arguments of a mixture of experts."""
    k = router.k
    check_positive(where, experts=experts, k=k, **sizes)
    if k > experts:
        raise ValueError(f"{where}: k is {k} but experts is {experts}: a token cannot have more experts than there are")
    check_scores(where, router.scores)
    if router.groups is not None:
        check_groups(where, router.groups, experts, k)
    if shared_features is not None:
        check_positive(where, shared_features=shared_features)
    if resolve_activation(where, activation)[1] is None:
        raise ValueError(f"{where}: activation must be a function or a name, not None")


def expert_shapes(experts: int, features: int, hidden_features: int) -> dict[str, tuple[int, int, int]]:
    """The experts' parameters: the gate in front of the up-projection, and the down-projection."""
    return {"gate_up": (experts, features, 2 * hidden_features), "down": (experts, hidden_features, features)}


def router_dtype(dtype: Any, param_dtype: Any) -> Any:
    """The dtype in which the router computes: float32 at least."""
    return accumulator(param_dtype if dtype is None else dtype)


def typed(
    where: str, x: jax.Array, kernel: jax.Array, bias: jax.Array | None, group_sizes: Any, activation: Activation,
    precision: Any,
) -> jax.Array:  # fmt: skip
    """activation(x kernel[i] + bias[i]) for the rows of type i, and zeros for rows after the last group."""
    sizes = check_counts(where, "types", group_sizes, kernel.shape[0])
    if x.ndim != 2 or x.shape[1] != kernel.shape[1]:
        raise ValueError(f"{where}: inputs has shape {x.shape}: it must be (rows, {kernel.shape[1]})")
    return typed_layer(where, x, kernel, sizes, bias=bias, activation=activation, precision=precision)


class Router(NamedTuple):
    """A mixture's router: the options of `jax_vbgemm.moe.route` that don't depend on a call."""

    k: int
    normalize: bool | None
    scores: Scores
    groups: ExpertGroups | tuple[int, int] | None
    scale: float | None

    def route(self, logits: jax.Array, tokens: tuple[int, ...], **of_call: Any) -> Routing:
        """The routing for logits (tokens, experts) of tokens of a shape. `of_call`: bias, experts, probabilities and
        mask; all but the bias have the tokens' shape as leading dimensions."""
        options: dict[str, Any] = {"bias": of_call["bias"]}
        if of_call["experts"] is None:
            options |= {"k": self.k, "groups": self.groups}
        if of_call["probabilities"] is None:
            options |= {"normalize": self.normalize, "scores": self.scores, "scale": self.scale}
        for name in ("experts", "probabilities", "mask"):
            value = of_call[name]
            if value is None:
                continue
            value = as_array("MixtureOfExperts", name, value)
            if value.shape[: len(tokens)] != tokens or value.ndim != len(tokens) + (name != "mask"):
                raise ValueError(
                    f"MixtureOfExperts: {name} is {value.shape} but inputs have tokens {tokens}: its leading "
                    "dimensions must be the same"
                )
            options[name] = value.reshape(-1, *value.shape[len(tokens) :])
        return route(logits, **options)


def mixture(
    x: jax.Array, logits: jax.Array, gate_up: jax.Array, down: jax.Array, shared: jax.Array | None, router: Router,
    of_call: dict[str, Any], auxiliary: bool, *, lora: Any, **options: Any,
) -> Any:  # fmt: skip
    """The result of a mixture of experts, with the router's losses where `auxiliary` is set.

    x is (..., features), logits (..., experts), and `shared` the result of the shared expert, if there is one;
    `of_call` as for `Router.route`, options as for `expert_mlp`.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    routing = router.route(flat, x.shape[:-1], **of_call)
    lora = jax.tree.map(lambda factor: jnp.asarray(factor, x.dtype), lora)
    y = expert_mlp(x.reshape(-1, x.shape[-1]), gate_up, down, routing, lora=lora, **options)
    y = y.reshape(*x.shape[:-1], y.shape[-1])
    if shared is not None:
        y += shared
    balance = load_balance_loss(flat, routing, scores=router.scores)
    losses = Auxiliary(balance, router_z_loss(flat, routing), routing.group_sizes)
    return (y, losses) if auxiliary else y


def gated(gate_and_up: jax.Array, activation: Activation) -> jax.Array:
    """The gated product of the two halves of (..., 2 f), for the shared expert."""
    _, function = resolve_activation("MixtureOfExperts", activation)
    assert function is not None  # check_experts has refused None
    gate, up = jnp.split(gate_and_up, 2, axis=-1)
    return gated_product(function, gate, up)
