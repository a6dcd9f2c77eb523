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
    workspace_bytes,
)
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.matmul.primitive import Epilogue, Scalar, Shape, Sizes, Term, batched_matmul_p, sizes_of
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.planner import DeviceSpec, kind_of, plan_problems
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem


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
    *operands: jax.Array,
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    epilogues: Sequence[Epilogue],
    precision: Any,
    planner: Any,
) -> list[jax.Array]:
    del planner
    return reference.results(operands, terms, out_dtypes, epilogues, precision)


def _kernel_form(
    *operands: jax.Array,
    terms: Sequence[Term],
    out_dtypes: Sequence[Any],
    epilogues: Sequence[Epilogue],
    precision: Any,
    planner: Any,
    platform: str,
    strict: bool,
) -> list[jax.Array]:
    """Each term a product in its own result: of one kernel call a dtype pair; then the sums.

    A result of one term gets its epilogue in the kernel; the rest is elementwise work for XLA.
    """
    kinds = backends.BACKENDS[platform].kinds
    device = backends.planning_device(platform)
    members = np.bincount([term.out for term in terms], minlength=len(out_dtypes))
    values: list[Any] = [None] * len(terms)
    finished = [False] * len(out_dtypes)  # by the kernel
    calls: dict[tuple[Any, Any, Any, bool], list[int]] = {}
    for index, term in enumerate(terms):
        lhs, rhs = operands[term.lhs], operands[term.rhs]
        sizes = sizes_of(lhs.shape, rhs.shape, term)
        dtype, wide = out_dtypes[term.out], accumulator(out_dtypes[term.out])
        empty = math.prod(sizes.batch) * sizes.m * sizes.n * sizes.k == 0
        why = _no_kernel(lhs, rhs, dtype, sizes, precision, kinds)
        if strict and why and not empty:
            raise NotImplementedError(f"batched_matmul: implementation='kernel', but {why}")
        # The kernel finishes a lone product; what is added to or finished later stays wide until then.
        alone = members[term.out] == 1
        finished[term.out] = alone and (not epilogues or not (why or empty))
        dtype = dtype if finished[term.out] else wide
        if empty:
            values[index] = jnp.zeros((*sizes.batch, sizes.m, sizes.n), dtype)
        elif why:
            values[index] = reference.multiply(lhs, rhs, term, dtype, precision)
        else:
            calls.setdefault((lhs.dtype, rhs.dtype, dtype, bool(epilogues) and alone), []).append(index)
    # Of a sum the caller's word holds for the whole, not for its terms.
    terms = [term if members[term.out] == 1 else term._replace(symmetric=False) for term in terms]
    for (_, _, dtype, finishing), indices in calls.items():
        call_terms = [terms[index] for index in indices]
        call_epilogues = [epilogues[term.out] for term in call_terms] if finishing else []
        products = _call(operands, call_terms, call_epilogues, dtype, precision, planner, platform, device)
        for index, value in zip(indices, products, strict=True):
            values[index] = value

    results: list[Any] = [None] * len(out_dtypes)
    for term, value in zip(terms, values, strict=True):
        results[term.out] = value if results[term.out] is None else results[term.out] + value
    for out, epilogue in enumerate(epilogues):
        if not finished[out]:
            (results[out],) = reference.finish([results[out]], operands, [epilogue], [out_dtypes[out]])
    return [
        result if result.dtype == dtype else result.astype(dtype)
        for result, dtype in zip(results, out_dtypes, strict=True)
    ]


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
    terms: Sequence[Term],
    epilogues: Sequence[Epilogue],
    dtype: Any,
    precision: Any,
    planner: Any,
    platform: str,
    device: DeviceSpec,
) -> list[jax.Array]:
    """One custom call for terms of one arithmetic and one result dtype, with all their epilogues or none.

    Its operands are the factors, then sources and biases, then alphas and betas.
    """
    factors, addends, scalars = _Buffers(), _Buffers(), _Buffers()
    sizes, addresses, problems, factor_places = [], [], [], []
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
        factor_places.append((factors.place(lhs), factors.place(rhs)))
        problems.append(Problem(size.m, size.n, size.k, at.batch, term.transpose_a, term.transpose_b, term.symmetric))
    for epilogue in epilogues:
        for index in (epilogue.source, epilogue.bias):
            if index is not None:
                addends.place(operands[index])
        for scalar in (epilogue.alpha, epilogue.beta):
            if isinstance(scalar, tuple):
                scalars.place(operands[scalar[0]])

    first_addend, first_scalar = len(factors.arrays), len(factors.arrays) + len(addends.arrays)
    flat = [*factors.arrays, *addends.arrays, *scalars.arrays]
    table = problem_table(sizes, addresses, [(a, b, len(flat) + i) for i, (a, b) in enumerate(factor_places)])
    finishing = epilogue_table(
        [
            EpilogueAddress(
                alpha=scalars.scalar(epilogue.alpha, operands, first_scalar),
                beta=scalars.scalar(epilogue.beta, operands, first_scalar),
                source=addends.addend(epilogue.source, operands, first_addend),
                bias=addends.addend(epilogue.bias, operands, first_addend),
                activation=epilogue.activation,
            )
            for epilogue in epilogues
        ],
        sizes,
        addresses,
    )
    lhs_dtype, rhs_dtype = (operands[index].dtype.name for index in terms[0][:2])
    kind = kind_of(lhs_dtype, precision_name(precision), device, rhs_dtype)
    descriptors = pack(plan_problems(tuple(problems), kind, device, planner), table, finishing)
    results = [jax.ShapeDtypeStruct((*size.batch, size.m, size.n), dtype) for size in sizes]
    workspace = workspace_bytes(platform, len(flat) + len(results), descriptors.num_sums, accumulator(dtype))
    if workspace:
        results.append(jax.ShapeDtypeStruct((workspace // 4,), np.int32))
    values = jax.ffi.ffi_call(
        backends.TARGET_NAME, results, input_output_aliases=_in_place(epilogues, operands, factors, addends)
    )(
        jnp.asarray(descriptors.words),
        *flat,
        catalogue=np.int64(catalogue_hash()),
        kind=np.int64(KINDS.index(kind)),
        problems=descriptors.problems,
        epilogues=descriptors.epilogues,
        launches=descriptors.launches,
        num_factors=np.int64(first_addend),
        num_addends=np.int64(first_scalar - first_addend),
        num_runs=np.int64(descriptors.num_runs),
        num_tiles=np.int64(descriptors.num_tiles),
        num_blocks=np.int64(descriptors.num_blocks),
        num_splits=np.int64(descriptors.num_splits),
        num_sums=np.int64(descriptors.num_sums),
    )
    return list(values[: len(terms)])


class _Buffers:
    """Arrays in order of first use, each once."""

    def __init__(self) -> None:
        self.arrays: list[jax.Array] = []
        self._places: dict[int, int] = {}

    def place(self, array: jax.Array) -> int:
        if id(array) not in self._places:
            self._places[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self._places[id(array)]

    def scalar(self, scalar: Scalar, operands: Sequence[jax.Array], first: int) -> complex | tuple[int, int]:
        """The number, or (buffer, element)."""
        return (first + self.place(operands[scalar[0]]), scalar[1]) if isinstance(scalar, tuple) else scalar

    def addend(self, index: int | None, operands: Sequence[jax.Array], first: int) -> tuple[int, Shape] | None:
        """(buffer, shape) of a source or bias."""
        return None if index is None else (first + self.place(operands[index]), operands[index].shape)


def _in_place(
    epilogues: Sequence[Epilogue], operands: Sequence[jax.Array], factors: _Buffers, addends: _Buffers
) -> dict[int, int]:
    """Results that take their source's place, unless the call reads it twice. XLA copies one that is needed later."""
    sources = [None if epilogue.source is None else operands[epilogue.source] for epilogue in epilogues]
    used = [id(array) for array in factors.arrays] + [id(array) for array in sources if array is not None]
    used += [id(operands[epilogue.bias]) for epilogue in epilogues if epilogue.bias is not None]
    return {
        1 + len(factors.arrays) + addends.place(source): out
        for out, source in enumerate(sources)
        if source is not None and used.count(id(source)) == 1
    }


for _platform in backends.BACKENDS:
    mlir.register_lowering(batched_matmul_p, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(batched_matmul_p, _lower_elsewhere)
