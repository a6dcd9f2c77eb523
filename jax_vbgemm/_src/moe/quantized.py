"""Experts in 8 bits: their products, and the products of their gradients, use 8-bit floats."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.moe.routing import Routing, dispatched, factors_of_rows, summed
from jax_vbgemm._src.ragged.aligned_groups import aligned_groups, quantized_contraction
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.general import ragged_dot_general
from jax_vbgemm._src.ragged.primitive import SCALED
from jax_vbgemm._src.scaled.blocks import Rounded, gated, quantized
from jax_vbgemm._src.scaled.quantize import quantize
from jax_vbgemm._src.scaled.scaled import Scaled
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array, shown

FORWARD = "float8_e4m3fn"
COTANGENTS: tuple[str, ...] = ("float8_e5m2", FORWARD)
WGRAD: tuple[str, ...] = ("float8", "wide")
_WEIGHT_BLOCK = (SCALED, SCALED)
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
    back = [quantize(array, block=_WEIGHT_BLOCK) for array in both.values()]
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
    # The probabilities enter as row scales, through which their gradients pass.
    scale = factors_of_rows(routing).astype(np.float32)
    leaves, structure = jax.tree.flatten((x, gate_up, down, experts, routing, scale))
    # A cotangent varies over the same mesh axes as its operand: the transpose of this cast sums those of shared
    # weights.
    result: jax.Array = _mlp(form, *jax.tree.unflatten(structure, compat.unite_varying(leaves)))
    return result


class _Form(NamedTuple):
    activation: str
    cotangents: str
    wgrad: str
    dtype: Any
    implementation: str | None

    def dot(self, lhs: Rounded, rhs: Scaled, routing: Routing, dtype: Any, **options: Any) -> jax.Array:
        return ragged_dot(
            Scaled(lhs.values[0], lhs.row_scales[0], (1, SCALED)), rhs, routing.group_sizes, transpose_rhs=True,
            preferred_element_type=dtype, implementation=self.implementation, **options,
        )  # fmt: skip


class _Places(NamedTuple):
    """The rows in aligned groups: the groups' sizes, and for each position the row and its token, or -1."""

    sizes: jax.Array
    rows: jax.Array
    tokens: jax.Array


def _places(form: _Form, routing: Routing) -> _Places | None:
    """None if gradients of weights are not in 8 bits."""
    if form.wgrad != "float8":
        return None
    sizes, rows = aligned_groups(routing.group_sizes, routing.rows.shape[0])
    return _Places(sizes, rows, jnp.where(rows < 0, -1, routing.rows[rows]))


def _quantized_tokens(x: jax.Array, dtype: str, routing: Routing, places: _Places | None) -> Rounded:
    """The token of each row, in 8 bits. A token is quantized once per choice, which takes no longer than copying it."""
    if places is None:
        return quantized(dtype, x=x[None], index=routing.rows, of_rows=True)
    return quantized(
        dtype, x=x[None], index=places.tokens, place=places.rows, value_rows=routing.rows.shape[0], of_rows=True,
        in_columns=True,
    )  # fmt: skip


def _quantized_rows(dtype: str, places: _Places | None, rows: int, **gate: Any) -> Rounded:
    """The gate's results, computed and rounded to 8 bits in one kernel; with `places` also transposed."""
    if places is None:
        return quantized(dtype, of_rows=True, **gate)
    return quantized(
        dtype, index=places.rows, place=places.rows, value_rows=rows, of_rows=True, in_columns=True, **gate
    )


def _sum_tokens(form: _Form, rows: jax.Array, routing: Routing) -> jax.Array:
    """The sum of each token's rows."""
    return summed(rows.astype(form.dtype), routing)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mlp(
    form: _Form, x: jax.Array, gate_up: jax.Array, down: jax.Array, experts: QuantizedExperts, routing: Routing,
    scale: jax.Array,
) -> jax.Array:  # fmt: skip
    if gate_up.shape[-1] // 2 % SCALED:  # a block of columns contains both halves
        return _forward(form._replace(wgrad="wide"), x, gate_up, down, experts, routing, scale)[0]
    hidden = form.dot(
        _quantized_tokens(x, FORWARD, routing, None), experts.gate_up, routing, x.dtype, gated=True,
        activation=form.activation, row_scale=scale,
    )  # fmt: skip
    rows = form.dot(quantized(FORWARD, x=hidden[None], of_rows=True), experts.down, routing, x.dtype)
    return _sum_tokens(form, rows, routing)


def _forward(
    form: _Form, x: jax.Array, gate_up: jax.Array, down: jax.Array, experts: QuantizedExperts, routing: Routing,
    scale: jax.Array,
) -> tuple[jax.Array, Any]:  # fmt: skip
    places = _places(form, routing)
    tokens = _quantized_tokens(x, FORWARD, routing, places)
    sums = form.dot(tokens, experts.gate_up, routing, x.dtype)
    hidden = _quantized_rows(
        FORWARD, places, sums.shape[0], form="gated", activation=form.activation, sums=sums[None], row_scale=scale
    )
    result = _sum_tokens(form, form.dot(hidden, experts.down, routing, x.dtype), routing)
    # 8-bit gradients of weights only need the transposes of the tokens and of the hidden features.
    kept = x if places is None else [_transposed(factor) for factor in (tokens, hidden)]
    return result, (kept, gate_up, down, experts, routing, scale, sums, places)


def _transposed(factor: Rounded) -> Rounded:
    return factor._replace(values=None, row_scales=None)


def _backward(form: _Form, residuals: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    kept, gate_up, down, experts, routing, scale, sums, places = residuals
    dtype, rows = sums.dtype, sums.shape[0]
    cotangent = cotangent.astype(dtype)
    result_cotangent = _quantized_tokens(cotangent, form.cotangents, routing, places)
    hidden_cotangent = form.dot(result_cotangent, experts.down_back, routing, dtype)
    if places is not None:
        sums_cotangent = _quantized_rows(
            form.cotangents, places, rows, form="gated_gradient", activation=form.activation, x=hidden_cotangent[None],
            sums=sums[None], row_scale=scale,
        )  # fmt: skip
        scale_cotangent = jnp.where(jnp.arange(rows) < places.sizes.sum(), sums_cotangent.partials.sum(axis=1), 0)
        pairs = zip(kept, (sums_cotangent, result_cotangent), (gate_up, down), strict=True)
        weight_gradients = [
            quantized_contraction(
                lhs, rhs, places.sizes, jnp.bfloat16 if weights.dtype == jnp.bfloat16 else np.float32,
                form.implementation,
            )
            for lhs, rhs, weights in pairs
        ]  # fmt: skip
    else:
        hidden, back = jax.vjp(partial(gated, activation=form.activation), sums, scale)
        wide, scale_cotangent = back(hidden_cotangent.astype(hidden.dtype))
        sums_cotangent = quantized(form.cotangents, x=wide[None], of_rows=True)
        rows_of_weights = [
            (dispatched(kept, routing), wide, gate_up), (hidden.astype(dtype), dispatched(cotangent, routing), down)
        ]  # fmt: skip
        weight_gradients = [
            ragged_dot_general(
                lhs, rhs, routing.group_sizes, _CONTRACTION, implementation=form.implementation,
                preferred_element_type=weights.dtype if weights.dtype == np.float32 else None,
            )
            for lhs, rhs, weights in rows_of_weights
        ]  # fmt: skip
    of_rows = form.dot(sums_cotangent, experts.gate_up_back, routing, dtype)
    gate_up_gradient, down_gradient = (
        gradient.astype(weights.dtype) for gradient, weights in zip(weight_gradients, (gate_up, down), strict=True)
    )
    return summed(of_rows, routing), gate_up_gradient, down_gradient, None, None, scale_cotangent


_mlp.defvjp(_forward, _backward)
