"""The operation in jnp: its reference semantics, and the implementation if there is no kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import Epilogue, finished
from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.matmul.overlap import overlap
from jax_vbgemm._src.matmul.primitive import Target, Term, Window
from jax_vbgemm._src.matmul.view import Operand, dense
from jax_vbgemm._src.native.arithmetic import accumulator_of


def accumulator(dtype: Any) -> Any:
    """The dtype in which products of this dtype are summed: float32 for shorter floats."""
    return np.dtype(accumulator_of(np.dtype(dtype).name))


def factor(x: jax.Array, wide: Any) -> jax.Array:
    """x in the dtype in which XLA multiplies it: integers and 4-bit floats are converted to the accumulator's dtype.

    XLA's int8 products on GPUs are twice the correct value if K or N is not a multiple of 4 (jaxlib 0.11.2). Its CPU
    and GPU backends refuse products of 4-bit floats with wider results (jaxlib 0.10.2 to 0.11.2).
    """
    return x.astype(wide) if _is_converted(x.dtype) else x


def _is_converted(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer)) or dtype.name.startswith("float4")


def multiply(lhs: jax.Array, rhs: jax.Array, term: Term, dtype: Any, precision: Any) -> jax.Array:
    """One product op(lhs) @ op(rhs) in `dtype`."""
    # Both factors get equal ranks: for some 16-bit factors of different rank, XLA's CPU backend compiles products that
    # fail at run time (jax 0.11.2).
    rank = max(lhs.ndim, rhs.ndim)
    lhs, rhs = (x.reshape((*(1,) * (rank - x.ndim), *x.shape)) for x in (lhs, rhs))
    a = jnp.swapaxes(lhs, -1, -2) if term.transpose_a else lhs
    b = jnp.swapaxes(rhs, -1, -2) if term.transpose_b else rhs
    if _is_converted(a.dtype) and _is_converted(b.dtype):
        wide = accumulator(dtype)
        return jnp.matmul(factor(a, wide), factor(b, wide), preferred_element_type=wide).astype(dtype)
    if a.dtype == b.dtype:
        return jnp.matmul(a, b, precision=precision, preferred_element_type=dtype)
    # For a float8 cotangent and its factor: jnp.matmul would promote them; XLA's dot takes them without conversion.
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    axes = tuple(range(rank - 2))
    dimensions = (((rank - 1,), (rank - 2,)), (axes, axes))
    return jax.lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=dtype)


def finish(total: jax.Array, epilogue: Epilogue, operands: Sequence[Operand], dtype: Any) -> jax.Array:
    """The result in `dtype` of a sum, whose epilogue refers to arrays and views."""
    return finished(total, epilogue, {index: dense(operands[index]) for index in epilogue.operands()}, dtype)


def results(
    operands: Sequence[Operand],
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    epilogues: Sequence[Epilogue],
    precision: Any,
) -> list[jax.Array]:
    """All results of a call: one jnp.matmul for each term, sums in order, then the epilogues if there are any."""
    arrays = [dense(operand) for operand in operands]
    if not epilogues:
        return products(arrays, terms, out_dtypes, precision)
    sums = products(arrays, terms, [accumulator(dtype) for dtype in out_dtypes], precision)
    return [
        finish(total, epilogue, arrays, dtype)
        for total, epilogue, dtype in zip(sums, epilogues, out_dtypes, strict=True)
    ]


def products(
    operands: Sequence[jax.Array], terms: Sequence[Term], out_dtypes: Sequence[Any], precision: Any
) -> list[jax.Array]:
    """All results, one jnp.matmul for each term; terms with the same `out` are added in order and rounded once."""
    members = Counter(term.out for term in terms)
    results: list[Any] = [None] * len(out_dtypes)
    for term in terms:
        dtype = out_dtypes[term.out] if members[term.out] == 1 else accumulator(out_dtypes[term.out])
        value = multiply(operands[term.lhs], operands[term.rhs], term, dtype, precision)
        results[term.out] = value if results[term.out] is None else results[term.out] + value
    return [result.astype(dtype) for result, dtype in zip(results, out_dtypes, strict=True)]


def _overwrites(written: Layout, read: Sequence[Layout]) -> bool:
    """Whether the written window overlaps a window that is read and differs from it."""
    return any(not layout.is_same(written) and overlap((layout, written)) is not None for layout in read)


def put(
    values: Sequence[jax.Array | None],
    writes: Sequence[Window],
    targets: Sequence[Target],
    arrays: Sequence[Any],
    read: Sequence[Sequence[Layout]],
) -> list[jax.Array]:
    """The targets of a call with its results in their windows; a result that is None stands for zeros.

    `read`: for each target the windows of its base from which the values were computed.
    """
    placed: list[Any] = []
    for index, target in enumerate(targets):
        pairs = [(window.layout, value) for window, value in zip(writes, values, strict=True) if window.array == index]
        if target.base is not None:
            array = arrays[target.base]
        else:
            dtype = next(value.dtype for _, value in pairs if value is not None)
            array = jnp.zeros(target.shape, dtype)
        for layout, value in pairs:
            value = jnp.zeros(layout.shape, array.dtype) if value is None else value
            array = layout.put(array, value, apart=_overwrites(layout, read[index]))
        placed.append(array)
    return placed
