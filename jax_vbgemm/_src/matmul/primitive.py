"""The one primitive: ragged products over flat operands, described by static terms.

Everything the package does binds `batched_matmul_p`: the call itself, its tangents, its cotangents and its vmaps.
Shared inputs are one operand used by several terms; sums of products are several terms with one `out`. Terms name
operands and results, which may lie in the arrays that are bound and returned as windows of them (layout.py). The rules
are in rules.py, the lowering in lowering.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad

from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.matmul.layout import Layout, Shape
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.util import compat


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


class Window(NamedTuple):
    """An operand or a result as a part of an array: the array's index, and the layout in it."""

    array: int
    layout: Layout


class Target(NamedTuple):
    """An array into which results are written: bound array number `base` with the results' windows overwritten.

    base is None if the windows cover the whole array.
    """

    shape: Shape
    base: int | None = None


def target_of(shape: Shape, base: Any, arrays: list[Any]) -> Target:
    """The target whose base is this array, which is appended to the arrays; without a base for None."""
    if base is None:
        return Target(shape)
    arrays.append(base)
    return Target(shape, len(arrays) - 1)


class Batched(NamedTuple):
    """The static description of a call: products, the sums that they add up to, and where operands and results lie.

    reads: the window of the bound arrays that each operand is; where empty, operand i is bound array i.
    writes: the window of a target that each result is, and the targets are returned; where empty, result i is returned
    array i.
    """

    terms: tuple[Term, ...]
    out_dtypes: tuple[Any, ...]
    epilogues: tuple[Epilogue, ...] = ()  # one for each result, or none
    reads: tuple[Window, ...] = ()
    writes: tuple[Window, ...] = ()
    targets: tuple[Target, ...] = ()
    precision: Any = None
    planner: Any = None
    implementation: str | None = None

    def operands(self, arrays: Sequence[Any]) -> list[Any]:
        """The operands as arrays and views of the bound arrays; a symbolic Zero (a tangent) stays as it is."""
        return windows_of(arrays, self.reads)

    def windows_in_bases(self) -> list[list[Layout]]:
        """For each target, the windows of its base that the call reads."""
        return [
            [window.layout for window in self.reads if target.base is not None and window.array == target.base]
            for target in self.targets
        ]


class TermSizes(NamedTuple):
    """The sizes of a term C (*batch, m, n) = sum over k."""

    batch: Shape
    m: int
    n: int
    k: int

    @property
    def result(self) -> Shape:
        """The shape of C."""
        return (*self.batch, self.m, self.n)


def sizes_of(lhs: Shape, rhs: Shape, term: Term) -> TermSizes:
    """The sizes of one term over operands of these shapes; ValueError if they don't fit."""
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
    return TermSizes(batch, m, n, k)


batched_matmul_p = jex_core.Primitive("batched_matmul")
batched_matmul_p.multiple_results = True
batched_matmul_p.def_impl(partial(compat.apply_primitive, batched_matmul_p))


@batched_matmul_p.def_abstract_eval
def _abstract_eval(*arrays: Any, batched: Batched) -> list[Any]:
    """Shapes and dtypes of the returned arrays."""
    operands, out_dtypes = batched.operands(arrays), batched.out_dtypes
    shapes: list[Any] = [None] * len(out_dtypes)
    factors: list[list[Any]] = [[] for _ in out_dtypes]
    for term in batched.terms:
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        shape = sizes_of(lhs.shape, rhs.shape, term).result
        if shapes[term.out] not in (None, shape):
            raise ValueError(f"terms of one sum must agree in shape: {shapes[term.out]} and {shape}")
        shapes[term.out] = shape
        factors[term.out] += [lhs, rhs]
    for out, epilogue in enumerate(batched.epilogues):
        factors[out] += [operands[index] for index in epilogue.operands()]
    factors = [[x.buffer if isinstance(x, View) else x for x in pair] for pair in factors]
    if not batched.writes:
        return [compat.shaped_array(*result) for result in zip(shapes, out_dtypes, factors, strict=True)]
    results = []
    for index, target in enumerate(batched.targets):
        outs = [out for out, window in enumerate(batched.writes) if window.array == index]
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
    return operands, outs, renumbered, [epilogue.renumbered(operand_at) for epilogue in epilogues]
