"""Dispatches rows to experts, multiplies, and combines the results for each token."""

from __future__ import annotations

from typing import Any

import jax

from jax_vbgemm._src.epilogue import Activation, resolve_activation
from jax_vbgemm._src.exchange.choice import EXCHANGES, check_exchange
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.moe.gated import Gate, applied, gated_dot, pair_of, weight_of, weights_of
from jax_vbgemm._src.moe.lora import with_adapter
from jax_vbgemm._src.moe.own_experts import check_chunks, over_devices
from jax_vbgemm._src.moe.quantized import COTANGENTS, WGRAD, checked_experts, quantized_mlp
from jax_vbgemm._src.moe.routing import Routing, dispatched, factors_of_rows, summed
from jax_vbgemm._src.ragged.api import check_sums, dtypes_of_product, ragged_dot
from jax_vbgemm._src.ragged.reference import rows_with_weights
from jax_vbgemm._src.scaled.scaled import Scaled
from jax_vbgemm._src.util.arguments import shown, unsharded_array
from jax_vbgemm._src.util.mesh_axes import mesh_axes

OF_BOTH_PRODUCTS = "of gate_up and of down"


def dispatch(x: Any, routing: Routing) -> jax.Array:
    """The token of each choice, sorted by expert: x[routing.rows], with a gradient that is summed in a fixed order.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> routing = vb.moe.route(jnp.array([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]]), 2)
    >>> vb.moe.dispatch(jnp.array([[10.0], [20.0]]), routing)[:, 0]
    Array([20., 10., 10., 20.], dtype=float32)

    Args:
      x: (tokens, d).
      routing: the routing of these tokens.

    Returns:
      (tokens * k, d), the lhs of `ragged_dot` with routing.group_sizes.

    Raises:
      ValueError: x is not (tokens, d).
    """
    return dispatched(_tokens("dispatch", x, routing), routing)


def _tokens(name: str, x: Any, routing: Routing) -> jax.Array:
    """x as an array; ValueError if it does not hold the tokens of a routing."""
    array = unsharded_array(name, "x", x)
    tokens = routing.slots.shape[0]
    if array.ndim != 2 or array.shape[0] != tokens:
        raise ValueError(f"{name}: x is {array.shape} but routing is of {tokens} tokens: x must be ({tokens}, d)")
    return array


def combine(y: Any, routing: Routing) -> jax.Array:
    """The sum over each token's choices of the expert's result times the choice's probability.

    Sums are done in float32 for 16-bit results, one choice after the other.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> routing = vb.moe.route(jnp.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), 2)
    >>> vb.moe.combine(jnp.array([[1.0], [2.0], [3.0], [4.0]]), routing)[:, 0]
    Array([2., 3.], dtype=float32)

    Args:
      y: (tokens * k, n), in the order of `dispatch`.
      routing: the routing that `dispatch` got.

    Returns:
      (tokens, n), of y's dtype.

    Raises:
      ValueError: y is not (tokens * k, n).
    """
    y = unsharded_array("combine", "y", y)
    tokens, k = routing.slots.shape
    if y.ndim != 2 or y.shape[0] != tokens * k:
        raise ValueError(
            f"combine: y is {y.shape} but routing is of {tokens} tokens with {k} choices: y must be ({tokens * k}, n)"
        )
    return _combined(y, routing).astype(y.dtype)


def _combined(y: jax.Array, routing: Routing, *, undefined_rest: bool = False) -> jax.Array:
    """`combine` in the accumulator's dtype."""
    wide = y.astype(accumulator(y.dtype))
    factors = factors_of_rows(routing)[:, None].astype(wide.dtype)
    return summed(factors * wide, routing, undefined_rest=undefined_rest)


def expert_mlp(
    x: Any,
    gate_up: Any,
    down: Any,
    routing: Routing,
    *,
    activation: Activation = "silu",
    gate: Gate | None = None,
    gated: bool = True,
    interleaved: bool = False,
    transpose_rhs: bool | tuple[bool, bool] = False,
    bias: tuple[Any, Any] | None = None,
    lora: tuple[Any, Any] | None = None,
    lora_scale: Any = 1.0,
    gradients: tuple[Any, jax.Ref] | None = None,
    quantized: Any = None,
    cotangents: str = "float8_e5m2",
    wgrad: str = "float8",
    mesh_axis: Any = None,
    exchange: str | None = None,
    chunks: int = 1,
    precision: Any = None,
    implementation: str | None = None,
) -> jax.Array:
    """A mixture of gated experts: the sum over a token's choices e of p[e] (activation(x gate[e]) * (x up[e])) down[e].

    `gated_dot` of the dispatched tokens, `ragged_dot` and `combine`, one after the other; differentiable to any order
    (with `gradients` once, in reverse mode). Weights are taken as models store them, without a copy.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> x, gate_up, down = jnp.ones((5, 4)), jnp.ones((3, 4, 2 * 8)), jnp.ones((3, 8, 4))
    >>> routing = vb.moe.route(jnp.zeros((5, 3)), 2)
    >>> vb.moe.expert_mlp(x, gate_up, down, routing).shape
    (5, 4)
    >>> gate, up = jnp.split(gate_up, 2, axis=2)
    >>> vb.moe.expert_mlp(x, (gate, up), down, routing).shape
    (5, 4)

    Args:
      x: (tokens, d).
      gate_up: (experts, d, 2 f), the gate before the up-projection, or the pair of both, each (experts, d, f); without
        `gated` (experts, d, f).
      down: (experts, f, n). Weights may be `Scaled`, as described for `ragged_dot`: for few tokens, use 8 bits with
        `transpose_rhs`.
      routing: the routing of these tokens to these experts.
      activation: as for `gated_dot`; without `gated` that of x gate_up[e], or None.
      gate, interleaved: as for `gated_dot`.
      gated: whether there is a gate; otherwise experts are activation(x gate_up[e]) down[e].
      transpose_rhs: whether weights are stored (out, in): gate_up (experts, 2 f, d) or a pair of (experts, f, d), and
        down (experts, n, f). A pair of bools says it of gate_up and of down.
      bias: a pair (of gate_up, of down), each of them None or (experts, columns): 2 f and n columns, or for a pair
        gate_up a pair of f columns each.
      lora: low-rank adapters: a pair (of gate_up, of down), each of them None or (a, b), (experts, in, rank) and
        (experts, rank, out), whatever the layout of the weights; for a pair gate_up the first one is a pair of these.
        Experts have the weights w[e] + lora_scale a[e] b[e], which are not computed: each adapter is two products. The
        gradients of the weights cost nothing where only adapters are differentiated. With an adapter of gate_up the
        gate is not a part of the product.
      lora_scale: a factor of all adapters, such as alpha / rank; it may be traced.
      gradients: a pair of `jax.Ref`, of the shapes of gate_up and of down, in float32 for 16-bit weights: a gradient
        with respect to them adds to these, in its kernels where they can (the rhs_gradient of both products; see
        `ragged_dot`). For a pair gate_up the first one is a pair. (Sums over micro-batches.)
      quantized: None, or the weights in 8 bits (`quantize_experts`), or True: they are quantized in this call. Tokens
        and hidden features are then rounded to float8_e4m3fn with a scale for each 128 of them, and cotangents to
        `cotangents`. The values of gate_up and down are not read, but gradients are with respect to them. For
        gated experts with a named activation, one array gate_up, and no bias, lora, transpose_rhs or gradients;
        derivatives of first order, in reverse mode.
      cotangents: with `quantized`: "float8_e5m2", which has the greater range, or "float8_e4m3fn".
      wgrad: with `quantized`: the factors of the gradients of weights, "float8", with a scale for each 128 x 128 of
        them, or "wide", in x's dtype.
      mesh_axis: the axis of the enclosing shard_map along which the experts are divided, or a tuple of axes; None if
        each device has all experts. With n devices along the axis, device i has the weights of the experts
        [i experts / n, (i + 1) experts / n), and x and routing are of its own tokens, as many on every device. There is
        no capacity and no token is dropped.
      exchange: with `mesh_axis`, how tokens get to their experts and contributions back to the tokens:
        "all_gather": each device receives the tokens of all devices, computes what its experts contribute to them, and
        `jax.lax.psum_scatter` adds the contributions in the accumulator's dtype. "all_to_all": as before, but
        contributions are rounded to x's dtype and sent to the tokens' device, which adds them in the accumulator's
        dtype; half the bytes for 16-bit x. "ragged_all_to_all": each choice of a token is a row that is sent to its
        expert's device, and its result is sent back; a device has room for the rows of all devices,
        n * tokens * k. None: the cheapest one by measured rates of the device's collectives; "all_gather" where they
        were not measured.
      chunks: with `mesh_axis`, into how many parts each device's tokens are divided. The exchange of a part does not
        depend on the products of the one before, so that XLA may run both at once. Each part reads all weights and adds
        to all of their gradients.
      precision, implementation: as for `ragged_dot`. (Products of `quantized` experts have one precision.)

    Returns:
      (tokens, n).

    Raises:
      ValueError: shapes don't fit, or mesh_axis is not an axis of the enclosing shard_map or does not divide the
        experts, or exchange is unknown, or chunks is below 1, or either is given without mesh_axis, or a gate or
        interleaved columns are given without `gated`; otherwise as `ragged_dot`.
      TypeError: gradients is not a pair of Refs, chunks is not an integer, or bias, lora, an adapter or a tuple
        transpose_rhs is not a pair.
    """
    name = "expert_mlp"
    pair = isinstance(gate_up, tuple | list)
    weights = weights_of(name, "gate_up", gate_up)
    down = weight_of(name, "down", down)
    x = _tokens(name, x, routing)
    experts = routing.group_sizes.shape[0]
    axes = None if mesh_axis is None else mesh_axes(name, mesh_axis, manual=True)
    if axes is not None:
        experts = axes.divide(f"{name}: mesh_axis", experts, "experts")
    check_exchange(name, exchange, EXCHANGES)
    check_chunks(name, chunks)
    if axes is None and (exchange is not None or chunks != 1):
        raise ValueError(
            f"{name}: exchange is {exchange!r} and chunks is {chunks}, but without mesh_axis nothing is exchanged"
        )
    pair_names = ["gate_up[0]", "gate_up[1]"] if pair else ["gate_up"]
    for argument, array in zip([*pair_names, "down"], [*weights, down], strict=True):
        if array.ndim != 3 or array.shape[0] != experts:
            where = "" if axes is None else f" on each of {axes.size} devices"
            raise ValueError(
                f"{name}: {argument} is {array.shape} but routing is of {experts} experts{where}: there must be "
                "a matrix for each"
            )
    if not gated and (pair or interleaved or gate is not None):
        raise ValueError(f"{name}: gated is False, but gate_up is a pair, or gate or interleaved is given")
    if not isinstance(transpose_rhs, tuple | list):
        transpose_rhs = (transpose_rhs, transpose_rhs)
    transposes = pair_of(name, "transpose_rhs", transpose_rhs, OF_BOTH_PRODUCTS)
    parts = 2 if gated and not pair else 1
    features = down.shape[2 if transposes[1] else 1]
    if any(array.shape[1 if transposes[0] else 2] != parts * features for array in weights):
        shapes = " and ".join(str(array.shape) for array in weights)
        columns = "2 f" if parts == 2 else "f"
        first_shape = f"{columns}, d" if transposes[0] else f"d, {columns}"
        second_shape = "n, f" if transposes[1] else "f, n"
        raise ValueError(
            f"{name}: gate_up is {shapes} but down is {down.shape}: gate_up must be (experts, {first_shape}) and down "
            f"(experts, {second_shape})"
        )
    # With mesh_axis, the rows are the choices of the tokens of all devices. Only rows for this device's experts have
    # weights; the results of other rows are not used.
    rest = {"undefined_rest": axes is not None}
    options: dict[str, Any] = {"precision": precision, "implementation": implementation, **rest}
    first, second = options | {"transpose_rhs": transposes[0]}, options | {"transpose_rhs": transposes[1]}
    if bias is not None:
        first["bias"], second["bias"] = pair_of(name, "bias", bias, OF_BOTH_PRODUCTS)
    gate_up_lora, down_lora = (None, None) if lora is None else pair_of(name, "lora", lora, OF_BOTH_PRODUCTS)
    quantized_experts = None
    if quantized is not None:
        if any(isinstance(array, Scaled) for array in (*weights, down)):
            raise ValueError(
                f"{name}: quantized is for training with wide weights, but gate_up or down is Scaled already"
            )
        known, _ = resolve_activation(name, activation)
        plain = gated and all(x is None for x in (gate, bias, lora, gradients))
        if known is None or not plain or pair or interleaved or any(transposes):
            raise ValueError(
                f"{name}: quantized experts are gated, with a named activation and one array gate_up (experts, d, 2 f),"
                " without gate, interleaved, transpose_rhs, bias, lora or gradients"
            )
        if cotangents not in COTANGENTS:
            raise ValueError(f"{name}: cotangents is {cotangents!r}: it must be one of {', '.join(COTANGENTS)}")
        if wgrad not in WGRAD:
            raise ValueError(f"{name}: wgrad is {wgrad!r}: it must be one of {', '.join(WGRAD)}")
        quantized_experts = checked_experts(name, quantized, weights[0], down)
    if gradients is not None:
        _check_gradients(name, gradients, weights, down, x, pair)
        first["rhs_gradient"], second["rhs_gradient"] = gradients

    def contributions(x: jax.Array, routing: Routing, unrounded: bool) -> jax.Array:
        """The experts' contribution to each token, (tokens, n), in the accumulator's dtype if `unrounded`."""
        if quantized_experts is not None:
            assert known is not None
            return quantized_mlp(
                x, weights[0], down, quantized_experts, routing, accumulator(x.dtype) if unrounded else x.dtype,
                activation=known, cotangents=cotangents, wgrad=wgrad, implementation=implementation,
            )  # fmt: skip
        defined = None
        if axes is not None:
            defined = rows_with_weights(routing.group_sizes, None, routing.order.shape[0], experts)
        # Without derivatives, tokens are not copied if the kernel reads rows by index.
        row_options = first | {"gather": (routing.rows, routing.slots)}
        # For gated experts without a bias, each row is multiplied by its probability in the first product's epilogue:
        # the gradient of a probability then follows from features that the gradient of `down` needs anyway, and results
        # of experts are neither kept nor read for it.
        scales_results = bias is not None or not gated
        if not scales_results:
            row_options["row_scale"] = factors_of_rows(routing).astype(accumulator(x.dtype))
        if gated:
            weight = tuple(weights) if pair else weights[0]
            hidden = gated_dot(
                x, weight, routing.group_sizes, activation=activation, gate=gate, interleaved=interleaved,
                lora=gate_up_lora, lora_scale=lora_scale, **row_options,
            )  # fmt: skip
        else:
            name_of_activation, function = resolve_activation(name, activation)
            in_kernel = name_of_activation if gate_up_lora is None else None
            product = ragged_dot(x, weights[0], routing.group_sizes, activation=in_kernel, **row_options)
            hidden = with_adapter(
                name, "lora[0]", product, gate_up_lora, lora_scale, x, routing.group_sizes, row_options, defined
            )
            if in_kernel is None and function is not None:
                hidden = applied(name, "activation", function, hidden, defined=defined)
            hidden = hidden.astype(product.dtype)
        product = ragged_dot(hidden, down, routing.group_sizes, **second)
        y = with_adapter(name, "lora[1]", product, down_lora, lora_scale, hidden, routing.group_sizes, second, defined)
        y = y.astype(product.dtype)
        if scales_results:
            result = _combined(y, routing, **rest)
            return result if unrounded else result.astype(y.dtype)
        return summed(y.astype(accumulator(y.dtype)) if unrounded else y, routing, **rest)

    if axes is None:
        return contributions(x, routing, unrounded=False)
    dtype = x.dtype
    for array in (weights[0], down):
        # Products with a Scaled have the dtype of their rows.
        if quantized_experts is None and not isinstance(array, Scaled):
            rows = jax.ShapeDtypeStruct((), dtype)
            dtype = dtypes_of_product(rows, array, canonical_precision(precision))[1]
    results = down.shape[1 if transposes[1] else 2]
    return over_devices(contributions, x, routing, results, dtype, axes, exchange, chunks)


def _check_gradients(
    name: str, gradients: Any, weights: list[jax.Array], down: jax.Array, x: jax.Array, pair: bool
) -> None:
    if not (isinstance(gradients, tuple | list) and len(gradients) == 2):
        raise TypeError(
            f"{name}: gradients must be a pair of jax.Ref, for sums of the gradients of gate_up and of down, "
            f"not {shown(gradients)}"
        )
    given = [("gradients[0]", gradients[0], "gate_up", weights[0])]
    if pair:
        both = zip(pair_of(name, "gradients[0]", gradients[0]), weights, strict=True)
        given = [(f"gradients[0][{i}]", sums, f"gate_up[{i}]", array) for i, (sums, array) in enumerate(both)]
    for argument, sums, what, array in [*given, ("gradients[1]", gradients[1], "down", down)]:
        if isinstance(array, Scaled):
            raise ValueError(f"{name}: {argument} is for weights that have a gradient, but {what} is Scaled")
        check_sums(name, argument, sums, what, array.shape, dtypes_of_product(x, array)[0])
