"""The rules for a product of which one factor or both are `Scaled`: dtypes, errors, and which blocks the primitive of
ragged products multiplies without conversion. `ragged_dot`, `batched_matmul` and `batched_gemm` share them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul.options import check_options
from jax_vbgemm._src.matmul.precision import accumulation_of_float8, is_of_float8
from jax_vbgemm._src.matmul.view import Operand, View
from jax_vbgemm._src.native.arithmetic import arithmetic_of
from jax_vbgemm._src.ragged.primitive import SCALED
from jax_vbgemm._src.scaled.scaled import Scaled
from jax_vbgemm._src.util.arguments import as_array

Factor = Operand | Scaled

MIXED = ("int8", "int4", "float8_e4m3fn")
"""The dtypes of weights beside rows of 16 bits."""


def checked_scaled(name: str, argument: str, x: Scaled) -> Scaled:
    """A Scaled of arrays; ValueError or TypeError where its parts do not fit each other, as after a transformation of
    its leaves."""
    values = x.values if isinstance(x.values, View) else as_array(name, f"{argument}.values", x.values)
    scales = as_array(name, f"{argument}.scales", x.scales)
    try:
        return Scaled(values, scales, x.block)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {argument}: {error}") from None


def dtype_beside_scaled(name: str, argument: str, dtype: Any) -> Any:
    """The dtype of the factor beside a Scaled, to which the Scaled is converted; ValueError for a dtype that has fewer
    than 16 bits or is not floating."""
    if not jnp.issubdtype(dtype, jnp.inexact) or dtype.itemsize == 1:
        raise ValueError(
            f"{name}: {argument} is {dtype} beside a Scaled: it must be floating-point of 16 bits or more, or Scaled"
        )
    return dtype


def dtype_of_scaled_product(name: str, preferred: Any) -> Any:
    """The dtype of a product of two Scaled factors; ValueError where the caller asks for one that is not floating."""
    check_options(name, None, preferred)
    dtype = np.dtype(jnp.bfloat16 if preferred is None else jax.dtypes.canonicalize_dtype(preferred))
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{name}: preferred_element_type is {dtype}: a product of two Scaled factors is floating")
    return dtype


def precision_of_scaled_product(
    name: str, arguments: tuple[str, str], lhs: Factor, rhs: Factor, precision: Any
) -> tuple[Any, bool]:
    """What a canonical precision says of a product with a Scaled: the precision without JAX's dot algorithms of 8-bit
    floats, and whether tensor cores may sum all of K with fewer bits than float32. ValueError where such an algorithm
    is given for other factors than two Scaled 8-bit floats."""
    both = all(isinstance(x, Scaled) and jnp.issubdtype(x.dtype, jnp.floating) for x in (lhs, rhs))
    if is_of_float8(precision) and not both:
        raise ValueError(
            f"{name}: precision: {precision.name} is for two Scaled 8-bit floats, but {arguments[0]} is "
            f"{_described(lhs)} and {arguments[1]} {_described(rhs)}"
        )
    return accumulation_of_float8(precision) if both else (precision, False)


def _described(x: Factor) -> str:
    return f"{'Scaled ' if isinstance(x, Scaled) else ''}{x.dtype}"


def is_narrow(lhs: Scaled, rhs: Scaled, transpose_rhs: bool) -> bool:
    """Whether the primitive multiplies two Scaled factors, a matrix and a stack of matrices, as they are."""
    blocks_of_rhs = [(1, SCALED, SCALED), *([(1, 1, rhs.shape[-1])] if transpose_rhs else [])]
    known = arithmetic_of(lhs.dtype.name, rhs.dtype.name)
    return known is not None and _fits(lhs, (1, SCALED)) and any(_fits(rhs, block) for block in blocks_of_rhs)


def is_mixed(dtype: Any, weights: Scaled, preferred: Any) -> bool:
    """Whether the primitive takes narrow weights, transposed, beside rows of a dtype."""
    known = dtype in (jnp.bfloat16, np.float16) and weights.dtype.name in MIXED
    known &= preferred in (None, dtype, np.float32)
    return known and any(_fits(weights, (1, columns, SCALED)) for columns in (1, SCALED))


def _fits(x: Scaled, block: tuple[int, ...]) -> bool:
    """Whether each dimension of x is in blocks of these sizes, or one block (where a block is of more than 1)."""
    return x.ndim == len(block) and all(
        given == wanted or (wanted > 1 and given >= size)
        for given, wanted, size in zip(x.sizes, block, x.shape, strict=True)
    )
