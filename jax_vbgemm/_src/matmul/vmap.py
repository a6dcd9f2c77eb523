"""The primitive's rule for vmap: the mapped axis becomes the first batch dimension, which a kernel receives as a count
and a stride."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.contract import contract
from jax_vbgemm._src.matmul.primitive import Batched, Target, Window, sizes_of, target_of
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.util import compat


def batch(arrays: Sequence[Any], dims: Sequence[Any], *, batched: Batched) -> tuple[list[Any], list[Any]]:
    """The primitive's vmap rule; a dim is None for an array that is not mapped."""
    mapped = [dim is not None for dim in dims]
    if batched.reads:
        mapped = [mapped[window.array] for window in batched.reads]
    apart = _unfused_epilogues(mapped, batched)
    if any(apart):
        return _batch_with_unfused_epilogue(apart, arrays, dims, batched)

    arrays = [compat.replicated(x) if dim is not None else x for x, dim in zip(arrays, dims, strict=True)]
    arrays = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(arrays, dims, strict=True)]
    size = next(x.shape[0] for x, dim in zip(arrays, dims, strict=True) if dim is not None)
    values: list[Any] = [
        View.with_layout(arrays[w.array], w.layout.batched(size, arrays[w.array].size // size) if yes else w.layout)
        for w, yes in zip(batched.reads, mapped, strict=True)
    ] if batched.reads else arrays  # fmt: skip
    shapes = [x.shape[1:] if yes else x.shape for x, yes in zip(values, mapped, strict=True)]
    out_mapped = _mapped_by_factors(mapped, batched)
    out_rank = [0] * len(batched.out_dtypes)
    for term in batched.terms:
        out_rank[term.out] = len(sizes_of(shapes[term.lhs], shapes[term.rhs], term).batch) + 2
    for out, epilogue in enumerate(batched.epilogues):
        out_mapped[out] |= any(mapped[index] for index in epilogue.operands())
    target_mapped = [target.base is not None and dims[target.base] is not None for target in batched.targets]
    for window, yes in zip(batched.writes, out_mapped, strict=bool(batched.writes)):
        target_mapped[window.array] |= yes
    out_mapped = [target_mapped[window.array] for window in batched.writes] or out_mapped

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

    terms, epilogues = [], []
    for term in batched.terms:
        stretch = out_mapped[term.out] and not (mapped[term.lhs] or mapped[term.rhs])
        rank = out_rank[term.out]
        terms.append(term._replace(lhs=factor(term.lhs, rank, stretch), rhs=factor(term.rhs, rank)))
    for out, epilogue in enumerate(batched.epilogues):
        at = {index: factor(index, out_rank[out]) for index in epilogue.operands() if index != epilogue.source}
        if epilogue.source is not None:
            at[epilogue.source] = factor(epilogue.source, out_rank[out], stretch=out_mapped[out])
        epilogues.append(epilogue.renumbered(at))
    writes, targets = _mapped_targets(size, arrays, dims, batched, target_mapped, factors)
    form = batched._replace(
        terms=tuple(terms), epilogues=tuple(epilogues), reads=(), writes=tuple(writes), targets=tuple(targets)
    )
    return contract(factors, form), [0 if yes else None for yes in (target_mapped or out_mapped)]


def _mapped_by_factors(mapped: Sequence[bool], batched: Batched) -> list[bool]:
    """Whether each result has a factor that is mapped."""
    found = [False] * len(batched.out_dtypes)
    for term in batched.terms:
        found[term.out] |= mapped[term.lhs] or mapped[term.rhs]
    return found


def _unfused_epilogues(mapped: Sequence[bool], batched: Batched) -> list[bool]:
    """For each result, whether XLA applies the epilogue under vmap instead of the kernel.

    A kernel has one alpha and one beta for a whole problem, not one for each batch entry. And if C or a bias is mapped
    but no factor is, one product serves all batch entries.
    """
    product_is = _mapped_by_factors(mapped, batched)
    return [
        any(mapped[index] for index in (epilogue.scalars if product_is[out] else epilogue.operands()))
        for out, epilogue in enumerate(batched.epilogues)
    ]


def _batch_with_unfused_epilogue(
    apart: Sequence[bool], arrays: Sequence[Any], dims: Sequence[Any], batched: Batched
) -> tuple[list[Any], list[Any]]:
    """The vmap rule where XLA applies the epilogues of the results `apart`, to sums in the accumulator's dtype, and
    writes all results into their targets."""
    results = list(zip(batched.epilogues, batched.out_dtypes, apart, strict=True))
    sums = batched._replace(
        out_dtypes=tuple(accumulator(dtype) if yes else dtype for _, dtype, yes in results),
        epilogues=tuple(Epilogue() if yes else epilogue for epilogue, _, yes in results),
        writes=(),
        targets=(),
    )
    values, out_dims = batch(arrays, dims, batched=sums)

    def finish(totals: Any, *arrays: Any) -> Any:
        operands = batched.operands(arrays)
        values = [
            reference.finish(total, epilogue, operands, dtype) if yes else total
            for total, (epilogue, dtype, yes) in zip(totals, results, strict=True)
        ]
        if not batched.writes:
            return values
        return reference.put(values, batched.writes, batched.targets, arrays, batched.windows_in_bases())

    finished = jax.vmap(finish, in_axes=(out_dims, *dims))(values, *arrays)
    return finished, [0] * len(finished)


def _mapped_targets(
    size: Any,
    arrays: Sequence[Any],
    dims: Sequence[Any],
    batched: Batched,
    is_mapped: Sequence[bool],
    factors: list[Any],
) -> tuple[list[Window], list[Target]]:
    """The windows and targets under vmap, if some targets are mapped; their bases become the last factors.

    A base that is not mapped, of a target that is, is broadcast. Mapped arrays have their mapped axis first.
    """
    writes = [
        window._replace(layout=window.layout.batched(size, math.prod(batched.targets[window.array].shape)))
        if is_mapped[window.array]
        else window
        for window in batched.writes
    ]
    targets = []
    for target, yes in zip(batched.targets, is_mapped, strict=True):
        base: Any = None if target.base is None else arrays[target.base]
        shape = (size, *target.shape) if yes else target.shape
        if target.base is not None and yes and dims[target.base] is None:
            base = jnp.broadcast_to(base, shape)
        targets.append(target_of(shape, base, factors))
    return writes, targets
