"""Normalises the many ways in which JAX lets a caller name a precision."""

from __future__ import annotations

from typing import Any

import jax

from jax_vbgemm._src.util.shown import shown

_ORDER = ("default", "high", "highest")

_KNOWN = (
    f"{', '.join(map(repr, _ORDER))}, jax.lax.Precision's other names for them (such as 'tensorfloat32'), pairs of "
    "them, and jax.lax.DotAlgorithmPreset's names (such as 'TF32_TF32_F32')"
)


# Names that JAX does not have, and the names to use instead.
_SUGGESTIONS = {
    "tf32": "'default' is TF32 on a GPU with tensor cores",
    "tf32x3": "'high' is three TF32 products on a GPU with tensor cores",
    "3xtf32": "'high' is three TF32 products on a GPU with tensor cores",
    "fp32": "'highest' is float32 without tensor cores",
    "f32": "'highest' is float32 without tensor cores",
}


def canonical_precision(precision: Any) -> Any:
    """A hashable precision that does not depend on the context (jax.default_matmul_precision) in which it was given."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if isinstance(precision, list):
        return tuple(precision)
    if isinstance(precision, str) and precision in jax.lax.DotAlgorithmPreset.__members__:
        return jax.lax.DotAlgorithmPreset[precision]
    return precision


_FAST_ACCUMULATION = {
    jax.lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32: False,
    jax.lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM: True,
}


def is_of_float8(precision: Any) -> bool:
    """Whether it is one of the two dot algorithms for 8-bit floats that accumulate in float32."""
    return isinstance(precision, jax.lax.DotAlgorithmPreset) and precision in _FAST_ACCUMULATION


def accumulation_of_float8(precision: Any) -> tuple[Any, bool]:
    """For two 8-bit floats: the canonical precision with JAX's dot algorithms for them removed, since kernels implement
    these, and whether tensor cores may accumulate all of K with fewer bits than float32."""
    if is_of_float8(precision):
        return jax.lax.Precision.DEFAULT, _FAST_ACCUMULATION[precision]
    return precision, False


def precision_name(precision: Any) -> str:
    """ "default", "high" or "highest" for a value that jax.lax.dot takes as `precision`; the higher one of a pair.

    Raises ValueError for an unknown name. A dot algorithm counts as "highest"; XLA computes such a call.
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
        meant = _SUGGESTIONS.get(precision.lower()) if isinstance(precision, str) else None
        raise ValueError(f"precision: unknown name {shown(precision)}; {meant or f'known are {_KNOWN}'}") from None
