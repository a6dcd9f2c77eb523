"""The operation in jnp: its reference semantics, and the implementation where there is no kernel."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.arithmetic import accumulator_of
from jax_vbgemm._src.matmul.layout import Layout, overlap
from jax_vbgemm._src.matmul.primitive import Epilogue, Scalar, Target, Term, Window
from jax_vbgemm._src.matmul.view import View, dense

Function = Callable[[jax.Array], jax.Array]

FUNCTIONS: Mapping[str, Function] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,  # its default, the tanh approximation
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
}
"""The activations of csrc/activations.def, by name."""


def gated_product(activation: Function, gate: jax.Array, up: jax.Array) -> jax.Array:
    """The result of a gated product, of whose sums one half is the gate and the other one multiplies it."""
    return activation(gate) * up


def activated(x: jax.Array, activation: str | None, halves: bool = False) -> jax.Array:
    """activation(x), or where x is the sums of a gated product, the gate before the other half, its result."""
    if halves:
        gate, up = jnp.split(x, 2, axis=-1)
        return gated_product(FUNCTIONS[str(activation)], gate, up)
    return x if activation is None else FUNCTIONS[activation](x)


def accumulator(dtype: Any) -> Any:
    """The dtype in which products of this dtype are summed: float32 for shorter floats."""
    return np.dtype(accumulator_of(np.dtype(dtype).name))


def factor(x: jax.Array, wide: Any) -> jax.Array:
    """x in the dtype in which XLA multiplies it: integers and 4-bit floats are converted to the accumulator's dtype.

    XLA's int8 products on GPUs are twice what they should be where K or N is not a multiple of 4 (jaxlib 0.11.2). Its
    CPU and GPU backends refuse products of 4-bit floats with wider results (jaxlib 0.10.2 to 0.11.2).
    """
    return x.astype(wide) if _is_converted(x.dtype) else x


def _is_converted(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer)) or dtype.name.startswith("float4")


def multiply(lhs: jax.Array, rhs: jax.Array, term: Term, dtype: Any, precision: Any) -> jax.Array:
    """One product op(lhs) @ op(rhs) in `dtype`."""
    # Both factors get equal ranks: for some 16-bit factors of different rank, XLA's CPU backend compiles products that
    # it cannot run (jax 0.11.2).
    rank = max(lhs.ndim, rhs.ndim)
    lhs, rhs = (x.reshape((*(1,) * (rank - x.ndim), *x.shape)) for x in (lhs, rhs))
    a = jnp.swapaxes(lhs, -1, -2) if term.transpose_a else lhs
    b = jnp.swapaxes(rhs, -1, -2) if term.transpose_b else rhs
    if _is_converted(a.dtype) and _is_converted(b.dtype):
        wide = accumulator(dtype)
        return jnp.matmul(factor(a, wide), factor(b, wide), preferred_element_type=wide).astype(dtype)
    if a.dtype == b.dtype:
        return jnp.matmul(a, b, precision=precision, preferred_element_type=dtype)
    # A float8 cotangent and its factor: jnp.matmul would promote them, XLA's dot takes them without conversion.
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    axes = tuple(range(rank - 2))
    dimensions = (((rank - 1,), (rank - 2,)), (axes, axes))
    return jax.lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=dtype)


def scalar_value(scalar: Scalar, operands: Sequence[jax.Array | View], dtype: Any) -> jax.Array:
    """The value of alpha or beta as an array of rank 0."""
    if isinstance(scalar, tuple):
        return dense(operands[scalar[0]])[scalar[1]].astype(dtype)
    return jnp.asarray(scalar, dtype)


@jax.custom_jvp
def scaled(beta: jax.Array, x: jax.Array) -> jax.Array:
    """beta x, and zeros where beta is 0, even if x holds NaN or Inf. Its derivatives are those of the product beta
    x."""
    return jnp.where(beta == 0, jnp.zeros_like(x), beta * x)


def _scaled_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    (beta, x), (d_beta, d_x) = primals, tangents
    # Plain products instead of `scaled`: a custom rule would be lost in transposition, and with it that beta may have a
    # tangent.
    parts = [beta * d_x] if _moves(d_x) else []
    if _moves(d_beta):  # a zero tangent times a NaN in x would be NaN
        parts.append(d_beta * x)
    return scaled(beta, x), functools.reduce(jnp.add, parts)


def _moves(tangent: Any) -> bool:
    return not isinstance(tangent, jax.custom_derivatives.SymbolicZero)


scaled.defjvp(_scaled_jvp, symbolic_zeros=True)


def linear_part(total: jax.Array, epilogue: Epilogue, operands: Sequence[jax.Array | View]) -> jax.Array:
    """alpha total + beta source + bias in total's dtype; a term whose factor is 0 is zero, even if it holds NaN."""
    dtype = total.dtype
    value = total if epilogue.alpha == 1 else scaled(scalar_value(epilogue.alpha, operands, dtype), total)
    if epilogue.source is not None and epilogue.beta != 0:
        value += scaled(scalar_value(epilogue.beta, operands, dtype), dense(operands[epilogue.source]).astype(dtype))
    if epilogue.bias is not None:
        value += jnp.broadcast_to(dense(operands[epilogue.bias]).astype(dtype), value.shape)
    return value


def finish(
    sums: Sequence[jax.Array],
    operands: Sequence[jax.Array | View],
    epilogues: Sequence[Epilogue],
    out_dtypes: Sequence[Any],
) -> list[jax.Array]:
    """Applies the epilogues, activation(alpha sum + beta source + bias), and converts to the results' dtypes."""
    results = []
    for total, epilogue, dtype in zip(sums, epilogues, out_dtypes, strict=True):
        value = linear_part(total, epilogue, operands)
        results.append(activated(value, epilogue.activation).astype(dtype))
    return results


def results(
    operands: Sequence[jax.Array | View],
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
    return finish(sums, arrays, epilogues, out_dtypes)


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
