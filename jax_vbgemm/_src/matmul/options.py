"""The options that all products share: precision, the results' dtype, and the implementation."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul.precision import precision_name


def checked_implementation(name: str, implementation: Any) -> str | None:
    if implementation not in (None, "kernel", "xla"):
        raise ValueError(f"{name}: implementation must be None, 'kernel' or 'xla', not {implementation!r}")
    chosen: str | None = implementation
    return chosen


def check_options(name: str, precision: Any, preferred: Any) -> None:
    """ValueError or TypeError if the precision or the preferred element type is unknown."""
    try:
        precision_name(precision)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None
    try:
        np.dtype(preferred)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: preferred_element_type: {error}") from None


def result_dtype(lhs: Any, rhs: Any, precision: Any, preferred_element_type: Any) -> Any:
    """The dtype that jnp.matmul gives for these options; jnp.matmul's own errors are raised for options it refuses."""
    default_float = jax.dtypes.canonicalize_dtype(float)
    return _result_dtype(lhs, rhs, precision, preferred_element_type, default_float)


def mixed_dtypes(lhs: Any, rhs: Any, precision: Any, preferred_element_type: Any) -> tuple[Any, Any] | None:
    """For two dtypes of which one does not promote (float8, int4): a dtype that holds the values of both, and the
    result dtype of jax.lax.dot. None for other dtypes."""
    if lhs == rhs or not any(_widened(dtype) != dtype for dtype in (lhs, rhs)):
        return None
    ones = [jax.ShapeDtypeStruct((1, 1), dtype) for dtype in (lhs, rhs)]
    dot = functools.partial(jax.lax.dot, precision=precision, preferred_element_type=preferred_element_type)
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(_widened(lhs), _widened(rhs)), jax.eval_shape(dot, *ones).dtype


def _widened(dtype: Any) -> Any:
    """The narrowest dtype that holds the values of a dtype and promotes with others."""
    if dtype.itemsize > 1 or dtype in (np.bool_, np.int8, np.uint8):
        return dtype
    return np.dtype(jnp.bfloat16 if jnp.issubdtype(dtype, jnp.floating) else np.int8)


@functools.lru_cache(maxsize=1024)
def _result_dtype(lhs: Any, rhs: Any, precision: Any, preferred_element_type: Any, default_float: Any) -> Any:
    del default_float  # a key of the cache: the x64 mode decides which dtype preferred_element_type names
    ones = [jax.ShapeDtypeStruct((1, 1), dtype) for dtype in (lhs, rhs)]

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=precision, preferred_element_type=preferred_element_type)

    return jax.eval_shape(matmul, *ones).dtype
