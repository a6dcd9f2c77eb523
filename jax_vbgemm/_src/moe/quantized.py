"""Experts in 8 bits: products and gradients of features by 8-bit floats, gradients of weights by 16-bit floats."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_vbgemm._src.arguments import as_array, shown
from jax_vbgemm._src.epilogue import activated
from jax_vbgemm._src.moe.routing import Routing, dispatched, factors_of_rows, summed
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.general import ragged_dot_general
from jax_vbgemm._src.ragged.primitive import SCALED
from jax_vbgemm._src.scaled.quantize import quantize
from jax_vbgemm._src.scaled.scaled import Scaled

COTANGENTS: tuple[str, ...] = ("float8_e5m2", "float8_e4m3fn")
_OF_WEIGHTS = (SCALED, SCALED)
_OF_ROWS = (1, SCALED)
_CONTRACTION = jax.lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])


class QuantizedExperts(NamedTuple):
    """The weights of experts in 8 bits: float8_e4m3fn, with a scale for each block of 128 x 128.

    The tensor cores read 8-bit operands along the contracted dimension only, so that each matrix is here twice.
    `quantize_experts` makes them.

    Attributes:
      gate_up: (experts, 2 f, d), for the forward pass; gate_up_back: (experts, d, 2 f), for the gradient of x.
      down: (experts, n, f), and down_back: (experts, f, n).
    """

    gate_up: Scaled
    gate_up_back: Scaled
    down: Scaled
    down_back: Scaled


def quantize_experts(gate_up: Any, down: Any) -> QuantizedExperts:
    """The weights of `expert_mlp` in 8 bits, for its argument `quantized`: once for all micro-batches of a step.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> experts = vb.moe.quantize_experts(jnp.ones((2, 128, 512)), jnp.ones((2, 256, 128)))
    >>> experts.gate_up.shape, experts.gate_up.scales.shape
    ((2, 512, 128), (2, 4, 1))

    Args:
      gate_up: (experts, d, 2 f).
      down: (experts, f, n).

    Raises:
      ValueError: an array has another rank.
      TypeError: an array is not floating.
    """
    name = "quantize_experts"
    both = {"gate_up": as_array(name, "gate_up", gate_up), "down": as_array(name, "down", down)}
    for argument, array in both.items():
        if array.ndim != 3:
            raise ValueError(f"{name}: {argument} is {array.shape}: it must have three dimensions")
    back = [quantize(array, block=_OF_WEIGHTS) for array in both.values()]
    return QuantizedExperts(back[0].mT, back[0], back[1].mT, back[1])


def checked_experts(name: str, quantized: Any, gate_up: jax.Array, down: jax.Array) -> QuantizedExperts:
    """The argument `quantized` of a function, for weights of these shapes; True: they are quantized here."""
    if quantized is True:
        return quantize_experts(gate_up, down)
    if not isinstance(quantized, QuantizedExperts):
        raise TypeError(f"{name}: quantized must be None, True or a QuantizedExperts, not {shown(quantized)}")
    for argument, array, here in (("gate_up", gate_up, quantized.gate_up_back), ("down", down, quantized.down_back)):
        if here.shape != array.shape:
            raise ValueError(f"{name}: quantized.{argument}_back is {here.shape} but {argument} is {array.shape}")
    return quantized


def quantized_mlp(
    x: jax.Array, gate_up: jax.Array, down: jax.Array, experts: QuantizedExperts, routing: Routing, activation: str,
    cotangents: str, implementation: str | None,
) -> jax.Array:  # fmt: skip
    """The results of all choices, (tokens * k, n) in the order of `dispatch`, times their probabilities; of x's dtype.

    Gradients are straight-through: those of the products before rounding to 8 bits, with factors that are rounded.
    Derivatives of first order, in reverse mode.
    """
    form = _Form(activation, cotangents, implementation)
    # The probabilities take part as those of rows, through which their gradient passes.
    scale = factors_of_rows(routing).astype(np.float32)
    result: jax.Array = _mlp(form, x, gate_up, down, experts, routing, scale)
    return result


class _Form(NamedTuple):
    activation: str
    cotangents: str
    implementation: str | None

    def dot(self, lhs: Scaled, rhs: Scaled, sizes: jax.Array, dtype: Any, **options: Any) -> jax.Array:
        return ragged_dot(
            lhs, rhs, sizes, transpose_rhs=True, preferred_element_type=dtype, implementation=self.implementation,
            **options,
        )  # fmt: skip


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(
    form: _Form, x: jax.Array, gate_up: jax.Array, down: jax.Array, experts: QuantizedExperts, routing: Routing,
    scale: jax.Array,
) -> jax.Array:  # fmt: skip
    features = gate_up.shape[-1] // 2
    if features % SCALED:  # a block of columns has some of both halves
        return _forward(form, x, gate_up, down, experts, routing, scale)[0]
    hidden = form.dot(
        quantize(x, block=_OF_ROWS), experts.gate_up, routing.group_sizes, x.dtype,
        gather=(routing.rows, routing.slots), gated=True, activation=form.activation, row_scale=scale,
    )  # fmt: skip
    return form.dot(quantize(hidden, block=_OF_ROWS), experts.down, routing.group_sizes, x.dtype)


def _hidden(form: _Form, sums: jax.Array, scale: jax.Array) -> jax.Array:
    return scale[:, None] * activated(sums.astype(np.float32), form.activation, halves=True)


def _forward(
    form: _Form, x: jax.Array, gate_up: jax.Array, down: jax.Array, experts: QuantizedExperts, routing: Routing,
    scale: jax.Array,
) -> tuple[jax.Array, Any]:  # fmt: skip
    sums = form.dot(
        quantize(x, block=_OF_ROWS), experts.gate_up, routing.group_sizes, x.dtype, gather=(routing.rows, routing.slots)
    )
    hidden = quantize(_hidden(form, sums, scale), block=_OF_ROWS)
    result = form.dot(hidden, experts.down, routing.group_sizes, x.dtype)
    return result, (x, gate_up, down, experts, routing, scale, sums)


def _backward(form: _Form, residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    x, gate_up, down, experts, routing, scale, sums = residuals
    kind = form.cotangents
    of_hidden = form.dot(quantize(cotangent, kind, _OF_ROWS), experts.down_back, routing.group_sizes, x.dtype)
    hidden, back = jax.vjp(partial(_hidden, form), sums, scale)
    of_sums, of_scale = back(of_hidden.astype(hidden.dtype))
    of_tokens = form.dot(quantize(of_sums, kind, _OF_ROWS), experts.gate_up_back, routing.group_sizes, x.dtype)

    def of_weights(lhs: jax.Array, rhs: jax.Array, weights: jax.Array) -> jax.Array:
        gradient = ragged_dot_general(
            lhs.astype(x.dtype), rhs.astype(x.dtype), routing.group_sizes, _CONTRACTION,
            preferred_element_type=weights.dtype if weights.dtype == np.float32 else None,
        )  # fmt: skip
        return gradient.astype(weights.dtype)

    return (
        summed(of_tokens, routing),
        of_weights(dispatched(x, routing), of_sums, gate_up),
        of_weights(hidden, cotangent, down),
        None,
        None,
        of_scale,
    )


_mlp.defvjp(_forward, _backward)
