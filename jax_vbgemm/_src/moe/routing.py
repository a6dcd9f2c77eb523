"""Routing: from a router's logits to experts, group sizes and the order of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.moe.scores import (
    ExpertGroups,
    Scores,
    best_experts,
    check_groups,
    check_scores,
    log_scores,
    router_logits,
    score,
    without_padding,
)
from jax_vbgemm._src.ragged.group_order import inverse_permutation, sorted_by_group, sorted_with_rest
from jax_vbgemm._src.ragged.indices import clamp
from jax_vbgemm._src.ragged.select_rows import masked_selection, select_rows
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import unsharded_array
from jax_vbgemm._src.util.integers import is_integer, saturated


class Routing(NamedTuple):
    """The assignment of tokens to experts: the result of `route` and an argument of `dispatch` and `combine`.

    Attributes:
      group_sizes: (experts,) int32, how many choices each expert has. Never read by the host.
      order: (tokens * k,) int32: row i of the experts' input is choice order[i], counted token by token. Rows are
        sorted by expert; those of one expert keep the order of their tokens. Choices of no expert come last.
      slots: (tokens, k) int32, the row of each choice: the inverse of `order`.
      experts: (tokens, k) int32, the expert of each choice, -1 for none.
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


def route(
    logits: Any,
    k: int | None = None,
    *,
    experts: Any = None,
    probabilities: Any = None,
    scores: Scores = "softmax",
    bias: Any = None,
    groups: ExpertGroups | tuple[int, int] | None = None,
    normalize: bool | None = None,
    scale: float | None = None,
    mask: Any = None,
) -> Routing:
    """Chooses each token's experts and sorts the choices by expert, on the device.

    Experts have no capacity: no choice is dropped, whatever the experts' load, and one compiled program serves every
    load. The sort is stable and sums have a fixed order, so that the same logits give the same bits. Probabilities are
    differentiable in the logits to any order; the choice itself is not.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> routing = vb.moe.route(jnp.array([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]]), 2)
    >>> routing.experts.tolist(), routing.group_sizes.tolist(), routing.rows.tolist()
    ([[1, 2], [0, 2]], [1, 1, 2], [1, 0, 0, 1])

    The router of DeepSeek-V3, with a bias that `balanced_bias` updates:
    `route(logits, 8, scores="sigmoid", bias=bias, groups=(8, 4), scale=2.5)`.

    Args:
      logits: (tokens, experts), real and floating. Scores are computed in float32, or float64 for float64.
      k: the number of experts of a token: those of its largest scores, the first ones among equals (0.0 comes before
        -0.0). If a token has fewer finite logits, it gets experts of the logit -inf too, with the probability 0. Not
        with `experts`.
      experts: (tokens, k) integers, the experts of each token if they are chosen elsewhere (a router replayed, or one's
        own rule). -1 is no expert: the choice contributes nothing. Another entry out of range is clamped to the nearest
        expert and counted in `clamped`; `jax.experimental.checkify.checkify` (with `user_checks`) reports it.
      probabilities: (tokens, k) floating, with `experts`: the factors of the choices' results, in place of those by
        `scores`.
      scores: of the experts: "softmax" over all experts, "sigmoid" or "sqrtsoftplus" (the square root of
        log(1 + exp(logit))) of each.
      bias: (experts,), added to the scores for the choice only; it has no gradient.
      groups: an `ExpertGroups` or (number, kept): experts are chosen from the best groups of experts.
      normalize: whether the probabilities of a token's choices add up to 1: their scores, divided by the sum of these;
        otherwise they are the scores. None: where a token has several choices (as in Mixtral and Qwen3), while a single
        choice keeps its score (as in Switch Transformer). With one choice, True makes all probabilities 1, so that the
        result gives the router no gradient.
      scale: a factor of all probabilities.
      mask: (tokens,) bool: where False, a token has no experts (padding). Its result is zero, losses don't count it,
        and its logits may be anything; those of other tokens have to be finite where they are differentiated.

    Returns:
      A `Routing`.

    Raises:
      ValueError: logits is not (tokens, experts), k is not in [1, experts], an array has another shape, groups don't
        divide the experts or hold fewer than k, scores is unknown, both k and experts are given, or neither, or options
        of the choice (bias, groups) or of the scores (normalize, scores) are given together with values that replace
        them.
      TypeError: logits, bias or probabilities are not floating, experts are not integers, mask is not bool, k is not an
        integer, normalize neither a bool nor None.
    """
    name = "route"
    logits = router_logits(name, unsharded_array(name, "logits", logits))
    check_scores(name, scores)
    if not isinstance(normalize, bool | np.bool_ | None):
        raise TypeError(f"{name}: normalize must be a bool or None, not {normalize!r}")
    tokens, count = logits.shape
    if (k is None) == (experts is None):
        raise ValueError(f"{name}: give either k or experts: k is {k!r} and experts is {_shown(experts)}")
    if not compat.is_static((count,)):
        raise ValueError(f"{name}: logits is {logits.shape}: the number of experts must be static")
    for option, value, needed in (("bias", bias, experts is None), ("groups", groups, experts is None),
                                  ("probabilities", probabilities, experts is not None)):  # fmt: skip
        if value is not None and not needed:
            raise ValueError(f"{name}: {option} is given {'without' if experts is None else 'with'} experts")
    wide = accumulator(logits.dtype)
    present = None  # which choices exist, if some may be absent
    if experts is None:
        if not is_integer(k):
            raise TypeError(f"{name}: k must be an integer, not {k!r}")
        if not 1 <= k <= count:
            raise ValueError(f"{name}: k is {k} but logits is {logits.shape}: k must be in [1, {count}]")
        bias = None if bias is None else _floating(name, "bias", bias, (count,), "(experts,)")
        limits = None if groups is None else check_groups(name, groups, count, int(k))
        values = logits if bias is None and limits is None else logits.astype(wide)
        chosen = best_experts(values, int(k), scores, bias, limits)
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
        if jnp.issubdtype(given.dtype, jnp.signedinteger):
            present = given != -1
            given = jnp.where(present, given, jnp.zeros((), given.dtype))
        chosen, clamped = clamp(name, "experts", given, count)
    if mask is not None:
        mask = unsharded_array(name, "mask", mask)
        if mask.dtype != np.bool_:
            raise TypeError(f"{name}: mask is {mask.dtype}{mask.shape}: it must be bool")
        if mask.shape != (tokens,):
            raise ValueError(f"{name}: mask is {mask.shape} but logits is {logits.shape}: it must be ({tokens},)")
        present = jnp.broadcast_to(mask[:, None], chosen.shape) & (True if present is None else present)
        logits = without_padding(logits, mask)
    if probabilities is None:
        weights = _probabilities(logits.astype(wide), chosen, present, experts is None, scores, normalize)
    else:
        if normalize is not None or scores != "softmax":
            raise ValueError(f"{name}: probabilities are given: normalize and scores have no effect")
        weights = _floating(name, "probabilities", probabilities, chosen.shape, "(tokens, k)")
        weights = weights.astype(max(weights.dtype, wide, key=lambda dtype: dtype.itemsize))
    if scale is not None:
        if jnp.shape(scale) != ():
            raise ValueError(f"{name}: scale is of shape {jnp.shape(scale)}: it must be a number")
        weights = weights * jnp.asarray(scale, weights.dtype)
    if present is not None:
        return routed(
            jnp.where(present, chosen, -1), jnp.where(present, weights, jnp.zeros((), weights.dtype)), count, clamped
        )
    sizes, order = sorted_by_group(chosen.reshape(-1), count)
    return Routing(sizes, order, inverse_permutation(order).reshape(chosen.shape), chosen, weights, clamped)


def routed(experts: jax.Array, probabilities: jax.Array, count: int, clamped: jax.Array | None = None) -> Routing:
    """The routing of tokens whose experts are known: (tokens, k) int32 in [0, count), or -1 for no expert, with
    probability 0. Choices without an expert come after the last group."""
    flat = experts.reshape(-1)
    sizes, order = sorted_with_rest(flat, flat >= 0, count)
    slots = inverse_permutation(order).reshape(experts.shape)
    return Routing(
        sizes, order, slots, experts, probabilities, jnp.zeros_like(sizes[0]) if clamped is None else clamped
    )


def _floating(name: str, argument: str, value: Any, shape: tuple[Any, ...], meaning: str) -> jax.Array:
    array = unsharded_array(name, argument, value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name}: {argument} is {array.dtype}{array.shape}: it must be floating")
    if array.shape != shape:
        raise ValueError(f"{name}: {argument} is {array.shape}: it must be {meaning}, {shape} here")
    return array


def _probabilities(
    logits: jax.Array, chosen: jax.Array, present: jax.Array | None, distinct: bool, scores: Scores,
    normalize: bool | None,
) -> jax.Array:  # fmt: skip
    """The scores of the chosen experts, divided by their sum over those `present` where they are normalized."""
    if normalize is None:
        normalize = chosen.shape[1] > 1
    if not normalize:
        return _selected(score(logits, scores), chosen, distinct)
    # The scores of all chosen experts may underflow: they cannot be normalized afterwards.
    selected = _selected(log_scores(logits, scores), chosen, distinct)
    if present is None:
        return jax.nn.softmax(selected, axis=-1)
    has_choice = present.any(axis=-1, keepdims=True)
    selected = jnp.where(present | ~has_choice, selected, jnp.asarray(-np.inf, selected.dtype))
    return jax.nn.softmax(selected, axis=-1)


def _selected(values: jax.Array, chosen: jax.Array, distinct: bool) -> jax.Array:
    """values[i, chosen[i, j]], of values (tokens, experts) and chosen (tokens, k). The transpose is a scatter that adds
    at most one value to each element: several would have no fixed order on a GPU. `distinct`: whether no token has the
    same choice twice."""
    row = jax.lax.broadcasted_iota(jnp.int32, chosen.shape, 0)
    if distinct:
        return values.at[row, chosen].get(mode="promise_in_bounds", unique_indices=True)
    same = chosen[:, :, None] == chosen[:, None, :]
    place = jnp.arange(chosen.shape[1], dtype=jnp.int32)[None]
    first = jax.lax.argmax(same, 2, jnp.int32) == place  # repeated choices read outside of the values: zeros
    read = jnp.where(first, chosen, values.shape[1] + place)
    distinct_values = values.at[row, read].get(mode="fill", fill_value=0, unique_indices=True)
    return jnp.where(same, distinct_values[:, None, :], jnp.zeros((), values.dtype)).sum(axis=-1)


def _shown(value: Any) -> str:
    return "None" if value is None else f"of shape {jnp.shape(value)}"


def dispatched(x: jax.Array, routing: Routing) -> jax.Array:
    """The token of each row, (tokens * k, d)."""
    return select_rows(x, routing.rows[:, None], routing.slots)


def summed(y: jax.Array, routing: Routing, *, undefined_rest: bool = False) -> jax.Array:
    """The sum of each token's rows, (tokens, n), of y's dtype: the transpose of `dispatched`. undefined_rest: whether
    the rows of choices of no expert are undefined; they are not read, and their cotangents are zeros."""
    if not undefined_rest:
        return select_rows(y, routing.slots, routing.rows[:, None])
    exists = jnp.arange(y.shape[0], dtype=jnp.int32) < routing.group_sizes.sum(dtype=jnp.int32)
    tokens = routing.slots.shape[0]
    back, slots = masked_selection(routing.rows, routing.slots, exists, tokens, known_slots=routing.experts >= 0)
    return select_rows(y, slots, back, fills=True)


def factors_of_rows(routing: Routing) -> jax.Array:
    """The probability of each row's choice, (tokens * k,)."""
    probabilities = routing.probabilities.reshape(-1, 1)
    return select_rows(probabilities, routing.order[:, None], routing.slots.reshape(-1, 1))[:, 0]
