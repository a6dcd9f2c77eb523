"""The scores of a router, by which it chooses a token's experts and weighs their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.util.arguments import as_array
from jax_vbgemm._src.util.integers import is_integer

Scores = Literal["softmax", "sigmoid", "sqrtsoftplus"]


def _half_log_softplus(x: jax.Array) -> jax.Array:
    """log(sqrt(softplus(x))). Far below 0 softplus(x) is exp(x), which would underflow to 0 and have no logarithm."""
    far = x < -40
    return 0.5 * jnp.where(far, x, jnp.log(jax.nn.softplus(jnp.where(far, jnp.zeros((), x.dtype), x))))


# Logarithms of the scores of single experts: their softmax over some experts is the scores divided by their sum, also
# where all of these are too small for a floating-point number.
LOG_SCORES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "sigmoid": jax.nn.log_sigmoid,
    "sqrtsoftplus": _half_log_softplus,
}
SCORES = ("softmax", *LOG_SCORES)


class ExpertGroups(NamedTuple):
    """Limits a token's experts to some groups of consecutive experts, such as those of one machine (DeepSeek-V2, V3).

    Attributes:
      number: how many groups there are, all of the same size.
      kept: how many groups a token's experts may be in: those of the largest sum of their `best` largest scores.
      best: 2 as in DeepSeek-V3, 1 as in DeepSeek-V2.
    """

    number: int
    kept: int
    best: int = 2


def score(logits: jax.Array, scores: Scores) -> jax.Array:
    """The scores of all experts, of the dtype of the logits (tokens, experts)."""
    return jax.nn.softmax(logits, axis=-1) if scores == "softmax" else jnp.exp(LOG_SCORES[scores](logits))


def log_scores(logits: jax.Array, scores: Scores) -> jax.Array:
    """The logarithms of the scores, each token's up to a constant."""
    return logits if scores == "softmax" else LOG_SCORES[scores](logits)


def router_logits(name: str, value: Any) -> jax.Array:
    """The value as a floating-point array (tokens, experts); TypeError or ValueError if it is not one."""
    logits = as_array(name, "logits", value)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"{name}: logits is {logits.dtype}{logits.shape}: it must be real and floating")
    if logits.ndim != 2:
        raise ValueError(f"{name}: logits is {logits.shape}: it must be (tokens, experts)")
    return logits


def without_padding(logits: jax.Array, counts: jax.Array) -> jax.Array:
    """The logits, with zeros for the tokens that don't count. These may hold anything, infinity and NaN too, and the
    derivative of a score at that place would be NaN even if no result depends on it."""
    return jnp.where(counts[:, None], logits, jnp.zeros((), logits.dtype))


def check_scores(name: str, scores: Any) -> None:
    if scores not in SCORES:
        raise ValueError(f"{name}: scores is {scores!r}: it must be one of {', '.join(map(repr, SCORES))}")


def check_groups(name: str, groups: Any, count: int, k: int) -> ExpertGroups:
    """The groups as a record; TypeError or ValueError if they do not fit `count` experts and `k` choices."""
    try:
        checked = ExpertGroups(*groups)
    except TypeError:
        raise TypeError(f"{name}: groups must be an ExpertGroups or (number, kept), not {groups!r}") from None
    for field, value in checked._asdict().items():
        if not is_integer(value) or value < 1:
            raise ValueError(f"{name}: groups.{field} is {value!r}: it must be an integer of at least 1")
    if count % checked.number:
        raise ValueError(f"{name}: groups.number is {checked.number}, which does not divide the {count} experts")
    each = count // checked.number
    if checked.kept > checked.number or checked.best > each:
        raise ValueError(
            f"{name}: groups is {tuple(checked)}: of {checked.number} groups of {each} experts, kept must be at most "
            f"{checked.number} and best at most {each}"
        )
    if k > checked.kept * each:
        raise ValueError(f"{name}: k is {k} but {checked.kept} groups of {each} experts are kept: k is too large")
    return checked


def best_experts(logits: jax.Array, k: int, scores: Scores, bias: jax.Array | None, groups: ExpertGroups | None) -> Any:
    """(tokens, k) int32: each token's experts of the largest score plus bias, within its best groups."""
    # Scores increase with the logits, which distinguish more values; a bias is in the scores' units.
    values = jax.lax.stop_gradient(logits if bias is None and groups is None else score(logits, scores))
    if bias is not None:
        values = values + jax.lax.stop_gradient(bias).astype(values.dtype)[None]
    if groups is not None:
        each = logits.shape[1] // groups.number
        by_group = values.reshape(values.shape[0], groups.number, each)
        group_scores = jax.lax.top_k(by_group, groups.best)[0].sum(axis=-1)
        kept = jax.lax.top_k(group_scores, groups.kept)[1]
        first = jnp.sort(kept, axis=1)[:, :, None] * each
        columns = (first + jnp.arange(each, dtype=kept.dtype)[None, None]).reshape(values.shape[0], -1)
        best = jax.lax.top_k(jnp.take_along_axis(values, columns, axis=1), k)[1]
        return jnp.take_along_axis(columns, best, axis=1).astype(jnp.int32)
    return jax.lax.top_k(values, k)[1].astype(jnp.int32)
