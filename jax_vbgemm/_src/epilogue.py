"""Epilogues: the elementwise operations applied to a product's sums before they are stored.

One record for the products of lists and of ragged rows, its meaning in jnp, and the table of activations. A kernel
applies an epilogue to sums in its registers; XLA applies it by `finished`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm import _core
from jax_vbgemm._src.util.shown import shown

Function = Callable[[jax.Array], jax.Array]
Activation = str | Function | None

FUNCTIONS: Mapping[str, Function] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,  # its default, the tanh approximation
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
}
"""The activations of csrc/activations.def, by name."""

_NAMES: tuple[str, ...] = tuple(_core.activations())  # by number; number 0 means no activation

ACTIVATIONS: tuple[str, ...] = _NAMES[1:]
"""The activations that kernels apply, by name, as csrc/activations.def declares them. Each is the function of `jax.nn`
of this name with its default arguments; `jax.nn.gelu` then is the tanh approximation."""

# Functions of JAX that compute a named activation under another name.
_SAME = {jax.lax.tanh: "tanh", jax.lax.logistic: "sigmoid"}

Scalar = complex | float | tuple[int, int]
"""A number known at trace time (an int for integer results), or (operand, element) of a one-dimensional operand in the
accumulator's dtype."""


OperandKey = Any
"""What an epilogue calls an operand: its index in a batched product, its name in a ragged one."""


class Epilogue(NamedTuple):
    """The operations applied to a sum before it is rounded to the result's dtype; computed in the accumulator's dtype.

        row_scale activation(alpha sum + beta source + bias)

    The source has the shape and dtype of the result; the bias has its dtype and a shape that broadcasts to its shape.
    If beta is 0 the source is not read, so that NaN in it does not reach the result. With `gated` the sum has twice
    the columns of the result, and activation(gate) up of its two halves takes the place of its activation. Only ragged
    products have gates and row scales.
    """

    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    source: OperandKey | None = None
    bias: OperandKey | None = None
    activation: str | None = None
    gated: bool = False
    row_scale: OperandKey | None = None

    @property
    def is_affine(self) -> bool:
        """Whether the epilogue is alpha sum + bias, where alpha is a number known at trace time."""
        return self == Epilogue(self.alpha, bias=self.bias) and not isinstance(self.alpha, tuple)

    @property
    def scalars(self) -> list[int]:
        """The operands that hold alpha and beta."""
        return [scalar[0] for scalar in (self.alpha, self.beta) if isinstance(scalar, tuple)]

    def operands(self) -> list[OperandKey]:
        """The operands to which the epilogue refers."""
        return [key for key in (self.source, self.bias, self.row_scale, *self.scalars) if key is not None]

    def renumbered(self, at: Mapping[int, int] | Sequence[int]) -> Epilogue:
        """The epilogue with at[i] in place of operand i."""

        def scalar(value: Scalar) -> Scalar:
            return (at[value[0]], value[1]) if isinstance(value, tuple) else value

        source, bias, row_scale = (
            None if index is None else at[index] for index in (self.source, self.bias, self.row_scale)
        )
        return Epilogue(scalar(self.alpha), scalar(self.beta), source, bias, self.activation, self.gated, row_scale)


def finished(
    total: jax.Array, epilogue: Epilogue, operands: Sequence[jax.Array] | Mapping[OperandKey, jax.Array], dtype: Any
) -> jax.Array:
    """The result in `dtype` of a sum, which has the accumulator's dtype: the definition of epilogues."""
    value = linear_part(total, epilogue, operands)
    value = activated(value, epilogue.activation, halves=epilogue.gated)
    if epilogue.row_scale is not None:
        value = operands[epilogue.row_scale][..., None].astype(value.dtype) * value
    return value.astype(dtype)


def linear_part(
    total: jax.Array, epilogue: Epilogue, operands: Sequence[jax.Array] | Mapping[OperandKey, jax.Array]
) -> jax.Array:
    """alpha total + beta source + bias in total's dtype; a term whose factor is 0 is zero, even if it holds NaN."""
    dtype = total.dtype
    value = total if epilogue.alpha == 1 else scaled(scalar_value(epilogue.alpha, operands, dtype), total)
    if epilogue.source is not None and epilogue.beta != 0:
        value += scaled(scalar_value(epilogue.beta, operands, dtype), operands[epilogue.source].astype(dtype))
    if epilogue.bias is not None:
        value += jnp.broadcast_to(operands[epilogue.bias].astype(dtype), value.shape)
    return value


def activated(x: jax.Array, activation: str | None, halves: bool = False) -> jax.Array:
    """activation(x); for a gated product, whose sums x hold the gate first and then the other half, its result."""
    if halves:
        gate, up = jnp.split(x, 2, axis=-1)
        return gated_product(FUNCTIONS[str(activation)], gate, up)
    return x if activation is None else FUNCTIONS[activation](x)


def gated_product(activation: Function, gate: jax.Array, up: jax.Array) -> jax.Array:
    """The result of a gated product: activation(first half of the sums) times the second half."""
    return activation(gate) * up


def scalar_value(scalar: Scalar, operands: Sequence[jax.Array] | Mapping[int, jax.Array], dtype: Any) -> jax.Array:
    """The value of alpha or beta as an array of rank 0."""
    if isinstance(scalar, tuple):
        return operands[scalar[0]][scalar[1]].astype(dtype)
    return jnp.asarray(scalar, dtype)


@jax.custom_jvp
def scaled(beta: jax.Array, x: jax.Array) -> jax.Array:
    """beta x, and zeros if beta is 0, even if x holds NaN or Inf. Its derivatives are those of the product beta
    x."""
    return jnp.where(beta == 0, jnp.zeros_like(x), beta * x)


def _scaled_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    (beta, x), (d_beta, d_x) = primals, tangents
    # Plain products instead of `scaled`: transposition would lose the custom rule, and with it beta's tangent.
    parts = [beta * d_x] if _is_nonzero(d_x) else []
    if _is_nonzero(d_beta):  # a zero tangent times a NaN in x would be NaN
        parts.append(d_beta * x)
    return scaled(beta, x), functools.reduce(jnp.add, parts)


def _is_nonzero(tangent: Any) -> bool:
    return not isinstance(tangent, jax.custom_derivatives.SymbolicZero)


scaled.defjvp(_scaled_jvp, symbolic_zeros=True)


def activation_number(activation: str | None) -> int:
    """The index by which a kernel call refers to an activation."""
    return _NAMES.index(activation or "none")


def resolve_activation(where: str, activation: Any) -> tuple[str | None, Function | None]:
    """(its name in the kernel's epilogue, or None if the epilogue lacks it; the function, or None for no
    activation)."""
    if activation is None:
        return None, None
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            known = ", ".join(map(repr, ACTIVATIONS))
            raise ValueError(f"{where}: activation must be None, a function, or one of {known}, not {activation!r}")
        return activation, FUNCTIONS[activation]
    if not callable(activation):
        raise TypeError(f"{where}: activation must be None, a function or a name, not {shown(activation)}")
    meant = activation
    if isinstance(activation, functools.partial) and not activation.args and activation.func is jax.nn.gelu:
        # The kernel's gelu is the tanh approximation. gelu with approximate=False is another function, left to XLA.
        meant = jax.nn.gelu if activation.keywords == {"approximate": True} else activation
    for name, function in FUNCTIONS.items():
        if meant is function:
            return name, activation
    return next((name for function, name in _SAME.items() if meant is function), None), activation
