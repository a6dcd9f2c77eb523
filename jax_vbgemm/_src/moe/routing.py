"""Routing: from a router's logits to experts, group sizes and the order of rows; the auxiliary losses of routers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src import compat
from jax_vbgemm._src.arguments import as_array, unsharded_array
from jax_vbgemm._src.integers import is_integer, saturated
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.ragged.group_order import inverse_permutation, sorted_by_group
from jax_vbgemm._src.ragged.indices import clamp


class Routing(NamedTuple):
    """The assignment of tokens to experts: the result of `route` and an argument of `dispatch` and `combine`.

    Attributes:
      group_sizes: (experts,) int32, how many choices each expert has. Never read by the host.
      order: (tokens * k,) int32: row i of the experts' input is choice order[i], counted token by token. Rows are
        sorted by expert; those of one expert keep the order of their tokens.
      slots: (tokens, k) int32, the row of each choice: the inverse of `order`.
      experts: (tokens, k) int32, the expert of each choice.
      probabilities: (tokens, k), the factor of each choice's result.
      clamped: () int32, how many of the given experts were out of range.
    """

    group_sizes: jax.Array
    order: jax.Array
    slots: jax.Array
    experts: jax.Array
    probabilities: jax.Array
    clamped: jax.Array

    @property
    def rows(self) -> jax.Array:
        """(tokens * k,) int32: the token of each row of the experts' input; `ragged_dot` takes it as `gather`."""
        return self.order // self.slots.shape[-1]


class Auxiliary(NamedTuple):
    """The losses and statistics of a router, which the layers of `jax_vbgemm.flax` return with `auxiliary=True`.

    Attributes:
      load_balance: (), `load_balance_loss` of the layer's tokens.
      router_z: (), `router_z_loss`.
      group_sizes: (experts,) int32, how many choices each expert has.
    """

    load_balance: jax.Array
    router_z: jax.Array
    group_sizes: jax.Array


def route(logits: Any, k: int | None = None, *, experts: Any = None, normalize: bool | None = None) -> Routing:
    """Chooses each token's experts and sorts the choices by expert, on the device.

    Experts have no capacity: no choice is dropped, whatever the experts' load, and one compiled program serves every
    load. The sort is stable and sums have a fixed order, so that the same logits give the same bits. Probabilities are
    differentiable in the logits to any order; the choice itself is not.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> routing = vb.moe.route(jnp.array([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]]), 2)
    >>> routing.experts.tolist(), routing.group_sizes.tolist(), routing.rows.tolist()
    ([[1, 2], [0, 2]], [1, 1, 2], [1, 0, 0, 1])

    Args:
      logits: (tokens, experts), real and floating. The softmax is done in float32, or float64 for float64.
      k: the number of experts of a token: those of its largest logits, the first ones among equals (0.0 comes before
        -0.0). Not with `experts`.
      experts: (tokens, k) integers, the experts of each token if they are chosen elsewhere. An entry out of range is
        clamped to the nearest expert and counted in `clamped`; `jax.experimental.checkify.checkify` (with
        `user_checks`) reports it.
      normalize: whether the probabilities of a token's choices add up to 1, as a softmax of the chosen logits;
        otherwise they are those of the softmax over all experts. None: where a token has several choices (as in Mixtral
        and Qwen3), while a single choice keeps its probability (as in Switch Transformer). With one choice, True makes
        all probabilities 1, so that the result gives the router no gradient.

    Returns:
      A `Routing`.

    Raises:
      ValueError: logits is not (tokens, experts), k is not in [1, experts], experts is not (tokens, k), or both k and
        experts are given, or neither.
      TypeError: logits is not floating, experts are not integers, k is not an integer, normalize neither a bool nor
        None.
    """
    name = "route"
    logits = _logits(name, unsharded_array(name, "logits", logits))
    if not isinstance(normalize, bool | np.bool_ | None):
        raise TypeError(f"{name}: normalize must be a bool or None, not {normalize!r}")
    tokens, count = logits.shape
    if (k is None) == (experts is None):
        raise ValueError(f"{name}: give either k or experts: k is {k!r} and experts is {_shown(experts)}")
    if not compat.is_static((count,)):
        raise ValueError(f"{name}: logits is {logits.shape}: the number of experts must be static")
    if experts is None:
        if not is_integer(k):
            raise TypeError(f"{name}: k must be an integer, not {k!r}")
        if not 1 <= k <= count:
            raise ValueError(f"{name}: k is {k} but logits is {logits.shape}: k must be in [1, {count}]")
        chosen = jax.lax.top_k(logits, int(k))[1].astype(jnp.int32)
        clamped = jnp.zeros((), jnp.int32)
    else:
        given = unsharded_array(name, "experts", saturated(experts))
        if not jnp.issubdtype(given.dtype, jnp.integer):
            raise TypeError(f"{name}: experts is {given.dtype}{given.shape}: it must be integers")
        if given.ndim != 2 or given.shape[0] != tokens or given.shape[1] < 1 or count < 1:
            raise ValueError(
                f"{name}: experts is {given.shape} but logits is {logits.shape}: experts must be ({tokens}, k) with "
                "k at least 1, and logits must have an expert"
            )
        chosen, clamped = clamp(name, "experts", given, count)
    if normalize is None:
        normalize = chosen.shape[1] > 1
    wide = accumulator(logits.dtype)
    # A softmax over all experts may underflow in all chosen ones: it cannot be scaled afterwards.
    if normalize:
        probabilities = jax.nn.softmax(_selected(logits, chosen, experts is None).astype(wide), axis=-1)
    else:
        probabilities = _selected(jax.nn.softmax(logits.astype(wide), axis=-1), chosen, experts is None)
    sizes, order = sorted_by_group(chosen.reshape(-1), count)
    slots = inverse_permutation(order)
    return Routing(sizes, order, slots.reshape(chosen.shape), chosen, probabilities, clamped)


def _selected(values: jax.Array, chosen: jax.Array, distinct: bool) -> jax.Array:
    """values[i, chosen[i, j]], of values (tokens, experts) and chosen (tokens, k). The transpose is a scatter that adds
    at most one number to each place: more of them would have no fixed order on a GPU. `distinct`: whether no token
    has the same choice twice."""
    row = jax.lax.broadcasted_iota(jnp.int32, chosen.shape, 0)
    if distinct:
        return values.at[row, chosen].get(mode="promise_in_bounds", unique_indices=True)
    same = chosen[:, :, None] == chosen[:, None, :]
    place = jnp.arange(chosen.shape[1], dtype=jnp.int32)[None]
    first = jax.lax.argmax(same, 2, jnp.int32) == place  # the others of equal choices read outside of the values, zeros
    read = jnp.where(first, chosen, values.shape[1] + place)
    once = values.at[row, read].get(mode="fill", fill_value=0, unique_indices=True)
    return jnp.where(same, once[:, None, :], jnp.zeros((), values.dtype)).sum(axis=-1)


def load_balance_loss(logits: Any, routing: Routing) -> jax.Array:
    """The auxiliary loss that spreads tokens over experts: experts * sum over e of f[e] p[e], 1 where all are equal.

    f[e] is the fraction of choices that fall on expert e (without derivative), p[e] its mean softmax probability over
    all tokens. This is the loss of Switch Transformer with all k choices counted.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> logits = 9 * jnp.eye(4)
    >>> vb.moe.load_balance_loss(logits, vb.moe.route(logits, 1)).round(3)
    Array(1., dtype=float32)

    Args:
      logits: (tokens, experts), the logits that were given to `route`.
      routing: the routing that `route` returned.

    Returns:
      (), in float32, or float64 for float64 logits; 0 where there are no tokens.

    Raises:
      ValueError: the shapes don't fit.
      TypeError: logits is not floating.
    """
    name = "load_balance_loss"
    logits = _logits(name, logits)
    wide = accumulator(logits.dtype)
    tokens, count = logits.shape
    if routing.group_sizes.shape != (count,) or routing.slots.shape[0] != tokens:
        raise ValueError(
            f"{name}: logits is {logits.shape} but routing is of {routing.slots.shape[0]} tokens and "
            f"{routing.group_sizes.shape[0]} experts"
        )
    share = routing.group_sizes.astype(wide) / max(routing.slots.size, 1)
    probability = jax.nn.softmax(logits.astype(wide), axis=-1).sum(axis=0) / max(tokens, 1)
    loss: jax.Array = count * jnp.sum(share * probability)
    return loss


def router_z_loss(logits: Any) -> jax.Array:
    """The auxiliary loss that keeps logits small: the mean over tokens of logsumexp(logits)^2.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> vb.moe.router_z_loss(jnp.zeros((5, 1)))
    Array(0., dtype=float32)

    Args:
      logits: (tokens, experts).

    Returns:
      (), in float32, or float64 for float64 logits; 0 where there are no tokens.

    Raises:
      ValueError: logits is not (tokens, experts).
      TypeError: logits is not floating.
    """
    logits = _logits("router_z_loss", logits)
    z = jax.nn.logsumexp(logits.astype(accumulator(logits.dtype)), axis=-1)
    return jnp.sum(z * z) / max(z.shape[0], 1)


def _logits(name: str, value: Any) -> jax.Array:
    logits = as_array(name, "logits", value)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"{name}: logits is {logits.dtype}{logits.shape}: it must be real and floating")
    if logits.ndim != 2:
        raise ValueError(f"{name}: logits is {logits.shape}: it must be (tokens, experts)")
    return logits


def _shown(value: Any) -> str:
    return "None" if value is None else f"of shape {jnp.shape(value)}"
