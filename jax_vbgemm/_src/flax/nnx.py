"""Flax NNX layers of different sizes as one operation, with the parameters of the layers they replace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_vbgemm._src.epilogue import Activation, resolve_activation
from jax_vbgemm._src.flax.adapters import adapted, scaled, scales_of, static_sizes
from jax_vbgemm._src.flax.branches import (
    NOT_1X1,
    Branch,
    check_features,
    checked_inputs,
    is_1x1,
    outputs_of,
    ranks_of,
    sizes_of,
    split_groups,
)
from jax_vbgemm._src.matmul.api import batched_matmul

__all__ = ["BatchedLinear", "BranchedConv1x1", "MultiLoRA", "batched_linear"]


def batched_linear(
    layers: Sequence[nnx.Linear | nnx.Conv], inputs: Any, activation: Activation = None
) -> list[jax.Array]:
    """Computes `[activation(layer(x)) for layer, x in zip(layers, inputs)]` as one operation.

    Args:
      layers: nnx.Linear layers and nnx.Conv layers of kernel size 1, in any mixture, created as usual.
      inputs: one array (..., in_features) for all layers, or a list or tuple with one array for each.
      activation: None, one of `jax_vbgemm.ACTIVATIONS`, or a function. The
        kernel applies the named ones, and the functions of jax.nn that they stand for; XLA applies other functions.

    Returns:
      One array (..., out_features) for each layer, in the dtype that the layer would give.

    Raises:
      ValueError: lengths or shapes don't fit; a layer is not a plain linear layer or a plain 1x1 convolution (it is a
        subclass with its own __call__, a strided or masked Conv, or has a dot_general of its own); or a layer has
        another precision or preferred_element_type than the first one. The message names the index.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.flax.nnx import batched_linear
      >>> layers = [nnx.Linear(8, 3, rngs=nnx.Rngs(0)), nnx.Linear(8, 5, rngs=nnx.Rngs(1))]
      >>> [y.shape for y in batched_linear(layers, jnp.ones((2, 8), jnp.float32), "relu")]
      [(2, 3), (2, 5)]
    """
    return _batched_linear("batched_linear", layers, inputs, activation)


def _batched_linear(where: str, layers: Sequence[Any], inputs: Any, activation: Activation) -> list[jax.Array]:
    arrays = checked_inputs(where, layers, inputs, _why_not)
    branches = []
    for index, (layer, x) in enumerate(zip(layers, arrays, strict=True)):
        check_features(where, index, x, layer.in_features)
        bias = None if layer.bias is None else layer.bias[...]
        branches.append(Branch(*layer.promote_dtype((x, layer.kernel[...], bias), dtype=layer.dtype)))
    return outputs_of(where, layers, branches, activation)


def _why_not(layer: Any, first: Any) -> str | None:
    """The reason why this layer's product cannot be part of the operation; None if it can."""
    if type(layer).__call__ is nnx.Linear.__call__:
        if layer.dot_general is not jax.lax.dot_general:
            return "has a dot_general of its own"
    elif type(layer).__call__ is nnx.Conv.__call__:
        if not is_1x1(layer):
            return NOT_1X1
        if layer.conv_general_dilated is not jax.lax.conv_general_dilated:
            return "has a conv_general_dilated of its own"
    else:
        return f"is a {type(layer).__name__}, neither an nnx.Linear nor an nnx.Conv"
    if (layer.precision, layer.preferred_element_type) != (first.precision, first.preferred_element_type):
        return "has another precision or preferred_element_type than layers[0]"
    return None


class BatchedLinear(nnx.List[nnx.Linear]):
    """An nnx.List of nnx.Linear layers of different sizes that is called as one operation.

    Its parameters are those of the list, with the same initial values from the same rngs, so that a checkpoint of one
    loads into the other.

    Args:
      in_features: features of the input, or one number for each branch.
      out_features: one number for each branch.
      activation: as in `batched_linear`; a function must have no parameters.
      rngs: rng keys.
      **options: of nnx.Linear, for every branch: use_bias, dtype, param_dtype, precision, kernel_init, bias_init,
        promote_dtype, preferred_element_type, kernel_metadata, bias_metadata.

    Raises:
      ValueError: lengths differ, a size is negative or no integer, or the activation is unknown; the message names the
        index.
      TypeError: a size is traced, or the activation is an nnx.Module.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.flax.nnx import BatchedLinear
      >>> heads = BatchedLinear(8, (3, 5), activation="relu", rngs=nnx.Rngs(0))
      >>> [y.shape for y in heads(jnp.ones((2, 8)))]
      [(2, 3), (2, 5)]
    """

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: Sequence[int],
        *,
        activation: Activation = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        pairs = _feature_pairs("BatchedLinear", in_features, out_features)
        super().__init__([nnx.Linear(*pair, rngs=rngs, **options) for pair in pairs])
        self.activation = _static_activation("BatchedLinear", activation)

    def __call__(self, inputs: Any) -> list[jax.Array]:
        """The output of each branch.

        Args:
          inputs: one array (..., in_features) for all branches, or a list or tuple with one array for each.

        Returns:
          One array (..., out_features[i]) for each branch, in the dtype that the branch's nnx.Linear would give.

        Raises:
          ValueError: the number of inputs or their shapes don't fit; the message names the index.
          TypeError: an input is not an array.
        """
        return _batched_linear("BatchedLinear", self, inputs, self.activation)


class BranchedConv1x1(nnx.List[nnx.Conv]):
    """An nnx.List of 1x1 nnx.Conv layers of different widths, such as an inception block's, called as one operation.

    Args:
      in_features: channels of the input, or one number for each branch.
      out_features: channels of the outputs, one number for each branch.
      activation: as in `batched_linear`; a function must have no parameters.
      spatial_dims: 2 for images (kernels (1, 1, in, out)), 1 for sequences, 3 for volumes.
      rngs: rng keys.
      **options: of nnx.Conv, for every branch, as for `BatchedLinear`.

    Raises:
      ValueError, TypeError: as `BatchedLinear`.

    Examples:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.flax.nnx import BranchedConv1x1
      >>> branches = BranchedConv1x1(8, (3, 5), rngs=nnx.Rngs(0))
      >>> [y.shape for y in branches(jnp.ones((1, 4, 4, 8)))]
      [(1, 4, 4, 3), (1, 4, 4, 5)]
    """

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: Sequence[int],
        *,
        activation: Activation = None,
        spatial_dims: int = 2,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        pairs = _feature_pairs("BranchedConv1x1", in_features, out_features)
        super().__init__([nnx.Conv(*pair, (1,) * spatial_dims, rngs=rngs, **options) for pair in pairs])
        self.activation = _static_activation("BranchedConv1x1", activation)

    def __call__(self, inputs: Any) -> list[jax.Array]:
        """The feature map of each branch.

        Args:
          inputs: one array (..., height, width, in_features) for all branches, or a list or tuple with one array for
            each.

        Returns:
          One array (..., height, width, out_features[i]) for each branch, in the dtype that its
            nnx.Conv would give.

        Raises:
          ValueError: the number of inputs or their shapes don't fit; the message names the index.
          TypeError: an input is not an array.
        """
        return _batched_linear("BranchedConv1x1", self, inputs, self.activation)


class MultiLoRA(nnx.Module):
    """Low-rank adapters of different rank on one base layer, each for its own group of tokens.

    The same as `nnx.LoRA(..., base_module=base_module)` for each group, with the base layer applied once to all tokens
    and the adapters as two operations. Parameters: `base_module`, and `adapters`, an nnx.List of nnx.LoRA.

    Args:
      in_features, out_features: of the base layer.
      ranks: one rank for each adapter, at least 1; there must be an adapter.
      base_module: a layer (tokens, ..., in_features) -> (tokens, ..., out_features), or None.
      scale: a factor of the adapters' results, a number or one for each adapter: `[alpha / rank for rank in ranks]`
        as adapters are trained in other libraries. None: 1, as in nnx.LoRA.
      rngs: rng keys.
      **options: of nnx.LoRA, for every adapter: dtype, param_dtype, a_initializer, b_initializer, lora_param_type,
        promote_dtype, a_metadata, b_metadata.

    Raises:
      ValueError: a rank is below 1, base_module is not callable, or there is another number of factors than of
        adapters; the message names the index.
      TypeError: a factor is not a number.

    Examples:
      The first 4 tokens take the adapter of rank 2, the others that of rank 3:

      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.flax.nnx import MultiLoRA
      >>> base = nnx.Linear(8, 5, rngs=nnx.Rngs(0))
      >>> model = MultiLoRA(8, (2, 3), 5, base_module=base, rngs=nnx.Rngs(1))
      >>> model(jnp.ones((6, 8)), [4, 2]).shape
      (6, 5)

      Tokens of adapters in any order, the third one without an adapter:

      >>> model(jnp.ones((6, 8)), adapter_ids=jnp.array([1, 0, -1, 0, 1, 0])).shape
      (6, 5)
    """

    def __init__(
        self,
        in_features: int,
        ranks: Sequence[int],
        out_features: int,
        *,
        base_module: Any = None,
        scale: float | Sequence[float] | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        ranks = ranks_of("MultiLoRA", ranks)
        self.scales = scales_of("MultiLoRA", scale, len(ranks))
        if base_module is not None and not callable(base_module):
            raise ValueError("MultiLoRA: `base_module` must be callable.")
        self.base_module = base_module
        self.adapters = nnx.List([nnx.LoRA(in_features, rank, out_features, rngs=rngs, **options) for rank in ranks])

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
          (tokens, ..., out_features).

        Raises:
          ValueError: the sizes don't fit; the message names the index.
          TypeError: an entry of a list of sizes is traced, or an array of sizes or of ids does not hold integers.
        """
        inputs = jnp.asarray(inputs)
        check_features("MultiLoRA", None, inputs, self.adapters[0].in_features)
        static = static_sizes("MultiLoRA", group_sizes, adapter_ids)
        if static is None:
            factors = [_promoted(adapter, inputs) for adapter in self.adapters]
            (inputs, *_), downs, ups = map(list, zip(*factors, strict=True))
            output = adapted("MultiLoRA", inputs, downs, ups, group_sizes, adapter_ids=adapter_ids, scales=self.scales)
        else:
            inputs = _promoted(self.adapters[0], inputs)[0]
            groups = split_groups("MultiLoRA", inputs, static, len(self.adapters))
            factors = [_promoted(adapter, x) for adapter, x in zip(self.adapters, groups, strict=True)]
            xs, downs, ups = map(list, zip(*factors, strict=True))
            hidden = scaled(batched_matmul(xs, downs), self.scales)
            output = jnp.concatenate(batched_matmul(hidden, ups))
        if self.base_module is not None:
            output += self.base_module(inputs, **kwargs)
        return output


def _promoted(adapter: nnx.LoRA, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The operands of one adapter's two products, after promotion: x, the down-projection, the up-projection."""
    factors: tuple[jax.Array, jax.Array, jax.Array]
    factors = adapter.promote_dtype((x, adapter.lora_a[...], adapter.lora_b[...]), dtype=adapter.dtype)
    return factors


def _feature_pairs(where: str, in_features: int | Sequence[int], out_features: Sequence[int]) -> list[tuple[int, int]]:
    """(in_features, out_features) of each branch."""
    outs = sizes_of(where, "out_features", out_features, 0)
    of_each = in_features if isinstance(in_features, Iterable) else [in_features] * len(outs)
    ins = sizes_of(where, "in_features", of_each, 0)
    if len(ins) != len(outs):
        raise ValueError(
            f"{where}: in_features has {len(ins)} entries but out_features has {len(outs)}: one for each branch"
        )
    return list(zip(ins, outs, strict=True))


def _static_activation(where: str, activation: Activation) -> Activation:
    if isinstance(activation, nnx.Module):
        raise TypeError(f"{where}: activation must be a function without parameters, not {type(activation).__name__}")
    resolve_activation(where, activation)
    return activation
