"""Flax Linen layers of different sizes as one operation, with the parameters of the layers they replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import dtypes, initializers
from flax.linen.linear import default_kernel_init

from jax_vbgemm._src.epilogue import Activation
from jax_vbgemm._src.flax.adapters import adapted, scaled, scales_of, static_sizes
from jax_vbgemm._src.flax.branches import (
    NOT_1X1,
    Branch,
    checked_inputs,
    is_1x1,
    kernel_size,
    outputs_of,
    ranks_of,
    sizes_of,
    split_groups,
)

__all__ = ["BatchedLinear", "BranchedConv1x1", "MultiLoRA", "batched_linear"]


def batched_linear(layers: Sequence[nn.Dense | nn.Conv], inputs: Any, activation: Activation = None) -> list[jax.Array]:
    """Computes `[activation(layer(x)) for layer, x in zip(layers, inputs)]` as one operation.

    It can be called wherever the layers can be called: inside a module's compact method or after its setup.

    Args:
      layers: nn.Dense layers and nn.Conv layers of kernel size 1, in any mixture, created as usual; they keep their
        names, parameters and initial values.
      inputs: one array (..., in_features) for all layers, or a list or tuple with one array for each.
      activation: None, one of `jax_vbgemm.ACTIVATIONS`, or a function. The
        kernel applies the named ones, and the functions of jax.nn that they stand for; XLA applies other functions.

    Returns:
      One array (..., features) for each layer, in the dtype that the layer would give.

    Raises:
      ValueError: lengths or shapes don't fit; a layer is not a plain linear layer or a plain 1x1 convolution (it is a
        subclass with its own __call__, a strided or masked Conv, or has a dot_general of its own); or a layer has
        another precision than the first one. The message names the index.
      flax.errors.ScopeParamShapeError: an input's features don't fit the parameters; Flax's own error names the layer.

    Examples:
      >>> import flax.linen as nn
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm.flax.linen import batched_linear
      >>> class Branches(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x):
      ...         return batched_linear([nn.Dense(3), nn.Dense(5)], x, "relu")
      >>> results, params = Branches().init_with_output(jax.random.key(0), jnp.ones((2, 8), jnp.float32))
      >>> [y.shape for y in results]
      [(2, 3), (2, 5)]
    """
    return _batched_linear("batched_linear", layers, inputs, activation)


def _batched_linear(where: str, layers: Sequence[Any], inputs: Any, activation: Activation) -> list[jax.Array]:
    arrays = checked_inputs(where, layers, inputs, _why_not)
    return outputs_of(where, layers, _factors(layers, arrays), activation)


def _factors(layers: Sequence[Any], inputs: Sequence[jax.Array]) -> list[Branch]:
    """The operands of each layer's product, after promotion."""
    with nn.intercept_methods(_give_factors):
        return [layer(x) for layer, x in zip(layers, inputs, strict=True)]


def _give_factors(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    """Interceptor that lets a Dense or Conv layer declare its parameters as usual, but return the operands of its
    product instead of the product."""
    layer = context.module
    if context.method_name != "__call__":
        return call(*args, **kwargs)
    (x,) = args
    shape = (*kernel_size(layer), x.shape[-1], layer.features)
    kernel = layer.param("kernel", layer.kernel_init, shape, layer.param_dtype)
    bias = layer.param("bias", layer.bias_init, (layer.features,), layer.param_dtype) if layer.use_bias else None
    return Branch(*layer.promote_dtype(x, kernel, bias, dtype=layer.dtype))


def _why_not(layer: Any, first: Any) -> str | None:
    """The reason why this layer's product cannot be part of the operation; None if it can."""
    if type(layer).__call__ is nn.Dense.__call__:
        if layer.dot_general is not None or layer.dot_general_cls is not None:
            return "has a dot_general of its own"
    elif isinstance(layer, nn.Conv) and type(layer).__call__ is nn.Conv.__call__:
        if not is_1x1(layer):
            return NOT_1X1
        if layer.conv_general_dilated is not None or layer.conv_general_dilated_cls is not None:
            return "has a conv_general_dilated of its own"
    else:
        return f"is a {type(layer).__name__}, neither an nn.Dense nor an nn.Conv"
    if layer.precision != first.precision:
        return "has another precision than layers[0]"
    return None


class _Branches(nn.Module):
    """Layers of one type and different widths, called as one operation."""

    features: Sequence[int]
    activation: Activation = None
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = default_kernel_init
    bias_init: Callable[..., Any] = initializers.zeros_init()
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype
    names: Sequence[str] | None = None

    def _layer(self, width: int, **options: Any) -> Any:
        """Flax's own layer of that width."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, inputs: Any) -> list[jax.Array]:
        """One output (..., features[i]) for each branch.

        Args:
          inputs: one array (..., in_features) for all branches, or a list or tuple with one array for each.

        Returns:
          One array (..., features[i]) for each branch, in the dtype that its Dense or Conv would give.

        Raises:
          ValueError, TypeError: as `batched_linear`; also if `names` and `features` differ in length.
        """
        where = type(self).__name__
        widths = sizes_of(where, "features", self.features, 0)
        names = [None] * len(widths) if self.names is None else self.names
        if len(names) != len(widths):
            raise ValueError(
                f"{where}: names has {len(names)} entries but features has {len(widths)}: one for each branch"
            )
        shared = ("use_bias", "dtype", "param_dtype", "precision", "kernel_init", "bias_init", "promote_dtype")
        options = {name: getattr(self, name) for name in shared}
        layers = [self._layer(width, name=name, **options) for width, name in zip(widths, names, strict=True)]
        return _batched_linear(where, layers, inputs, self.activation)


class BatchedLinear(_Branches):
    """nn.Dense layers of different sizes as one operation.

    Its parameters are those of a module that loops over nn.Dense: Dense_0, Dense_1 and so on, or `names`, with the same
    initial values from the same seed. To keep them in the parent's own scope, use `nn.share_scope` or `batched_linear`.

    Args:
      features: output features, one number for each branch.
      activation: as in `batched_linear`.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype: as in nn.Dense, for every branch.
      names: of the branches' parameters, one for each; None: Dense_0, Dense_1 and so on.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm.flax.linen import BatchedLinear
      >>> layer = BatchedLinear((3, 5), activation="relu")
      >>> ys, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 8)))
      >>> [y.shape for y in ys], sorted(variables["params"])
      ([(2, 3), (2, 5)], ['Dense_0', 'Dense_1'])
    """

    def _layer(self, width: int, **options: Any) -> nn.Dense:
        return nn.Dense(width, **options)


class BranchedConv1x1(_Branches):
    """1x1 nn.Conv layers of different widths, such as an inception block's, as one operation.

    Its parameters are those of a module that loops over nn.Conv: Conv_0, Conv_1 and so on, or `names`. Inputs are
    (..., height, width, channels).

    Args:
      features: output channels, one number for each branch.
      activation: as in `batched_linear`.
      use_bias, dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype: as in nn.Conv, for every branch.
      names: of the branches' parameters, one for each; None: Conv_0, Conv_1 and so on.
      spatial_dims: 2 for images (kernels (1, 1, in, out)), 1 for sequences, 3 for volumes.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm.flax.linen import BranchedConv1x1
      >>> layer = BranchedConv1x1((3, 5))
      >>> ys, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 4, 4, 8)))
      >>> [y.shape for y in ys]
      [(1, 4, 4, 3), (1, 4, 4, 5)]
    """

    spatial_dims: int = 2

    def _layer(self, width: int, **options: Any) -> nn.Conv:
        return nn.Conv(width, (1,) * self.spatial_dims, **options)


class MultiLoRA(nn.Module):
    """Low-rank adapters of different rank on one base layer, each for its own group of tokens.

    The same as `base_module(x) + nn.Dense(features, use_bias=False)(nn.Dense(rank, use_bias=False)(x))` for each group,
    with the base layer applied once to all tokens and the adapters as two operations. Parameters: `base_module`, and
    `lora_a_0`, `lora_b_0` and so on, each an nn.Dense's.

    Args:
      ranks: one rank for each adapter, at least 1; there must be an adapter.
      features: of the base layer's output.
      base_module: a layer (tokens, ..., in_features) -> (tokens, ..., features), or None.
      a_initializer, b_initializer: as in nnx.LoRA; zeros for b, so that training starts at the base layer.
      dtype, param_dtype, precision, promote_dtype: as in nn.Dense, for every adapter.
      scale: a factor of the adapters' results, a number or one for each adapter: `[alpha / rank for rank in ranks]`
        as adapters are trained in other libraries. None: 1.

    Examples:
      The first 4 tokens take the adapter of rank 2, the others that of rank 3:

      >>> import jax
      >>> import jax.numpy as jnp
      >>> from flax import linen as nn
      >>> from jax_vbgemm.flax.linen import MultiLoRA
      >>> layer = MultiLoRA((2, 3), 5, base_module=nn.Dense(5))
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((6, 8)), [4, 2])
      >>> y.shape
      (6, 5)

      Tokens of adapters in any order, the third one without an adapter:

      >>> layer.apply(variables, jnp.ones((6, 8)), adapter_ids=jnp.array([1, 0, -1, 0, 1, 0])).shape
      (6, 5)
    """

    ranks: Sequence[int]
    features: int
    base_module: nn.Module | None = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    a_initializer: Callable[..., Any] = initializers.he_uniform()
    b_initializer: Callable[..., Any] = initializers.zeros_init()
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype
    scale: float | Sequence[float] | None = None

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        group_sizes: Sequence[int] | jax.Array | None = None,
        *,
        adapter_ids: Any = None,
        **kwargs: Any,
    ) -> jax.Array:
        """Adapter i on the i-th group of consecutive tokens, or on the tokens of the id i.

        Args:
          inputs: (tokens, ..., in_features), with group_sizes the tokens of the first adapter first.
          group_sizes: the number of tokens of each adapter, which may be 0. Python numbers are static: each set of
            sizes compiles its own program. A jax.Array (adapters,) of integers is data that the host never reads: one
            program serves all sizes, and tokens after the last group get the base layer only.
          adapter_ids: in place of group_sizes, the adapter of each token in any order: (tokens,) integers, or as many
            of the dimensions of inputs before the features as they have, such as (batch,). -1 is no adapter: the token
            gets the base layer only. Data that the host never reads; tokens are sorted on the device. Another entry out
            of range is clamped to the nearest adapter; `jax.experimental.checkify.checkify` (with `user_checks`)
            reports it.
          **kwargs: passed to the base layer.

        Returns:
          (tokens, ..., features).

        Raises:
          ValueError: a rank is below 1, or the sizes don't fit; the message names the index.
          TypeError: an entry of a list of sizes is traced, or an array of sizes or of ids does not hold integers.
        """
        ranks = ranks_of("MultiLoRA", self.ranks)
        scales = scales_of("MultiLoRA", self.scale, len(ranks))
        static = static_sizes("MultiLoRA", group_sizes, adapter_ids)
        inputs = jnp.asarray(inputs)

        def layers(letter: str, widths: Sequence[int], init: Callable[..., Any]) -> list[nn.Dense]:
            options = {name: getattr(self, name) for name in ("dtype", "param_dtype", "precision", "promote_dtype")}
            return [
                nn.Dense(width, use_bias=False, kernel_init=init, name=f"lora_{letter}_{i}", **options)
                for i, width in enumerate(widths)
            ]

        lora_a = layers("a", ranks, self.a_initializer)
        lora_b = layers("b", [self.features] * len(ranks), self.b_initializer)
        if static is None:
            downs = _factors(lora_a, [inputs] * len(ranks))
            # The parameters and the promotion of a Dense depend only on the features and the dtype of its input.
            hidden = [jnp.zeros((0, rank), down.kernel.dtype) for rank, down in zip(ranks, downs, strict=True)]
            ups = _factors(lora_b, hidden)
            kernels = [[branch.kernel for branch in branches] for branches in (downs, ups)]
            output = adapted(
                "MultiLoRA", downs[0].inputs, kernels[0], kernels[1], group_sizes, adapter_ids=adapter_ids,
                scales=scales, precision=self.precision,
            )  # fmt: skip
        else:
            groups = split_groups("MultiLoRA", inputs, static, len(ranks))
            parts = scaled(_batched_linear("MultiLoRA", lora_a, groups, None), scales)
            output = jnp.concatenate(_batched_linear("MultiLoRA", lora_b, parts, None))
        if self.base_module is not None:
            output += self.base_module(inputs, **kwargs)
        return output
