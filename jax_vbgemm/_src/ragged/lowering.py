"""Lowers the primitive of ragged products to its XLA form or its custom call (whose contract is csrc/ragged_call.h)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_vbgemm import _core
from jax_vbgemm._src import backends, compat
from jax_vbgemm._src.arithmetic import DTYPES
from jax_vbgemm._src.matmul.activation import activation_number
from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.planner import kind_of
from jax_vbgemm._src.problem import LARGEST_SIZE
from jax_vbgemm._src.ragged import composed, plan, reference
from jax_vbgemm._src.ragged.primitive import Ragged, Shape, Sizes, ragged_dot_p, sizes_of


def _lower(platform: str, ctx: Any, *operands: Any, ragged: Ragged) -> Any:
    why = why_not_kernel(
        platform, backends.RAGGED_PLATFORMS, ctx, ragged.implementation, ragged.out_dtype, ragged.precision
    ) or _why_no_sizes(ctx.avals_in, ragged)
    on_gpu = not why and platform in backends.GPU_PLATFORMS
    planned = _planned(platform, ctx, ragged) if on_gpu else None
    if on_gpu and planned is None:
        why = "it has too many tiles"
    if why and ragged.implementation == "kernel" and not _is_empty(ctx.avals_in, ragged):
        raise NotImplementedError(f"ragged_dot: implementation='kernel', but {why}")
    form: Callable[..., jax.Array]
    if "accumulator" in ragged.extras and not (planned and planned.only_pipelined and ragged.out_dtype == np.float32):
        form = partial(composed.accumulated, ragged=ragged)
    elif "gather" in ragged.extras and not (planned and planned.gathers):
        form = partial(composed.gathered, ragged=ragged)
    elif ragged.gated and not (planned and planned.only_pipelined):
        form = partial(composed.gated, ragged=ragged)
    elif why:
        form = partial(reference.result, ragged=ragged)
    elif "row_scale" in ragged.extras and planned and not planned.only_pipelined:
        form = partial(composed.scaled, ragged=ragged)
    else:
        form = partial(_call, platform=platform, ragged=ragged, planned=planned)
    return mlir.lower_fun(form, multiple_results=False)(ctx, *operands)


def _lower_elsewhere(ctx: Any, *operands: Any, ragged: Ragged) -> Any:
    return _lower(" or ".join(ctx.module_context.platforms), ctx, *operands, ragged=ragged)


def why_not_kernel(
    platform: str, platforms: Sequence[str], ctx: Any, implementation: str | None, out_dtype: Any, precision: Any
) -> str | None:
    """Why XLA has to compute a product of operands of one dtype; None where a kernel can. `platforms` have a kernel."""
    if implementation == "xla":
        return "XLA was asked for"
    if platform not in platforms:
        return f"there is no such kernel for {platform}"
    backend = backends.BACKENDS[platform]
    # An exported program may run on a machine that has the backend, even if this machine lacks it.
    if backend.module is None and not compat.is_export(ctx):
        return f"the {platform} backend is {backend.absent}"
    if not all(compat.is_static(aval.shape) for aval in (*ctx.avals_in, *ctx.avals_out)):  # jax.export
        return "kernels need static shapes"
    dtype = ctx.avals_in[0].dtype
    if out_dtype not in (dtype, accumulator(dtype)):
        return f"there is no kernel for {dtype} -> {out_dtype}"
    known = [name for name in backend.dtypes if DTYPES[name].bytes > 1]
    if dtype.name not in known:
        return f"there is no kernel for {dtype} on this platform (there is for {', '.join(known)})"
    if isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm):
        return f"kernels don't implement the dot algorithm {precision}"
    return None


def _why_no_sizes(avals: Sequence[Any], ragged: Ragged) -> str | None:
    """Why a kernel cannot take these sizes; None where it can."""
    sizes = sizes_of([aval.shape for aval in avals], ragged)
    stated = (*_stated(sizes, ragged), sizes.columns(ragged), math.prod(sizes.batch), avals[0].shape[-2])
    if 0 in stated:
        return "nothing is to be multiplied"
    if max(stated) > _core.RAGGED_MOST_SIZE:
        return f"a dimension exceeds {_core.RAGGED_MOST_SIZE}"
    return None


def _stated(sizes: Sizes, ragged: Ragged) -> tuple[int, ...]:
    """The sizes that a call passes to its handler, without the batch counts."""
    return sizes.m, sizes.k, sizes.n, ragged.groups, sizes.total_groups


def _is_empty(avals: Sequence[Any], ragged: Ragged) -> bool:
    """Whether there are no products, so that no kernel is needed."""
    sizes = sizes_of([aval.shape for aval in avals], ragged)
    stated = (*sizes.batch, *_stated(sizes, ragged))
    return compat.is_static(stated) and 0 in stated


def batch_strides(batch: Shape, operands: Sequence[Shape]) -> tuple[list[int], list[list[int]]] | None:
    """Two batch counts, and each operand's two strides in entries; None where these batches need more than two.

    `operands`: the batch dimensions of each operand, aligned with those of the call at the last dimension; an operand
    is shared along a dimension that it lacks or where it has size 1.
    """
    strides = []
    for shape in operands:
        aligned = (1,) * (len(batch) - len(shape)) + tuple(shape)
        dense = [math.prod(aligned[axis + 1 :]) for axis in range(len(batch))]
        strides.append([0 if size == 1 else stride for size, stride in zip(aligned, dense, strict=True)])
    counts: list[int] = []
    collapsed: list[list[int]] = [[] for _ in operands]
    for axis, size in enumerate(batch):
        if size == 1:
            continue
        here = [stride[axis] for stride in strides]
        if counts and all(before[-1] == size * now for before, now in zip(collapsed, here, strict=True)):
            counts[-1] *= size
            for before, now in zip(collapsed, here, strict=True):
                before[-1] = now
        else:
            counts.append(size)
            for before, now in zip(collapsed, here, strict=True):
                before.append(now)
    if len(counts) > 2:
        return None
    missing = 2 - len(counts)
    return [1] * missing + counts, [[0] * missing + of_operand for of_operand in collapsed]


def kind_on(platform: str, dtype: Any, precision: Any) -> str:
    """The arithmetic of a product on the device for which a program is lowered."""
    return kind_of(dtype.name, precision_name(precision), backends.planning_device(platform))


def _planned(platform: str, ctx: Any, ragged: Ragged) -> plan.Plan | None:
    """The plan on a GPU, for the typical group, or for the average one where the caller gave no hint."""
    sizes = sizes_of([aval.shape for aval in ctx.avals_in], ragged)
    rows = sizes.m // sizes.total_groups if ragged.typical_rows is None else ragged.typical_rows
    product = plan.Product(
        ragged.contraction, ragged.transpose_rhs, ragged.gated, sizes.m, sizes.k, sizes.columns(ragged), ragged.groups,
        sizes.total_groups, rows,
    )  # fmt: skip
    # An exported program may run on another device than the one for which it is planned.
    named = backends.named_target()
    certain = (named is not None and named.platform == platform) or not compat.is_export(ctx)
    kind = kind_on(platform, ctx.avals_in[0].dtype, ragged.precision)
    return plan.plan(kind, backends.planning_device(platform), product, certain=certain)


def _call(*operands: jax.Array, platform: str, ragged: Ragged, planned: plan.Plan | None) -> jax.Array:
    sizes = sizes_of([operand.shape for operand in operands], ragged)
    ranks = ragged.core_ranks()
    if "accumulator" in ragged.extras:  # the last one; its memory becomes the result's
        operands = *operands[:-1], jnp.broadcast_to(operands[-1], sizes.result(ragged))
    leading = [x.shape[: x.ndim - rank] for x, rank in zip(operands, ranks, strict=True)]
    strides = batch_strides(sizes.batch, leading)
    if strides is None:
        operands = tuple(
            jnp.broadcast_to(x, (*sizes.batch, *x.shape[x.ndim - rank :]))
            for x, rank in zip(operands, ranks, strict=True)
        )
        strides = batch_strides(sizes.batch, [sizes.batch] * len(operands))
        assert strides is not None
    counts, entries = strides
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    of_lhs, of_rhs, of_sizes, of_extras = ragged.split(entries)
    if "group_offset" in extras:
        # Offsets saturate: beyond this limit no group has weights, whatever the exact offset is.
        limit = LARGEST_SIZE // 2
        extras["group_offset"] = jnp.clip(extras["group_offset"], -limit, limit).astype(np.int32)
    wide = accumulator(lhs.dtype)
    empty = {
        "bias": ragged.out_dtype, "row_scale": wide, "group_offset": np.int32, "gather": np.int32,
        "accumulator": ragged.out_dtype,
    }  # fmt: skip
    buffers = [lhs, rhs, group_sizes, *(extras.get(name, jnp.zeros((0,), dtype)) for name, dtype in empty.items())]
    rhs_entry = math.prod(rhs.shape[rhs.ndim - ranks[1] :])
    lhs_rows = lhs.shape[-2]
    of_bias = ragged.groups * sizes.columns(ragged)
    of_result = math.prod(sizes.result(ragged)[len(sizes.batch) :])
    cores = [lhs_rows * sizes.k, rhs_entry, sizes.total_groups, of_bias, sizes.m, 1, sizes.m, of_result]
    none = [0, 0]
    of_each = [of_lhs, of_rhs, of_sizes, *(of_extras.get(name, none) for name in empty)]
    results = [jax.ShapeDtypeStruct(sizes.result(ragged), ragged.out_dtype)]
    if planned and planned.workspace:
        results.append(jax.ShapeDtypeStruct((planned.workspace,), np.uint8))
    aliases = {len(buffers) - 1: 0} if "accumulator" in extras else {}
    result: jax.Array
    result, *_ = jax.ffi.ffi_call(backends.RAGGED_TARGET_NAME, results, input_output_aliases=aliases)(
        *buffers,
        kind=np.int64(KINDS.index(kind_on(platform, lhs.dtype, ragged.precision))),
        contraction=np.int64(ragged.contraction),
        transpose_rhs=np.int64(ragged.transpose_rhs),
        activation=np.int64(activation_number(ragged.activation)),
        gated=np.int64(ragged.gated),
        sizes=np.array([sizes.m, sizes.k, sizes.n, ragged.groups, sizes.total_groups, *counts, lhs_rows], np.int64),
        batch_strides=np.array(
            [stride * core for pair, core in zip(of_each, cores, strict=True) for stride in pair], np.int64
        ),
        plan=np.array(planned.words if planned else [], np.int32),
        catalogue=np.int64(_core.catalogue_hash()),
    )
    return result


for _platform in backends.BACKENDS:
    mlir.register_lowering(ragged_dot_p, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(ragged_dot_p, _lower_elsewhere)
