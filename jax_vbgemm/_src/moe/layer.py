"""Dispatches rows to experts, computes gated products, and combines the results for each token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.arguments import as_array, shown, unsharded_array
from jax_vbgemm._src.matmul.activation import Activation, resolve_activation
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.mesh_axes import mesh_axes
from jax_vbgemm._src.moe.own_experts import routed_to_own
from jax_vbgemm._src.moe.routing import Routing
from jax_vbgemm._src.ragged.api import check_sums, extra_operand, ragged_dot, scalar_integer, sizes_argument
from jax_vbgemm._src.ragged.reference import finish, rows_with_weights
from jax_vbgemm._src.ragged.select_rows import select_rows


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
    return select_rows(_tokens("dispatch", x, routing), routing.rows[:, None], routing.slots)


def _tokens(name: str, x: Any, routing: Routing) -> jax.Array:
    """x as an array; ValueError where it does not hold the tokens of a routing."""
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


def _combined(y: jax.Array, routing: Routing) -> jax.Array:
    """`combine` in the accumulator's dtype."""
    tokens, k = routing.slots.shape
    wide = accumulator(y.dtype)
    of_choices = select_rows(y, routing.slots.reshape(-1, 1), routing.order[:, None])
    of_choices = of_choices.reshape(tokens, k, y.shape[1]).astype(wide)
    return jnp.sum(routing.probabilities[..., None].astype(wide) * of_choices, axis=1)


def gated_dot(lhs: Any, rhs: Any, group_sizes: Any, *, activation: Activation = "silu", **options: Any) -> jax.Array:
    """activation(lhs @ gate) * (lhs @ up) of each group, with both weights side by side in rhs: SwiGLU, GeGLU.

    `ragged_dot` with `gated`, for any activation: where its epilogue lacks the function, one `ragged_dot` computes both
    halves, and XLA the rest, in float32 for 16-bit results.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> gate_up = jnp.array([[[1.0, 10.0]], [[-1.0, 10.0]]])
    >>> vb.moe.gated_dot(jnp.ones((3, 1)), gate_up, jnp.array([1, 2]), activation="relu")[:, 0]
    Array([10.,  0.,  0.], dtype=float32)

    Args:
      lhs, group_sizes: as for `ragged_dot`.
      rhs: (g, k, 2 n), the gate before the up-projection; (g, 2 n, k) with `transpose_rhs`.
      activation: a function or one of "relu", "gelu" (the tanh approximation), "silu", "tanh", "sigmoid".
      **options: of `ragged_dot`; a bias is (g, 2 n), row_scale multiplies the result.

    Returns:
      (m, n).

    Raises:
      ValueError: the size of the two weights is odd; activation is unknown or None, or a function that changes shapes
        or the kind of numbers (integers to floats); otherwise as `ragged_dot`.
      TypeError: gated is given; otherwise as `ragged_dot`.
    """
    name = "gated_dot"
    if "gated" in options:
        raise TypeError(f"{name}: gated is no option: the product is gated; `ragged_dot` has others")
    rhs = as_array(name, "rhs", rhs)
    known, function = resolve_activation(name, activation)
    if function is None:
        raise ValueError(f"{name}: activation must be a function or a name, not None")
    width = rhs.shape[-2 if options.get("transpose_rhs") else -1] if rhs.ndim == 3 else 0
    if width % 2:
        raise ValueError(f"{name}: rhs is {rhs.shape}: gate and up lie side by side, but {width} is odd")
    if known is not None:
        return ragged_dot(lhs, rhs, group_sizes, activation=known, gated=True, **options)
    scale = options.pop("row_scale", None)
    both = ragged_dot(lhs, rhs, group_sizes, **options)
    m, wide = both.shape[0], accumulator(both.dtype)
    if scale is not None:
        scale = extra_operand(name, "row_scale", scale, (m,), "(m,)", wide)
    gate, up = jnp.split(both.astype(wide), 2, axis=-1)
    activated = function(gate)
    if activated.shape != gate.shape or not jnp.can_cast(activated.dtype, wide, "same_kind"):
        raise ValueError(
            f"{name}: activation maps {gate.dtype}{gate.shape} to {activated.dtype}{activated.shape}: the shape must "
            "stay, and the result must be of the same kind of number"
        )
    offset = options.get("group_offset")
    if offset is not None:
        offset = scalar_integer(name, "group_offset", offset)
    # A row after the last group is zero, even if the activation of 0 is not finite.
    known_rows = rows_with_weights(sizes_argument(name, group_sizes), offset, m, rhs.shape[0])
    return finish(activated.astype(wide) * up, scale, None, known_rows, both.dtype)


def expert_mlp(
    x: Any,
    gate_up: Any,
    down: Any,
    routing: Routing,
    *,
    activation: Activation = "silu",
    gradients: tuple[jax.Ref, jax.Ref] | None = None,
    mesh_axis: Any = None,
    precision: Any = None,
    implementation: str | None = None,
) -> jax.Array:
    """A mixture of gated experts: the sum over a token's choices e of p[e] (activation(x gate[e]) * (x up[e])) down[e].

    `gated_dot` of the dispatched tokens, `ragged_dot` and `combine`, one after the other; differentiable to any order
    (with `gradients` once, in reverse mode).

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> x, gate_up, down = jnp.ones((5, 4)), jnp.ones((3, 4, 2 * 8)), jnp.ones((3, 8, 4))
    >>> vb.moe.expert_mlp(x, gate_up, down, vb.moe.route(jnp.zeros((5, 3)), 2)).shape
    (5, 4)

    Args:
      x: (tokens, d).
      gate_up: (experts, d, 2 f), the gate before the up-projection.
      down: (experts, f, n).
      routing: the routing of these tokens to these experts.
      activation: as for `gated_dot`.
      gradients: a pair of `jax.Ref`, of the shapes of gate_up and of down, in float32 for 16-bit weights: a gradient
        with respect to them adds to these, in its kernels where they can (the rhs_gradient of both products; see
        `ragged_dot`). (Sums over micro-batches.)
      mesh_axis: the axis of the enclosing shard_map along which the experts are divided, or a tuple of axes; None where
        each device has all experts. With n devices along the axis, device i has gate_up and down of the experts
        [i experts / n, (i + 1) experts / n), and x and routing are of its own tokens, as many on every device. Each
        device gathers the tokens of all devices and computes what its experts contribute to them; the contributions to
        a token are added in the accumulator's dtype.
      precision, implementation: as for `ragged_dot`.

    Returns:
      (tokens, n).

    Raises:
      ValueError: shapes don't fit, or mesh_axis is not an axis of the enclosing shard_map or does not divide the
        experts; otherwise as `ragged_dot`.
      TypeError: gradients is no pair of Refs.
    """
    gate_up = unsharded_array("expert_mlp", "gate_up", gate_up)
    down = unsharded_array("expert_mlp", "down", down)
    x = _tokens("expert_mlp", x, routing)
    axes = None if mesh_axis is None else mesh_axes("expert_mlp", mesh_axis, manual=True)
    if axes is not None:
        x, routing = axes.gathered(x), routed_to_own("expert_mlp", routing, axes)
    experts = routing.group_sizes.shape[0]
    for argument, weights in {"gate_up": gate_up, "down": down}.items():
        if weights.ndim != 3 or weights.shape[0] != experts:
            where = "" if axes is None else f" on each of {axes.size} devices"
            raise ValueError(
                f"expert_mlp: {argument} is {weights.shape} but routing is of {experts} experts{where}: there must be "
                "a matrix for each"
            )
    if gate_up.shape[2] != 2 * down.shape[1]:
        raise ValueError(
            f"expert_mlp: gate_up is {gate_up.shape} but down is {down.shape}: gate_up must be (experts, d, 2 f) and "
            "down (experts, f, n)"
        )
    options: dict[str, Any] = {"precision": precision, "implementation": implementation}
    # Without derivatives no copy of the tokens is made where the kernel reads rows by index.
    gather = routing.rows, routing.slots
    if gradients is not None:
        if not (isinstance(gradients, tuple | list) and len(gradients) == 2):
            raise TypeError(
                "expert_mlp: gradients must be a pair of jax.Ref, for sums of the gradients of gate_up and of down, "
                f"not {shown(gradients)}"
            )
        for index, (argument, weights) in enumerate({"gate_up": gate_up, "down": down}.items()):
            dtype = jnp.result_type(x, weights)
            check_sums("expert_mlp", f"gradients[{index}]", gradients[index], argument, weights.shape, dtype)
    of_gate_up, of_down = (None, None) if gradients is None else gradients
    hidden = gated_dot(
        x, gate_up, routing.group_sizes, activation=activation, gather=gather, rhs_gradient=of_gate_up, **options
    )
    y = ragged_dot(hidden, down, routing.group_sizes, rhs_gradient=of_down, **options)
    result = _combined(y, routing)
    return (result if axes is None else axes.summed_parts(result)).astype(y.dtype)
