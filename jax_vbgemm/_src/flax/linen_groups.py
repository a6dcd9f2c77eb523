"""Flax Linen layers for row groups with runtime sizes: typed linear maps and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import dtypes

from jax_vbgemm._src.epilogue import Activation
from jax_vbgemm._src.flax.groups import (
    ROUTER_INIT,
    STACK_INIT,
    Router,
    check_experts,
    check_positive,
    expert_shapes,
    gated,
    mixture,
    router_dtype,
    typed,
)
from jax_vbgemm._src.moe.scores import ExpertGroups, Scores
from jax_vbgemm._src.util.mesh_axes import mesh_axes


class HeteroLinear(nn.Module):
    """A linear map for each type of row, as in heterogeneous graphs; the number of rows of each type is a runtime
    value.

    The same as `activation(jnp.einsum("ri,rio->ro", inputs, kernel[type of row]) + bias[type of row])`. Parameters:
    `kernel` (types, in_features, features) and `bias` (types, features).

    Args:
      features: of each map's output.
      types: the number of types.
      activation: as in `batched_linear`.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype: as in nn.Dense.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm.flax.linen import HeteroLinear
      >>> layer = HeteroLinear(3, types=2)
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((6, 8)), jnp.array([4, 2]))
      >>> y.shape
      (6, 3)
    """

    features: int
    types: int
    activation: Activation = None
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = STACK_INIT
    bias_init: Callable[..., Any] = jax.nn.initializers.zeros
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype

    @nn.compact
    def __call__(self, inputs: jax.Array, group_sizes: Any) -> jax.Array:
        """The map of type i on the i-th group of consecutive rows.

        Args:
          inputs: (rows, in_features), the rows of the first type first.
          group_sizes: (types,) integers, the number of rows of each type; data that the host never reads.

        Returns:
          (rows, features), with zeros in rows after the last group.

        Raises:
          ValueError: a size is below 1, the activation is unknown, or shapes don't fit.
          TypeError: group_sizes are not integers.
        """
        check_positive("HeteroLinear", features=self.features, types=self.types)
        inputs = jnp.asarray(inputs)
        shape = (self.types, inputs.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = (
            self.param("bias", self.bias_init, (self.types, self.features), self.param_dtype) if self.use_bias else None
        )
        x, kernel, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return typed("HeteroLinear", x, kernel, bias, group_sizes, self.activation, self.precision)


class MixtureOfExperts(nn.Module):
    """Gated experts; a router chooses k of them for each token; experts have no capacity and no token is dropped.

    Equals a sum over all experts weighted by the chosen experts' probabilities, but computes only the chosen experts:
    y = sum over a token's k experts e of p[e] (activation(x gate[e]) * (x up[e])) down[e], plus a shared expert for all
    tokens.

    Parameters: `router` (an nn.Dense without bias), `gate_up` (experts, features, 2 hidden_features) with gate in
    front of up, `down` (experts, hidden_features, features); with a shared expert `shared_gate_up` and
    `shared_down`, nn.Dense layers without bias. The nnx layer has the same names and shapes.

    Args:
      hidden_features: of each expert.
      experts: the number of experts.
      k: the number of experts of each token.
      shared_features: hidden features of the shared expert, None for none.
      normalize: whether the probabilities of a token's experts add up to 1, as in `jax_vbgemm.moe.route`: by default
        where k is above 1. With k=1, True would leave the router without a gradient from the result.
      scores, groups, scale: of the router, as for `jax_vbgemm.moe.route`.
      mesh_axis: the axis of the enclosing shard_map along which the experts are divided, as for
        `jax_vbgemm.moe.expert_mlp`: each device has gate_up and down of its own experts, and the whole router. Losses
        and group sizes are those of the device's own tokens.
      exchange, chunks: with `mesh_axis`, as for `jax_vbgemm.moe.expert_mlp`.
      activation: a function or one of `jax_vbgemm.ACTIVATIONS`.
      dtype: of the experts' computation, as in nn.Dense. The router computes in float32 at least.
      param_dtype, precision, kernel_init, promote_dtype: as in nn.Dense.
      router_init: of the router's kernel.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm.flax.linen import MixtureOfExperts
      >>> layer = MixtureOfExperts(6, experts=4, k=2)
      >>> y, variables = jax.jit(layer.init_with_output)(jax.random.key(0), jnp.ones((5, 8)))
      >>> y.shape
      (5, 8)
    """

    hidden_features: int
    experts: int
    k: int
    shared_features: int | None = None
    normalize: bool | None = None
    activation: Activation = "silu"
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = STACK_INIT
    router_init: Callable[..., Any] = ROUTER_INIT
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype
    scores: Scores = "softmax"
    groups: ExpertGroups | tuple[int, int] | None = None
    scale: float | None = None
    mesh_axis: Any = None
    exchange: str | None = None
    chunks: int = 1

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        *,
        experts: Any = None,
        probabilities: Any = None,
        bias: Any = None,
        mask: Any = None,
        auxiliary: bool = False,
        lora: tuple[Any, Any] | None = None,
        lora_scale: Any = 1.0,
        gradients: tuple[jax.Ref, jax.Ref] | None = None,
        quantized: Any = None,
    ) -> Any:
        """The mixture's result for each token.

        Args:
          inputs: (..., features).
          experts: (..., k) integers, the experts of each token where they are chosen elsewhere, -1 for none, as for
            `jax_vbgemm.moe.route` (a router replayed). Probabilities are those of the router.
          probabilities: (..., k), with `experts`: the factors of the choices' results; `scale` does not apply.
          bias: (experts,), added to the scores for the choice only (`jax_vbgemm.moe.balanced_bias`).
          mask: (...) bool: tokens that are False have no experts, and losses don't count them.
          auxiliary: whether to return (result, `jax_vbgemm.moe.Auxiliary`) with the losses for training the router.
          lora, lora_scale: low-rank adapters of gate_up and down, as for `jax_vbgemm.moe.expert_mlp`, computed in the
            layer's dtype. They are no parameters of the layer.
          gradients: a pair of `jax.Ref` to which a gradient adds those of gate_up and down, as in
            `jax_vbgemm.moe.expert_mlp`; in float32 for 16-bit `dtype`.
          quantized: None, True, or the weights in 8 bits (`jax_vbgemm.moe.quantize_experts`), as for
            `jax_vbgemm.moe.expert_mlp`: the experts' products and those of their gradients are by 8-bit floats.

        Returns:
          (..., features); with `auxiliary` a pair of it and the losses.

        Raises:
          ValueError: a size is below 1, k is above experts, or the activation is unknown; the message names which.
        """
        where = "MixtureOfExperts"
        sizes = {"hidden_features": self.hidden_features}
        routing = Router(self.k, self.normalize, self.scores, self.groups, self.scale)
        check_experts(where, self.experts, routing, self.shared_features, self.activation, **sizes)
        inputs = jnp.asarray(inputs)
        features = inputs.shape[-1]
        options = {"use_bias": False, "param_dtype": self.param_dtype, "precision": self.precision}
        wide = router_dtype(self.dtype, self.param_dtype)
        router = nn.Dense(self.experts, dtype=wide, kernel_init=self.router_init, name="router", **options)
        own = self.experts
        if self.mesh_axis is not None and not self.is_initializing():
            own = mesh_axes(where, self.mesh_axis, manual=True).divide(f"{where}: experts", self.experts, "experts")
        shapes = expert_shapes(own, features, self.hidden_features)
        weights = [self.param(name, self.kernel_init, shape, self.param_dtype) for name, shape in shapes.items()]
        x, gate_up, down = self.promote_dtype(inputs, *weights, dtype=self.dtype)
        logits = router(inputs)
        shared = None
        if self.shared_features is not None:
            options |= {"dtype": self.dtype, "promote_dtype": self.promote_dtype}
            both = nn.Dense(2 * self.shared_features, name="shared_gate_up", **options)(inputs)
            shared = nn.Dense(features, name="shared_down", **options)(gated(both, self.activation))
        of_call = {"experts": experts, "probabilities": probabilities, "bias": bias, "mask": mask}
        return mixture(
            x, logits, gate_up, down, shared, routing, of_call, auxiliary, activation=self.activation,
            precision=self.precision, lora=lora, lora_scale=lora_scale, gradients=gradients, quantized=quantized,
            mesh_axis=self.mesh_axis, exchange=self.exchange, chunks=self.chunks,
        )  # fmt: skip
