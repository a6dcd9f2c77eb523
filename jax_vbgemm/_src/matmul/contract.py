"""`contract`: binds the primitive for terms over arrays and views, in a form with few and simple problems."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Epilogue, Scalar
from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.primitive import Batched, Target, Term, TermSizes, Window, batched_matmul_p, sizes_of
from jax_vbgemm._src.matmul.view import Operand, View, dense
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.distinct import distinct


def contract(operands: Sequence[Operand], batched: Batched) -> list[jax.Array]:
    """Binds the primitive once for these operands, in a form with as few and as simple problems as possible.

    Operands that nothing uses are dropped, equal ones are passed once, and a product whose right factor has no batch
    becomes one tall product: C[b] = A[b] @ B for all b is (b m, k) @ (k, n), unless C[b] is symmetric. That saves
    tiles, and it makes the gradient of B one product with a long K instead of a batch of products and a sum. Epilogues
    that all leave their sums unchanged count as none.

    Here `batched` has no `reads`, as operands may be views, and the base of a target is one of the operands, an array.
    Returns the results, or the targets.
    """
    if not batched.terms:
        return []
    if all(epilogue == Epilogue() for epilogue in batched.epilogues):
        batched = batched._replace(epilogues=())
    operands, batched = _unite_varying(list(operands), batched)
    shapes = [operand.shape for operand in operands]
    sizes = [sizes_of(shapes[term.lhs], shapes[term.rhs], term) for term in batched.terms]
    tall = _are_tall(batched, sizes, shapes)
    wanted: list[Shape] = [()] * len(tall)  # the shapes of the results
    bound: list[Shape] = [()] * len(tall)  # the bound shapes: a tall product has no batch
    for term, size in zip(batched.terms, sizes, strict=True):
        wanted[term.out] = size.result
        bound[term.out] = (math.prod(size.batch) * size.m, size.n) if tall[term.out] else size.result

    uses = _Uses(operands, batched.targets)
    terms = [uses.term(term, size, tall[term.out]) for term, size in zip(batched.terms, sizes, strict=True)]
    epilogues = [uses.epilogue(*each) for each in zip(batched.epilogues, wanted, bound, strict=bool(batched.epilogues))]
    arrays, reads, targets = uses.bound(batched.targets)
    writes = [
        window._replace(layout=window.layout.reshape(shape))
        for window, shape in zip(batched.writes, bound, strict=bool(batched.writes))
    ]
    found = batched_matmul_p.bind(
        *arrays,
        batched=batched._replace(
            terms=tuple(terms), epilogues=tuple(epilogues), reads=reads, writes=tuple(writes), targets=targets
        ),
    )
    if batched.writes:
        return list(found)
    return [array if array.shape == shape else array.reshape(shape) for array, shape in zip(found, wanted, strict=True)]


def _are_tall(batched: Batched, sizes: Sequence[TermSizes], shapes: Sequence[Shape]) -> list[bool]:
    """Whether each result is bound as one tall product, which all of its terms have to permit."""
    tall = [True] * len(batched.out_dtypes)
    for term, size in zip(batched.terms, sizes, strict=True):
        plain = not term.transpose_a and not term.symmetric
        tall[term.out] &= bool(size.batch) and plain and math.prod(shapes[term.rhs][:-2]) == 1
    return tall


class _Uses:
    """The uses of the operands by terms and epilogues: one for every shape or window in which an array is used.

    Operands are numbered as the caller has them, and uses as the primitive has its operands.
    """

    def __init__(self, operands: Sequence[Operand], targets: Sequence[Target]) -> None:
        self._operands = list(operands)
        self._arrays, self._array_of = distinct([x.buffer if isinstance(x, View) else x for x in operands])
        self._bases = {self._array_of[target.base] for target in targets if target.base is not None}
        self._number: dict[tuple[int, Shape | Layout], int] = {}

    def term(self, term: Term, size: TermSizes, tall: bool) -> Term:
        lhs, rhs = (self._operands[index].shape for index in (term.lhs, term.rhs))
        if tall:
            lhs, rhs = (math.prod(size.batch) * size.m, size.k), rhs[-2:]
        return term._replace(lhs=self._use(term.lhs, lhs), rhs=self._use(term.rhs, rhs))

    def epilogue(self, epilogue: Epilogue, wanted: Shape, bound: Shape) -> Epilogue:
        """The epilogue of a result of shape `wanted` that is bound in the shape `bound`."""
        bias = None if epilogue.bias is None else self._bias(epilogue.bias, wanted, bound)
        source = None if epilogue.source is None else self._use(epilogue.source, bound)
        alpha, beta = self._scalar(epilogue.alpha), self._scalar(epilogue.beta)
        return epilogue._replace(alpha=alpha, beta=beta, source=source, bias=bias)

    def _use(self, index: int, shape: Shape) -> int:
        """The use of an operand in this shape."""
        where: Shape | Layout = shape
        operand, array = self._operands[index], self._array_of[index]
        if isinstance(operand, View) and not operand.layout.is_dense(operand.buffer.size):
            where = operand.layout.reshape(shape)
        elif array in self._bases:  # bound in the base's shape, so that the call has one array for both
            where = Layout.row_major(shape)
        return self._number.setdefault((array, where), len(self._number))

    def _scalar(self, scalar: Scalar) -> Scalar:
        if not isinstance(scalar, tuple):
            return scalar
        return self._use(scalar[0], self._operands[scalar[0]].shape), scalar[1]

    def _bias(self, bias: int, wanted: Shape, bound: Shape) -> int:
        given = self._operands[bias].shape
        shape = (1,) * (2 - len(given)) + given
        if math.prod(shape[:-2]) == 1 and not (wanted != bound and shape[-2] > 1):
            return self._use(bias, shape[-2:])  # one bias for all batch entries
        if given != wanted:
            self._operands.append(jnp.broadcast_to(dense(self._operands[bias]), wanted))
            self._arrays.append(self._operands[-1])
            self._array_of.append(len(self._arrays) - 1)
            bias = len(self._operands) - 1
        return self._use(bias, bound)

    def bound(self, targets: Sequence[Target]) -> tuple[list[jax.Array], tuple[Window, ...], tuple[Target, ...]]:
        """The arrays that the call binds, the windows of them that were used, and the targets.

        An array that is a whole operand is bound in the operand's shape. An array of which operands are windows, and a
        base, is bound in its own shape.
        """
        uses = [
            (array, where, self._arrays[array].shape if isinstance(where, Layout) else where)
            for array, where in self._number
        ]
        bases = [None if target.base is None else (self._array_of[target.base], target.shape) for target in targets]
        keys = [*((array, shape) for array, _, shape in uses), *(base for base in bases if base is not None)]
        place = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        reads: list[Window] = []
        if targets or any(isinstance(where, Layout) for _, where in self._number):
            reads = [
                Window(place[i, s], where if isinstance(where, Layout) else Layout.row_major(s)) for i, where, s in uses
            ]
        arrays = [x if x.shape == shape else x.reshape(shape) for x, shape in ((self._arrays[i], s) for i, s in place)]
        placed = [Target(t.shape, None if b is None else place[b]) for t, b in zip(targets, bases, strict=True)]
        return arrays, tuple(reads), tuple(placed)


def _unite_varying(operands: list[Operand], batched: Batched) -> tuple[list[Operand], Batched]:
    """Inside shard_map, makes all operands of one result vary over the same mesh axes, and those of all results in one
    target over the axes of its base too; elsewhere does nothing."""
    arrays = [x.buffer if isinstance(x, View) else x for x in operands]
    if not any(compat.varies(array) for array in arrays):
        return operands, batched
    terms, epilogues, targets = batched.terms, list(batched.epilogues), list(batched.targets)
    groups = [[out] for out in range(len(batched.out_dtypes))]
    if targets:
        groups = [[out for out, w in enumerate(batched.writes) if w.array == index] for index in range(len(targets))]
    for index, outs in enumerate(groups):
        members = list(dict.fromkeys(index for term in terms if term.out in outs for index in term[:2]))
        members += [index for out in outs if epilogues for index in epilogues[out].operands() if index not in members]
        base = targets[index].base if targets else None
        *united, new_base = compat.unite_varying(
            [*(arrays[member] for member in members), arrays[members[0] if base is None else base]]
        )
        at = {member: len(operands) + place for place, member in enumerate(members)}
        for member, array in zip(members, united, strict=True):
            x = operands[member]
            operands.append(View.with_layout(array, x.layout) if isinstance(x, View) else array)
        terms = tuple(t._replace(lhs=at[t.lhs], rhs=at[t.rhs]) if t.out in outs else t for t in terms)
        for out in outs if epilogues else ():
            epilogues[out] = epilogues[out].renumbered(at)
        if base is not None:
            operands.append(new_base)
            targets[index] = targets[index]._replace(base=len(operands) - 1)
    return operands, batched._replace(terms=terms, epilogues=tuple(epilogues), targets=tuple(targets))
