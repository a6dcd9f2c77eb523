"""select_rows: y[i] = the sum over j of x[index[i, j]], whose transpose is a sum of the same form with another index.

The transpose of an ordinary gather is a scatter-add, which has no fixed order on a GPU. A router knows where each row
came from, so that both directions can be gathers with sums in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.util import compat


def select_rows(x: jax.Array, index: jax.Array, back: jax.Array, *, fills: bool = False) -> jax.Array:
    """Sums of rows of x (n, d), selected by index (m, terms) with entries in [0, n): (m, d). fills: an entry n selects
    zeros, and m in `back`.

    back: (n, terms back), the inverse selection: index[i, ...] contains r as often as back[r, ...] contains i. Only the
    transpose uses it. Derivatives of any order, and vmap over any operand.
    """
    result: jax.Array = select_rows_p.bind(*compat.unite_varying((x, index, back)), fills=fills)
    return result


def known_selection(
    row: jax.Array, slots: jax.Array, known: jax.Array, n: int, known_slots: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """A selection of one of n rows for each of m, row (m,), and its inverse, slots (n, terms), without those of the m
    that are not `known` (m,): index (m, 1) and back (n, terms) of a `select_rows` that fills, or back and index of its
    transpose. known_slots: known[slots], where the caller has it."""
    if known_slots is None:
        known_slots = known.at[slots].get(mode="clip")
    return jnp.where(known, row, n)[:, None], jnp.where(known_slots, slots, row.shape[0])


def _rows(x: jax.Array, index: jax.Array, back: jax.Array, *, fills: bool, move: Callable[..., jax.Array]) -> jax.Array:
    """`select_rows` for operands with equal leading batch dimensions; move(x, rows, mode) is x[rows]."""
    form: Callable[..., jax.Array] = partial(_rows_of_one, move, "fill" if fills else "clip")
    for _ in x.shape[:-2]:
        form = jax.vmap(form)
    return form(x, index, back)


def _rows_of_one(
    move: Callable[..., jax.Array], mode: str, x: jax.Array, index: jax.Array, back: jax.Array
) -> jax.Array:
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
    """x[index], as words of 8 bytes: XLA moves rows element by element on CUDA. (On CPUs it takes longer for words.)"""
    in_word = 8 // x.dtype.itemsize
    if in_word < 2 or not compat.is_static(x.shape[1:]) or x.shape[1] % in_word:
        return _moved(x, index, mode)
    with jax.enable_x64(True):
        words = lax.bitcast_convert_type(x.reshape(x.shape[0], x.shape[1] // in_word, in_word), np.uint64)
        rows = lax.bitcast_convert_type(_moved(words, index, mode), x.dtype)
    return rows.reshape(index.shape[0], x.shape[1])


select_rows_p = jex_core.Primitive("select_rows")


@select_rows_p.def_impl
def _impl(*operands: jax.Array, fills: bool) -> Any:
    return compat.apply_primitive(select_rows_p, *operands, fills=fills)


@select_rows_p.def_abstract_eval
def _abstract_eval(x: Any, index: Any, back: Any, *, fills: bool) -> Any:
    return compat.shaped_array((*index.shape[:-1], x.shape[-1]), x.dtype, (x, index, back))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, fills: bool) -> tuple[Any, Any]:
    x, index, back = primals
    y = select_rows(x, index, back, fills=fills)
    if isinstance(tangents[0], ad.Zero):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, select_rows(tangents[0], index, back, fills=fills)


def _transpose(cotangent: Any, x: Any, index: jax.Array, back: jax.Array, *, fills: bool) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(x.aval.to_ct_aval()), None, None]
    return [select_rows(cotangent, back, index, fills=fills), None, None]


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, fills: bool) -> tuple[jax.Array, int]:
    (size,) = {x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None}
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(compat.replicated(x), dim, 0)
        for x, dim in zip(operands, dims, strict=True)
    ]
    return select_rows(*moved, fills=fills), 0


ad.primitive_jvps[select_rows_p] = _jvp
ad.primitive_transposes[select_rows_p] = _transpose
batching.primitive_batchers[select_rows_p] = _batch
for _move, _platform in ((_moved, None), (_moved_in_words, "cuda")):
    mlir.register_lowering(
        select_rows_p, mlir.lower_fun(partial(_rows, move=_move), multiple_results=False), platform=_platform
    )
