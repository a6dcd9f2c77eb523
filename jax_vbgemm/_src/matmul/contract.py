"""`contract`: binds the primitive for terms over arrays and views, in a form with few and simple problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src import compat
from jax_vbgemm._src.distinct import distinct
from jax_vbgemm._src.matmul.layout import Layout, Shape, covers, dense
from jax_vbgemm._src.matmul.primitive import (
    Epilogue,
    Scalar,
    Sizes,
    Target,
    Term,
    Window,
    batched_matmul_p,
    renumber_epilogue,
    sizes_of,
)
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.matmul.view import dense as dense_array


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
    results = [Result((), ()) for _ in out_dtypes]
    for term, size, tall in zip(terms, sizes, _tall_terms(terms, sizes, shapes, len(out_dtypes)), strict=True):
        whole = (*size.batch, size.m, size.n)
        results[term.out] = Result(whole, (math.prod(size.batch) * size.m, size.n) if tall else whole)

    arguments = _Arguments(operands, [] if into is None else into.bases)
    bound = [arguments.use_factors(term, size, results[term.out]) for term, size in zip(terms, sizes, strict=True)]
    bound_epilogues = [arguments.use_epilogue(*pair) for pair in zip(epilogues, results[: len(epilogues)], strict=True)]
    given = arguments.bound(into)
    found = batched_matmul_p.bind(
        *given.arrays,
        terms=tuple(bound),
        out_dtypes=tuple(out_dtypes),
        epilogues=tuple(bound_epilogues),
        reads=given.reads,
        writes=() if into is None else tuple(
            window._replace(layout=window.layout.reshape(result.bound))
            for window, result in zip(into.writes, results, strict=True)
        ),
        targets=given.targets,
        **options,
    )  # fmt: skip
    if into is not None:
        return list(found)
    return [
        array if array.shape == result.shape else array.reshape(result.shape)
        for array, result in zip(found, results, strict=True)
    ]


class Result(NamedTuple):
    """The shape of a result, and the one in which it is bound: that of a tall product has no batch."""

    shape: Shape
    bound: Shape

    @property
    def tall(self) -> bool:
        return self.bound != self.shape


def _tall_terms(terms: Sequence[Term], sizes: Sequence[Sizes], shapes: Sequence[Shape], count: int) -> list[bool]:
    """Whether each term is bound as one tall product, which all terms of a result have to permit."""
    tall = [True] * count
    for term, size in zip(terms, sizes, strict=True):
        plain = not term.transpose_a and not term.symmetric
        tall[term.out] &= bool(size.batch) and plain and math.prod(shapes[term.rhs][:-2]) == 1
    return [tall[term.out] for term in terms]


class _Bound(NamedTuple):
    arrays: list[jax.Array]
    reads: tuple[Window, ...]
    targets: tuple[Target, ...]


class _Arguments:
    """The arrays that a call binds, and the shapes or windows in which its terms and epilogues use them.

    Operands and bases are numbered as the caller has them; `use` returns the numbers that the primitive has.
    """

    def __init__(self, operands: Sequence[jax.Array | View], bases: Sequence[jax.Array | None]) -> None:
        self._operands = list(operands)
        buffers = [x.buffer if isinstance(x, View) else x for x in operands]
        self._arrays, array_of = distinct([*buffers, *(base for base in bases if base is not None)])
        self._array_of, self._of_bases = array_of[: len(buffers)], array_of[len(buffers) :]
        self._position: dict[tuple[int, Shape | Layout], int] = {}

    def use(self, index: int, shape: Shape) -> int:
        """An operand in this shape."""
        where: Shape | Layout = shape
        operand, array = self._operands[index], self._array_of[index]
        if isinstance(operand, View) and not operand.layout.is_dense(operand.buffer.size):
            where = operand.layout.reshape(shape)
        elif array in self._of_bases:  # bound in the base's shape, so that the call has one array for both
            where = dense(shape)
        return self._position.setdefault((array, where), len(self._position))

    def use_factors(self, term: Term, size: Sizes, result: Result) -> Term:
        lhs, rhs = (self._operands[index].shape for index in (term.lhs, term.rhs))
        if result.tall:
            lhs, rhs = (math.prod(size.batch) * size.m, size.k), rhs[-2:]
        return term._replace(lhs=self.use(term.lhs, lhs), rhs=self.use(term.rhs, rhs))

    def use_epilogue(self, epilogue: Epilogue, result: Result) -> Epilogue:
        bias = None if epilogue.bias is None else self._use_bias(epilogue.bias, result)
        source = None if epilogue.source is None else self.use(epilogue.source, result.bound)
        alpha, beta = self._use_scalar(epilogue.alpha), self._use_scalar(epilogue.beta)
        return Epilogue(alpha, beta, source, bias, epilogue.activation)

    def _use_scalar(self, scalar: Scalar) -> Scalar:
        if not isinstance(scalar, tuple):
            return scalar
        return self.use(scalar[0], self._operands[scalar[0]].shape), scalar[1]

    def _use_bias(self, bias: int, result: Result) -> int:
        given = self._operands[bias].shape
        shape = (1,) * (2 - len(given)) + given
        if math.prod(shape[:-2]) == 1 and not (result.tall and shape[-2] > 1):
            return self.use(bias, shape[-2:])  # one bias for all batch entries
        if given != result.shape:
            self._operands.append(jnp.broadcast_to(dense_array(self._operands[bias]), result.shape))
            self._arrays.append(self._operands[-1])
            self._array_of.append(len(self._arrays) - 1)
            bias = len(self._operands) - 1
        return self.use(bias, result.bound)

    def bound(self, into: Into | None) -> _Bound:
        """The arrays, the windows of them that were used, and the targets.

        An array that is a whole operand is bound in the operand's shape. An array of which operands are windows, and a
        base, is bound in its own shape.
        """
        whole = [
            (array, where, self._arrays[array].shape if isinstance(where, Layout) else where)
            for array, where in self._position
        ]
        targets, base_of = [], iter(self._of_bases)
        if into is not None:
            for shape, base in zip(into.shapes, into.bases, strict=True):
                targets.append(Target(shape, None if base is None else next(base_of)))
        used = [(array, shape) for array, _, shape in whole]
        used += [(target.base, target.shape) for target in targets if target.base is not None]
        place = {key: index for index, key in enumerate(dict.fromkeys(used))}
        reads: list[Window] = []
        if into is not None or any(isinstance(where, Layout) for _, where in self._position):
            reads = [Window(place[i, s], where if isinstance(where, Layout) else dense(s)) for i, where, s in whole]
        arrays = [x if x.shape == shape else x.reshape(shape) for x, shape in ((self._arrays[i], s) for i, s in place)]
        placed = [t if t.base is None else t._replace(base=place[t.base, t.shape]) for t in targets]
        return _Bound(arrays, tuple(reads), tuple(placed))


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
