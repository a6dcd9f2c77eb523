"""From the primitive to one custom call a dtype, with the plan's descriptor arrays as constants of the program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_vbgemm import backends, compat, reference
from jax_vbgemm._core import catalogue_hash
from jax_vbgemm.descriptors import address, pack, problem_table
from jax_vbgemm.planner import DeviceSpec, plan_problems
from jax_vbgemm.primitive import Sizes, Term, batched_matmul_p, sizes_of
from jax_vbgemm.problem import LARGEST_SIZE, Problem
from jax_vbgemm.rules import accumulator

# Above this many pointers the GPU kernels take them from memory: csrc/gpu/launch.h.
MAX_PARAMETER_POINTERS = 4000


def _lower(platform: str, ctx: Any, *operands: Any, implementation: str | None, **params: Any) -> Any:
    backend = backends.BACKENDS[platform]
    if implementation == "xla":
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
    *operands: jax.Array, terms: Sequence[Term], out_dtypes: Sequence[Any], precision: Any, planner: Any
) -> list[jax.Array]:
    del planner
    return reference.products(operands, terms, out_dtypes, precision)


def _kernel_form(
    *operands: jax.Array,
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    precision: Any,
    planner: Any,
    platform: str,
    strict: bool,
) -> list[jax.Array]:
    """Each term a product in its own result: of one kernel call a dtype pair; then the sums."""
    dtypes = backends.BACKENDS[platform].dtypes
    device = backends.planning_device(platform)
    members = np.bincount([term.out for term in terms], minlength=len(out_dtypes))
    values: list[Any] = [None] * len(terms)
    calls: dict[tuple[Any, Any], list[int]] = {}
    for index, term in enumerate(terms):
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        sizes = sizes_of(lhs.shape, rhs.shape, term)
        # A lone product is rounded to its result's dtype by the kernel; members of a sum stay wide until it is done.
        dtype = out_dtypes[term.out] if members[term.out] == 1 else accumulator(out_dtypes[term.out])
        if math.prod(sizes.batch) * sizes.m * sizes.n * sizes.k == 0:
            values[index] = jnp.zeros((*sizes.batch, sizes.m, sizes.n), dtype)
        elif why := _no_kernel(lhs, rhs, dtype, sizes, precision, dtypes):
            if strict:
                raise NotImplementedError(f"batched_matmul: implementation='kernel', but {why}")
            values[index] = reference.multiply(lhs, rhs, term, dtype, precision)
        else:
            calls.setdefault((lhs.dtype, dtype), []).append(index)
    for (_, dtype), indices in calls.items():
        products = _call(operands, [terms[index] for index in indices], dtype, planner, platform, device)
        for index, value in zip(indices, products, strict=True):
            values[index] = value

    results: list[Any] = [None] * len(out_dtypes)
    for term, value in zip(terms, values, strict=True):
        results[term.out] = value if results[term.out] is None else results[term.out] + value
    return [
        result if result.dtype == dtype else result.astype(dtype)
        for result, dtype in zip(results, out_dtypes, strict=True)
    ]


def _no_kernel(lhs: Any, rhs: Any, dtype: Any, sizes: Sizes, precision: Any, dtypes: tuple[str, ...]) -> str | None:
    """Why XLA has to do this product, None where the kernel can."""
    if lhs.dtype != rhs.dtype or dtype not in (lhs.dtype, accumulator(lhs.dtype)):
        return f"there is no kernel for {lhs.dtype} x {rhs.dtype} -> {dtype}"
    if lhs.dtype.name not in dtypes:
        return f"there is no kernel for {lhs.dtype} on this platform (there is for {', '.join(dtypes)})"
    if isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm):
        return f"kernels don't implement the dot algorithm {precision}"
    if max(sizes.m, sizes.n, sizes.k, math.prod(sizes.batch)) > LARGEST_SIZE:
        return f"a dimension exceeds {LARGEST_SIZE}"
    return None


def _call(
    operands: Sequence[jax.Array], terms: Sequence[Term], dtype: Any, planner: Any, platform: str, device: DeviceSpec
) -> list[jax.Array]:
    """One custom call for terms of one operand dtype and one result dtype."""
    flat: list[jax.Array] = []
    position: dict[int, int] = {}

    def use(operand: jax.Array) -> int:
        if id(operand) not in position:
            position[id(operand)] = len(flat)
            flat.append(operand)
        return position[id(operand)]

    sizes, addresses, factors, problems = [], [], [], []
    for term in terms:
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        size = sizes_of(lhs.shape, rhs.shape, term)
        at = address(lhs.shape, rhs.shape, term, size)
        if at is None:  # too deep a broadcast for two batch strides
            lhs, rhs = (jnp.broadcast_to(x, (*size.batch, *x.shape[-2:])) for x in (lhs, rhs))
            at = address(lhs.shape, rhs.shape, term, size)
            assert at is not None
        sizes.append(size)
        addresses.append(at)
        factors.append((use(lhs), use(rhs)))
        problems.append(Problem(size.m, size.n, size.k, at.batch, term.transpose_a, term.transpose_b))

    buffers = [(a, b, len(flat) + place) for place, (a, b) in enumerate(factors)]
    table = problem_table(sizes, addresses, buffers)
    plan = plan_problems(tuple(problems), flat[0].dtype.name, device, planner)
    descriptors = pack(plan, table)
    results = [jax.ShapeDtypeStruct((*size.batch, size.m, size.n), dtype) for size in sizes]
    if platform != "cpu" and len(flat) + len(results) > MAX_PARAMETER_POINTERS:
        results.append(
            jax.ShapeDtypeStruct((2 * (len(flat) + len(results)),), np.int32)
        )  # a workspace for the pointers
    values = jax.ffi.ffi_call(backends.TARGET_NAME, results)(
        jnp.asarray(descriptors.words),
        *flat,
        catalogue=np.int64(catalogue_hash()),
        problems=descriptors.problems,
        launches=descriptors.launches,
        num_runs=np.int64(descriptors.num_runs),
        num_tiles=np.int64(descriptors.num_tiles),
        num_blocks=np.int64(descriptors.num_blocks),
    )
    return list(values[: len(terms)])


for _platform in backends.BACKENDS:
    mlir.register_lowering(batched_matmul_p, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(batched_matmul_p, _lower_elsewhere)
