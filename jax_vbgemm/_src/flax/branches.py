"""What the layers of nnx and linen share: branches of different size on their way to one call, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.distinct import distinct
from jax_vbgemm._src.matmul.activation import Activation, resolve_activation
from jax_vbgemm._src.matmul.api import batched_gemm


class Branch(NamedTuple):
    """One branch after Flax's promotion of dtypes: inputs (..., k), kernel (k, n) or (1, ..., 1, k, n), bias (n,)."""

    inputs: jax.Array
    kernel: jax.Array
    bias: jax.Array | None


def inputs_of(where: str, inputs: Any, count: int) -> list[jax.Array]:
    """One input a branch: an array is shared by all, a list or tuple has one for each."""
    if not isinstance(inputs, list | tuple):
        return [jnp.asarray(inputs)] * count
    if len(inputs) != count:
        raise ValueError(
            f"{where}: inputs has {len(inputs)} entries but there are {count} branches: "
            "one for each, or one array for all"
        )
    objects, index = distinct(inputs)  # one array for one object: shared inputs stay shared
    arrays = [jnp.asarray(x) for x in objects]
    return [arrays[i] for i in index]


def sizes_of(where: str, name: str, sizes: Sequence[int], minimum: int) -> tuple[int, ...]:
    """Sizes known at trace time, none below `minimum`."""
    if not isinstance(sizes, Iterable):
        raise TypeError(f"{where}: {name} is {sizes!r}: expected one number for each")
    known = []
    for index, size in enumerate(sizes):
        if isinstance(size, jax.core.Tracer):
            raise TypeError(f"{where}: {name}[{index}] is traced: sizes must be known at trace time (static under jit)")
        if not isinstance(size, int | float | np.number) or int(size) != size or size < minimum:
            raise ValueError(f"{where}: {name}[{index}] is {size!r}: must be an integer of at least {minimum}")
        known.append(int(size))
    return tuple(known)


def ranks_of(where: str, ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks of adapters: one or more, each at least 1."""
    known = sizes_of(where, "ranks", ranks, 1)
    if not known:
        raise ValueError(f"{where}: ranks is empty: one for each adapter")
    return known


def check_rank(where: str, index: int, inputs: jax.Array, rank: int) -> None:
    """inputs[index] must have that many dimensions or more."""
    if inputs.ndim < rank:
        raise ValueError(f"{where}: inputs[{index}] has shape {inputs.shape}: it needs {rank} dimensions or more")


def check_features(where: str, index: int | None, inputs: jax.Array, features: int) -> None:
    """Flax's error for inputs that don't fit a layer, with the index if there are several."""
    if inputs.shape[-1:] != (features,):
        entry = "inputs" if index is None else f"inputs[{index}]"
        got = inputs.shape[-1] if inputs.ndim else "none"
        raise ValueError(
            f"{where}: {entry} has shape {inputs.shape}: "
            f"Incompatible input dimension, got {got} but module expects {features}."
        )


def outputs_of(
    where: str, branches: Sequence[Branch], activation: Activation, precision: Any, preferred_element_type: Any = None
) -> list[jax.Array]:
    """activation(inputs @ kernel + bias) of all branches as one operation; output i is (..., n_i)."""
    _, function = resolve_activation(where, activation)
    dtypes = [jnp.dtype(preferred_element_type or branch.kernel.dtype) for branch in branches]
    # Where Flax promotes the product and the bias to a wider dtype, or they are complex, the rest is done as Flax does.
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
    """Consecutive groups of rows of inputs (tokens, ..., features), one an adapter."""
    sizes = sizes_of(where, "group_sizes", group_sizes, 0)
    if len(sizes) != count:
        raise ValueError(f"{where}: group_sizes has {len(sizes)} entries but there are {count} adapters")
    if inputs.ndim < 2 or sum(sizes) != inputs.shape[0]:
        raise ValueError(
            f"{where}: inputs has shape {inputs.shape} but group_sizes add up to {sum(sizes)}: "
            "it must be (tokens, ..., features) with every token in a group"
        )
    return list(jax.lax.split(inputs, sizes))  # its transpose is one concatenation; that of slices is a sum of paddings
