"""Lowers the primitive to one custom call for each dtype, and to XLA where there is no kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_vbgemm._src import backends, compat
from jax_vbgemm._src.arithmetic import arithmetic_of
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.kernel_call import kernel_call
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.placement import Sum
from jax_vbgemm._src.matmul.primitive import (
    Epilogue,
    Sizes,
    Target,
    Term,
    Window,
    batched_matmul_p,
    sizes_of,
    windows_in_bases,
    windows_of,
)
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import dense
from jax_vbgemm._src.planner import Auto, DeviceSpec
from jax_vbgemm._src.problem import LARGEST_SIZE


def _lower(platform: str, ctx: Any, *operands: Any, implementation: str | None, **params: Any) -> Any:
    backend = backends.BACKENDS[platform]
    if implementation == "xla":
        rule = _xla_form
    # symbolic sizes of jax.export, for which no plan can be made
    elif not all(compat.is_static(aval.shape) for aval in ctx.avals_in):
        if implementation == "kernel":
            raise NotImplementedError("batched_matmul: implementation='kernel', but kernels need static shapes")
        rule = _xla_form
    elif backend.module is not None or compat.is_export(ctx):
        # An exported program may run on a machine that has the backend, even if this machine lacks it.
        rule = partial(_kernel_form, platform=platform, implementation=implementation)
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
    read = windows_in_bases(reads, targets)
    return reference.put(values, writes, targets, arrays, read) if writes else values


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
    implementation: str | None,
) -> list[jax.Array]:
    """The form with kernels: one kernel call for each pair of operand dtypes, epilogues included.

    XLA computes the products for which there is no kernel, and adds up the parts of a sum that has several dtypes. It
    also computes a call of few outer products on a CPU, unless an implementation or a planner is given.
    """
    operands = windows_of(arrays, reads)
    device = backends.planning_device(platform)
    shapes, parts = _parts_of_sums(operands, terms, out_dtypes, precision, platform, strict=implementation == "kernel")
    if implementation is None and planner == Auto() and not writes and _are_faster_by_xla(parts, device):
        for part in chain.from_iterable(parts):
            part.dtypes = None
    # A kernel applies the epilogue and rounds where the whole sum is one part. Where XLA adds parts or applies the
    # epilogue, the parts are in the accumulator's dtype until then.
    finished = [len(of_out) == 1 and (of_out[0].dtypes is not None or not epilogues) for of_out in parts]
    calls: dict[tuple[Any, Any, bool], list[tuple[int, _Part]]] = {}
    for out, of_out in enumerate(parts):
        dtype = out_dtypes[out] if finished[out] else accumulator(out_dtypes[out])
        for part in of_out:
            if len(of_out) > 1:  # the caller guarantees symmetry of the whole sum, not of its parts
                part.terms = [term._replace(symmetric=False) for term in part.terms]
            if part.dtypes is None:
                (term,) = part.terms
                lhs, rhs = dense(operands[term.lhs]), dense(operands[term.rhs])
                part.value = reference.multiply(lhs, rhs, term, dtype, precision)
            else:
                calls.setdefault((part.dtypes, dtype, bool(epilogues) and finished[out]), []).append((out, part))
    written = [None if target.base is None else arrays[target.base] for target in targets]
    for (_, dtype, finishing), members in calls.items():
        sums = [
            Sum(part.terms, shapes[out], epilogues[out] if finishing else None,
                writes[out] if writes and finished[out] else None)
            for out, part in members
        ]  # fmt: skip
        values, written = kernel_call(
            operands, sums, dtype, written, [target.shape for target in targets], precision, planner, platform, device
        )
        for (_, part), value in zip(members, values, strict=True):
            part.value = value

    results = [
        _total(of_out, shape, dtype, operands, epilogues[out] if epilogues and not finished[out] else None)
        for out, (of_out, shape, dtype) in enumerate(zip(parts, shapes, out_dtypes, strict=True))
    ]
    if not writes:
        return results
    rest = [(window, value) for window, value in zip(writes, results, strict=True) if value is not None]
    bases = [None if array is None else index for index, array in enumerate(written)]
    wanted = [Target(target.shape, base) for target, base in zip(targets, bases, strict=True)]
    read = windows_in_bases(reads, targets)
    return reference.put([value for _, value in rest], [window for window, _ in rest], wanted, written, read)


@dataclass
class _Part:
    """A part of a sum: the products that one kernel call adds up, or one product that XLA computes."""

    terms: list[Term]
    dtypes: tuple[Any, Any] | None  # of both operands; None: XLA computes the product
    depth: int  # the total K of the products
    value: Any = None


def _parts_of_sums(
    operands: Sequence[Any],
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    precision: Any,
    platform: str,
    strict: bool,
) -> tuple[list[Shape], list[list[_Part]]]:
    """The shape of each result, and the parts of its sum, without products that have no elements or no depth.

    Raises NotImplementedError for a product without a kernel if `strict`.
    """
    kinds = backends.BACKENDS[platform].kinds
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
    return shapes, parts


def _are_faster_by_xla(parts: Sequence[Sequence[_Part]], device: DeviceSpec) -> bool:
    """Whether the results are few, and single products of a K that the device's rules leave to XLA."""
    rules = device.core_rules
    if rules is None or len(parts) > rules.xla_products:
        return False
    return all(sum(part.depth for part in of_out) <= rules.xla_k for of_out in parts)


def _total(parts: Sequence[_Part], shape: Shape, dtype: Any, operands: Sequence[Any], epilogue: Epilogue | None) -> Any:
    """A result as the sum of its parts, with an epilogue that no kernel has applied; None where a kernel has written it
    into its window."""
    if parts and parts[0].value is None:
        return None
    nothing = jnp.zeros(shape, accumulator(dtype))
    value = functools.reduce(jnp.add, [part.value for part in parts]) if parts else nothing
    if epilogue is not None:
        (value,) = reference.finish([value], operands, [epilogue], [dtype])
    return value if value.dtype == dtype else value.astype(dtype)


def _no_kernel(lhs: Any, rhs: Any, dtype: Any, sizes: Sizes, precision: Any, kinds: tuple[str, ...]) -> str | None:
    """Why XLA has to compute this product; None where a kernel can."""
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


for _platform in backends.BACKENDS:
    mlir.register_lowering(batched_matmul_p, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(batched_matmul_p, _lower_elsewhere)
