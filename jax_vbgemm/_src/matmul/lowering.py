"""Lowers the primitive to one custom call for each dtype, and to XLA if there is no kernel."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.kernel_call import kernel_call
from jax_vbgemm._src.matmul.placement import Sum
from jax_vbgemm._src.matmul.primitive import Batched, Target, TermSizes, batched_matmul_p, sizes_of
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import dense
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.arithmetic import arithmetic_of
from jax_vbgemm._src.planner import Auto, DeviceSpec
from jax_vbgemm._src.problem import LARGEST_SIZE
from jax_vbgemm._src.util import compat


def _lower(platform: str, ctx: Any, *operands: Any, batched: Batched) -> Any:
    backend = backends.BACKENDS[platform]
    rule = _xla_form
    why = None  # there is no kernel
    if not all(compat.is_static(aval.shape) for aval in ctx.avals_in):
        why = "kernels need static shapes"  # symbolic sizes of jax.export, for which no plan can be made
    elif backend.module is None and not compat.is_export(ctx):
        # An exported program may run on a machine that has the backend, even if this machine lacks it.
        why = f"the {platform} backend is {backend.absent}"
    elif batched.implementation != "xla":
        rule = partial(_kernel_form, platform=platform)
    return _lowered(rule, why, ctx, operands, batched)


def _lower_elsewhere(ctx: Any, *operands: Any, batched: Batched) -> Any:
    why = f"there is no kernel for {ctx.module_context.platforms}"
    return _lowered(_xla_form, why, ctx, operands, batched)


def _lowered(rule: Callable[..., list[Any]], why: str | None, ctx: Any, operands: Any, batched: Batched) -> Any:
    """The call by an XLA form. `why`: the reason why there is no kernel, which is an error if the caller asked for
    one."""
    if why and batched.implementation == "kernel":
        raise NotImplementedError(f"batched_matmul: implementation='kernel', but {why}")
    return mlir.lower_fun(partial(rule, batched=batched), multiple_results=True)(ctx, *operands)


def _xla_form(*arrays: jax.Array, batched: Batched) -> list[jax.Array]:
    values = reference.results(
        batched.operands(arrays), batched.terms, batched.out_dtypes, batched.epilogues, batched.precision
    )
    if not batched.writes:
        return values
    return reference.put(values, batched.writes, batched.targets, arrays, batched.windows_in_bases())


def _kernel_form(*arrays: jax.Array, batched: Batched, platform: str) -> list[jax.Array]:
    """The form with kernels: one kernel call for each pair of operand dtypes, epilogues included.

    XLA computes the products for which there is no kernel, and adds up the parts of a sum that has several dtypes. It
    also computes a call of few outer products on a CPU, unless an implementation or a planner is given.
    """
    operands, targets = batched.operands(arrays), batched.targets
    device = backends.planning_device(platform)
    sums = _sums_of_results(operands, batched, platform)
    is_free = batched.implementation is None and batched.planner == Auto() and not batched.writes
    if is_free and _are_faster_by_xla(sums, device):
        for x in chain.from_iterable(sums):
            x.dtypes = None
    # If a sum is one part, its kernel applies the epilogue and rounds. If XLA adds parts or applies the epilogue, the
    # parts stay in the accumulator's dtype until then.
    finished = [len(parts) == 1 and (parts[0].dtypes is not None or not batched.epilogues) for parts in sums]
    calls: dict[tuple[Any, Any, bool], list[Sum]] = {}
    for out, parts in enumerate(sums):
        dtype = batched.out_dtypes[out] if finished[out] else accumulator(batched.out_dtypes[out])
        for x in parts:
            if len(parts) > 1:  # the caller guarantees that the whole sum is symmetric, not its parts
                x.terms = [term._replace(symmetric=False) for term in x.terms]
            if x.dtypes is None:
                (term,) = x.terms
                lhs, rhs = dense(operands[term.lhs]), dense(operands[term.rhs])
                x.value = reference.multiply(lhs, rhs, term, dtype, batched.precision)
                continue
            if finished[out]:
                x.epilogue = batched.epilogues[out] if batched.epilogues else None
                x.window = batched.writes[out] if batched.writes else None
            calls.setdefault((x.dtypes, dtype, x.epilogue is not None), []).append(x)
    written = [None if target.base is None else arrays[target.base] for target in targets]
    for (_, dtype, _), members in calls.items():
        values, written = kernel_call(operands, members, dtype, written, batched, platform, device)
        for x, value in zip(members, values, strict=True):
            x.value = value

    results = [_total(out, parts, operands, batched, finished[out]) for out, parts in enumerate(sums)]
    if not batched.writes:
        return results
    rest = [(window, value) for window, value in zip(batched.writes, results, strict=True) if value is not None]
    bases = [None if array is None else index for index, array in enumerate(written)]
    wanted = [Target(target.shape, base) for target, base in zip(targets, bases, strict=True)]
    read = batched.windows_in_bases()
    return reference.put([value for _, value in rest], [window for window, _ in rest], wanted, written, read)


def _sums_of_results(operands: Sequence[Any], batched: Batched, platform: str) -> list[list[Sum]]:
    """The partial sums of each result, without products that have no elements or K = 0.

    Raises NotImplementedError for a product without a kernel where the caller asks for kernels.
    """
    kinds = backends.BACKENDS[platform].kinds
    sums: list[list[Sum]] = [[] for _ in batched.out_dtypes]
    for term in batched.terms:
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        sizes = sizes_of(lhs.shape, rhs.shape, term)
        why = _no_kernel(lhs, rhs, batched.out_dtypes[term.out], sizes, batched.precision, kinds)
        if math.prod(sizes.result) * sizes.k == 0:
            continue
        if batched.implementation == "kernel" and why:
            raise NotImplementedError(f"batched_matmul: implementation='kernel', but {why}")
        dtypes = (lhs.dtype, rhs.dtype)
        for x in sums[term.out]:
            if x.dtypes == dtypes and not why and x.depth + sizes.k <= LARGEST_SIZE:
                x.terms.append(term)
                x.depth += sizes.k
                break
        else:
            sums[term.out].append(Sum([term], sizes.result, None if why else dtypes, sizes.k))
    return sums


def _are_faster_by_xla(sums: Sequence[Sequence[Sum]], device: DeviceSpec) -> bool:
    """Whether there are few results, each a single product with a K that the device's rules leave to XLA."""
    rules = device.core_rules
    if rules is None or len(sums) > rules.xla_products:
        return False
    return all(sum(part.depth for part in parts) <= rules.xla_k for parts in sums)


def _total(out: int, parts: Sequence[Sum], operands: Sequence[Any], batched: Batched, finished: bool) -> Any:
    """A result as the sum of its parts, with its epilogue where no kernel has `finished` it; None if a kernel has
    written it into its window."""
    dtype = batched.out_dtypes[out]
    if parts and parts[0].value is None:
        return None
    if parts:
        value = functools.reduce(jnp.add, [part.value for part in parts])
    else:
        term = next(term for term in batched.terms if term.out == out)
        sizes = sizes_of(operands[term.lhs].shape, operands[term.rhs].shape, term)
        value = jnp.zeros(sizes.result, accumulator(dtype))
    if batched.epilogues and not finished:
        value = reference.finish(value, batched.epilogues[out], operands, dtype)
    return value if value.dtype == dtype else value.astype(dtype)


def _no_kernel(lhs: Any, rhs: Any, dtype: Any, sizes: TermSizes, precision: Any, kinds: tuple[str, ...]) -> str | None:
    """The reason why XLA has to compute this product; None if a kernel can."""
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
