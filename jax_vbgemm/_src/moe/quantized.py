"""Experts in 8 bits: their products and those of their gradients by 8-bit floats."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.arguments import as_array, shown
from jax_vbgemm._src.epilogue import activated
from jax_vbgemm._src.moe.routing import Routing, dispatched, factors_of_rows, summed
from jax_vbgemm._src.ragged.aligned_groups import Factor, aligned_groups, quantized_contraction
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.general import ragged_dot_general
from jax_vbgemm._src.ragged.primitive import SCALED
from jax_vbgemm._src.scaled.quantize import quantize
from jax_vbgemm._src.scaled.scaled import Scaled

FORWARD = "float8_e4m3fn"
COTANGENTS: tuple[str, ...] = ("float8_e5m2", FORWARD)
WGRAD: tuple[str, ...] = ("float8", "wide")
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
    x: jax.Array, gate_up: jax.Array, down: jax.Array, experts: QuantizedExperts, routing: Routing, dtype: Any, *,
    activation: str, cotangents: str, wgrad: str, implementation: str | None,
) -> jax.Array:  # fmt: skip
    """The results of `expert_mlp`, (tokens, n), added and returned in a dtype.

    Gradients are straight-through: those of the products before rounding to 8 bits, with factors that are rounded.
    Derivatives of first order, in reverse mode.
    """
    form = _Form(activation, cotangents, wgrad, np.dtype(dtype), implementation)
    # The probabilities take part as those of rows, through which their gradient passes.
    scale = factors_of_rows(routing).astype(np.float32)
    result: jax.Array = _mlp(form, x, gate_up, down, experts, routing, scale)
    return result


class _Form(NamedTuple):
    activation: str
    cotangents: str
    wgrad: str
    dtype: Any
    implementation: str | None

    def dot(self, lhs: Scaled, rhs: Scaled, sizes: jax.Array, dtype: Any, **options: Any) -> jax.Array:
        return ragged_dot(
            lhs, rhs, sizes, transpose_rhs=True, preferred_element_type=dtype, implementation=self.implementation,
            **options,
        )  # fmt: skip


def _of_tokens(form: _Form, rows: jax.Array, routing: Routing) -> jax.Array:
    """The sum of each token's rows."""
    return summed(rows.astype(form.dtype), routing)


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
    rows = form.dot(quantize(hidden, block=_OF_ROWS), experts.down, routing.group_sizes, x.dtype)
    return _of_tokens(form, rows, routing)


def _hidden(form: _Form, sums: jax.Array, scale: jax.Array) -> jax.Array:
    return scale[:, None] * activated(sums.astype(np.float32), form.activation, halves=True)


def _forward(
    form: _Form, x: jax.Array, gate_up: jax.Array, down: jax.Array, experts: QuantizedExperts, routing: Routing,
    scale: jax.Array,
) -> tuple[jax.Array, Any]:  # fmt: skip
    sums = form.dot(
        quantize(x, block=_OF_ROWS), experts.gate_up, routing.group_sizes, x.dtype, gather=(routing.rows, routing.slots)
    )
    hidden = quantize(_hidden(form, sums, scale).astype(x.dtype), block=_OF_ROWS)
    rows = form.dot(hidden, experts.down, routing.group_sizes, x.dtype)
    return _of_tokens(form, rows, routing), (x, gate_up, down, experts, routing, scale, sums)


def _backward(form: _Form, residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    x, *_, experts, routing, scale, sums = residuals
    kind, sizes = form.cotangents, routing.group_sizes
    cotangent = cotangent.astype(x.dtype)
    of_hidden = form.dot(
        quantize(cotangent, kind, _OF_ROWS), experts.down_back, sizes, x.dtype, gather=(routing.rows, routing.slots)
    )
    hidden, back = jax.vjp(partial(_hidden, form), sums, scale)
    of_sums, of_scale = back(of_hidden.astype(hidden.dtype))
    hidden, of_sums = hidden.astype(x.dtype), of_sums.astype(x.dtype)
    of_rows = form.dot(quantize(of_sums, kind, _OF_ROWS), experts.gate_up_back, sizes, x.dtype)
    of_weights = _of_weights_8 if form.wgrad == "float8" else _of_weights
    return summed(of_rows, routing), *of_weights(form, residuals, cotangent, hidden, of_sums), None, None, of_scale


def _of_weights_8(
    form: _Form, residuals: Any, cotangent: jax.Array, hidden: jax.Array, of_sums: jax.Array
) -> list[jax.Array]:
    x, gate_up, down, _, routing, *_ = residuals
    sizes, rows = aligned_groups(routing.group_sizes, len(hidden))
    tokens = jnp.where(rows < 0, rows, routing.rows[rows])
    pairs = [
        (Factor(x, FORWARD, tokens), Factor(of_sums, form.cotangents, rows), gate_up),
        (Factor(hidden, FORWARD, rows), Factor(cotangent, form.cotangents, tokens), down),
    ]
    return [
        quantized_contraction(
            lhs, rhs, sizes, jnp.bfloat16 if weights.dtype == jnp.bfloat16 else np.float32, form.implementation
        ).astype(weights.dtype)
        for lhs, rhs, weights in pairs
    ]


def _of_weights(
    form: _Form, residuals: Any, cotangent: jax.Array, hidden: jax.Array, of_sums: jax.Array
) -> list[jax.Array]:
    x, gate_up, down, _, routing, *_ = residuals
    pairs = [(dispatched(x, routing), of_sums, gate_up), (hidden, dispatched(cotangent, routing), down)]
    return [
        ragged_dot_general(
            lhs, rhs, routing.group_sizes, _CONTRACTION,
            preferred_element_type=weights.dtype if weights.dtype == np.float32 else None,
            implementation=form.implementation,
        ).astype(weights.dtype)
        for lhs, rhs, weights in pairs
    ]  # fmt: skip


_mlp.defvjp(_forward, _backward)
