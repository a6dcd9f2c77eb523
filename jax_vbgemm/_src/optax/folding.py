"""Muon's chain with its scale factors folded into the last product, which saves passes over the updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_vbgemm._src.elementwise.addition import add_scaled
from jax_vbgemm._src.many_devices.parts import on_parts
from jax_vbgemm._src.optax.placement import Placement


def folded(
    parts: tuple[Any, Any, Any, Any],
    shape_factors: Callable[[Any], Any],
    weight_decay: Any,
    weight_decay_mask: Any,
    learning_rate: Any,
    placement: Placement,
) -> optax.GradientTransformation:
    """optax.chain(*parts) with the same state; the parts are Muon, scaling by shape, weight decay and the learning
    rate.

    shape_factors: one number for each leaf. placement: of the leaves. The chain itself is used where folding is not
    possible: where the dtype of a factor would change that of the leaves, and where weight decay is not one number
    known at trace time.
    """
    chain = optax.chain(*parts)
    by_muon, _, _, by_rate = parts
    simple_decay = isinstance(weight_decay, int | float) and (weight_decay == 0 or weight_decay_mask is None)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        leaves = jax.tree.leaves(updates)
        structure: Any = jax.tree.structure(updates)
        factors = shape_factors(updates)
        typed = [learning_rate] if isinstance(learning_rate, jax.Array | np.ndarray | np.generic) else []
        typed += [factors] if isinstance(factors, jax.Array) else []
        keep_dtypes = all(jnp.result_type(leaf, *typed) == leaf.dtype for leaf in leaves)
        if params is None or not simple_decay or not keep_dtypes:
            return chain.update(updates, state, params)
        weights = structure.flatten_up_to(params) if weight_decay else []
        if any(weight.dtype != leaf.dtype for weight, leaf in zip(weights, leaves, strict=False)):
            return chain.update(updates, state, params)

        muon_state, shape_state, decay_state, rate_state = state
        # The learning rate's transformation multiplies its argument, here a single number.
        decay = np.full(1, weight_decay, jax.dtypes.canonicalize_dtype(float))
        (scale, decay), rate_state = by_rate.update((factors, decay), rate_state)
        updates, muon_state = by_muon.update(updates, muon_state, scale=scale)
        if weight_decay:
            sums, _ = on_parts(
                lambda weights, updates, decay: (add_scaled(weights, updates, decay, 1), None),
                (weights, jax.tree.leaves(updates)), decay[0], placement.specs("muon", updates), placement.axes("muon"),
            )  # fmt: skip
            updates = structure.unflatten(sums)
        return updates, (muon_state, shape_state, decay_state, rate_state)

    return optax.GradientTransformation(chain.init, update)
