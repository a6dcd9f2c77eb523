"""Shared by the nnx and Linen layers: the checks of a list of layers, and their products as one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import Activation, resolve_activation
from jax_vbgemm._src.matmul.api import batched_gemm
from jax_vbgemm._src.util.arguments import inputs_of, shown
from jax_vbgemm._src.util.distinct import distinct


class Branch(NamedTuple):
    """One branch after Flax's promotion of dtypes: inputs (..., k), kernel (k, n) or (1, ..., 1, k, n), bias (n,)."""

    inputs: jax.Array
    kernel: jax.Array
    bias: jax.Array | None


NOT_1X1 = "is not a plain 1x1 convolution (size, strides, dilation and groups 1, no explicit padding, no mask)"


def kernel_size(layer: Any) -> tuple[int, ...]:
    """The kernel size of a convolution layer; the empty tuple for a linear layer."""
    size = getattr(layer, "kernel_size", ())
    return (size,) if isinstance(size, int) else tuple(size)


def is_1x1(layer: Any) -> bool:
    """Whether a convolution layer is one matrix product over the channels."""
    sizes = (layer.kernel_size, layer.strides, layer.input_dilation, layer.feature_group_count)
    # jax.tree.leaves drops a None, which means 1. Padding given by name adds nothing to a kernel of size 1.
    return all(size == 1 for size in jax.tree.leaves(sizes)) and isinstance(layer.padding, str) and layer.mask is None


def checked_inputs(
    where: str, layers: Sequence[Any], inputs: Any, why_not: Callable[[Any, Any], str | None]
) -> list[jax.Array]:
    """One input for each layer.

    Raises ValueError with the layer's index where why_not(layer, layers[0]) gives a reason why the layer's product
    cannot be part of the operation, or where the input's rank is too low for the layer.
    """
    arrays = inputs_of(where, inputs, len(layers), "branches")
    for index, (layer, x) in enumerate(zip(layers, arrays, strict=True)):
        reason = why_not(layer, layers[0])
        if reason:
            raise ValueError(f"{where}: layers[{index}] {reason}")
        check_rank(where, index, x, 1 + len(kernel_size(layer)))
    return arrays


def sizes_of(where: str, name: str, sizes: Sequence[int], minimum: int, otherwise: str = "") -> tuple[int, ...]:
    """The sizes as integers; raises if one is traced, not an integer, or below `minimum`.

    otherwise: the end of the message about a traced size, which says what else a caller can do.
    """
    if not isinstance(sizes, Iterable):
        raise TypeError(f"{where}: {name} is {shown(sizes)}: expected a sequence of integers")
    known = []
    for index, size in enumerate(sizes):
        if isinstance(size, jax.core.Tracer):
            rule = f"sizes must be known at trace time (static under jit){otherwise}"
            raise TypeError(f"{where}: {name}[{index}] is traced: {rule}")
        if not isinstance(size, int | float | np.number) or int(size) != size or size < minimum:
            raise ValueError(f"{where}: {name}[{index}] is {shown(size)}: must be an integer of at least {minimum}")
        known.append(int(size))
    return tuple(known)


def ranks_of(where: str, ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks of adapters: one or more, each at least 1."""
    known = sizes_of(where, "ranks", ranks, 1)
    if not known:
        raise ValueError(f"{where}: ranks is empty: it must have a rank for each adapter")
    return known


def check_rank(where: str, index: int, inputs: jax.Array, rank: int) -> None:
    """Raises if inputs[index] has fewer than `rank` dimensions."""
    if inputs.ndim < rank:
        raise ValueError(f"{where}: inputs[{index}] has shape {inputs.shape}: it needs {rank} dimensions or more")


def check_features(where: str, index: int | None, inputs: jax.Array, features: int) -> None:
    """Raises Flax's own error if the input's last dimension is not `features`; a single input has no index."""
    if inputs.shape[-1:] != (features,):
        entry = "inputs" if index is None else f"inputs[{index}]"
        got = inputs.shape[-1] if inputs.ndim else "none"
        raise ValueError(
            f"{where}: {entry} has shape {inputs.shape}: "
            f"Incompatible input dimension, got {got} but module expects {features}."
        )


def outputs_of(
    where: str, layers: Sequence[Any], branches: Sequence[Branch], activation: Activation
) -> list[jax.Array]:
    """activation(inputs @ kernel + bias) of the branches of these layers as one operation; output i is (..., n_i)."""
    if not branches:
        return []
    precision = layers[0].precision
    preferred_element_type = getattr(layers[0], "preferred_element_type", None)  # Linen's layers have none
    _, function = resolve_activation(where, activation)
    dtypes = [jnp.dtype(preferred_element_type or branch.kernel.dtype) for branch in branches]
    # The kernel adds the bias and applies the activation in the dtype of the product. If Flax promotes the product
    # and the bias to a wider dtype, or the dtype is complex, both are done after the product, as in Flax.
    fused = all(
        (branch.bias is None or branch.bias.dtype == dtype) and not jnp.issubdtype(dtype, jnp.complexfloating)
        for branch, dtype in zip(branches, dtypes, strict=True)
    )
    inputs, index = distinct([branch.inputs for branch in branches])
    flat = [jnp.atleast_2d(x) for x in inputs]
    outputs = batched_gemm(
        [flat[i] for i in index],
        [branch.kernel.reshape(branch.kernel.shape[-2:]) for branch in branches],
        bias=[branch.bias for branch in branches] if fused else None,
        activation=activation if fused else None,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
    outputs = [y.reshape(*branch.inputs.shape[:-1], y.shape[-1]) for y, branch in zip(outputs, branches, strict=True)]
    if not fused:
        outputs = [
            y if branch.bias is None else y + branch.bias.reshape((1,) * (y.ndim - 1) + (-1,))
            for y, branch in zip(outputs, branches, strict=True)
        ]
        outputs = outputs if function is None else [function(y) for y in outputs]
    return outputs


def split_groups(where: str, inputs: jax.Array, group_sizes: Sequence[int], count: int) -> list[jax.Array]:
    """inputs (tokens, ..., features) cut into consecutive groups of tokens, one for each adapter."""
    sizes = sizes_of(where, "group_sizes", group_sizes, 0, "; or pass all sizes as one array, which is data")
    if len(sizes) != count:
        raise ValueError(f"{where}: group_sizes has {len(sizes)} entries but there are {count} adapters")
    if inputs.ndim < 2 or sum(sizes) != inputs.shape[0]:
        raise ValueError(
            f"{where}: inputs has shape {inputs.shape} but group_sizes add up to {sum(sizes)}: "
            "it must be (tokens, ..., features) with every token in a group"
        )
    # The transpose of a split is one concatenation; the transpose of slices would be a sum of padded arrays.
    return list(jax.lax.split(inputs, sizes))
