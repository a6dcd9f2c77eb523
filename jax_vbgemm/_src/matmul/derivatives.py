"""The primitive's rule for JVP.

The primitive is a sum of bilinear products, hence
  tangent of  op(A) op(B)  =  op(dA) op(B) + op(A) op(dB)           (two terms with one `out`)
The tangent of a symmetric product is symmetric only as the sum of both terms, so that derived terms drop that flag. A
sum with the epilogue alpha sum + bias, where alpha is a number, has a tangent of that form. Operands without a tangent
lead to no terms and are never filled with zeros. The tangent of a window is the same window of the array's tangent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jax_vbgemm._src.epilogue import Epilogue, linear_part
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.contract import contract
from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.matmul.primitive import Batched, Target, Term, Window, batched_matmul_p, compact, target_of
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import dense


def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, batched: Batched) -> tuple[list[Any], list[Any]]:
    """The primitive's JVP rule."""
    operands, moving = batched.operands(primals), batched.operands(tangents)
    bases = [None if target.base is None else tangents[target.base] for target in batched.targets]
    if _stay_in_kernel(moving, batched):
        results = batched_matmul_p.bind(*primals, batched=batched)
        return results, _tangents_of_sums(operands, moving, results, batched, bases)
    values, value_tangents = _jvp_of_epilogues(operands, moving, batched._replace(reads=(), writes=(), targets=()))
    if not batched.writes:
        return values, value_tangents
    read = batched.windows_in_bases()
    results = reference.put(values, batched.writes, batched.targets, primals, read)
    return results, _put_tangents(value_tangents, results, batched.writes, bases, read)


def _stay_in_kernel(tangents: Sequence[Any], batched: Batched) -> bool:
    """Whether the kernel can compute both results and tangents, including their epilogues.

    It can where each result is alpha sum + bias with a number for alpha, and where a bias has a tangent only if its sum
    has one.
    """
    moving = {term.out for term in batched.terms if _is_nonzero(tangents[term.lhs]) or _is_nonzero(tangents[term.rhs])}
    return all(
        epilogue.is_affine and (epilogue.bias is None or not _is_nonzero(tangents[epilogue.bias]) or out in moving)
        for out, epilogue in enumerate(batched.epilogues)
    )


def _put_tangents(
    tangents: Sequence[Any],
    results: Sequence[jax.Array],
    writes: Sequence[Window],
    bases: Sequence[Any],
    read: Sequence[Sequence[Layout]] | None = None,
) -> list[Any]:
    """The targets' tangents, from the tangents of the results and of the bases; `read` is as for `reference.put`."""
    placed: list[Any] = []
    for index, (result, base) in enumerate(zip(results, bases, strict=True)):
        parts = [(w.layout, tangent) for w, tangent in zip(writes, tangents, strict=True) if w.array == index]
        base = base if _is_nonzero(base) else None
        if base is None and not any(_is_nonzero(tangent) for _, tangent in parts):
            placed.append(_zero(result))
            continue
        total = jnp.zeros_like(result) if base is None else base
        values = [tangent if _is_nonzero(tangent) else None for _, tangent in parts]
        windows = [Window(0, layout) for layout, _ in parts]
        placed += reference.put(values, windows, [Target(total.shape, 0)], [total], [read[index] if read else []])
    return placed


def _is_nonzero(tangent: Any) -> bool:
    return tangent is not None and not isinstance(tangent, ad.Zero)


def _zero(result: jax.Array) -> Any:
    """The tangent of a result that does not depend on a moving operand."""
    return ad.Zero(jax.typeof(result).to_tangent_aval())


def _tangents_of_sums(
    primals: Sequence[Any], tangents: Sequence[Any], results: Sequence[Any], batched: Batched, bases: Sequence[Any] = ()
) -> list[Any]:
    """The tangents of `results`. Their epilogues are affine, and a bias has a tangent only if its sum has one.

    If the call has targets, these are the results, and `bases` holds the tangent of each target's base or None.
    """
    operands = [*primals, *tangents]
    active = [_is_nonzero(tangent) for tangent in tangents]
    moving: list[Term] = []
    for term in batched.terms:
        if active[term.lhs]:
            moving.append(term._replace(lhs=len(primals) + term.lhs, symmetric=False))
        if active[term.rhs]:
            moving.append(term._replace(rhs=len(primals) + term.rhs, symmetric=False))
    moving_epilogues = []
    for epilogue in batched.epilogues:
        bias = None if epilogue.bias is None or not active[epilogue.bias] else len(primals) + epilogue.bias
        moving_epilogues.append(Epilogue(epilogue.alpha, bias=bias))
    used, outs, moving, moving_epilogues = compact(moving, moving_epilogues)
    factors = [operands[index] for index in used]
    result_tangents: list[Any] = [_zero(result) for result in results]
    moved, writes, targets = outs, [], []
    if batched.writes:
        result_tangents = _put_tangents([None] * len(batched.writes), results, batched.writes, bases)
        moved = sorted({batched.writes[out].array for out in outs})
        kept_arrays = {window.array for out, window in enumerate(batched.writes) if out not in outs}
        for out in outs:
            window = batched.writes[out]
            writes.append(window._replace(array=moved.index(window.array)))
        for index in moved:
            base = result_tangents[index] if _is_nonzero(result_tangents[index]) else None
            if base is None and (bases[index] is not None or index in kept_arrays):
                base = jnp.zeros_like(results[index])
            targets.append(target_of(results[index].shape, base, factors))
    tangent_call = batched._replace(
        terms=tuple(moving),
        out_dtypes=tuple(batched.out_dtypes[out] for out in outs),
        epilogues=tuple(moving_epilogues),
        reads=(),
        writes=tuple(writes),
        targets=tuple(targets),
    )
    for index, tangent in zip(moved, contract(factors, tangent_call), strict=True):
        result_tangents[index] = tangent
    return result_tangents


def _jvp_of_epilogues(primals: Sequence[Any], tangents: Sequence[Any], batched: Batched) -> tuple[list[Any], list[Any]]:
    """Results and tangents where the kernel computes the sums and their tangents, and JAX differentiates the epilogues.

    A sum is kept only where a derivative needs it; otherwise the kernel applies its epilogue. The tangents of sums, and
    therefore the cotangents in a gradient, have the results' dtype: 16-bit products have 16-bit products as gradients.
    """
    with_dtypes = list(zip(batched.epilogues, batched.out_dtypes, strict=True))
    alone = [_follows_from_result(epilogue, tangents, dtype) for epilogue, dtype in with_dtypes]
    sums = batched._replace(
        out_dtypes=tuple(
            dtype if yes else accumulator(dtype) for dtype, yes in zip(batched.out_dtypes, alone, strict=True)
        ),
        epilogues=tuple(
            epilogue if yes else Epilogue() for epilogue, yes in zip(batched.epilogues, alone, strict=True)
        ),
    )
    values = contract(primals, sums)
    sum_tangents = _tangents_of_sums(primals, tangents, values, batched._replace(epilogues=()))
    pairs = [
        _finish(values[out], sum_tangents[out], epilogue, dtype, primals, tangents, alone[out])
        for out, (epilogue, dtype) in enumerate(with_dtypes)
    ]
    return [result for result, _ in pairs], [tangent for _, tangent in pairs]


def _follows_from_result(epilogue: Epilogue, tangents: Sequence[Any], dtype: Any) -> bool:
    """Whether the derivative of a result can be computed from the result, without the sum before its epilogue."""
    if isinstance(epilogue.alpha, tuple) and _is_nonzero(tangents[epilogue.alpha[0]]):
        return False
    if epilogue.activation == "relu" and epilogue.alpha != 1:
        # A sum times a small alpha may be positive in the accumulator and round to 0 in float16, whose exponent range
        # is smaller: the result then does not tell where relu has a slope. bfloat16 has float32's range.
        return bool(dtype in (accumulator(dtype), jnp.bfloat16))
    return epilogue.activation in (None, "relu")


def _finish(
    value: jax.Array,
    sum_tangent: Any,
    epilogue: Epilogue,
    dtype: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    finished: bool,
) -> tuple[jax.Array, Any]:
    """A result and its tangent, where `value` is the sum, or if it is `finished` the result itself."""
    # If `value` is the result, `total` takes the place of the unknown sum; only its shape and dtype are used.
    total = value.astype(accumulator(dtype))
    if not isinstance(sum_tangent, ad.Zero):
        sum_tangent = sum_tangent.astype(total.dtype)
    positions = dict.fromkeys(epilogue.operands())
    current = [total, *(dense(primals[index]) for index in positions)]
    moving = [sum_tangent, *(dense(tangents[index]) for index in positions)]
    moves = [_is_nonzero(tangent) for tangent in moving]

    def finish(*moved: Any) -> jax.Array:
        given = iter(moved)
        total, *rest = (next(given) if yes else x for x, yes in zip(current, moves, strict=True))
        operands = list(primals)
        for index, x in zip(positions, rest, strict=True):
            operands[index] = x
        if finished:
            return linear_part(total, epilogue, operands)
        return reference.finish(total, epilogue, operands, dtype)

    if not any(moves):
        result = value if finished else finish()
        return result, _zero(result)
    result, tangent = jax.jvp(
        finish,
        [x for x, yes in zip(current, moves, strict=True) if yes],
        [tangent for tangent, yes in zip(moving, moves, strict=True) if yes],
    )
    if not finished:
        return result, tangent
    if epilogue.activation == "relu":
        tangent = jnp.where(value > 0, tangent, jnp.zeros_like(tangent))
    return value, tangent.astype(dtype)
