"""The auxiliary losses and statistics of routers, and the update of a router's bias that needs no loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.moe.routing import Routing
from jax_vbgemm._src.moe.scores import Scores, check_scores, log_scores, router_logits, without_padding
from jax_vbgemm._src.util.arguments import as_array
from jax_vbgemm._src.util.integers import is_integer


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


def have_experts(routing: Routing) -> jax.Array:
    """(tokens,) bool: which tokens have an expert."""
    return (routing.experts >= 0).any(axis=-1)


def load_balance_loss(
    logits: Any, routing: Routing, *, scores: Scores = "softmax", sequences: int | None = None, axis_name: Any = None
) -> jax.Array:
    """The auxiliary loss that spreads tokens over experts: experts * sum over e of f[e] p[e], 1 if all are equal.

    f[e] is the fraction of choices that fall on expert e (without derivative), p[e] its mean score over all tokens,
    each token's scores divided by their sum. This is the loss of Switch Transformer with all k choices counted. Tokens
    without an expert count in neither.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> logits = 9 * jnp.eye(4)
    >>> vb.moe.load_balance_loss(logits, vb.moe.route(logits, 1)).round(3)
    Array(1., dtype=float32)

    Args:
      logits: (tokens, experts), the logits that were given to `route`.
      routing: the routing that `route` returned.
      scores: as for `route`.
      sequences: the tokens are this many sequences of equal length, one after the other, and the loss is the mean of
        their losses (the sequence-wise loss of DeepSeek-V3) over those that have tokens with experts. None:
        all tokens are one batch.
      axis_name: the axes of the enclosing shard_map, pmap or vmap along which the batch is divided: f and p are those
        of the whole batch, and every device gets its loss. Not with `sequences`, whose losses are averaged by
        `jax.lax.pmean`.

    Returns:
      (), in float32, or float64 for float64 logits; 0 if there are no tokens.

    Raises:
      ValueError: the shapes don't fit, sequences does not divide the tokens, or it is given with axis_name.
      TypeError: logits is not floating.
    """
    name = "load_balance_loss"
    logits = router_logits(name, logits)
    check_scores(name, scores)
    wide = accumulator(logits.dtype)
    tokens, count = logits.shape
    if routing.group_sizes.shape != (count,) or routing.slots.shape[0] != tokens:
        raise ValueError(
            f"{name}: logits is {logits.shape} but routing is of {routing.slots.shape[0]} tokens and "
            f"{routing.group_sizes.shape[0]} experts"
        )
    if sequences is not None:
        if axis_name is not None:
            raise ValueError(f"{name}: give either sequences or axis_name: the losses of sequences are averaged")
        if not is_integer(sequences) or sequences < 1 or tokens % sequences:
            raise ValueError(f"{name}: sequences is {sequences!r}: it must divide the {tokens} tokens")
    parts = 1 if sequences is None else int(sequences)
    counts = have_experts(routing)
    logits = without_padding(logits, counts)
    # The softmax of the scores' logarithms: the scores divided by their sum, also if all are tiny.
    token_probabilities = jax.nn.softmax(log_scores(logits.astype(wide), scores), axis=-1)
    token_probabilities = jnp.where(counts[:, None], token_probabilities, jnp.zeros((), wide))
    if parts == 1:
        choices = routing.group_sizes[None]
    else:
        sequence = jnp.arange(tokens, dtype=jnp.int32)[:, None] // (tokens // parts)
        key = jnp.where(routing.experts >= 0, sequence * count + routing.experts, parts * count)
        choices = jnp.zeros((parts * count + 1,), jnp.int32).at[key].add(1)[:-1].reshape(parts, count)
    sums = token_probabilities.reshape(parts, tokens // parts, count).sum(axis=1)
    number = counts.reshape(parts, -1).sum(axis=1, dtype=jnp.int32)
    if axis_name is not None:
        choices, sums, number = (jax.lax.psum(x, axis_name) for x in (choices, sums, number))
    share = choices.astype(wide) / jnp.maximum(choices.sum(axis=1, keepdims=True), 1).astype(wide)
    mean = sums / jnp.maximum(number, 1).astype(wide)[:, None]
    filled = jnp.maximum((number > 0).sum(dtype=jnp.int32), 1).astype(wide)
    loss: jax.Array = count * jnp.sum(share * mean) / filled
    return loss


def router_z_loss(logits: Any, routing: Routing | None = None) -> jax.Array:
    """The auxiliary loss that keeps logits small: the mean over tokens of logsumexp(logits)^2.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> vb.moe.router_z_loss(jnp.zeros((5, 1)))
    Array(0., dtype=float32)

    Args:
      logits: (tokens, experts).
      routing: the routing of these tokens, if some may have no expert: they don't count.

    Returns:
      (), in float32, or float64 for float64 logits; 0 if there are no tokens.

    Raises:
      ValueError: logits is not (tokens, experts), or the routing is of another number of tokens.
      TypeError: logits is not floating.
    """
    logits = router_logits("router_z_loss", logits)
    tokens = logits.shape[0]
    if routing is not None and routing.slots.shape[0] != tokens:
        raise ValueError(f"router_z_loss: logits is {logits.shape} but routing is of {routing.slots.shape[0]} tokens")
    counts = jnp.ones((tokens,), bool) if routing is None else have_experts(routing)
    logits = without_padding(logits, counts)
    z = jax.nn.logsumexp(logits.astype(accumulator(logits.dtype)), axis=-1)
    z = jnp.where(counts, z, jnp.zeros((), z.dtype))
    loss: jax.Array = jnp.sum(z * z) / jnp.maximum(counts.sum(dtype=jnp.int32), 1).astype(z.dtype)
    return loss


def balanced_bias(bias: Any, group_sizes: Any, *, rate: float = 1e-3, axis_name: Any = None) -> jax.Array:
    """The bias of `route` after a step: larger by `rate` for experts with fewer choices than the mean, else smaller.

    Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024, Algorithm 1: b[e] + rate
    sign(mean of the sizes - sizes[e]).

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> vb.moe.balanced_bias(jnp.zeros(3), jnp.array([5, 1, 3]), rate=0.5).tolist()
    [-0.5, 0.5, 0.0]

    Args:
      bias: (experts,), floating.
      group_sizes: (experts,), of the step's routing, or a sum of those of several.
      rate: the size of a step.
      axis_name: the axes along which the batch is divided, over which sizes are added.

    Returns:
      (experts,), of bias's dtype.

    Raises:
      ValueError: the shapes differ.
      TypeError: bias is not floating.
    """
    name = "balanced_bias"
    bias, sizes = as_array(name, "bias", bias), as_array(name, "group_sizes", group_sizes)
    if not jnp.issubdtype(bias.dtype, jnp.floating):
        raise TypeError(f"{name}: bias is {bias.dtype}{bias.shape}: it must be floating")
    if bias.ndim != 1 or bias.shape != sizes.shape:
        raise ValueError(f"{name}: bias is {bias.shape} and group_sizes {sizes.shape}: both must be (experts,)")
    sizes = sizes.astype(accumulator(bias.dtype))
    if axis_name is not None:
        sizes = jax.lax.psum(sizes, axis_name)
    step = jnp.sign(jnp.mean(sizes) - sizes).astype(bias.dtype)
    updated: jax.Array = bias + jnp.asarray(rate, bias.dtype) * step
    return updated
