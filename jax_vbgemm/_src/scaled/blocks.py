"""Numbers in blocks with scales: the definition in jnp, and a primitive that is one kernel on a GPU.

XLA reads its operand once for the scales and again for the values, and once more for their transpose, which products
along the other dimension need: 8-bit tensor cores read operands along K alone. The kernel reads it once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm._src import backends, compat
from jax_vbgemm._src.elementwise import array_kernels
from jax_vbgemm._src.scaled.scaled import merged, split

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}

SIDE = 128
"""The columns, and except in blocks of a single row the rows, of the kernel's blocks (csrc/gpu/host/quantize_launch.h).
"""
_PIECE = 8  # of which the kernel's columns, and the rows of its transposed result, are multiples


def scales_of(x: jax.Array, kind: str, block: tuple[int, ...]) -> jax.Array:
    """The scale of each block with which its largest magnitude becomes that of the dtype; 1 for zeros and subnormal
    numbers, NaN for a block with NaN or infinity."""
    blocks = split(x.astype(np.float32), block)
    inside = tuple(range(1, blocks.ndim, 2))
    # As integers, among which NaN is the largest: a maximum of floats that XLA has fused may lose it (JAX 0.10.2, CPU).
    bits = jax.lax.bitcast_convert_type(jnp.abs(blocks), np.uint32)
    largest = jnp.max(bits, axis=inside, initial=0)
    magnitude = jax.lax.bitcast_convert_type(largest, np.float32)
    smallest = np.finfo(np.float32).tiny  # a smaller scale has no reciprocal
    scales = jnp.maximum(magnitude * _reciprocal(kind), smallest)
    scales = jnp.where(largest < smallest.view(np.uint32), jnp.ones_like(scales), scales)
    return jnp.where(jnp.isfinite(magnitude), scales, np.float32(np.nan))


def values_of(x: jax.Array, kind: str, block: tuple[int, ...], scales: jax.Array) -> jax.Array:
    """x times the reciprocal of its block's scale, rounded to nearest, ties to even; what is too large saturates."""
    blocks = split(x.astype(np.float32), block)
    largest = LARGEST[kind]
    ratio = jnp.clip(blocks * (1 / jnp.expand_dims(scales, tuple(range(1, blocks.ndim, 2)))), -largest, largest)
    values = jnp.round(jnp.nan_to_num(ratio)) if kind == "int8" else ratio
    return merged(values.astype(kind), x.shape)


def _reciprocal(kind: str) -> np.float32:
    return np.float32(1) / np.float32(LARGEST[kind])


def has_kernel(x: jax.Array, kind: str, block: tuple[int, ...]) -> bool:
    """Whether `quantized` may be a kernel for blocks of these sizes of x, on a platform that has it."""
    of_rows = block == (1,) * (x.ndim - 1) + (SIDE,)
    of_matrices = x.ndim > 1 and block == (1,) * (x.ndim - 2) + (SIDE, SIDE)
    return kind != "int8" and (of_rows or of_matrices) and compat.is_static(x.shape) and x.size > 0


def quantized(
    x: jax.Array, kind: str, index: jax.Array | None = None, *, of_rows: bool = False, in_rows: bool = True,
    in_columns: bool = False,
) -> list[jax.Array]:  # fmt: skip
    """The 8-bit floats of matrices x (matrices, source rows, columns) in blocks of SIDE x SIDE, or of a row and SIDE
    columns: values (matrices, rows, columns) if they are wanted in rows, their transpose if it is wanted, and the
    scales, transposed if only that is wanted.

    index: int32 (rows,), the row of x that becomes each row, or -1 for zeros; by default each row itself.
    """
    wide = x.astype(np.float32) if x.dtype == np.float64 else x
    operands = [wide] if index is None else compat.unite_varying([index, wide])
    lines = [x.shape[-1], *([operands[0].shape[-2 if index is None else 0]] if in_columns else [])]
    in_pieces = all(line % _PIECE == 0 for line in lines) and not any(map(compat.explicit_axes, operands))
    form = quantize_p.bind if in_pieces else _xla_form
    results: list[jax.Array] = form(*operands, kind=kind, of_rows=of_rows, in_rows=in_rows, in_columns=in_columns)
    return results


def _xla_form(*operands: jax.Array, kind: str, of_rows: bool, in_rows: bool, in_columns: bool) -> list[jax.Array]:
    *index, x = operands
    if index:
        x = x.at[:, jnp.where(index[0] < 0, x.shape[1], index[0])].get(mode="fill", fill_value=0)
    block = (1, 1 if of_rows else SIDE, SIDE)
    scales = scales_of(x, kind, block)
    values = values_of(x, kind, block, scales)
    return [*([values] if in_rows else []), *([values.mT] if in_columns else []), scales if in_rows else scales.mT]


def _kernel_form(*operands: jax.Array, kind: str, of_rows: bool, in_rows: bool, in_columns: bool) -> list[jax.Array]:
    *index, x = operands
    wanted = [in_rows, in_columns, True]
    shapes = jax.eval_shape(
        partial(_xla_form, kind=kind, of_rows=of_rows, in_rows=in_rows, in_columns=in_columns), *operands
    )
    given = iter(shapes)
    results = [next(given) if yes else jax.ShapeDtypeStruct((0,), np.dtype(kind)) for yes in wanted]
    rows = index[0] if index else jnp.zeros((0,), np.int32)
    found = jax.ffi.ffi_call(backends.QUANTIZE_TARGET_NAME, results)(x, rows, of_rows=np.bool_(of_rows))
    return [result for result, yes in zip(found, wanted, strict=True) if yes]


quantize_p = jex_core.Primitive("quantize")


@quantize_p.def_abstract_eval
def _abstract_eval(*operands: Any, **params: Any) -> list[Any]:
    plain = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    results = jax.eval_shape(partial(_xla_form, **params), *plain)
    return [compat.shaped_array(result.shape, result.dtype, operands) for result in results]


array_kernels.define(quantize_p, _xla_form, _kernel_form)
