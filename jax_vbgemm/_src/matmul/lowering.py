"""From the primitive to one custom call a dtype, with the plan's descriptor arrays as constants of the program."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_vbgemm._core import catalogue_hash
from jax_vbgemm._src import backends, compat
from jax_vbgemm._src.arithmetic import arithmetic_of
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.descriptors import (
    KINDS,
    EpilogueAddress,
    address,
    epilogue_table,
    pack,
    problem_table,
    sums_fit,
    workspace_bytes,
)
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.matmul.primitive import (
    Epilogue,
    Scalar,
    Sizes,
    Target,
    Term,
    Window,
    batched_matmul_p,
    sizes_of,
    windows_of,
)
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import dense
from jax_vbgemm._src.planner import DeviceSpec, kind_of, plan_problems
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem

T = TypeVar("T", bound=Hashable)


def _lower(platform: str, ctx: Any, *operands: Any, implementation: str | None, **params: Any) -> Any:
    backend = backends.BACKENDS[platform]
    if implementation == "xla":
        rule = _xla_form
    elif not all(compat.is_static(aval.shape) for aval in ctx.avals_in):  # jax.export: nothing can be planned
        if implementation == "kernel":
            raise NotImplementedError("batched_matmul: implementation='kernel', but kernels need static shapes")
        rule = _xla_form
    elif backend.module is not None or compat.is_export(ctx):
        # An exported program may run where the backend is present; there it is this call that counts.
        rule = partial(_kernel_form, platform=platform, strict=implementation == "kernel")
    elif implementation == "kernel":
        raise NotImplementedError(
            f"batched_matmul: implementation='kernel', but the {platform} backend is {backend.absent}"
        )
    else:
        rule = _xla_form
    return mlir.lower_fun(partial(rule, **params), multiple_results=True)(ctx, *operands)


def _lower_elsewhere(ctx: Any, *operands: Any, implementation: str | None, **params: Any) -> Any:
    if implementation == "kernel":
        raise NotImplementedError(
            f"batched_matmul: implementation='kernel', but there is no kernel for {ctx.module_context.platforms}"
        )
    return mlir.lower_fun(partial(_xla_form, **params), multiple_results=True)(ctx, *operands)


def _xla_form(
    *arrays: jax.Array,
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    epilogues: Sequence[Epilogue],
    reads: Sequence[Window],
    writes: Sequence[Window],
    targets: Sequence[Target],
    precision: Any,
    planner: Any,
) -> list[jax.Array]:
    del planner
    values = reference.results(windows_of(arrays, reads), terms, out_dtypes, epilogues, precision)
    return reference.put(values, writes, targets, arrays) if writes else values


def _kernel_form(
    *arrays: jax.Array,
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    epilogues: Sequence[Epilogue],
    reads: Sequence[Window],
    writes: Sequence[Window],
    targets: Sequence[Target],
    precision: Any,
    planner: Any,
    platform: str,
    strict: bool,
) -> list[jax.Array]:
    """Each sum by one kernel call a dtype pair, its epilogue included.

    What no kernel multiplies, and what is left of a sum of several dtypes, is XLA's work.
    """
    operands = [dense(x) for x in windows_of(arrays, reads)]
    kinds = backends.BACKENDS[platform].kinds
    device = backends.planning_device(platform)
    shapes: list[Shape] = [()] * len(out_dtypes)
    parts: list[list[_Part]] = [[] for _ in out_dtypes]
    for term in terms:
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        sizes = sizes_of(lhs.shape, rhs.shape, term)
        shapes[term.out] = (*sizes.batch, sizes.m, sizes.n)
        why = _no_kernel(lhs, rhs, out_dtypes[term.out], sizes, precision, kinds)
        if math.prod(shapes[term.out]) * sizes.k == 0:
            continue
        if strict and why:
            raise NotImplementedError(f"batched_matmul: implementation='kernel', but {why}")
        dtypes = (lhs.dtype, rhs.dtype)
        for part in parts[term.out]:
            if part.dtypes == dtypes and not why and part.depth + sizes.k <= LARGEST_SIZE:
                part.terms.append(term)
                part.depth += sizes.k
                break
        else:
            parts[term.out].append(_Part([term], None if why else dtypes, sizes.k))

    # The kernel finishes what is one sum; what is added to or finished later stays wide until then.
    finished = [len(of_out) == 1 and (of_out[0].dtypes is not None or not epilogues) for of_out in parts]
    calls: dict[tuple[Any, Any, bool], list[tuple[int, _Part]]] = {}
    for out, of_out in enumerate(parts):
        dtype = out_dtypes[out] if finished[out] else accumulator(out_dtypes[out])
        for part in of_out:
            if len(of_out) > 1:  # the caller's word holds for the whole
                part.terms = [term._replace(symmetric=False) for term in part.terms]
            if part.dtypes is None:
                (term,) = part.terms
                part.value = reference.multiply(operands[term.lhs], operands[term.rhs], term, dtype, precision)
            else:
                calls.setdefault((part.dtypes, dtype, bool(epilogues) and finished[out]), []).append((out, part))
    for (_, dtype, finishing), members in calls.items():
        sums = [part.terms for _, part in members]
        call_epilogues = [epilogues[out] for out, _ in members] if finishing else []
        values = _call(operands, sums, call_epilogues, dtype, precision, planner, platform, device)
        for (_, part), value in zip(members, values, strict=True):
            part.value = value

    results = []
    for out, (of_out, dtype) in enumerate(zip(parts, out_dtypes, strict=True)):
        nothing = jnp.zeros(shapes[out], accumulator(dtype))
        value = functools.reduce(jnp.add, [part.value for part in of_out]) if of_out else nothing
        if epilogues and not finished[out]:
            (value,) = reference.finish([value], operands, [epilogues[out]], [dtype])
        results.append(value if value.dtype == dtype else value.astype(dtype))
    return reference.put(results, writes, targets, arrays) if writes else results


@dataclass
class _Part:
    """Products of one sum that one kernel call adds up, or one that XLA multiplies."""

    terms: list[Term]
    dtypes: tuple[Any, Any] | None  # of both operands; None: XLA's
    depth: int  # all their K
    value: Any = None


def _no_kernel(lhs: Any, rhs: Any, dtype: Any, sizes: Sizes, precision: Any, kinds: tuple[str, ...]) -> str | None:
    """Why XLA has to do this product, None where the kernel can."""
    arithmetic = arithmetic_of(lhs.dtype.name, rhs.dtype.name)
    if arithmetic is None or np.dtype(dtype).name not in arithmetic.results:
        return f"there is no kernel for {lhs.dtype} x {rhs.dtype} -> {dtype}"
    if arithmetic.name not in kinds:
        return f"there is no kernel for {arithmetic.name} on this platform (there is for {', '.join(kinds)})"
    if isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm):
        return f"kernels don't implement the dot algorithm {precision}"
    if max(sizes.m, sizes.n, sizes.k, math.prod(sizes.batch)) > LARGEST_SIZE:
        return f"a dimension exceeds {LARGEST_SIZE}"
    return None


def _call(
    operands: Sequence[jax.Array],
    sums: Sequence[Sequence[Term]],
    epilogues: Sequence[Epilogue],
    dtype: Any,
    precision: Any,
    planner: Any,
    platform: str,
    device: DeviceSpec,
) -> list[jax.Array]:
    """One custom call for sums of terms of one arithmetic and one result dtype, with all their epilogues or none.

    To the planner a sum is one product with all its terms' K. The call's operands are the factors, then sources and
    biases, then alphas and betas.
    """
    sizes: list[Sizes] = []
    addresses, problems, pairs = [], [], []  # pairs: each product's operands, in the shapes that the call takes
    for terms in sums:
        first = len(sizes)
        for term in terms:
            lhs, rhs = operands[term.lhs].shape, operands[term.rhs].shape
            size = sizes_of(lhs, rhs, term)
            at = address(lhs, rhs, term, size)
            if at is None:  # too deep a broadcast for two batch strides
                lhs, rhs = ((*size.batch, *shape[-2:]) for shape in (lhs, rhs))
                at = address(lhs, rhs, term, size)
                assert at is not None
            sizes.append(size)
            addresses.append(at)
            pairs.append(((term.lhs, lhs), (term.rhs, rhs)))
        m, n, k = sizes[first].m, sizes[first].n, sum(size.k for size in sizes[first:])
        flags = (all(getattr(term, flag) for term in terms) for flag in ("transpose_a", "transpose_b", "symmetric"))
        problems.append(Problem(m, n, k, addresses[first].batch, *flags))
    owner = np.repeat(np.arange(len(sums)), [len(terms) for terms in sums])
    lhs_dtype, rhs_dtype = (operands[index].dtype.name for index in sums[0][0][:2])
    kind = kind_of(lhs_dtype, precision_name(precision), device, rhs_dtype)
    plan = plan_problems(tuple(problems), kind, device, planner)
    depth = np.array([size.k for size in sizes], np.int64)
    if len(owner) > len(sums) and not sums_fit(plan, owner, depth):
        return _added_by_xla(operands, sums, epilogues, dtype, precision, planner, platform, device)

    factors = _places((use for pair in pairs for use in pair), 0)
    addends = _places((i for e in epilogues for i in (e.source, e.bias) if i is not None), len(factors))
    scalars = _places(
        (x[0] for e in epilogues for x in (e.alpha, e.beta) if isinstance(x, tuple)), len(factors) + len(addends)
    )
    flat = [_broadcast(operands[index], shape) for index, shape in factors]
    flat += [operands[index] for index in (*addends, *scalars)]
    places = [(factors[a], factors[b], len(flat) + out) for (a, b), out in zip(pairs, owner.tolist(), strict=True)]
    table = problem_table(sizes, addresses, places)

    def scalar(value: Scalar) -> complex | tuple[int, int]:
        return (scalars[value[0]], value[1]) if isinstance(value, tuple) else value

    def addend(index: int | None) -> tuple[int, Shape] | None:
        return None if index is None else (addends[index], operands[index].shape)

    finishing = epilogue_table(
        [
            EpilogueAddress(scalar(e.alpha), scalar(e.beta), addend(e.source), addend(e.bias), e.activation)
            for e in ([epilogues[out] for out in owner.tolist()] if epilogues else [])
        ],
        sizes,
        addresses,
    )
    descriptors = pack(plan, table, finishing, owner)
    results = [
        jax.ShapeDtypeStruct((*sizes[row].batch, sizes[row].m, sizes[row].n), dtype)
        for row in np.searchsorted(owner, np.arange(len(sums))).tolist()
    ]
    workspace = workspace_bytes(platform, len(flat) + len(results), descriptors.num_sums, accumulator(dtype))
    if workspace:
        results.append(jax.ShapeDtypeStruct((workspace // 4,), np.int32))
    values = jax.ffi.ffi_call(
        backends.TARGET_NAME, results, input_output_aliases=_in_place(epilogues, factors, addends)
    )(
        jnp.asarray(descriptors.words),
        *flat,
        catalogue=np.int64(catalogue_hash()),
        kind=np.int64(KINDS.index(kind)),
        problems=descriptors.problems,
        epilogues=descriptors.epilogues,
        launches=descriptors.launches,
        num_factors=np.int64(len(factors)),
        num_addends=np.int64(len(addends)),
        num_runs=np.int64(descriptors.num_runs),
        num_tiles=np.int64(descriptors.num_tiles),
        num_blocks=np.int64(descriptors.num_blocks),
        num_splits=np.int64(descriptors.num_splits),
        num_sums=np.int64(descriptors.num_sums),
    )
    return list(values[: len(sums)])


def _added_by_xla(
    operands: Sequence[jax.Array],
    sums: Sequence[Sequence[Term]],
    epilogues: Sequence[Epilogue],
    dtype: Any,
    *options: Any,
) -> list[jax.Array]:
    """`_call` of so many tiles that they are not described one by one: each product by itself, wide."""
    alone = [[term._replace(symmetric=term.symmetric and len(terms) == 1)] for terms in sums for term in terms]
    products = iter(_call(operands, alone, (), accumulator(dtype), *options))
    totals = [functools.reduce(jnp.add, [next(products) for _ in terms]) for terms in sums]
    if epilogues:
        return reference.finish(totals, operands, epilogues, [dtype] * len(sums))
    return [total.astype(dtype) for total in totals]


def _places(uses: Iterable[T], first: int) -> dict[T, int]:
    """What is used, once and in order of first use, and its place among the call's operands, from `first` on."""
    return {use: first + place for place, use in enumerate(dict.fromkeys(uses))}


def _broadcast(array: jax.Array, shape: Shape) -> jax.Array:
    return array if array.shape == shape else jnp.broadcast_to(array, shape)


def _in_place(
    epilogues: Sequence[Epilogue], factors: Iterable[tuple[int, Shape]], addends: Mapping[int, int]
) -> dict[int, int]:
    """Results that take their source's place, unless the call reads it twice. XLA copies one that is needed later."""
    used = Counter(index for index, _ in factors)
    used.update(index for epilogue in epilogues for index in (epilogue.source, epilogue.bias) if index is not None)
    return {
        1 + addends[epilogue.source]: out  # the descriptors come first
        for out, epilogue in enumerate(epilogues)
        if epilogue.source is not None and used[epilogue.source] == 1
    }


for _platform in backends.BACKENDS:
    mlir.register_lowering(batched_matmul_p, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(batched_matmul_p, _lower_elsewhere)
