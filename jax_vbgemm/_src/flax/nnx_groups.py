"""Flax NNX layers for row groups with runtime sizes: typed linear maps and mixtures of experts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes

from jax_vbgemm._src.epilogue import Activation, resolve_activation
from jax_vbgemm._src.flax.branches import check_features
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


class HeteroLinear(nnx.Module):
    """A linear map for each type of row, as in heterogeneous graphs; the number of rows of each type is a runtime
    value.

    The same as `activation(jnp.einsum("ri,rio->ro", inputs, kernel[type of row]) + bias[type of row])`. Parameters:
    `kernel` (types, in_features, out_features) and `bias` (types, out_features).

    Args:
      in_features, out_features: of each map.
      types: the number of types.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype: as in nnx.Linear.
      activation: as in `batched_linear`.
      rngs: rng keys.

    Raises:
      ValueError: a size is below 1, or the activation is unknown; the message names the argument.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.flax.nnx import HeteroLinear
      >>> linear = HeteroLinear(8, 3, types=2, rngs=nnx.Rngs(0))
      >>> linear(jnp.ones((6, 8)), jnp.array([4, 2])).shape
      (6, 3)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        types: int,
        *,
        use_bias: bool = True,
        activation: Activation = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Any = STACK_INIT,
        bias_init: Any = jax.nn.initializers.zeros,
        promote_dtype: Any = dtypes.promote_dtype,
        rngs: nnx.Rngs,
    ) -> None:
        check_positive("HeteroLinear", in_features=in_features, out_features=out_features, types=types)
        resolve_activation("HeteroLinear", activation)
        self.kernel = nnx.Param(kernel_init(rngs.params(), (types, in_features, out_features), param_dtype))
        bias = bias_init(rngs.params(), (types, out_features), param_dtype) if use_bias else None
        self.bias = nnx.data(None) if bias is None else nnx.Param(bias)
        self.in_features = in_features
        self.activation = activation
        self.dtype, self.precision, self.promote_dtype = dtype, precision, promote_dtype

    def __call__(self, inputs: jax.Array, group_sizes: Any) -> jax.Array:
        """The map of type i on the i-th group of consecutive rows.

        Args:
          inputs: (rows, in_features), the rows of the first type first.
          group_sizes: (types,) integers, the number of rows of each type; data that the host never reads.

        Returns:
          (rows, out_features), with zeros in rows after the last group.

        Raises:
          ValueError: shapes don't fit.
          TypeError: group_sizes are not integers.
        """
        bias = None if self.bias is None else self.bias[...]
        x, kernel, bias = self.promote_dtype((jnp.asarray(inputs), self.kernel[...], bias), dtype=self.dtype)
        return typed("HeteroLinear", x, kernel, bias, group_sizes, self.activation, self.precision)


class MixtureOfExperts(nnx.Module):
    """Gated experts; a router chooses k of them for each token; experts have no capacity and no token is dropped.

    Equals a sum over all experts weighted by the chosen experts' probabilities, but computes only the chosen experts:
    y = sum over a token's k experts e of p[e] (activation(x gate[e]) * (x up[e])) down[e], plus a shared expert for all
    tokens.

    Parameters: `router` (an nnx.Linear without bias), `gate_up` (experts, in_features, 2 hidden_features) with gate in
    front of up, `down` (experts, hidden_features, in_features); with a shared expert `shared_gate_up` and
    `shared_down`, nnx.Linear layers without bias. Linen's layer has the same names and shapes.

    Args:
      in_features: of inputs and outputs.
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
      dtype: of the experts' computation, as in nnx.Linear. The router computes in float32 at least.
      param_dtype, precision, kernel_init, promote_dtype: as in nnx.Linear.
      router_init: of the router's kernel.
      rngs: rng keys.

    Raises:
      ValueError: a size is below 1, k is above experts, or the activation is unknown; the message names which.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.flax.nnx import MixtureOfExperts
      >>> layer = MixtureOfExperts(8, 6, experts=4, k=2, rngs=nnx.Rngs(0))
      >>> y, auxiliary = nnx.jit(lambda layer, x: layer(x, auxiliary=True))(layer, jnp.ones((5, 8)))
      >>> y.shape, auxiliary.group_sizes.sum().item()
      ((5, 8), 10)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        experts: int,
        k: int,
        shared_features: int | None = None,
        normalize: bool | None = None,
        scores: Scores = "softmax",
        groups: ExpertGroups | tuple[int, int] | None = None,
        scale: float | None = None,
        mesh_axis: Any = None,
        exchange: str | None = None,
        chunks: int = 1,
        activation: Activation = "silu",
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Any = STACK_INIT,
        router_init: Any = ROUTER_INIT,
        promote_dtype: Any = dtypes.promote_dtype,
        rngs: nnx.Rngs,
    ) -> None:
        sizes = {"in_features": in_features, "hidden_features": hidden_features}
        self.routing = Router(k, normalize, scores, groups, scale)
        check_experts("MixtureOfExperts", experts, self.routing, shared_features, activation, **sizes)
        options = {"use_bias": False, "param_dtype": param_dtype, "precision": precision, "rngs": rngs}
        wide = router_dtype(dtype, param_dtype)
        self.router = nnx.Linear(in_features, experts, dtype=wide, kernel_init=router_init, **options)
        shapes = expert_shapes(experts, in_features, hidden_features)
        self.gate_up = nnx.Param(kernel_init(rngs.params(), shapes["gate_up"], param_dtype))
        self.down = nnx.Param(kernel_init(rngs.params(), shapes["down"], param_dtype))
        self.shared_features = shared_features
        if shared_features is not None:
            options |= {"dtype": dtype, "promote_dtype": promote_dtype}
            self.shared_gate_up = nnx.Linear(in_features, 2 * shared_features, **options)
            self.shared_down = nnx.Linear(shared_features, in_features, **options)
        self.in_features, self.activation = in_features, activation
        self.mesh_axis, self.exchange, self.chunks = mesh_axis, exchange, chunks
        self.dtype, self.precision, self.promote_dtype = dtype, precision, promote_dtype

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
          inputs: (..., in_features).
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
          (..., in_features); with `auxiliary` a pair of it and the losses.

        Raises:
          ValueError: the last dimension of inputs is not in_features.
        """
        inputs = jnp.asarray(inputs)
        check_features("MixtureOfExperts", None, inputs, self.in_features)
        x, gate_up, down = self.promote_dtype((inputs, self.gate_up[...], self.down[...]), dtype=self.dtype)
        logits = self.router(inputs)
        shared = None
        if self.shared_features is not None:
            shared = self.shared_down(gated(self.shared_gate_up(inputs), self.activation))
        of_call = {"experts": experts, "probabilities": probabilities, "bias": bias, "mask": mask}
        return mixture(
            x, logits, gate_up, down, shared, self.routing, of_call, auxiliary, activation=self.activation,
            precision=self.precision, lora=lora, lora_scale=lora_scale, gradients=gradients, quantized=quantized,
            mesh_axis=self.mesh_axis, exchange=self.exchange, chunks=self.chunks,
        )  # fmt: skip
