"""The gated product of groups, whose weights are one array or two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Activation, Epilogue, gated_product, resolve_activation
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.moe.lora import with_adapter
from jax_vbgemm._src.ragged.api import extra_operand, ragged_dot, scalar_integer, sizes_argument
from jax_vbgemm._src.ragged.reference import finish, rows_with_weights, zeros_elsewhere
from jax_vbgemm._src.scaled.scaled import Scaled
from jax_vbgemm._src.util.arguments import shown, unsharded_array

Gate = Callable[[jax.Array, jax.Array], jax.Array]
OF_GATE_AND_UP = "for the gate and the up-projection"


def gated_dot(
    lhs: Any, rhs: Any, group_sizes: Any, *, activation: Activation = "silu", gate: Gate | None = None,
    interleaved: bool = False, lora: Any = None, lora_scale: Any = 1.0, **options: Any,
) -> jax.Array:  # fmt: skip
    """activation(lhs @ gate) * (lhs @ up) of each group: SwiGLU, GeGLU.

    If both weights lie side by side and the epilogue has the activation, `ragged_dot` with `gated`. Otherwise one
    `ragged_dot` for each array of weights, two for each adapter, and XLA the rest, in float32 for 16-bit results.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> gate_up = jnp.array([[[1.0, 10.0]], [[-1.0, 10.0]]])
    >>> vb.moe.gated_dot(jnp.ones((3, 1)), gate_up, jnp.array([1, 2]), activation="relu")[:, 0]
    Array([10.,  0.,  0.], dtype=float32)

    Args:
      lhs, group_sizes: as for `ragged_dot`.
      rhs: (g, k, 2 n), the gate before the up-projection, or the pair of both, each (g, k, n); with `transpose_rhs`
        (g, 2 n, k), or a pair of (g, n, k).
      activation: a function or one of `jax_vbgemm.ACTIVATIONS`.
      gate: a function of the two factors (m, n), in place of activation(gate) * up, such as `clamped_swiglu`.
      interleaved: whether columns of the gate and of the up-projection alternate in one array rhs, as in gpt-oss.
      lora: None, or a low-rank adapter (a, b) of rhs, (g, k, rank) and (g, rank, 2 n): the product is that with
        rhs[e] + lora_scale a[e] b[e] (without `transpose_rhs`). For a pair rhs a pair, each of them None or (a, b) with
        n columns.
      lora_scale: a number, such as alpha / rank.
      **options: of `ragged_dot`; a bias is (g, 2 n), or a pair of (g, n) for a pair of weights, as rhs_gradient is a
        pair; row_scale multiplies the result.

    Returns:
      (m, n).

    Raises:
      ValueError: the size of the two weights is odd or differs; activation is unknown or None, or a function that
        changes shapes or the kind of numbers (integers to floats); a pair is interleaved; otherwise as `ragged_dot`.
      TypeError: gated is given, rhs is a pair and bias, rhs_gradient or lora is none; otherwise as `ragged_dot`.
    """
    name = "gated_dot"
    if "gated" in options:
        raise TypeError(f"{name}: gated is no option: the product is gated; `ragged_dot` has others")
    pair = isinstance(rhs, tuple | list)
    weights = weights_of(name, "rhs", rhs)
    known, function = resolve_activation(name, activation)
    if function is None and gate is None:
        raise ValueError(f"{name}: activation must be a function or a name, not None")
    if pair and interleaved:
        raise ValueError(f"{name}: interleaved is for one array with both weights, but rhs is a pair")
    width = weights[0].shape[-2 if options.get("transpose_rhs") else -1] if weights[0].ndim == 3 else 0
    if pair and weights[0].shape != weights[1].shape:
        raise ValueError(f"{name}: rhs[0] is {weights[0].shape} but rhs[1] is {weights[1].shape}: they must be equal")
    if not pair and width % 2:
        raise ValueError(f"{name}: rhs is {weights[0].shape}: gate and up lie side by side, but {width} is odd")
    # Each array has its own gradient sums or scales.
    apart = pair and (options.get("rhs_gradient") is not None or any(isinstance(array, Scaled) for array in weights))
    rhs = tuple(weights) if pair else weights[0]
    if pair and not apart and options.get("bias") is not None:
        bias = weights_of(name, "bias", tuple(pair_of(name, "bias", options["bias"])))
        options["bias"] = jnp.concatenate(bias, axis=-1)
    if not apart and not interleaved and known is not None and gate is None and lora is None:
        return ragged_dot(lhs, rhs, group_sizes, activation=known, gated=True, **options)
    scale = options.pop("row_scale", None)
    parts = []
    for index, array in enumerate(rhs if apart else [rhs]):
        own = dict(options)
        for option in ("bias", "rhs_gradient") if apart else ():
            if (value := options.get(option)) is not None:
                own[option] = pair_of(name, option, value)[index]
        parts.append(ragged_dot(lhs, array, group_sizes, **own))
    m, dtype = parts[0].shape[0], parts[0].dtype
    wide = accumulator(dtype)
    if scale is not None:
        scale = extra_operand(name, "row_scale", scale, (m,), "(m,)", wide)
    offset = options.get("group_offset")
    if offset is not None:
        offset = scalar_integer(name, "group_offset", offset)
    known_rows = rows_with_weights(sizes_argument(name, group_sizes), offset, m, weights[0].shape[0])
    defined = known_rows if options.get("undefined_rest") else None
    if pair and not apart:
        parts = jnp.split(parts[0], 2, axis=-1)
    if lora is not None:
        adapters = [("lora", lora)]
        if pair:
            adapters = [(f"lora[{i}]", adapter) for i, adapter in enumerate(pair_of(name, "lora", lora))]
        parts = [
            with_adapter(name, argument, part, adapter, lora_scale, lhs, group_sizes, options, defined)
            for part, (argument, adapter) in zip(parts, adapters, strict=True)
        ]
    if not pair:
        gate_and_up = parts[0]
        parts = [gate_and_up[:, ::2], gate_and_up[:, 1::2]] if interleaved else jnp.split(gate_and_up, 2, axis=-1)
    factors = [part.astype(wide) for part in parts]
    if gate is None:
        hidden = gated_product(partial(applied, name, "activation", function, defined=defined), *factors)
    else:
        hidden = applied(name, "gate", gate, *factors, defined=defined)
    # A row after the last group is zero, even if the activation of 0 is not finite.
    scaled = Epilogue(row_scale=None if scale is None else "row_scale")
    return finish(hidden, scaled, {"row_scale": scale}, known_rows, dtype)


def applied(name: str, what: str, function: Any, *values: jax.Array, defined: jax.Array | None = None) -> jax.Array:
    """function(*values), with the shape and dtype of the first value; ValueError if that is not possible.

    defined: which rows are defined, where not all are. In the others, values and the function's cotangent are zeros:
    gradients of what the function depends on besides its arguments are sums over all rows.
    """
    if defined is not None:
        values = tuple(zeros_elsewhere(value, defined) for value in values)
    result: jax.Array = function(*values)
    shape, dtype = values[0].shape, values[0].dtype
    if result.shape != shape or not jnp.can_cast(result.dtype, dtype, "same_kind"):
        raise ValueError(
            f"{name}: {what} maps {dtype}{shape} to {result.dtype}{result.shape}: the shape must stay, and the result "
            "must be of the same kind of number"
        )
    result = result.astype(dtype)
    return result if defined is None else zeros_elsewhere(result, defined)


def clamped_swiglu(gate: jax.Array, up: jax.Array, *, limit: float = 7.0, alpha: float = 1.702) -> jax.Array:
    """The gate of gpt-oss: (up + 1) gate sigmoid(alpha gate), with gate clipped to at most `limit` and up to +-limit.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> vb.moe.clamped_swiglu(jnp.array([0.0, 99.0]), jnp.array([1.0, 99.0])).round(2).tolist()
    [0.0, 56.0]

    Args:
      gate, up: the two factors, of any equal shape.
      limit, alpha: of the formula.

    Returns:
      The hidden features, of the factors' shape.
    """
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return (up + 1) * gate * jax.nn.sigmoid(alpha * gate)


def weights_of(name: str, argument: str, value: Any) -> list[jax.Array]:
    """One array of weights, or the two of a pair."""
    if not isinstance(value, tuple | list):
        return [weight_of(name, argument, value)]
    return [weight_of(name, f"{argument}[{i}]", x) for i, x in enumerate(pair_of(name, argument, value))]


def weight_of(name: str, argument: str, value: Any) -> Any:
    return value if isinstance(value, Scaled) else unsharded_array(name, argument, value)


def pair_of(name: str, argument: str, value: Any, of: str = OF_GATE_AND_UP) -> Sequence[Any]:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        raise TypeError(f"{name}: {argument} must be a pair, {of}, not {shown(value)}")
    return value
