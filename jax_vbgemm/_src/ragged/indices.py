"""Runtime indices: clamped to the legal range; those out of range are counted and reported by checkify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.util import compat


def clamp(name: str, argument: str, index: jax.Array, size: Any) -> tuple[jax.Array, jax.Array]:
    """The indices as int32 clamped to [0, size), and how many were out of range; checkify's user checks report
    these. The size may be symbolic (jax.export)."""
    low = jnp.zeros((), index.dtype)
    largest = np.iinfo(index.dtype).max
    if compat.is_static((size,)):
        high = jnp.asarray(min(max(size - 1, 0), largest), index.dtype)
    else:
        high = jnp.clip(jnp.asarray(size - 1, jnp.int32), 0, min(largest, 2**31 - 1)).astype(index.dtype)
    outside = jnp.sum((index < low) | (index > high), dtype=jnp.int32)
    message = f"{name}: {{wrong}} of {argument} are outside [0, {size}): they are clamped"
    return reported(jnp.clip(index, low, high).astype(jnp.int32), outside, message), outside


def reported(value: jax.Array, wrong: jax.Array, message: str) -> jax.Array:
    """The value, an array of integers. If `wrong`, a number of errors, is not 0, checkify's user checks raise the
    message, in which {wrong} is the number.

    The check of `checkify.debug_check` is an effect of every program that contains it, also of programs without
    checkify: jax.export cannot serialize these, and jit does not call them by its fast path. This primitive has no
    effect. It computes nothing, and checkify finds it as it finds the indexing that it checks.
    """
    result: jax.Array = reported_p.bind(value, wrong, message=message)
    return result


reported_p = jex_core.Primitive("reported")
reported_p.def_impl(lambda value, wrong, *, message: value)
reported_p.def_abstract_eval(lambda value, wrong, *, message: value)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, message: str) -> tuple[Any, Any]:
    value = reported(primals[0], primals[1], message)
    return value, ad.Zero(jax.typeof(value).to_tangent_aval())


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, message: str) -> tuple[jax.Array, Any]:
    value, wrong = operands
    if dims[1] is not None:
        wrong = jnp.sum(wrong, dims[1], dtype=wrong.dtype)
    return reported(value, wrong, message), dims[0]


ad.primitive_jvps[reported_p] = _jvp
batching.primitive_batchers[reported_p] = _batch
mlir.register_lowering(reported_p, lambda ctx, value, wrong, *, message: [value])
compat.register_user_check(reported_p)
