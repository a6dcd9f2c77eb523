"""The moving averages of Muon's gradients, in two operations for all leaves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jax_vbgemm._src.elementwise.addition import add_scaled
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.util.structure import is_none


def momenta(updates: Any, mu: Any, beta: Any, count: jax.Array, nesterov: bool) -> tuple[Any, Any]:
    """The new first moments, and the momentum (Nesterov's looks a step ahead), corrected for the zeros at the start.

    count: the number of steps, this one included. A None in `updates` stays None.
    """
    gradients = jax.tree.leaves(updates, is_leaf=is_none)
    structure: Any = jax.tree.structure(updates, is_leaf=is_none)
    moments = structure.flatten_up_to(mu)
    # XLA reads a gradient once for both averages, with a kernel for each leaf. On a GPU and for leaves above this size,
    # that saves more time than the kernels cost.
    rules = backends.traced_target().rules
    most = -1 if rules is None else rules.small_array
    ours = [_is_ours(g, m, beta, most) for g, m in zip(gradients, moments, strict=True)]
    correction, ahead = 1 - beta**count, 1 - beta ** optax.safe_increment(count)

    def together(gradients: list[Any], moments: list[Any]) -> list[tuple[Any, Any]]:
        new = add_scaled(gradients, moments, 1 - beta, beta)
        if nesterov:
            scales = (1 - beta) / correction, beta / ahead
            return list(zip(new, add_scaled(gradients, new, *scales, in_place=False), strict=True))
        return list(zip(new, add_scaled(new, new, 1 / correction, 0, in_place=False), strict=True))

    def apart(gradients: list[Any], moments: list[Any]) -> list[tuple[Any, Any]]:
        """The averages computed leaf by leaf, as optax does."""
        new = optax.tree.update_moment(gradients, moments, beta, 1)
        if nesterov:
            later = optax.tree.bias_correction(new, beta, optax.safe_increment(count))
            corrected = optax.tree.bias_correction(gradients, beta, count)
            momentum = [None if m is None else beta * m + (1 - beta) * g for m, g in zip(later, corrected, strict=True)]
        else:
            momentum = optax.tree.bias_correction(new, beta, count)
        return list(zip(new, momentum, strict=True))

    pairs: list[Any] = [None] * len(gradients)
    for way, chosen in ((together, True), (apart, False)):
        indices = [index for index, mine in enumerate(ours) if mine == chosen]
        values = way([gradients[i] for i in indices], [moments[i] for i in indices])
        for index, pair in zip(indices, values, strict=True):
            pairs[index] = pair
    return structure.unflatten([new for new, _ in pairs]), structure.unflatten([momentum for _, momentum in pairs])


def _is_ours(gradient: Any, moment: Any, beta: Any, most: int) -> bool:
    """Whether `add_scaled` gives optax's results: all dtypes are equal. Where they differ, optax rounds each part."""
    if gradient is None or not jnp.issubdtype(jnp.result_type(gradient), jnp.inexact):
        return False
    dtype = jnp.result_type(gradient)
    return jnp.size(gradient) <= most and jnp.result_type(moment) == jnp.result_type(gradient, beta) == dtype
