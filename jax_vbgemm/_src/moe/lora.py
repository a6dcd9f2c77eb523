"""Low-rank adapters of experts' weights: products with w[e] + scale a[e] b[e], without forming this sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.reference import zeros_elsewhere
from jax_vbgemm._src.util.arguments import shown, unsharded_array

OPTIONS = ("gather", "group_offset", "undefined_rest", "precision", "implementation")


def with_adapter(
    name: str, argument: str, product: jax.Array, adapter: Any, scale: Any, lhs: Any, group_sizes: Any,
    options: dict[str, Any], defined: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """The product of lhs with its groups' weights plus scale (lhs a[e]) b[e], in the accumulator's dtype.

    The adapter is (a, b), or None for none: then the product is returned as it is. `options` are those of the product;
    those that do not belong to its weights hold for the adapter. defined: which rows of the products are defined, where
    not all are; the others of the sum are zeros, and do not reach the gradient of the scale.
    """
    if adapter is None:
        return product
    if not (isinstance(adapter, tuple | list) and len(adapter) == 2):
        raise TypeError(f"{name}: {argument} must be None or a pair (a, b), not {shown(adapter)}")
    a, b = (unsharded_array(name, f"{argument}[{index}]", value) for index, value in enumerate(adapter))
    features, columns = jnp.shape(lhs)[-1], product.shape[-1]
    if a.ndim != 3 or b.ndim != 3 or a.shape[1] != features or b.shape != (a.shape[0], a.shape[2], columns):
        raise ValueError(
            f"{name}: {argument} is {a.shape} and {b.shape}: it must be (experts, {features}, rank) and (experts, "
            f"rank, {columns})"
        )
    if jnp.shape(scale) != ():
        raise ValueError(f"{name}: lora_scale is of shape {jnp.shape(scale)}: it must be a number")
    own = {option: options[option] for option in OPTIONS if option in options}
    hidden = ragged_dot(lhs, a, group_sizes, **own)
    own.pop("gather", None)
    update = ragged_dot(hidden, b, group_sizes, **own)
    if defined is not None:
        product, update = zeros_elsewhere(product, defined), zeros_elsewhere(update, defined)
    wide = jnp.dtype(accumulator(product.dtype))
    total = product.astype(wide) + jnp.asarray(scale, wide) * update.astype(wide)
    return total if defined is None else zeros_elsewhere(total, defined)
