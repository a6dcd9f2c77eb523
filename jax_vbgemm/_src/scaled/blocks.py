"""Block-scaled quantization: the definition in jnp, and a primitive that is one kernel on a GPU.

XLA reads its operand once for the scales and again for the values, and once more for their transpose, which products
along the other dimension need: 8-bit tensor cores read operands along K alone. The kernel reads it once, and a gate's
results are never written to memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm import _core
from jax_vbgemm._src.elementwise import array_kernels
from jax_vbgemm._src.epilogue import activated, activation_number
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.scaled.scaled import merged, split
from jax_vbgemm._src.util import compat

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0, "int4": 7.0}
"""Integers are symmetric: -128 and -8 are left out."""

SIDE: int = _core.RAGGED_SCALED
"""The columns, and except in blocks of a single row the rows, of the kernel's blocks (csrc/gpu/host/quantize_launch.h).
"""
# The kernel's columns, and the rows that it transposes, must be multiples of this.
_COLUMN_MULTIPLE, _ROW_MULTIPLE = 8, 16


def scales_of(x: jax.Array, dtype: str, block: tuple[int, ...]) -> jax.Array:
    """The scale of each block with which its largest magnitude becomes that of the dtype; 1 for zeros and subnormal
    numbers, NaN for a block with NaN or infinity."""
    blocks = split(x.astype(np.float32), block)
    inside = tuple(range(1, blocks.ndim, 2))
    # As integers, where NaN is the largest: a fused maximum of floats may lose NaN (JAX 0.10.2, CPU).
    bits = jax.lax.bitcast_convert_type(jnp.abs(blocks), np.uint32)
    largest = jnp.max(bits, axis=inside, initial=0)
    magnitude = jax.lax.bitcast_convert_type(largest, np.float32)
    smallest = np.finfo(np.float32).tiny  # a smaller scale has no reciprocal
    scales = jnp.maximum(magnitude * _reciprocal(dtype), smallest)
    scales = jnp.where(largest < smallest.view(np.uint32), jnp.ones_like(scales), scales)
    return jnp.where(jnp.isfinite(magnitude), scales, np.float32(np.nan))


def values_of(x: jax.Array, dtype: str, block: tuple[int, ...], scales: jax.Array) -> jax.Array:
    """x times the reciprocal of its block's scale, rounded to nearest, ties to even; large values saturate."""
    blocks = split(x.astype(np.float32), block)
    largest = LARGEST[dtype]
    ratio = jnp.clip(blocks * (1 / jnp.expand_dims(scales, tuple(range(1, blocks.ndim, 2)))), -largest, largest)
    values = jnp.round(jnp.nan_to_num(ratio)) if dtype.startswith("int") else ratio
    return merged(values.astype(dtype), x.shape)


def _reciprocal(dtype: str) -> np.float32:
    return np.float32(1) / np.float32(LARGEST[dtype])


def has_kernel(x: jax.Array, dtype: str, block: tuple[int, ...]) -> bool:
    """Whether `quantized` may be a kernel for blocks of these sizes of x, on a platform that has it."""
    of_rows = block == (1,) * (x.ndim - 1) + (SIDE,)
    per_matrix = x.ndim > 1 and block == (1,) * (x.ndim - 2) + (SIDE, SIDE)
    return dtype.startswith("float8") and (of_rows or per_matrix) and compat.is_static(x.shape) and x.size > 0


FORMS = ("plain", "gated", "gated_gradient")
"""What is quantized, in the order of QuantizeForm (csrc/gpu/host/quantize_launch.h)."""
OPERANDS = ("x", "sums", "index", "place", "row_scale")
"""The operands of the custom call, in order."""
GATES = ("silu", "gelu")
"""The activations of gates that the kernel has."""


class Rounded(NamedTuple):
    """8-bit floats and their scales; outputs that were not requested are None.

    Attributes:
      values: (matrices, rows, columns).
      transposed: (matrices, columns, rows).
      row_scales: (matrices, rows, blocks of columns), of values in blocks of a row and SIDE columns.
      block_scales: in blocks of SIDE x SIDE: (matrices, blocks of rows, blocks of columns) of values that have no
        row_scales; otherwise of the transpose, (matrices, blocks of columns, blocks of rows).
      partials: (rows of values, blocks of columns), of a gate's gradient.
    """

    values: Any
    transposed: Any
    row_scales: Any
    block_scales: Any
    partials: Any


class Quantization(NamedTuple):
    """The operands and the requested outputs of a quantization; given: the names of the operands, in order.

    A gate's results are row_scale activation(gate) up, in sums' dtype, where (gate, up) are both halves of the columns
    of sums. Of the gradient of the sums, x is that of these results; its partials are the sums over SIDE columns of x
    activation(gate) up.

    Rows are those of the operands that `index` names, zeros for -1, and `place` names the row of values that each
    becomes, none for -1. Undefined are the values of rows that no place names, and what becomes of SIDE rows the first
    of which is -1.
    """

    dtype: str
    given: tuple[str, ...]
    form: str = FORMS[0]
    activation: str | None = None
    of_rows: bool = False
    in_rows: bool = True
    in_columns: bool = False
    value_rows: int | None = None

    @property
    def wanted(self) -> Rounded:
        """For each result of the kernel, whether it is computed."""
        of_rows = self.in_rows and self.of_rows
        has_blocks = self.in_columns or not of_rows
        return Rounded(self.in_rows, self.in_columns, of_rows, has_blocks, self.form == "gated_gradient")


def quantized(
    dtype: str, *, form: str = FORMS[0], activation: str | None = None, of_rows: bool = False, in_rows: bool = True,
    in_columns: bool = False, value_rows: int | None = None, **operands: jax.Array | None,
) -> Rounded:  # fmt: skip
    """Quantizes operands by name (`Quantization`): x (matrices, rows, columns), or of gates sums (1, rows, 2 columns),
    index and place (rows,), row_scale (rows,)."""
    given = {name: value for name, value in operands.items() if value is not None}
    for name, value in given.items():
        if name in ("index", "place"):
            given[name] = value.astype(np.int32)
        elif value.dtype == np.float64:
            given[name] = value.astype(np.float32)
    # The last one is an array whose dtype selects the kernel (array_kernels.define).
    names = tuple(sorted(given, key=lambda name: name in ("x", "sums")))
    ordered = compat.unite_varying([given[name] for name in names])
    quantization = Quantization(dtype, names, form, activation, of_rows, in_rows, in_columns, value_rows)
    shapes = {name: value.shape for name, value in zip(names, ordered, strict=True)}
    columns = shapes["x"][-1] if "x" in shapes else shapes["sums"][-1] // 2
    rows = shapes["index"][0] if "index" in shapes else shapes["x" if "x" in shapes else "sums"][-2]
    fits = columns % (SIDE if form == "gated_gradient" else _COLUMN_MULTIPLE) == 0
    fits &= not in_columns or rows % _ROW_MULTIPLE == 0
    has_gate = form == "plain" or activation in GATES
    plain = not any(map(compat.explicit_axes, ordered))
    found = iter((quantize_p.bind if fits and has_gate and plain else _xla_form)(*ordered, quantization=quantization))
    return Rounded(*(next(found) if yes else None for yes in quantization.wanted))


def gated(sums: jax.Array, row_scale: jax.Array | None, activation: str | None) -> jax.Array:
    """row_scale activation(gate) up, of both halves of the columns, in float32."""
    value = activated(sums.astype(np.float32), activation, halves=True)
    return value if row_scale is None else row_scale[..., None] * value


def _xla_form(*operands: jax.Array, quantization: Quantization) -> list[jax.Array]:
    given = dict(zip(quantization.given, operands, strict=True))
    index, place = given.get("index"), given.get("place")

    def rows_of(x: Any) -> Any:
        if x is None or index is None:
            return x
        axis = -2 if x.ndim == 3 else -1
        there = jnp.where(index < 0, x.shape[axis], index)
        return jnp.take(x, there, axis=axis, mode="fill", fill_value=0)

    def placed(x: Any) -> Any:
        if place is None:
            return x
        count: Any = quantization.value_rows
        empty = jnp.zeros((*x.shape[:-2], count, x.shape[-1]), x.dtype)
        return empty.at[..., jnp.where(place < 0, count, place), :].set(x, mode="drop")

    x, sums, scale = (rows_of(given.get(name)) for name in ("x", "sums", "row_scale"))
    scale = None if scale is None else scale[None]  # of one matrix
    partials = None
    if quantization.form == "gated":
        x = gated(sums, scale, quantization.activation).astype(sums.dtype)
    elif quantization.form == "gated_gradient":
        wide = x.astype(np.float32)
        value, back = jax.vjp(lambda sums: gated(sums, None, quantization.activation), sums)
        (x,) = back(wide if scale is None else scale[..., None] * wide)
        partials = placed(split((wide * value)[0], (1, SIDE)).sum(axis=(1, 3)))
    row_block, square = (1, 1, SIDE), (1, SIDE, SIDE)
    wanted, dtype = quantization.wanted, quantization.dtype
    row_scales: Any = scales_of(x, dtype, row_block) if wanted.row_scales else None
    block_scales: Any = scales_of(x, dtype, square) if wanted.block_scales else None
    values = transposed = None
    if wanted.values:
        block, scales = (row_block, row_scales) if wanted.row_scales else (square, block_scales)
        values = placed(values_of(x, dtype, block, scales))
    if wanted.transposed:
        transposed = values_of(x, dtype, square, block_scales).mT
    as_values = wanted.values and not wanted.row_scales
    results = Rounded(
        values,
        transposed,
        placed(row_scales) if wanted.row_scales else None,
        block_scales if block_scales is None or as_values else block_scales.mT,
        partials,
    )
    return [result for result in results if result is not None]


def _kernel_form(*operands: jax.Array, quantization: Quantization) -> list[jax.Array]:
    given = dict(zip(quantization.given, operands, strict=True))
    shapes = iter(jax.eval_shape(partial(_xla_form, quantization=quantization), *operands))
    dtypes: Any = Rounded(quantization.dtype, quantization.dtype, np.float32, np.float32, np.float32)
    results = [
        next(shapes) if yes else jax.ShapeDtypeStruct((0,), dtype)
        for yes, dtype in zip(quantization.wanted, dtypes, strict=True)
    ]
    absent: dict[str, Any] = {"x": operands[-1].dtype, "sums": operands[-1].dtype, "row_scale": np.float32}
    buffers = [given[name] if name in given else jnp.zeros((0,), absent.get(name, np.int32)) for name in OPERANDS]
    found = jax.ffi.ffi_call(backends.QUANTIZE_TARGET_NAME, results)(
        *buffers,
        form=np.int64(FORMS.index(quantization.form)),
        activation=np.int64(activation_number(quantization.activation)),
        of_rows=np.bool_(quantization.of_rows),
    )
    return [result for result, yes in zip(found, quantization.wanted, strict=True) if yes]


quantize_p = jex_core.Primitive("quantize")


@quantize_p.def_abstract_eval
def _abstract_eval(*operands: Any, quantization: Quantization) -> list[Any]:
    plain = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    results = jax.eval_shape(partial(_xla_form, quantization=quantization), *plain)
    return [compat.shaped_array(result.shape, result.dtype, operands) for result in results]


array_kernels.define(quantize_p, _xla_form, _kernel_form, checks_nans=False)
