"""The moving averages of Muon's gradients, in one operation for all leaves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jax_vbgemm._src.elementwise.averages import averages
from jax_vbgemm._src.many_devices.parts import on_parts
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.optax.placement import Placement
from jax_vbgemm._src.util.structure import is_none


def momenta(
    updates: Any, mu: Any, beta: Any, count: jax.Array, nesterov: bool, placement: Placement
) -> tuple[Any, Any, jax.Array | None]:
    """The new first moments, the bias-corrected momentum (a step ahead for Nesterov), and the sums of the momentum's
    squares, (leaves,), if one call computes all of these.

    count: the number of steps, this one included. placement: of the updates and moments. A None in `updates` stays
    None.
    """
    gradients = jax.tree.leaves(updates, is_leaf=is_none)
    structure: Any = jax.tree.structure(updates, is_leaf=is_none)
    moments = structure.flatten_up_to(mu)
    # On a CPU, XLA's loop for each leaf is as fast.
    on_gpu = backends.traced_target().rules is not None
    groups: dict[Any, list[int]] = {}
    for index, (g, m) in enumerate(zip(gradients, moments, strict=True)):
        if g is not None:
            groups.setdefault(jnp.result_type(g) if on_gpu and _can_fuse(g, m, beta) else None, []).append(index)
    correction, ahead = 1 - beta**count, 1 - beta ** optax.safe_increment(count)

    def fused_leaves(indices: list[int], gradients: list[Any], moments: list[Any]) -> Any:
        leaf_specs = iter(placement.specs("orthogonalize", updates))
        specs = [None if g is None else next(leaf_specs) for g in jax.tree.leaves(updates, is_leaf=is_none)]
        scales = ((1 - beta) / correction, beta / ahead) if nesterov else (0, 1 / correction)
        return on_parts(
            lambda gradients, moments, scales: averages(gradients, moments, *scales), (gradients, moments),
            (1 - beta, beta, *scales), [specs[i] for i in indices], placement.axes("orthogonalize"), results=2,
        )  # fmt: skip

    def leafwise(gradients: list[Any], moments: list[Any]) -> tuple[list[Any], list[Any]]:
        """The averages computed leaf by leaf, as optax does."""
        new = optax.tree.update_moment(gradients, moments, beta, 1)
        if nesterov:
            later = optax.tree.bias_correction(new, beta, optax.safe_increment(count))
            corrected = optax.tree.bias_correction(gradients, beta, count)
            momentum = [None if m is None else beta * m + (1 - beta) * g for m, g in zip(later, corrected, strict=True)]
        else:
            momentum = optax.tree.bias_correction(new, beta, count)
        return new, momentum

    found: list[Any] = [None] * len(gradients)
    momentum: list[Any] = [None] * len(gradients)
    squares = None
    for dtype, indices in groups.items():
        given = [gradients[i] for i in indices], [moments[i] for i in indices]
        if dtype is None:
            new, corrected = leafwise(*given)
        else:
            new, corrected, squares = fused_leaves(indices, *given)
        for place, index in enumerate(indices):
            found[index], momentum[index] = new[place], corrected[place]
    return structure.unflatten(found), structure.unflatten(momentum), squares if len(groups) == 1 else None


def _can_fuse(gradient: Any, moment: Any, beta: Any) -> bool:
    """Whether `averages` gives optax's results, which requires equal dtypes: otherwise optax rounds each part."""
    if not jnp.issubdtype(jnp.result_type(gradient), jnp.inexact):
        return False
    dtype = jnp.result_type(gradient)
    return bool(jnp.result_type(moment) == jnp.result_type(gradient, beta) == dtype)
