"""Lowers the primitive of ragged products to its XLA form or its custom call (whose contract is csrc/ragged_call.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_vbgemm import _core
from jax_vbgemm._src.epilogue import activation_number
from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.problem import LARGEST_SIZE
from jax_vbgemm._src.ragged import batches, composed, plan, reference
from jax_vbgemm._src.ragged.choice import FactorDtypes, LoweredProgram, choose, kind_on
from jax_vbgemm._src.ragged.primitive import CALL, HALVES, OPERANDS, Ragged, ragged_dot_p, sizes_of
from jax_vbgemm._src.util import compat


def _lower(platform: str, ctx: Any, *operands: Any, ragged: Ragged) -> Any:
    program = LoweredProgram(platform, compat.is_export(ctx))
    choice = choose(
        program, FactorDtypes(*(aval.dtype for aval in ctx.avals_in[:2])), [aval.shape for aval in ctx.avals_in], ragged
    )

    def form(*operands: jax.Array) -> jax.Array:
        return product(operands, ragged, tuple(choice.parts))

    def product(operands: Sequence[jax.Array], rest: Ragged, parts: tuple[str, ...]) -> jax.Array:
        if parts:
            compose = composed.FORMS[parts[0]]
            return compose(*operands, ragged=rest, product=partial(product, parts=parts[1:]))
        if choice.why:
            return reference.result(*operands, ragged=rest)
        return _call(operands, platform, rest, choice.plan)

    return mlir.lower_fun(form, multiple_results=False)(ctx, *operands)


def _lower_elsewhere(ctx: Any, *operands: Any, ragged: Ragged) -> Any:
    return _lower(" or ".join(ctx.module_context.platforms), ctx, *operands, ragged=ragged)


def _call(operands: Sequence[jax.Array], platform: str, ragged: Ragged, planned: plan.RaggedPlan | None) -> jax.Array:
    sizes = sizes_of([operand.shape for operand in operands], ragged)
    dtype = operands[0].dtype
    given = dict(zip(ragged.names, operands, strict=True))
    order = batches.order_of_dimensions(given, sizes, ragged)
    if order != tuple(range(len(order))):
        given = batches.in_order(given, sizes, ragged, order)
        sizes = sizes._replace(batch=tuple(sizes.batch[axis] for axis in order))
    given = batches.operands_as_one(given, sizes, ragged)
    if "group_offset" in given:
        # Offsets saturate: beyond this limit no group has weights, whatever the exact offset is.
        limit = LARGEST_SIZE // 2
        given["group_offset"] = jnp.clip(given["group_offset"], -limit, limit).astype(np.int32)
    dtypes = {
        "lhs": dtype,
        "rhs": operands[1].dtype,
        "result": ragged.out_dtype,
        "accumulator": accumulator(ragged.out_dtype),
        "index": np.int32,
    }
    buffers = [given[name] if name in given else jnp.zeros((0,), dtypes[OPERANDS[name].type]) for name in CALL]
    results = [jax.ShapeDtypeStruct(batches.as_one(sizes).result(ragged), ragged.out_dtype)]
    if planned and planned.workspace:
        results.append(jax.ShapeDtypeStruct((planned.workspace,), np.uint8))
    aliases = {CALL.index("accumulator"): 0} if "accumulator" in given else {}
    value: jax.Array
    value, *_ = jax.ffi.ffi_call(backends.RAGGED_TARGET_NAME, results, input_output_aliases=aliases)(
        *buffers,
        kind=np.int64(KINDS.index(kind_on(platform, FactorDtypes(dtype, operands[1].dtype), ragged.precision))),
        contraction=np.bool_(ragged.contraction),
        transpose_rhs=np.bool_(ragged.transpose_rhs),
        activation=np.int64(activation_number(ragged.epilogue.activation)),
        gated=np.bool_(ragged.epilogue.gated),
        halves=np.int64(HALVES.index(ragged.halves)),
        fast_accumulation=np.bool_(ragged.fast_accumulation),
        undefined_rest=np.bool_(ragged.undefined_rest),
        entries=np.int64(math.prod(sizes.batch)),
        **(planned or plan.NONE).attributes(),
        catalogue=np.int64(_core.catalogue_hash()),
    )
    value = value.reshape(sizes.result(ragged))
    return value.transpose(*np.argsort(order), *range(len(order), value.ndim))


for _platform in backends.BACKENDS:
    mlir.register_lowering(ragged_dot_p, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(ragged_dot_p, _lower_elsewhere)
