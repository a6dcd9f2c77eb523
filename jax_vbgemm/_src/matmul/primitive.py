"""The one primitive: ragged products over flat operands, described by static terms.

Everything the package does binds `batched_matmul_p`: the call itself, its tangents, its cotangents and its vmaps.
Shared inputs are one operand used by several terms; sums of products are several terms with one `out`. Terms name
operands and results, which may lie in the arrays that are bound and returned as windows of them (layout.py). The rules
are in rules.py, the lowering in lowering.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad

from jax_vbgemm._src import compat
from jax_vbgemm._src.distinct import distinct
from jax_vbgemm._src.matmul.layout import Layout, Shape, covers, dense
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.matmul.view import dense as dense_array


class Term(NamedTuple):
    """The product op(operands[lhs]) @ op(operands[rhs]), added to results[out].

    Operands are (..., rows, columns); leading dimensions broadcast. A transpose flag swaps an operand's last two axes.
    `symmetric`: the caller guarantees that each matrix of the result is symmetric before and after its epilogue.
    """

    lhs: int
    rhs: int
    out: int
    transpose_a: bool = False
    transpose_b: bool = False
    symmetric: bool = False


Scalar = complex | float | tuple[int, int]
"""A number known at trace time (an int for integer results), or (operand, element) of a one-dimensional operand in the
accumulator's dtype."""


class Epilogue(NamedTuple):
    """What happens to a sum on its way to its result: activation(alpha sum + beta operands[source] + operands[bias]).

    The source has the shape and dtype of the result; the bias has its dtype and a shape that broadcasts to its shape.
    Where beta is 0 the source is not read, so that NaN in it does not reach the result.
    """

    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    source: int | None = None
    bias: int | None = None
    activation: str | None = None

    def operands(self) -> list[int]:
        """The indices of the operands to which the epilogue refers."""
        scalars = [scalar[0] for scalar in (self.alpha, self.beta) if isinstance(scalar, tuple)]
        return [index for index in (self.source, self.bias, *scalars) if index is not None]


def is_affine(epilogue: Epilogue) -> bool:
    """Whether the epilogue is alpha sum + bias, where alpha is a number known at trace time."""
    return epilogue.source is None and epilogue.activation is None and not isinstance(epilogue.alpha, tuple)


class Window(NamedTuple):
    """An operand or a result as a part of an array: the array's index, and the layout in it."""

    array: int
    layout: Layout


class Target(NamedTuple):
    """An array into which results are written: bound array number `base` with the results' windows overwritten.

    base is None where the windows cover the whole array.
    """

    shape: Shape
    base: int | None = None


class Sizes(NamedTuple):
    """What a term computes: C (*batch, m, n) = sum over k."""

    batch: Shape
    m: int
    n: int
    k: int


def sizes_of(lhs: Shape, rhs: Shape, term: Term) -> Sizes:
    """The sizes of one term over operands of these shapes; ValueError where they don't fit."""
    m, k = (lhs[-1], lhs[-2]) if term.transpose_a else (lhs[-2], lhs[-1])
    n, rhs_k = (rhs[-2], rhs[-1]) if term.transpose_b else (rhs[-1], rhs[-2])
    if k != rhs_k:
        raise ValueError(f"inner dimensions {k} and {rhs_k} must match")
    batch = lhs[:-2]
    if batch != rhs[:-2]:
        try:
            static = compat.is_static(batch) and compat.is_static(rhs[:-2])
            batch = (np if static else jnp).broadcast_shapes(batch, rhs[:-2])
        except ValueError:
            raise ValueError(f"leading dimensions {lhs[:-2]} and {rhs[:-2]} must broadcast") from None
    return Sizes(batch, m, n, k)


batched_matmul_p = jex_core.Primitive("batched_matmul")
batched_matmul_p.multiple_results = True
batched_matmul_p.def_impl(partial(compat.apply_primitive, batched_matmul_p))


@batched_matmul_p.def_abstract_eval
def _abstract_eval(
    *arrays: Any,
    terms: tuple[Term, ...],
    out_dtypes: tuple[Any, ...],
    epilogues: tuple[Epilogue, ...],
    reads: tuple[Window, ...],
    writes: tuple[Window, ...],
    targets: tuple[Target, ...],
    **_: Any,
) -> list[Any]:
    """Shapes and dtypes of the returned arrays.

    `reads`: the window of the bound arrays that each operand is; where empty, operand i is bound array i. `writes`: the
    window of a target that each result is, and the targets are returned; where empty, result i is returned array i.
    """
    operands = windows_of(arrays, reads)
    shapes: list[Any] = [None] * len(out_dtypes)
    factors: list[list[Any]] = [[] for _ in out_dtypes]
    for term in terms:
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        sizes = sizes_of(lhs.shape, rhs.shape, term)
        shape = (*sizes.batch, sizes.m, sizes.n)
        if shapes[term.out] not in (None, shape):
            raise ValueError(f"terms of one sum must agree in shape: {shapes[term.out]} and {shape}")
        shapes[term.out] = shape
        factors[term.out] += [lhs, rhs]
    for out, epilogue in enumerate(epilogues):
        factors[out] += [operands[index] for index in epilogue.operands()]
    factors = [[x.buffer if isinstance(x, View) else x for x in of_out] for of_out in factors]
    if not writes:
        return [compat.shaped_array(*result) for result in zip(shapes, out_dtypes, factors, strict=True)]
    results = []
    for index, target in enumerate(targets):
        outs = [out for out, window in enumerate(writes) if window.array == index]
        sources = [x for out in outs for x in factors[out]]
        sources += [] if target.base is None else [arrays[target.base]]
        results.append(compat.shaped_array(target.shape, out_dtypes[outs[0]], sources))
    return results


def windows_of(arrays: Sequence[Any], reads: Sequence[Window]) -> list[Any]:
    """The operands of a call as arrays and views of the bound arrays; a symbolic Zero (a tangent) stays as it is."""
    if not reads:
        return list(arrays)

    def operand(array: Any, layout: Layout) -> Any:
        whole = isinstance(array, ad.Zero) or (layout.shape == array.shape and layout.is_dense(array.size))
        return array if whole else View.with_layout(array, layout)

    return [operand(arrays[window.array], window.layout) for window in reads]


def windows_in_bases(reads: Sequence[Window], targets: Sequence[Target]) -> list[list[Layout]]:
    """For each target, the windows of its base that the call reads."""
    return [
        [window.layout for window in reads if target.base is not None and window.array == target.base]
        for target in targets
    ]


def compact(
    terms: Sequence[Term], epilogues: Sequence[Epilogue] = ()
) -> tuple[list[int], list[int], list[Term], list[Epilogue]]:
    """The operands and results that these terms use, and the terms and epilogues renumbered to refer to them."""
    outs = sorted({term.out for term in terms})
    epilogues = [epilogues[out] for out in outs] if epilogues else []
    used = {index for term in terms for index in term[:2]} | {i for e in epilogues for i in e.operands()}
    operands = sorted(used)
    operand_at, out_at = ({index: place for place, index in enumerate(kept)} for kept in (operands, outs))
    renumbered = [
        term._replace(lhs=operand_at[term.lhs], rhs=operand_at[term.rhs], out=out_at[term.out]) for term in terms
    ]
    return operands, outs, renumbered, [renumber_epilogue(epilogue, operand_at) for epilogue in epilogues]


class Into(NamedTuple):
    """The windows of targets into which `contract` writes its results, instead of returning arrays of their own."""

    writes: Sequence[Window]
    shapes: Sequence[Shape]  # of the targets
    # the targets' elements outside of the windows; None: the windows cover the target
    bases: Sequence[jax.Array | None]


def into_zeros(writes: Sequence[Window], shapes: Sequence[Shape], dtypes: Sequence[Any]) -> Into:
    """Targets of these shapes and dtypes that are zero outside of the windows."""
    bases = []
    for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        layouts = tuple(window.layout for window in writes if window.array == index)
        bases.append(None if covers(layouts, math.prod(shape)) else jnp.zeros(shape, dtype))
    return Into(writes, shapes, bases)


def contract(
    operands: Sequence[jax.Array | View],
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    *,
    epilogues: Sequence[Epilogue] = (),
    into: Into | None = None,
    **options: Any,
) -> list[jax.Array]:
    """Binds the primitive once for these terms, in a form with as few and as simple problems as possible.

    Operands that nothing uses are dropped, equal ones are passed once, and a product whose right factor has no batch
    becomes one tall product: C[b] = A[b] @ B for all b is (b m, k) @ (k, n), unless C[b] is symmetric. That saves
    tiles, and it makes the gradient of B one product with a long K instead of a batch of products and a sum.
    `epilogues`: one for each result, or none. Epilogues that all leave their sums unchanged count as none.
    Returns the results, or the targets of `into`.
    """
    if not terms:
        return []
    if all(epilogue == Epilogue() for epilogue in epilogues):
        epilogues = ()
    operands, terms, epilogues, into = _unite_varying(list(operands), list(terms), list(epilogues), into)
    shapes = [operand.shape for operand in operands]
    sizes = [sizes_of(shapes[term.lhs], shapes[term.rhs], term) for term in terms]
    tall = [True] * len(out_dtypes)
    for term, size in zip(terms, sizes, strict=True):
        plain = not term.transpose_a and not term.symmetric
        tall[term.out] &= bool(size.batch) and plain and math.prod(shapes[term.rhs][:-2]) == 1

    bases = [] if into is None else [base for base in into.bases if base is not None]
    arrays, array_of = distinct([*(x.buffer if isinstance(x, View) else x for x in operands), *bases])
    array_of, of_bases = array_of[: len(operands)], array_of[len(operands) :]
    base_of = iter(of_bases)
    position: dict[tuple[int, Shape | Layout], int] = {}

    def use(index: int, shape: Shape) -> int:
        where: Shape | Layout = shape
        operand = operands[index]
        if isinstance(operand, View) and not operand.layout.is_dense(operand.buffer.size):
            where = operand.layout.reshape(shape)
        elif array_of[index] in of_bases:  # bound in the base's shape, so that the call has one array for both
            where = dense(shape)
        return position.setdefault((array_of[index], where), len(position))

    bound: list[Term] = []
    result_shapes: list[Shape] = [()] * len(out_dtypes)
    bound_shapes: list[Shape] = [()] * len(out_dtypes)
    for term, (batch, m, n, k) in zip(terms, sizes, strict=True):
        lhs_shape, rhs_shape = shapes[term.lhs], shapes[term.rhs]
        result_shapes[term.out] = bound_shapes[term.out] = (*batch, m, n)
        if tall[term.out]:
            lhs_shape, rhs_shape = (math.prod(batch) * m, k), rhs_shape[-2:]
            bound_shapes[term.out] = (math.prod(batch) * m, n)
        bound.append(term._replace(lhs=use(term.lhs, lhs_shape), rhs=use(term.rhs, rhs_shape)))

    bound_epilogues = []
    for out, epilogue in enumerate(epilogues):
        bias = epilogue.bias
        if bias is not None:
            shape = (1,) * (2 - len(shapes[bias])) + shapes[bias]
            if math.prod(shape[:-2]) == 1 and not (tall[out] and shape[-2] > 1):
                shape = shape[-2:]  # one bias for all batch entries
            else:
                shape = bound_shapes[out]
                if shapes[bias] != result_shapes[out]:
                    operands.append(jnp.broadcast_to(dense_array(operands[bias]), result_shapes[out]))
                    arrays.append(operands[-1])
                    array_of.append(len(arrays) - 1)
                    bias = len(operands) - 1
            bias = use(bias, shape)
        source = None if epilogue.source is None else use(epilogue.source, bound_shapes[out])
        alpha, beta = (
            (use(scalar[0], shapes[scalar[0]]), scalar[1]) if isinstance(scalar, tuple) else scalar
            for scalar in (epilogue.alpha, epilogue.beta)
        )
        bound_epilogues.append(Epilogue(alpha, beta, source, bias, epilogue.activation))
    # An array that is a whole operand is bound in the operand's shape. An array of which operands are windows, and a
    # base, is bound in its own shape.
    whole = [(array, where, arrays[array].shape if isinstance(where, Layout) else where) for array, where in position]
    targets = []
    if into is not None:
        for shape, base in zip(into.shapes, into.bases, strict=True):
            targets.append(Target(shape, None if base is None else next(base_of)))
    used = [(array, shape) for array, _, shape in whole]
    used += [(target.base, target.shape) for target in targets if target.base is not None]
    place = {key: index for index, key in enumerate(dict.fromkeys(used))}
    reads = []
    if into is not None or any(isinstance(where, Layout) for _, where in position):
        reads = [Window(place[i, s], where if isinstance(where, Layout) else dense(s)) for i, where, s in whole]
    results = batched_matmul_p.bind(
        *(arrays[i] if arrays[i].shape == shape else arrays[i].reshape(shape) for i, shape in place),
        terms=tuple(bound),
        out_dtypes=tuple(out_dtypes),
        epilogues=tuple(bound_epilogues),
        reads=tuple(reads),
        writes=() if into is None else tuple(
            window._replace(layout=window.layout.reshape(shape))
            for window, shape in zip(into.writes, bound_shapes, strict=True)
        ),
        targets=tuple(t if t.base is None else t._replace(base=place[t.base, t.shape]) for t in targets),
        **options,
    )  # fmt: skip
    if into is not None:
        return list(results)
    return [
        result if result.shape == shape else result.reshape(shape)
        for result, shape in zip(results, result_shapes, strict=True)
    ]


def _unite_varying(
    operands: list[jax.Array | View], terms: list[Term], epilogues: list[Epilogue], into: Into | None
) -> tuple[list[jax.Array | View], list[Term], list[Epilogue], Into | None]:
    """Inside shard_map, makes all operands of one result vary over the same mesh axes, and those of all results in one
    target over the axes of its base too; elsewhere does nothing."""
    arrays = [x.buffer if isinstance(x, View) else x for x in operands]
    bases = [] if into is None else [base for base in into.bases if base is not None]
    if not any(compat.varies(array) for array in (*arrays, *bases)):
        return operands, terms, epilogues, into
    count = 1 + max(term.out for term in terms)
    groups = [[out] for out in range(count)] if into is None else [[] for _ in into.shapes]
    for out, window in enumerate(() if into is None else into.writes):
        groups[window.array].append(out)
    new_bases: list[jax.Array | None] = []
    for index, outs in enumerate(groups):
        members = list(dict.fromkeys(index for term in terms if term.out in outs for index in term[:2]))
        members += [index for out in outs if epilogues for index in epilogues[out].operands() if index not in members]
        base = None if into is None else into.bases[index]
        *united, new_base = compat.unite_varying(
            [*(arrays[member] for member in members), arrays[members[0]] if base is None else base]
        )
        new_bases.append(None if base is None else new_base)
        at = {member: len(operands) + place for place, member in enumerate(members)}
        for member, array in zip(members, united, strict=True):
            x = operands[member]
            operands.append(View.with_layout(array, x.layout) if isinstance(x, View) else array)
        terms = [t._replace(lhs=at[t.lhs], rhs=at[t.rhs]) if t.out in outs else t for t in terms]
        for out in outs if epilogues else ():
            epilogues[out] = renumber_epilogue(epilogues[out], at)
    return operands, terms, epilogues, None if into is None else into._replace(bases=new_bases)


def renumber_epilogue(epilogue: Epilogue, at: Mapping[int, int] | Sequence[int]) -> Epilogue:
    """The epilogue with its operands renumbered."""

    def scalar(value: Scalar) -> Scalar:
        return (at[value[0]], value[1]) if isinstance(value, tuple) else value

    return epilogue._replace(
        alpha=scalar(epilogue.alpha),
        beta=scalar(epilogue.beta),
        source=None if epilogue.source is None else at[epilogue.source],
        bias=None if epilogue.bias is None else at[epilogue.bias],
    )
