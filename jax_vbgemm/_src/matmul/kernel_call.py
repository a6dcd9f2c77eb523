"""One custom call: its operands, its results, and the plan's descriptor arrays as constants of the program."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._core import catalogue_hash
from jax_vbgemm._src import backends
from jax_vbgemm._src.distinct import distinct
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.addresses import Address, addresses, factors
from jax_vbgemm._src.matmul.descriptors import (
    KINDS,
    EpilogueAddress,
    epilogue_table,
    pack,
    problem_table,
    sums_fit,
    workspace_bytes,
)
from jax_vbgemm._src.matmul.layout import Layout, Shape, covers
from jax_vbgemm._src.matmul.layout import dense as dense_layout
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.matmul.primitive import Epilogue, Term, Window
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import View, dense
from jax_vbgemm._src.planner import DeviceSpec, kind_of, plan_problems
from jax_vbgemm._src.problem import Problem


class Sum(NamedTuple):
    """A result of the call: the sum of some terms, its shape, its epilogue, and where it goes."""

    terms: Sequence[Term]
    shape: Shape
    epilogue: Epilogue | None
    window: Window | None  # of a target; None: an array of its own


class _Use(NamedTuple):
    """An operand as the call reads it: where it lies, or as a dense copy of that shape."""

    operand: int
    copy: Shape | None = None


class _Placed(NamedTuple):
    """A sum with all that descriptors have to know of it."""

    products: list[Address]
    pairs: list[tuple[_Use, _Use]]  # of each product: its factors
    window: Window | None
    source: _Use | None
    problem: Problem


Operand = jax.Array | View


def kernel_call(
    operands: Sequence[Operand],
    sums: Sequence[Sum],
    dtype: Any,
    targets: Sequence[jax.Array | None],
    target_shapes: Sequence[Shape],
    precision: Any,
    planner: Any,
    platform: str,
    device: DeviceSpec,
) -> tuple[list[jax.Array | None], list[jax.Array | None]]:
    """One custom call for sums of terms of one arithmetic and one result dtype, with all their epilogues or none.

    `targets`: the arrays into which windows of sums go, None where nothing has been written and nothing is to be kept.
    Returns each sum's result, None where it is in its target, and the targets after that.

    To the planner a sum is one product with all its terms' K. The call's operands are the factors, then sources, biases
    and targets, then alphas and betas.
    """
    placed = [_place(operands, x) for x in sums]
    epilogues = [x.epilogue for x in sums if x.epilogue is not None]
    products = [product for x in placed for product in x.products]
    owner = np.repeat(np.arange(len(sums)), [len(x.products) for x in placed])
    lhs_dtype, rhs_dtype = (operands[index].dtype.name for index in sums[0].terms[0][:2])
    kind = kind_of(lhs_dtype, precision_name(precision), device, rhs_dtype)
    plan = plan_problems(tuple(x.problem for x in placed), kind, device, planner)
    if len(owner) > len(sums) and not sums_fit(plan, owner, np.array([product.k for product in products], np.int64)):
        added = _added_by_xla(operands, sums, epilogues, dtype, precision, planner, platform, device)
        return list(added), list(targets)

    # Which array is which: that of an operand, or a target's.
    written = sorted({x.window.array for x in placed if x.window is not None})
    bases = {}
    for index in written:
        base, windows = targets[index], [x.window for x in placed if x.window is not None]
        layouts = tuple(window.layout for window in windows if window.array == index)
        if base is None and not covers(layouts, int(np.prod(target_shapes[index]))):
            base = jnp.zeros(target_shapes[index], dtype)
        if base is not None:
            bases[index] = base
    array_of = distinct([*(x.buffer if isinstance(x, View) else x for x in operands), *bases.values()])[1]
    array_of_base = dict(zip(bases, array_of[len(operands) :], strict=True))

    def key(use: _Use) -> Any:
        return ("array", array_of[use.operand]) if use.copy is None else use

    def key_of_source(x: _Placed) -> Any:
        """Where a target holds the source in the result's place, that's it: a call updates it."""
        assert x.source is not None
        operand, window = operands[x.source.operand], x.window
        layout = operand.layout if isinstance(operand, View) else dense_layout(operand.shape)
        if window is None or x.source.copy is not None or layout != window.layout:
            return key(x.source)
        is_there = array_of_base.get(window.array) == array_of[x.source.operand]
        return ("target", window.array) if is_there else key(x.source)

    biases = [None if e.bias is None else _Use(e.bias) for e in epilogues]
    arrays: dict[Any, jax.Array] = {}
    for use in itertools.chain(*(pair for x in placed for pair in x.pairs)):
        arrays.setdefault(key(use), _array(operands, use))
    num_factors = len(arrays)
    addends: dict[Any, jax.Array] = {}
    for x in placed:
        if x.source is not None:
            addends.setdefault(key_of_source(x), _array(operands, x.source))
    addends |= {("bias", key(use)): _array(operands, use) for use in biases if use is not None}
    addends |= {("target", index): base for index, base in bases.items()}
    scalars = {s[0]: dense(operands[s[0]]) for e in epilogues for s in (e.alpha, e.beta) if isinstance(s, tuple)}
    flat = [*arrays.values(), *addends.values(), *scalars.values()]
    factor_at, addend_at, scalar_at = (
        {name: first + place for place, name in enumerate(names)}
        for names, first in ((arrays, 0), (addends, num_factors), (scalars, num_factors + len(addends)))
    )
    results = [jax.ShapeDtypeStruct(x.shape, dtype) for x, at in zip(sums, placed, strict=True) if at.window is None]
    result_at, alone = {}, 0
    for index, x in enumerate(placed):
        result_at[index] = alone if x.window is None else len(results) + written.index(x.window.array)
        alone += x.window is None
    results += [jax.ShapeDtypeStruct(target_shapes[index], dtype) for index in written]

    buffers = [
        (factor_at[key(a)], factor_at[key(b)], len(flat) + result_at[index])
        for index, x in enumerate(placed)
        for a, b in x.pairs
    ]
    table = problem_table(products, buffers)

    def scalar(value: Any) -> complex | tuple[int, int]:
        return (scalar_at[value[0]], value[1]) if isinstance(value, tuple) else value

    finishing = [
        EpilogueAddress(
            scalar(e.alpha),
            scalar(e.beta),
            None if x.source is None else addend_at[key_of_source(x)],
            None if bias is None else addend_at["bias", key(bias)],
            e.activation,
        )
        for x, e, bias in zip(placed, epilogues, biases, strict=bool(epilogues))
    ]
    epilogue_rows = epilogue_table([finishing[index] for index in owner.tolist()] if finishing else [], products)
    descriptors = pack(plan, table, epilogue_rows, owner)

    # Results that take their source's place, unless the call reads it twice. XLA copies one that is needed later.
    reads = Counter(name for name in (*arrays, *(name[1] for name in addends if name[0] == "bias")))
    reads.update(key_of_source(x) for x in placed if x.source is not None)
    reads.update(("array", array) for array in array_of_base.values())
    aliases = {
        addend_at[key_of_source(x)]: result_at[index]
        for index, x in enumerate(placed)
        if x.source is not None and x.window is None and x.source.copy is None
        if reads[key(x.source)] == 1 and not isinstance(operands[x.source.operand], View)
    }
    first_target = len(results) - len(written)
    aliases |= {
        addend_at["target", index]: first_target + place for place, index in enumerate(written) if index in bases
    }
    workspace = workspace_bytes(platform, len(flat) + len(results), descriptors.num_sums, accumulator(dtype))
    if workspace:
        results.append(jax.ShapeDtypeStruct((workspace // 4,), np.int32))
    values: Any = jax.ffi.ffi_call(
        backends.TARGET_NAME,
        results,
        input_output_aliases={1 + operand: result for operand, result in aliases.items()},  # descriptors come first
    )(
        jnp.asarray(descriptors.words),
        *flat,
        catalogue=np.int64(catalogue_hash()),
        kind=np.int64(KINDS.index(kind)),
        problems=descriptors.problems,
        epilogues=descriptors.epilogues,
        launches=descriptors.launches,
        num_factors=np.int64(num_factors),
        num_addends=np.int64(len(addends)),
        num_runs=np.int64(descriptors.num_runs),
        num_tiles=np.int64(descriptors.num_tiles),
        num_blocks=np.int64(descriptors.num_blocks),
        num_splits=np.int64(descriptors.num_splits),
        num_sums=np.int64(descriptors.num_sums),
    )
    new_targets = list(targets)
    for place, index in enumerate(written):
        new_targets[index] = values[first_target + place]
    return [values[result_at[i]] if x.window is None else None for i, x in enumerate(placed)], new_targets


def _place(operands: Sequence[Operand], of_sum: Sum) -> _Placed:
    """The sum as descriptors can say it, with as few copies as that takes."""
    epilogue, window, batch = of_sum.epilogue or Epilogue(), of_sum.window, of_sum.shape[:-2]
    bias = None if epilogue.bias is None else dense_layout(operands[epilogue.bias].shape)

    def layout(use: _Use) -> Layout:
        x = operands[use.operand]
        if use.copy is not None:
            return dense_layout(use.copy)
        return x.layout if isinstance(x, View) else dense_layout(x.shape)

    def in_place(index: int) -> _Use:
        return _Use(index)

    def copied(index: int) -> _Use:
        return _Use(index, operands[index].shape) if isinstance(operands[index], View) else _Use(index)

    def broadcast(index: int) -> _Use:
        shape = (*batch, *operands[index].shape[-2:])
        return copied(index) if shape == operands[index].shape else _Use(index, shape)

    for of_factor, to in ((in_place, window), (copied, window), (broadcast, window), (broadcast, None)):
        pairs = [(of_factor(term.lhs), of_factor(term.rhs)) for term in of_sum.terms]
        of_source = copied if to is not window else in_place
        source = None if epilogue.source is None else of_source(epilogue.source)
        group = addresses(
            tuple(factors(layout(a), layout(b), term) for (a, b), term in zip(pairs, of_sum.terms, strict=True)),
            dense_layout(of_sum.shape) if to is None else to.layout,
            None if source is None else layout(source),
            bias,
        )
        if group is not None:
            break
    assert group is not None, "descriptors can say what is dense"
    products = [product for _, product in group.products]

    def transposed(side: int) -> bool:
        uses = [(term[side], getattr(term, ("transpose_a", "transpose_b")[side])) for term in of_sum.terms]
        if any(isinstance(operands[index], View) for index, _ in uses):  # flags say nothing of how a view lies
            return all(x.row_stride < x.col_stride for x in ((p.a, p.b)[side] for p in products))
        return all(flag for _, flag in uses)

    symmetric = not group.is_cut and all(term.symmetric for term in of_sum.terms)
    first, depth = products[0], sum(product.k for product in products)
    problem = Problem(first.m, first.n, depth, first.batch, transposed(0), transposed(1), symmetric)
    return _Placed(products, [pairs[index] for index, _ in group.products], to, source, problem)


def _array(operands: Sequence[Operand], use: _Use) -> jax.Array:
    x = operands[use.operand]
    if use.copy is None:
        return x.buffer if isinstance(x, View) else x
    x = dense(x)
    return x if x.shape == use.copy else jnp.broadcast_to(x, use.copy)


def _added_by_xla(
    operands: Sequence[Operand], sums: Sequence[Sum], epilogues: Sequence[Epilogue], dtype: Any, *options: Any
) -> list[jax.Array]:
    """`kernel_call` of so many tiles that they are not described one by one: each product by itself, wide."""
    alone = [
        Sum([term._replace(symmetric=term.symmetric and len(x.terms) == 1)], x.shape, None, None)
        for x in sums
        for term in x.terms
    ]
    values: Any = iter(kernel_call(operands, alone, accumulator(dtype), (), (), *options)[0])
    totals: list[jax.Array] = [functools.reduce(jnp.add, [next(values) for _ in x.terms]) for x in sums]
    if epilogues:
        return reference.finish(totals, operands, epilogues, [dtype] * len(sums))
    return [total.astype(dtype) for total in totals]
