"""The primitive's rules for JVP, vmap and dead-code elimination; its transposition rule is in transpose.py.

Each rule produces terms again and binds the primitive once, so that transformations compose. The primitive is a sum of
bilinear products, hence
  tangent of  op(A) op(B)  =  op(dA) op(B) + op(A) op(dB)           (two terms with one `out`)
The tangent of a symmetric product is symmetric only as the sum of both terms, so that derived terms drop that flag. A
sum with the epilogue alpha sum + bias, where alpha is a number, has a tangent of that form. Operands without a tangent
lead to no terms and are never filled with zeros. The tangent of a window is the same window of the array's tangent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_vbgemm._src import compat
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.contract import Into, contract
from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.matmul.layout import dense as dense_layout
from jax_vbgemm._src.matmul.primitive import (
    Epilogue,
    Target,
    Term,
    Window,
    batched_matmul_p,
    compact,
    is_affine,
    renumber_epilogue,
    sizes_of,
    windows_in_bases,
    windows_of,
)
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.transpose import transpose
from jax_vbgemm._src.matmul.view import View, dense


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    reads: tuple[Window, ...],
    writes: tuple[Window, ...],
    targets: tuple[Target, ...],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    operands, moving = windows_of(primals, reads), windows_of(tangents, reads)
    bases = [None if target.base is None else tangents[target.base] for target in targets]
    if _stay_in_kernel(moving, terms, epilogues):
        results = batched_matmul_p.bind(
            *primals, terms=terms, out_dtypes=out_dtypes, epilogues=epilogues, reads=reads, writes=writes,
            targets=targets, **options,
        )  # fmt: skip
        of_targets = _tangents_of_sums(
            operands, moving, results, terms, out_dtypes, writes, bases, epilogues=epilogues, **options
        )
        return results, of_targets
    values, of_values = _jvp_of_epilogues(operands, moving, terms, out_dtypes, epilogues, **options)
    if not writes:
        return values, of_values
    read = windows_in_bases(reads, targets)
    results = reference.put(values, writes, targets, primals, read)
    return results, _put_tangents(of_values, results, writes, bases, read)


def _stay_in_kernel(tangents: Sequence[Any], terms: Sequence[Term], epilogues: Sequence[Epilogue]) -> bool:
    """Whether the kernel can compute results and tangents with their epilogues.

    It can where each result is alpha sum + bias with a number for alpha, and where a bias has a tangent only if its sum
    has one.
    """
    moving = {term.out for term in terms if _moves(tangents[term.lhs]) or _moves(tangents[term.rhs])}
    return all(
        is_affine(epilogue) and (epilogue.bias is None or not _moves(tangents[epilogue.bias]) or out in moving)
        for out, epilogue in enumerate(epilogues)
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
        base = base if _moves(base) else None
        if base is None and not any(_moves(tangent) for _, tangent in parts):
            placed.append(ad.Zero(jax.typeof(result).to_tangent_aval()))
            continue
        total = jnp.zeros_like(result) if base is None else base
        values = [tangent if _moves(tangent) else None for _, tangent in parts]
        windows = [Window(0, layout) for layout, _ in parts]
        placed += reference.put(values, windows, [Target(total.shape, 0)], [total], [read[index] if read else []])
    return placed


def _moves(tangent: Any) -> bool:
    return tangent is not None and not isinstance(tangent, ad.Zero)


def _tangents_of_sums(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    results: Sequence[Any],
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    writes: Sequence[Window] = (),
    bases: Sequence[Any] = (),
    epilogues: Sequence[Epilogue] = (),
    **options: Any,
) -> list[Any]:
    """The tangents of `results`.

    With `writes`, the results are targets, and `bases` holds the tangent of each target's base or None. `epilogues` are
    affine, and a bias has a tangent only where its sum has one.
    """
    operands = [*primals, *tangents]
    active = [_moves(tangent) for tangent in tangents]
    moving: list[Term] = []
    for term in terms:
        if active[term.lhs]:
            moving.append(term._replace(lhs=len(primals) + term.lhs, symmetric=False))
        if active[term.rhs]:
            moving.append(term._replace(rhs=len(primals) + term.rhs, symmetric=False))
    moving_epilogues = []
    for epilogue in epilogues:
        bias = None if epilogue.bias is None or not active[epilogue.bias] else len(primals) + epilogue.bias
        moving_epilogues.append(Epilogue(epilogue.alpha, bias=bias))
    used, outs, moving, moving_epilogues = compact(moving, moving_epilogues)
    result_tangents: list[Any] = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    into, moved = None, outs
    if writes:
        of_targets = _put_tangents([None] * len(writes), results, writes, bases)
        moved = sorted({writes[out].array for out in outs})
        still = [len(outs) < len(writes) and any(w.array == index for out, w in enumerate(writes) if out not in outs)
                 for index in moved]  # fmt: skip
        into = Into(
            [Window(moved.index(writes[out].array), writes[out].layout) for out in outs],
            [results[index].shape for index in moved],
            [
                of_targets[index] if _moves(of_targets[index])
                else jnp.zeros_like(results[index]) if bases[index] is not None or partial
                else None
                for index, partial in zip(moved, still, strict=True)
            ],
        )  # fmt: skip
        result_tangents = of_targets
    values = contract(
        [operands[i] for i in used],
        moving,
        [out_dtypes[out] for out in outs],
        epilogues=moving_epilogues,
        into=into,
        **options,
    )
    for index, tangent in zip(moved, values, strict=True):
        result_tangents[index] = tangent
    return result_tangents


def _jvp_of_epilogues(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """Results and tangents where the kernel computes the sums and their tangents, and JAX differentiates the epilogues.

    A sum is kept only where a derivative needs it; otherwise the kernel applies its epilogue. The tangents of sums, and
    therefore the cotangents in a gradient, have the results' dtype: 16-bit products have 16-bit products as gradients.
    """
    alone = [
        _follows_from_result(epilogue, tangents, dtype) for epilogue, dtype in zip(epilogues, out_dtypes, strict=True)
    ]
    dtypes = [dtype if yes else accumulator(dtype) for dtype, yes in zip(out_dtypes, alone, strict=True)]
    kept = [epilogue if yes else Epilogue() for epilogue, yes in zip(epilogues, alone, strict=True)]
    values = contract(primals, terms, dtypes, epilogues=kept, **options)
    sum_tangents = _tangents_of_sums(primals, tangents, values, terms, out_dtypes, **options)
    results, result_tangents = [], []
    for out, (epilogue, dtype) in enumerate(zip(epilogues, out_dtypes, strict=True)):
        result, tangent = _finish(values[out], sum_tangents[out], epilogue, dtype, primals, tangents, alone[out])
        results.append(result)
        result_tangents.append(tangent)
    return results, result_tangents


def _follows_from_result(epilogue: Epilogue, tangents: Sequence[Any], dtype: Any) -> bool:
    """Whether the derivative of a result can be computed from the result, without the sum before its epilogue."""
    if isinstance(epilogue.alpha, tuple) and _moves(tangents[epilogue.alpha[0]]):
        return False
    if epilogue.activation == "relu" and epilogue.alpha != 1:
        # A sum times a small alpha may be positive in the accumulator and round to 0 in float16, which has fewer
        # exponents: the result then does not tell where relu has a slope. bfloat16 has those of float32.
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
    """A result and its tangent, where `value` is the sum, or with `finished` the result itself."""
    # Where `value` is the result, `total` takes the place of the unknown sum, of which only shape and dtype are used.
    total = value.astype(accumulator(dtype))
    if not isinstance(sum_tangent, ad.Zero):
        sum_tangent = sum_tangent.astype(total.dtype)
    referred = dict.fromkeys(epilogue.operands())
    current = [total, *(dense(primals[index]) for index in referred)]
    moving = [sum_tangent, *(dense(tangents[index]) for index in referred)]
    moves = [_moves(tangent) for tangent in moving]

    def finish(*moved: Any) -> jax.Array:
        given = iter(moved)
        total, *rest = (next(given) if yes else x for x, yes in zip(current, moves, strict=True))
        operands = list(primals)
        for index, x in zip(referred, rest, strict=True):
            operands[index] = x
        if finished:
            return reference.linear_part(total, epilogue, operands)
        return reference.finish([total], operands, [epilogue], [dtype])[0]

    if not any(moves):
        result = value if finished else finish()
        return result, ad.Zero(jax.typeof(result).to_tangent_aval())
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


def _finished_apart(mapped: Sequence[bool], terms: Sequence[Term], epilogues: Sequence[Epilogue]) -> list[bool]:
    """For which results XLA applies the epilogue under vmap, instead of the kernel.

    A kernel has one alpha and one beta for a whole problem, not one for each batch entry. And where C or a bias is
    mapped but no factor is, one product serves all batch entries.
    """

    product_is = [False] * len(epilogues)
    for term in terms if epilogues else ():
        product_is[term.out] |= mapped[term.lhs] or mapped[term.rhs]
    return [
        any(mapped[i] for i in (e.operands() if not product else [s[0] for s in e[:2] if isinstance(s, tuple)]))
        for e, product in zip(epilogues, product_is, strict=True)
    ]


def _batch(
    arrays: Sequence[Any],
    dims: Sequence[Any],
    *,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    reads: tuple[Window, ...],
    writes: tuple[Window, ...],
    targets: tuple[Target, ...],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """The vmap rule: the mapped axis becomes the first batch dimension, which a kernel sees as a count and a stride."""
    mapped = [dim is not None for dim in dims]  # None: not mapped
    if reads:
        mapped = [mapped[window.array] for window in reads]
    apart = _finished_apart(mapped, terms, epilogues)
    if any(apart):
        return _batch_finished_apart(
            apart, arrays, dims, terms=terms, out_dtypes=out_dtypes, epilogues=epilogues, reads=reads, writes=writes,
            targets=targets, **options,
        )  # fmt: skip

    arrays = [compat.replicated(x) if dim is not None else x for x, dim in zip(arrays, dims, strict=True)]
    arrays = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(arrays, dims, strict=True)]
    size = next(x.shape[0] for x, dim in zip(arrays, dims, strict=True) if dim is not None)
    values: list[Any] = [
        View.with_layout(arrays[w.array], w.layout.batched(size, arrays[w.array].size // size) if yes else w.layout)
        for w, yes in zip(reads, mapped, strict=True)
    ] if reads else arrays  # fmt: skip
    shapes = [x.shape[1:] if yes else x.shape for x, yes in zip(values, mapped, strict=True)]
    out_mapped = [False] * len(out_dtypes)
    out_rank = [0] * len(out_dtypes)
    for term in terms:
        out_mapped[term.out] |= mapped[term.lhs] or mapped[term.rhs]
        out_rank[term.out] = len(sizes_of(shapes[term.lhs], shapes[term.rhs], term).batch) + 2
    for out, epilogue in enumerate(epilogues):
        out_mapped[out] |= any(mapped[index] for index in epilogue.operands())
    target_mapped = [target.base is not None and dims[target.base] is not None for target in targets]
    for window, yes in zip(writes, out_mapped, strict=bool(writes)):
        target_mapped[window.array] |= yes
    out_mapped = [target_mapped[window.array] for window in writes] or out_mapped

    factors: list[Any] = []
    positions: dict[tuple[int, int, bool], int] = {}

    def factor(index: int, rank: int, stretch: bool = False) -> int:
        """The operand's index among the factors. If it is mapped, its mapped axis comes first, and dimensions of size 1
        fill its rank up to `rank`.

        stretch: the operand has to be broadcast along the mapped axis, as no other operand of its result is mapped.
        """
        key = (index, rank if mapped[index] or stretch else 0, stretch)
        if key not in positions:
            positions[key] = len(factors)
            shape = (size, *(1,) * (rank - len(shapes[index])), *shapes[index])
            value = values[index]
            if mapped[index]:
                value = value.reshape(shape)
            elif stretch and isinstance(value, View):
                value = View.with_layout(value.buffer, value.layout.batched(size, 0)).reshape(shape)
            elif stretch:
                value = jnp.broadcast_to(value, shape)
            factors.append(value)
        return positions[key]

    batched, batched_epilogues = [], []
    for term in terms:
        stretch = out_mapped[term.out] and not (mapped[term.lhs] or mapped[term.rhs])
        rank = out_rank[term.out]
        batched.append(term._replace(lhs=factor(term.lhs, rank, stretch), rhs=factor(term.rhs, rank)))
    for out, epilogue in enumerate(epilogues):
        at = {index: factor(index, out_rank[out]) for index in epilogue.operands() if index != epilogue.source}
        if epilogue.source is not None:
            at[epilogue.source] = factor(epilogue.source, out_rank[out], stretch=out_mapped[out])
        batched_epilogues.append(renumber_epilogue(epilogue, at))
    into = _batched_into(size, arrays, dims, writes, targets, target_mapped) if writes else None
    results = contract(factors, batched, out_dtypes, epilogues=batched_epilogues, into=into, **options)
    return results, [0 if yes else None for yes in (target_mapped if writes else out_mapped)]


def _batch_finished_apart(
    apart: Sequence[bool],
    arrays: Sequence[Any],
    dims: Sequence[Any],
    *,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    reads: tuple[Window, ...],
    writes: tuple[Window, ...],
    targets: tuple[Target, ...],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """The vmap rule where XLA applies the epilogues of the results `apart`, to sums in the accumulator's dtype, and
    writes all results into their targets."""
    dtypes = [accumulator(dtype) if yes else dtype for dtype, yes in zip(out_dtypes, apart, strict=True)]
    kept = tuple(Epilogue() if yes else epilogue for epilogue, yes in zip(epilogues, apart, strict=True))
    values, out_dims = _batch(
        arrays, dims, terms=terms, out_dtypes=tuple(dtypes), epilogues=kept, reads=reads, writes=(), targets=(),
        **options,
    )  # fmt: skip

    def finish(totals: Any, *arrays: Any) -> Any:
        operands = windows_of(arrays, reads)
        values = [
            reference.finish([total], operands, [epilogue], [dtype])[0] if yes else total
            for total, epilogue, dtype, yes in zip(totals, epilogues, out_dtypes, apart, strict=True)
        ]
        read = windows_in_bases(reads, targets)
        return reference.put(values, writes, targets, arrays, read) if writes else values

    finished = jax.vmap(finish, in_axes=(out_dims, *dims))(values, *arrays)
    return finished, [0] * len(finished)


def _batched_into(
    size: Any,
    arrays: Sequence[Any],
    dims: Sequence[Any],
    writes: Sequence[Window],
    targets: Sequence[Target],
    is_mapped: Sequence[bool],
) -> Into:
    """The targets under vmap, of which some are mapped. A base that is not mapped, of a target that is, is broadcast;
    mapped arrays have their mapped axis first."""
    layouts = [
        window.layout.batched(size, math.prod(targets[window.array].shape))
        if is_mapped[window.array]
        else window.layout
        for window in writes
    ]
    shapes = [(size, *target.shape) if yes else target.shape for target, yes in zip(targets, is_mapped, strict=True)]
    bases = [
        None if target.base is None
        else arrays[target.base] if dims[target.base] is not None or not yes
        else jnp.broadcast_to(arrays[target.base], (size, *target.shape))
        for target, yes in zip(targets, is_mapped, strict=True)
    ]  # fmt: skip
    return Into([w._replace(layout=x) for w, x in zip(writes, layouts, strict=True)], shapes, bases)


def _dce(used: list[bool], eqn: Any) -> tuple[list[bool], Any]:
    """The dead-code elimination rule: drops products whose results are unused, as XLA cannot look into a custom
    call."""
    if all(used):
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    old = eqn.params
    reads, writes, targets = old["reads"], old["writes"], old["targets"]
    is_used = [used[window.array] for window in writes] if writes else used
    operands, outs, terms, epilogues = compact([term for term in old["terms"] if is_used[term.out]], old["epilogues"])
    kept = operands
    if writes and not reads:
        reads = tuple(Window(index, dense_layout(var.aval.shape)) for index, var in enumerate(eqn.invars))
    targets = [target for target, yes in zip(targets, used, strict=bool(targets)) if yes]
    if reads:
        bases = [target.base for target in targets if target.base is not None]
        kept = sorted({reads[index].array for index in operands} | set(bases))
        reads = tuple(reads[index]._replace(array=kept.index(reads[index].array)) for index in operands)
    target_at = [sum(used[:index]) for index in range(len(used))]
    params = dict(
        old,
        terms=tuple(terms),
        out_dtypes=tuple(old["out_dtypes"][out] for out in outs),
        epilogues=tuple(epilogues),
        reads=reads,
        writes=tuple(writes[out]._replace(array=target_at[writes[out].array]) for out in outs) if writes else (),
        targets=tuple(t if t.base is None else t._replace(base=kept.index(t.base)) for t in targets),
    )
    outvars = [var for var, yes in zip(eqn.outvars, used, strict=True) if yes]
    new = eqn.replace(invars=[eqn.invars[i] for i in kept], outvars=outvars, params=params)
    alive = set(kept)
    return [index in alive for index in range(len(eqn.invars))], new


ad.primitive_jvps[batched_matmul_p] = _jvp
ad.primitive_transposes[batched_matmul_p] = transpose
batching.primitive_batchers[batched_matmul_p] = _batch
compat.register_dce_rule(batched_matmul_p, _dce)
compat.register_nan_check(batched_matmul_p)
