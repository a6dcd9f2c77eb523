"""The primitive's transposition rule: the cotangents of its operands.

The primitive is a sum of bilinear products, hence
  cotangent of op(A)  =  dC op(B)^T, of op(B) = op(A)^T dC     (transposes are flags, never copies)
All cotangents are one call again. The cotangents of windows of one array are written into the array's cotangent in
place where the windows don't overlap; XLA adds them where they do. Results without a cotangent lead to no terms and are
never filled with zeros.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jax_vbgemm._src.epilogue import Epilogue, Scalar, scalar_value, scaled
from jax_vbgemm._src.matmul.batch_in_k import fold_batch
from jax_vbgemm._src.matmul.contract import contract
from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.overlap import covers, overlap
from jax_vbgemm._src.matmul.primitive import Batched, Target, Term, Window, sizes_of, target_of, windows_of
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import dense
from jax_vbgemm._src.native.arithmetic import arithmetic_of


def transpose(cotangents: Sequence[Any], *arrays: Any, batched: Batched) -> list[Any]:
    """The primitive's transposition rule."""
    linear = [ad.is_undefined_primal(array) for array in arrays]
    known = [None if yes else array for array, yes in zip(arrays, linear, strict=True)]
    avals = [array.aval if yes else array for array, yes in zip(arrays, linear, strict=True)]
    operands, destinations = list(arrays), {}
    reads = batched.reads
    if reads:
        operands = [
            ad.UndefinedPrimal(jax.ShapeDtypeStruct(window.layout.shape, avals[window.array].dtype))
            if linear[window.array]
            else windows_of(known, (window,))[0]
            for window in reads
        ]
        destinations = {
            index: window
            for index, window in enumerate(reads)
            if linear[window.array] and window.layout != Layout.row_major(avals[window.array].shape)
        }
    result_cotangents = windows_of(cotangents, batched.writes)
    sum_cotangents, alphas, addend_cotangents = _through_epilogues(result_cotangents, operands, batched)
    shapes = [aval.shape for aval in avals]
    factor_cotangents, in_arrays = _transpose_of_sums(sum_cotangents, alphas, operands, destinations, shapes, batched)

    totals: list[Any] = [in_arrays.get(index) for index in range(len(arrays))]

    def give(index: int, cotangent: jax.Array, window: Window | None = None) -> None:
        total, wide = totals[index], accumulator(avals[index].dtype)
        if window is None:
            totals[index] = cotangent if total is None else total.astype(wide) + cotangent.astype(wide)
        else:
            total = jnp.zeros(avals[index].shape, wide) if total is None else total.astype(wide)
            totals[index] = window.layout.add(total, cotangent.astype(wide))

    for index, cotangent in (*addend_cotangents, *enumerate(factor_cotangents)):
        if cotangent is not None:
            give(reads[index].array if reads else index, cotangent, destinations.get(index))
    for index, target in enumerate(batched.targets):
        if target.base is None or not linear[target.base] or isinstance(cotangents[index], ad.Zero):
            continue
        outside = cotangents[index]
        for window in batched.writes:
            if window.array == index:
                outside = window.layout.put(outside, jnp.zeros(window.layout.shape, outside.dtype))
        give(target.base, outside)
    return [
        (ad.Zero(aval.to_ct_aval()) if total is None else _as(total, aval.dtype)) if yes else None
        for total, aval, yes in zip(totals, avals, linear, strict=True)
    ]


class _Cotangent(NamedTuple):
    """A sum of products that is a cotangent, or a part of one; one call computes all of them."""

    target: int  # the linear operand
    shape: Shape  # before the operand's broadcast is summed
    wide: Any  # the dtype of the sum
    alpha: Scalar  # its factor


def _transpose_of_sums(
    cotangents: Sequence[Any],
    alphas: Sequence[Scalar],
    operands: Sequence[Any],
    destinations: Mapping[int, Window],
    shapes: Sequence[Shape],
    batched: Batched,
) -> tuple[list[Any], dict[int, jax.Array]]:
    """The cotangents of the operands, or None, and the cotangents of the arrays whose windows are written in place.

    `alphas`: the factor of each result's sum. `destinations`: for linear operands that are windows, their windows of
    arrays with the given shapes.
    """
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    avals = [operand.aval if linear[i] else operand for i, operand in enumerate(operands)]
    factors: list[Any] = []  # the operands of the one call
    products: list[Term] = []
    numbers: dict[_Cotangent, int] = {}
    for term in batched.terms:
        cotangent = cotangents[term.out]
        if isinstance(cotangent, ad.Zero) or not (linear[term.lhs] or linear[term.rhs]):
            continue
        if linear[term.lhs] and linear[term.rhs]:
            raise NotImplementedError("jax_vbgemm: a product of two linear values cannot be transposed")
        lhs, rhs, product, cotangent_sum = _transpose_of_product(
            term, cotangent, alphas[term.out], operands, avals, for_lhs=linear[term.lhs]
        )
        out = numbers.setdefault(cotangent_sum, len(numbers))
        products.append(product._replace(lhs=len(factors), rhs=len(factors) + 1, out=out))
        factors += [lhs, rhs]

    # If an operand has one cotangent, the kernel rounds it to the primal's dtype. If several are added, they stay in
    # the accumulator's dtype until their sum is rounded.
    sums = list(numbers)
    members = Counter(cotangent_sum.target for cotangent_sum in sums)
    whole = [
        cotangent_sum.shape == avals[cotangent_sum.target].shape and members[cotangent_sum.target] == 1
        for cotangent_sum in sums
    ]
    multiplied: list[set[Any]] = [set() for _ in sums]
    for product in products:
        multiplied[product.out] |= {factors[product.lhs].dtype, factors[product.rhs].dtype}
    dtypes = []
    for cotangent_sum, is_whole, factor_dtypes in zip(sums, whole, multiplied, strict=True):
        dtype = avals[cotangent_sum.target].dtype
        final = is_whole and cotangent_sum.wide == accumulator(dtype)
        dtypes.append(dtype if final and factor_dtypes == {dtype} else cotangent_sum.wide)
    in_place = _in_place(
        {
            out: destinations[cotangent_sum.target]
            for out, cotangent_sum in enumerate(sums)
            if cotangent_sum.target in destinations and whole[out] and dtypes[out] == avals[cotangent_sum.target].dtype
        }
    )
    written = sorted({window.array for window in in_place.values()})
    writes: list[Window] = []
    targets: list[Target] = []
    if in_place:
        writes, targets = _result_destinations(
            in_place, written, [cotangent_sum.shape for cotangent_sum in sums], dtypes, shapes, factors
        )
    form = batched._replace(
        terms=tuple(products),
        out_dtypes=tuple(dtypes),
        epilogues=tuple(Epilogue(cotangent_sum.alpha) for cotangent_sum in sums),
        reads=(),
        writes=tuple(writes),
        targets=tuple(targets),
    )
    values = contract(factors, form)
    results: list[Any] = [None] * len(operands)
    alone = [cotangent_sum for out, cotangent_sum in enumerate(sums) if out not in in_place]
    for cotangent_sum, value in zip(alone, values[len(written) :], strict=True):
        target = cotangent_sum.target
        value = sum_broadcast(value, avals[target].shape)
        if members[target] > 1:
            value = _as(value, accumulator(avals[target].dtype))
        results[target] = value if results[target] is None else results[target] + value
    results = [None if value is None else _as(value, avals[i].dtype) for i, value in enumerate(results)]
    return results, dict(zip(written, values, strict=False))


def _transpose_of_product(
    term: Term, cotangent: Any, alpha: Scalar, operands: Sequence[Any], avals: Sequence[Any], *, for_lhs: bool
) -> tuple[Any, Any, Term, _Cotangent]:
    """The product that is the cotangent of one factor of a term: its two factors, their term (numbered 0 and 1), and
    the sum that it belongs to."""
    target, other = (term.lhs, term.rhs) if for_lhs else (term.rhs, term.lhs)
    dc, x = cotangent, operands[other]
    as_xla = _only_xla(avals[term.lhs].dtype, avals[term.rhs].dtype, cotangent.dtype)
    if not as_xla:
        dc, x = _multiplicable(dc, x)
    # Computed in the accumulator's dtype, so that it is rounded once.
    wide = dc.dtype if as_xla or jnp.issubdtype(dc.dtype, jnp.complexfloating) else accumulator(avals[target].dtype)
    a, b = term.transpose_a, term.transpose_b
    if for_lhs:
        lhs, rhs, product = (x, dc, Term(0, 1, 0, b, True)) if a else (dc, x, Term(0, 1, 0, False, not b))
    else:
        lhs, rhs, product = (dc, x, Term(0, 1, 0, True, a)) if b else (x, dc, Term(0, 1, 0, not a, False))
    lhs, rhs, product = fold_batch(lhs, rhs, product, avals[target].shape[:-2]) or (lhs, rhs, product)
    shape = (*sizes_of(lhs.shape, rhs.shape, product).batch, *avals[target].shape[-2:])
    return lhs, rhs, product, _Cotangent(target, shape, wide, alpha)


def _result_destinations(
    in_place: Mapping[int, Window],
    written: Sequence[int],
    result_shapes: Sequence[Shape],
    dtypes: Sequence[Any],
    shapes: Sequence[Shape],
    factors: list[Any],
) -> tuple[list[Window], list[Target]]:
    """The windows and targets of a call that writes some results into windows of the arrays `written`, which are zero
    elsewhere; each other result has a target of its own, after these.

    `shapes`: of all arrays. The bases of targets become the last factors.
    """
    targets = []
    for index in written:
        layouts = tuple(window.layout for window in in_place.values() if window.array == index)
        dtype = next(dtypes[out] for out, window in in_place.items() if window.array == index)
        base = None if covers(layouts, math.prod(shapes[index])) else jnp.zeros(shapes[index], dtype)
        targets.append(target_of(shapes[index], base, factors))
    writes = []
    for out, shape in enumerate(result_shapes):
        if out in in_place:
            writes.append(Window(written.index(in_place[out].array), in_place[out].layout))
        else:
            writes.append(Window(len(targets), Layout.row_major(shape)))
            targets.append(Target(shape))
    return writes, targets


def _in_place(destinations: Mapping[int, Window]) -> dict[int, Window]:
    """The windows that remain when one window of each overlapping pair is left out."""
    kept: dict[int, Window] = {}
    for array in sorted({window.array for window in destinations.values()}):
        array_windows = [(out, w) for out, w in destinations.items() if w.array == array and w.layout.is_injective()]
        while found := overlap(tuple(window.layout for _, window in array_windows)):
            del array_windows[found[1]]
        kept |= dict(array_windows)
    return kept


def _multiplicable(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both factors in dtypes that can be multiplied: unchanged if there is a kernel for the pair, else both in the
    dtype that holds the numbers of both, or in the accumulator's dtype where neither does."""
    if x.dtype == y.dtype or arithmetic_of(x.dtype.name, y.dtype.name):
        return x, y
    dtype = max(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
    if x.dtype.itemsize == y.dtype.itemsize and accumulator(x.dtype) == accumulator(y.dtype):
        dtype = accumulator(dtype)
    return x.astype(dtype), y.astype(dtype)


def _only_xla(lhs: Any, rhs: Any, result: Any) -> bool:
    """Whether a product has a result (8-bit float or integer) that XLA computes. Its gradients are then those of
    jax.lax.dot: products of the cotangent without conversion, in the cotangent's dtype."""
    if result.itemsize > 1 and jnp.issubdtype(result, jnp.inexact):
        return False
    arithmetic = arithmetic_of(lhs.name, rhs.name)
    return arithmetic is None or result.name not in arithmetic.results


def _as(x: jax.Array, dtype: Any) -> jax.Array:
    """x in another dtype; the real part where x is complex and the dtype is real."""
    to_real = jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return (jnp.real(x) if to_real else x).astype(dtype)


def _through_epilogues(
    cotangents: Sequence[Any], operands: Sequence[Any], batched: Batched
) -> tuple[Sequence[Any], Sequence[Scalar], list[tuple[int, jax.Array]]]:
    """Transposes the epilogues alpha sum + beta source + bias.

    Returns the sums' cotangents without the factor alpha where it is a number, these numbers, and the cotangents of
    sources and biases as pairs (operand, cotangent).
    """
    if not batched.epilogues:
        return cotangents, [1] * len(cotangents), []
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    sum_cotangents = list(cotangents)
    alphas: list[Scalar] = [1] * len(cotangents)
    addend_cotangents: list[tuple[int, jax.Array]] = []
    for out, (cotangent, epilogue) in enumerate(zip(cotangents, batched.epilogues, strict=True)):
        if isinstance(cotangent, ad.Zero):
            continue
        if epilogue.activation or any(linear[index] for index in epilogue.scalars):
            what = f"activation {epilogue.activation!r}" if epilogue.activation else "alpha or beta"
            raise NotImplementedError(f"jax_vbgemm: batched_gemm is not linear in its {what}: it cannot be transposed")
        wide = accumulator(batched.out_dtypes[out])
        known = {index: dense(operands[index]) for index in epilogue.scalars}
        if isinstance(epilogue.alpha, tuple):
            alpha = scalar_value(epilogue.alpha, known, wide)
            sum_cotangents[out] = alpha * dense(cotangent).astype(wide)
        else:
            alphas[out] = epilogue.alpha
        for index, factor in ((epilogue.source, epilogue.beta), (epilogue.bias, 1)):
            if index is not None and linear[index]:
                value = scaled(scalar_value(factor, known, wide), dense(cotangent).astype(wide))
                addend_cotangents.append((index, sum_broadcast(value, operands[index].aval.shape)))
    return sum_cotangents, alphas, addend_cotangents


def sum_broadcast(value: jax.Array, shape: Shape) -> jax.Array:
    """The transpose of broadcasting `shape` to value's shape."""
    if value.shape == shape:
        return value
    value = value.sum(axis=tuple(range(value.ndim - len(shape))))
    stretched = tuple(axis for axis, size in enumerate(shape) if size == 1 and value.shape[axis] != 1)
    return value.sum(axis=stretched, keepdims=True)
