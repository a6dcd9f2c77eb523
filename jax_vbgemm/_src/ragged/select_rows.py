"""select_rows: y[i] = the sum over j of x[index[i, j]], whose transpose is a sum of the same form with another index.

The transpose of an ordinary gather is a scatter-add, which has no fixed order on a GPU. A router knows where each row
came from, so that both directions can be gathers with sums in a fixed order.

A sum is as fast as memory where XLA computes it. Single rows are copied by a kernel on a GPU
(csrc/gpu/elementwise/rows_by_index.h), as XLA reads them from memory again for each of their copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.elementwise import array_kernels
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.problem import LARGEST_SIZE
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.mapped import in_front

LEAST_BYTES = 2**23
"""Of a result that the kernel writes: the smallest one measured (H200, 69eccb5: 5.4 us by XLA, 3.4 by the kernel)."""
_VECTOR_BYTES = 16  # the unit in which the kernel copies rows (csrc/gpu/host/rows_by_index_call.h)


def select_rows(x: jax.Array, index: jax.Array, back: jax.Array, *, fills: bool = False) -> jax.Array:
    """Sums of selected rows: result[i] = sum over t of x[index[i, t]], (m, d).

    Derivatives of any order, and vmap over any operand.

    Args:
      x: (n, d).
      index: (m, terms), entries in [0, n).
      back: (n, terms back), the inverse selection, by which the transpose gathers: index[i] contains r as often as
        back[r] contains i.
      fills: whether an entry n of index, and m of back, selects zeros.
    """
    result: jax.Array
    # The last operand is the array whose dtype selects the kernel (array_kernels.lower).
    (result,) = select_rows_p.bind(*compat.unite_varying((index, back, x)), fills=fills)
    return result


def masked_selection(
    row: jax.Array, slots: jax.Array, known: jax.Array, n: int, known_slots: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """A selection of one of n rows for each of m, row (m,), and its inverse, slots (n, terms), without those of the m
    that are not `known` (m,): index (m, 1) and back (n, terms) of a `select_rows` that fills, or back and index of its
    transpose. known_slots: known[slots], where the caller has it."""
    if known_slots is None:
        known_slots = known.at[slots].get(mode="clip")
    return jnp.where(known, row, n)[:, None], jnp.where(known_slots, slots, row.shape[0])


def _xla_form(index: jax.Array, back: jax.Array, x: jax.Array, *, fills: bool, words: bool = False) -> list[jax.Array]:
    """For operands with equal leading batch dimensions. words: whether single rows move as words of 8 bytes."""
    form: Callable[..., jax.Array] = partial(
        _rows_of_one, _moved_in_words if words else _moved, "fill" if fills else "clip"
    )
    for _ in x.shape[:-2]:
        form = jax.vmap(form)
    return [form(x, index)]


def _rows_of_one(move: Callable[..., jax.Array], mode: str, x: jax.Array, index: jax.Array) -> jax.Array:
    terms = index.shape[1]
    if x.shape[0] == 0 or terms == 0:  # there is no row to read
        return jnp.zeros((index.shape[0], x.shape[1]), x.dtype)
    if terms == 1:
        return move(x, index[:, 0], mode)
    return _moved(x, index, mode).astype(accumulator(x.dtype)).sum(axis=1).astype(x.dtype)


def _moved(x: jax.Array, index: jax.Array, mode: str) -> jax.Array:
    rows: jax.Array = x.at[index].get(mode=mode, fill_value=0)
    return rows


def _moved_in_words(x: jax.Array, index: jax.Array, mode: str) -> jax.Array:
    """x[index], copied as 8-byte words: on CUDA XLA copies rows element by element. (On CPUs words are slower.)"""
    elements_per_word = 8 // x.dtype.itemsize
    if elements_per_word < 2 or not compat.is_static(x.shape[1:]) or x.shape[1] % elements_per_word:
        return _moved(x, index, mode)
    with jax.enable_x64(True):
        words = lax.bitcast_convert_type(
            x.reshape(x.shape[0], x.shape[1] // elements_per_word, elements_per_word), np.uint64
        )
        rows = lax.bitcast_convert_type(_moved(words, index, mode), x.dtype)
    return rows.reshape(index.shape[0], x.shape[1])


def _kernel_form(
    index: jax.Array, back: jax.Array, x: jax.Array, *, fills: bool, words: bool = False
) -> list[jax.Array]:
    """The custom call where rows are copied several times, else XLA's form: a permutation reads each row once, which
    XLA does as fast, and fuses with the work around it."""
    *batch, rows, columns = x.shape
    copies, terms = index.shape[-2:]
    matrices, row_bytes = math.prod(batch), columns * x.dtype.itemsize
    if (
        terms != 1 or not 0 < rows < copies or row_bytes % _VECTOR_BYTES or matrices * copies * row_bytes < LEAST_BYTES
        or max(matrices * rows, matrices * copies, row_bytes) > LARGEST_SIZE
    ):  # fmt: skip
        return _xla_form(index, back, x, fills=fills, words=words)
    place = index[..., 0].astype(np.int32)
    if not fills:
        place = jnp.clip(place, 0, rows - 1)
    if batch:
        first = rows * jnp.arange(matrices, dtype=np.int32).reshape(*batch, 1)
        place = jnp.where((place >= 0) & (place < rows), place + first, -1)
    result = jax.ShapeDtypeStruct((matrices * copies, columns), x.dtype)
    call = jax.ffi.ffi_call(backends.ROWS_BY_INDEX_TARGET_NAME, result)
    return [call(x.reshape(-1, columns), place.reshape(-1)).reshape(*batch, copies, columns)]


select_rows_p = jex_core.Primitive("select_rows")
select_rows_p.multiple_results = True
select_rows_p.def_impl(partial(compat.apply_primitive, select_rows_p))


@select_rows_p.def_abstract_eval
def _abstract_eval(index: Any, back: Any, x: Any, *, fills: bool) -> list[Any]:
    return [compat.shaped_array((*index.shape[:-1], x.shape[-1]), x.dtype, (index, back, x))]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, fills: bool) -> tuple[list[Any], list[Any]]:
    index, back, x = primals
    y = select_rows(x, index, back, fills=fills)
    if isinstance(tangents[-1], ad.Zero):
        return [y], [ad.Zero(jax.typeof(y).to_tangent_aval())]
    return [y], [select_rows(tangents[-1], index, back, fills=fills)]


def _transpose(cotangents: Sequence[Any], index: jax.Array, back: jax.Array, x: Any, *, fills: bool) -> list[Any]:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None, None, ad.Zero(x.aval.to_ct_aval())]
    return [None, None, select_rows(cotangent, back, index, fills=fills)]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, fills: bool) -> tuple[list[jax.Array], list[int]]:
    _, (index, back, x) = in_front(operands, dims)
    return [select_rows(x, index, back, fills=fills)], [0]


ad.primitive_jvps[select_rows_p] = _jvp
ad.primitive_transposes[select_rows_p] = _transpose
batching.primitive_batchers[select_rows_p] = _batch
mlir.register_lowering(select_rows_p, mlir.lower_fun(_xla_form, multiple_results=True))
for _platform in backends.GPU_PLATFORMS:
    _forms = [partial(form, words=_platform == "cuda") for form in (_xla_form, _kernel_form)]
    mlir.register_lowering(select_rows_p, partial(array_kernels.lower, _platform, *_forms), platform=_platform)
