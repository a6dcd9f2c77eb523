"""square_sums: the sums of the squares of many arrays of different sizes, on a GPU two kernels for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm import _core
from jax_vbgemm._src.elementwise import array_kernels
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.util import compat


def square_sums(xs: Sequence[Any]) -> jax.Array:
    """The sum of |x_i|^2 over the elements of each array: (len(xs),) in the real dtype of the accumulator.

    Infinite where finite elements overflow; NaN if an element is infinite or NaN.

    Args:
      xs: arrays of any rank and one floating or complex dtype; those without elements give 0.

    Raises:
      ValueError: there are no arrays. TypeError: their dtypes differ, or are neither floating nor complex.
    """
    xs = [jnp.asarray(x) for x in xs]
    if not xs:
        raise ValueError("square_sums: there are no arrays")
    for index, x in enumerate(xs):
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(f"square_sums: xs[{index}] is {x.dtype}: it must be floating or complex")
        if x.dtype != xs[0].dtype:
            raise TypeError(f"square_sums: xs[{index}] is {x.dtype} but xs[0] is {xs[0].dtype}: they must be equal")
    if any(compat.explicit_axes(x) for x in xs):
        return _xla_form(*xs)[0]
    sums: jax.Array = square_sums_p.bind(*xs)[0]
    return sums


def squares(x: jax.Array) -> jax.Array:
    """|x|^2, element by element, in the real dtype of the accumulator; NaN for infinite elements."""
    wide = x.astype(accumulator(x.dtype))
    return jnp.where(jnp.isinf(wide), jnp.nan, jnp.real(wide * wide.conj()))


def _xla_form(*xs: jax.Array) -> list[jax.Array]:
    return [jnp.stack([jnp.sum(squares(x)) for x in xs])]


def _kernel_form(*xs: jax.Array) -> list[jax.Array]:
    wide = accumulator(xs[0].dtype)
    results = [jax.ShapeDtypeStruct((count,), wide) for count in (len(xs), chunks_of(xs))]
    return [jax.ffi.ffi_call(backends.SQUARE_SUMS_TARGET_NAME, results)(*xs)[0]]


def chunks_of(xs: Sequence[jax.Array]) -> int:
    """The size of the workspace, which holds the sum of each chunk; the handler checks it."""
    return sum(-(-x.nbytes // _core.ARRAY_CHUNK_BYTES) for x in xs)


def real_accumulator(dtype: Any) -> Any:
    """The real dtype of the accumulator."""
    return np.zeros((), accumulator(dtype)).real.dtype


square_sums_p = jex_core.Primitive("square_sums")


@square_sums_p.def_abstract_eval
def _abstract_eval(*xs: Any) -> list[Any]:
    return [compat.shaped_array((len(xs),), real_accumulator(xs[0].dtype), xs)]


array_kernels.define(square_sums_p, _xla_form, _kernel_form)
