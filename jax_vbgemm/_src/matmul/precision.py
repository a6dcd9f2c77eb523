"""What JAX's many ways to name a precision mean here."""

from __future__ import annotations

from typing import Any

import jax

_ORDER = ("default", "high", "highest")


def canonical_precision(precision: Any) -> Any:
    """A hashable precision that the lowering understands without the context that it was given in."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if isinstance(precision, list):
        return tuple(precision)
    if isinstance(precision, str) and precision in jax.lax.DotAlgorithmPreset.__members__:
        return jax.lax.DotAlgorithmPreset[precision]
    return precision


def precision_name(precision: Any) -> str:
    """ "default", "high" or "highest" for what jax.lax.dot takes as `precision`; of a pair, one an operand, the higher.

    Raises ValueError for an unknown name. A dot algorithm, with which a call goes through XLA, counts as "highest".
    """
    if precision is None:
        return "default"
    if isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm):
        return "highest"
    if isinstance(precision, tuple) and len(precision) == 2:
        return max(map(precision_name, precision), key=_ORDER.index)
    try:
        return jax.lax.Precision(precision).name.lower()
    except (ValueError, TypeError):
        known = "known are those of jax.lax.Precision, and pairs of them"
        raise ValueError(f"precision: unknown name {precision!r}; {known}") from None
