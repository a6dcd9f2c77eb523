"""Derivatives and vmap of the primitive, and what else of JAX asks for a rule.

Each rule produces terms again and binds once, so the rules are closed under each other. The primitive is a sum of
bilinear products, hence
  tangent of  op(A) op(B)  =  op(dA) op(B) + op(A) op(dB)           (two terms with one `out`)
  cotangent of op(A)       =  dC op(B)^T, of op(B) = op(A)^T dC     (transposes are flags, never copies)
Of a symmetric product only the sum of both is: derived terms drop that flag.
Members without a tangent or cotangent are dropped, never filled with zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_vbgemm._src import compat
from jax_vbgemm._src.arithmetic import arithmetic_of
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.batch_in_k import fold_batch
from jax_vbgemm._src.matmul.primitive import (
    Epilogue,
    Shape,
    Term,
    batched_matmul_p,
    compact,
    contract,
    renumber_epilogue,
    sizes_of,
)
from jax_vbgemm._src.matmul.reference import accumulator


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    if epilogues:
        return _jvp_of_epilogues(primals, tangents, terms=terms, out_dtypes=out_dtypes, epilogues=epilogues, **options)
    results = batched_matmul_p.bind(*primals, terms=terms, out_dtypes=out_dtypes, epilogues=(), **options)
    return results, _tangents_of_sums(primals, tangents, results, terms, out_dtypes, **options)


def _tangents_of_sums(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    results: Sequence[Any],
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    **options: Any,
) -> list[Any]:
    operands = [*primals, *tangents]
    active = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    moving: list[Term] = []
    for term in terms:
        if active[term.lhs]:
            moving.append(term._replace(lhs=len(primals) + term.lhs, symmetric=False))
        if active[term.rhs]:
            moving.append(term._replace(rhs=len(primals) + term.rhs, symmetric=False))
    used, outs, moving, _ = compact(moving)
    values = contract([operands[i] for i in used], moving, [out_dtypes[out] for out in outs], **options)
    result_tangents: list[Any] = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    for out, tangent in zip(outs, values, strict=True):
        result_tangents[out] = tangent
    return result_tangents


def _jvp_of_epilogues(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """The products by the kernel, as for the plain ones; what follows is elementwise, and JAX knows its derivatives.

    Their sums are kept only where a derivative needs them. The tangents of the sums have the results' dtype, and so do
    the cotangents that come back: 16-bit products stay 16-bit products in a gradient.
    """
    alone = [_follows_from_result(epilogue, tangents) for epilogue in epilogues]
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


def _follows_from_result(epilogue: Epilogue, tangents: Sequence[Any]) -> bool:
    """Whether a result's derivative needs the result at most, and not the sum under it."""
    alpha_moves = isinstance(epilogue.alpha, tuple) and not isinstance(tangents[epilogue.alpha[0]], ad.Zero)
    return epilogue.activation in (None, "relu") and not alpha_moves


def _finish(
    value: jax.Array,
    sum_tangent: Any,
    epilogue: Epilogue,
    dtype: Any,
    primals: Sequence[Any],
    tangents: Sequence[Any],
    finished: bool,
) -> tuple[jax.Array, Any]:
    """A result and its tangent from its sum, or, where `value` is the finished result, from that."""
    # It stands for the sum where that is not known: only its type is used then.
    total = value.astype(accumulator(dtype))
    if not isinstance(sum_tangent, ad.Zero):
        sum_tangent = sum_tangent.astype(total.dtype)
    referred = dict.fromkeys(epilogue.operands())
    current = [total, *(primals[index] for index in referred)]
    moving = [sum_tangent, *(tangents[index] for index in referred)]
    moves = [not isinstance(tangent, ad.Zero) for tangent in moving]

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


def _transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    **options: Any,
) -> list[Any]:
    if epilogues:
        return _transpose_of_epilogues(
            cotangents, operands, terms=terms, out_dtypes=out_dtypes, epilogues=epilogues, **options
        )
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    avals = [operand.aval if linear[i] else operand for i, operand in enumerate(operands)]
    factors: list[Any] = []  # the operands of the one call
    products: list[Term] = []
    # (linear operand, shape before its broadcast is summed, dtype of the sum) -> out
    sums: dict[tuple[int, Shape, Any], int] = {}

    for term in terms:
        cotangent = cotangents[term.out]
        if isinstance(cotangent, ad.Zero):
            continue
        if linear[term.lhs] and linear[term.rhs]:
            raise NotImplementedError("jax_vbgemm: a product of two linear values cannot be transposed")
        target, other = (term.lhs, term.rhs) if linear[term.lhs] else (term.rhs, term.lhs)
        dc, x = cotangent, operands[other]
        as_xla = _only_xla(avals[term.lhs].dtype, avals[term.rhs].dtype, cotangent.dtype)
        if not as_xla:
            dc, x = _multiplicable(dc, x)
        # Wide, so that it is rounded once.
        wide = dc.dtype if as_xla or jnp.iscomplexobj(dc) else accumulator(avals[target].dtype)
        a, b = term.transpose_a, term.transpose_b
        if linear[term.lhs]:
            lhs, rhs, product = (x, dc, Term(0, 1, 0, b, True)) if a else (dc, x, Term(0, 1, 0, False, not b))
        else:
            lhs, rhs, product = (dc, x, Term(0, 1, 0, True, a)) if b else (x, dc, Term(0, 1, 0, not a, False))
        lhs, rhs, product = fold_batch(lhs, rhs, product, avals[target].shape[:-2]) or (lhs, rhs, product)
        shape = (*sizes_of(lhs.shape, rhs.shape, product).batch, *avals[target].shape[-2:])
        out = sums.setdefault((target, shape, wide), len(sums))
        products.append(product._replace(lhs=len(factors), rhs=len(factors) + 1, out=out))
        factors += [lhs, rhs]
    keys = list(sums)

    # Where nothing is left to add, the kernel rounds to the primal's dtype; sums are kept wide until the last one.
    members = Counter(target for target, _, _ in keys)
    multiplied: list[set[Any]] = [set() for _ in keys]
    for product in products:
        multiplied[product.out] |= {factors[product.lhs].dtype, factors[product.rhs].dtype}
    dtypes = []
    for (target, shape, wide), of_out in zip(keys, multiplied, strict=True):
        dtype = avals[target].dtype
        final = members[target] == 1 and shape == avals[target].shape and wide == accumulator(dtype)
        dtypes.append(dtype if final and of_out == {dtype} else wide)
    results: list[Any] = [None] * len(operands)
    for (target, _, _), value in zip(sums, contract(factors, products, dtypes, **options), strict=True):
        value = sum_broadcast(value, avals[target].shape)
        if members[target] > 1:
            value = _as(value, accumulator(avals[target].dtype))
        results[target] = value if results[target] is None else results[target] + value
    return [
        (ad.Zero(avals[i].to_ct_aval()) if result is None else _as(result, avals[i].dtype)) if linear[i] else None
        for i, result in enumerate(results)
    ]


def _multiplicable(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both as they are where kernels multiply such a pair, else in one dtype: the wider; wide, where neither holds the
    other's numbers."""
    if x.dtype == y.dtype or arithmetic_of(x.dtype.name, y.dtype.name):
        return x, y
    dtype = max(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
    if x.dtype.itemsize == y.dtype.itemsize and accumulator(x.dtype) == accumulator(y.dtype):
        dtype = accumulator(dtype)
    return x.astype(dtype), y.astype(dtype)


def _only_xla(lhs: Any, rhs: Any, result: Any) -> bool:
    """Whether a product is one of XLA's into floats of 8 bits or integers. Its gradients are those of jax.lax.dot:
    products of the cotangent as it is, in its dtype."""
    if result.itemsize > 1 and jnp.issubdtype(result, jnp.inexact):
        return False
    arithmetic = arithmetic_of(lhs.name, rhs.name)
    return arithmetic is None or result.name not in arithmetic.results


def _as(x: jax.Array, dtype: Any) -> jax.Array:
    """x in another dtype; of complex numbers, as real ones, the real parts."""
    of_real = jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return (jnp.real(x) if of_real else x).astype(dtype)


def _transpose_of_epilogues(
    cotangents: Sequence[Any],
    operands: Sequence[Any],
    *,
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    epilogues: Sequence[Epilogue],
    **options: Any,
) -> list[Any]:
    """For jax.linear_transpose; derivatives never come here. alpha sum + beta source + bias, each part by itself."""
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    wide = tuple(accumulator(dtype) for dtype in out_dtypes)
    scaled_cotangents = list(cotangents)
    results: list[Any] = [None] * len(operands)

    def give(index: int | None, cotangent: jax.Array) -> None:
        if index is not None and linear[index]:
            value = sum_broadcast(cotangent, operands[index].aval.shape)
            results[index] = value if results[index] is None else results[index] + value

    for out, (cotangent, epilogue) in enumerate(zip(cotangents, epilogues, strict=True)):
        if isinstance(cotangent, ad.Zero):
            continue
        scalars = [scalar[0] for scalar in (epilogue.alpha, epilogue.beta) if isinstance(scalar, tuple)]
        if epilogue.activation or any(linear[index] for index in scalars):
            what = f"activation {epilogue.activation!r}" if epilogue.activation else "alpha or beta"
            raise NotImplementedError(f"jax_vbgemm: batched_gemm is not linear in its {what}: it cannot be transposed")
        value = cotangent.astype(wide[out])
        scaled_cotangents[out] = reference.scalar_value(epilogue.alpha, operands, wide[out]) * value
        give(epilogue.source, reference.scaled(reference.scalar_value(epilogue.beta, operands, wide[out]), value))
        give(epilogue.bias, value)
    moving = tuple(term for term in terms if linear[term.lhs] or linear[term.rhs])
    of_sums = _transpose(scaled_cotangents, *operands, terms=moving, out_dtypes=wide, epilogues=(), **options)
    for index, of_sum in enumerate(of_sums):
        if results[index] is None:
            results[index] = of_sum
        else:
            total = results[index]
            if not isinstance(of_sum, ad.Zero):
                total += of_sum.astype(total.dtype)
            results[index] = total.astype(operands[index].aval.dtype)
    return results


def sum_broadcast(value: jax.Array, shape: Shape) -> jax.Array:
    """The transpose of broadcasting `shape` to value's shape."""
    if value.shape == shape:
        return value
    value = value.sum(axis=tuple(range(value.ndim - len(shape))))
    stretched = tuple(axis for axis, size in enumerate(shape) if size == 1 and value.shape[axis] != 1)
    return value.sum(axis=stretched, keepdims=True)


def _finished_apart(dims: Sequence[Any], terms: Sequence[Term], epilogues: Sequence[Epilogue]) -> list[bool]:
    """Which results' epilogues are elementwise work under vmap, and no part of the kernel.

    A kernel's alpha and beta belong to a whole problem, not to each of its batch entries. And where C or a bias is
    mapped but no factor is, one product serves all entries.
    """

    def is_mapped(index: int) -> bool:
        return dims[index] is not None

    product_is = [False] * len(epilogues)
    for term in terms if epilogues else ():
        product_is[term.out] |= is_mapped(term.lhs) or is_mapped(term.rhs)
    return [
        any(map(is_mapped, e.operands() if not product else [s[0] for s in e[:2] if isinstance(s, tuple)]))
        for e, product in zip(epilogues, product_is, strict=True)
    ]


def _batch(
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    **options: Any,
) -> tuple[list[Any], list[Any]]:
    """Puts the mapped axis in front of the batch dimensions: the kernel sees it as a batch count and a stride."""
    apart = _finished_apart(dims, terms, epilogues)
    if any(apart):
        dtypes = [accumulator(dtype) if yes else dtype for dtype, yes in zip(out_dtypes, apart, strict=True)]
        kept = tuple(Epilogue() if yes else epilogue for epilogue, yes in zip(epilogues, apart, strict=True))
        values, out_dims = _batch(operands, dims, terms=terms, out_dtypes=tuple(dtypes), epilogues=kept, **options)
        for out in (out for out, yes in enumerate(apart) if yes):

            def finish(total: Any, *operands: Any, out: int = out) -> Any:
                return reference.finish([total], operands, [epilogues[out]], [out_dtypes[out]])[0]

            values[out] = jax.vmap(finish, in_axes=(out_dims[out], *dims))(values[out], *operands)
            out_dims[out] = 0
        return values, out_dims

    mapped = [dim is not None for dim in dims]  # None: not mapped
    operands = [compat.replicated(x) if yes else x for x, yes in zip(operands, mapped, strict=True)]
    values = [jnp.moveaxis(x, dim, 0) if yes else x for x, dim, yes in zip(operands, dims, mapped, strict=True)]
    size = next(x.shape[0] for x, yes in zip(values, mapped, strict=True) if yes)
    shapes = [x.shape[1:] if yes else x.shape for x, yes in zip(values, mapped, strict=True)]
    out_mapped = [False] * len(out_dtypes)
    out_rank = [0] * len(out_dtypes)
    for term in terms:
        out_mapped[term.out] |= mapped[term.lhs] or mapped[term.rhs]
        out_rank[term.out] = len(sizes_of(shapes[term.lhs], shapes[term.rhs], term).batch) + 2
    for out, epilogue in enumerate(epilogues):
        out_mapped[out] |= any(mapped[index] for index in epilogue.operands())

    factors: list[Any] = []
    positions: dict[tuple[int, int, bool], int] = {}

    def factor(index: int, rank: int, stretch: bool = False) -> int:
        """Where the operand stands among the factors: with the mapped axis, and 1s up to `rank`, if it is mapped.

        stretch: it must have the mapped axis, because nothing else of its result has.
        """
        key = (index, rank if mapped[index] or stretch else 0, stretch)
        if key not in positions:
            positions[key] = len(factors)
            shape = (size, *(1,) * (rank - len(shapes[index])), *shapes[index])
            if mapped[index]:
                factors.append(values[index].reshape(shape))
            else:
                factors.append(jnp.broadcast_to(values[index], shape) if stretch else values[index])
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
    results = contract(factors, batched, out_dtypes, epilogues=batched_epilogues, **options)
    return results, [0 if yes else None for yes in out_mapped]


def _dce(used: list[bool], eqn: Any) -> tuple[list[bool], Any]:
    """Drops the products whose results nobody reads: XLA cannot look into a custom call."""
    if all(used):
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    old = eqn.params
    kept, outs, terms, epilogues = compact([term for term in old["terms"] if used[term.out]], old["epilogues"])
    out_dtypes = tuple(old["out_dtypes"][out] for out in outs)
    params = dict(old, terms=tuple(terms), out_dtypes=out_dtypes, epilogues=tuple(epilogues))
    new = eqn.replace(invars=[eqn.invars[i] for i in kept], outvars=[eqn.outvars[out] for out in outs], params=params)
    alive = set(kept)
    return [index in alive for index in range(len(eqn.invars))], new


ad.primitive_jvps[batched_matmul_p] = _jvp
ad.primitive_transposes[batched_matmul_p] = _transpose
batching.primitive_batchers[batched_matmul_p] = _batch
compat.register_dce_rule(batched_matmul_p, _dce)
compat.register_nan_check(batched_matmul_p)
