"""Decides which parts of a ragged product XLA computes, and which kernel computes the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm import _core
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.arithmetic import ARITHMETICS, DTYPES, arithmetic_of
from jax_vbgemm._src.planner import kind_of
from jax_vbgemm._src.ragged import composed, plan
from jax_vbgemm._src.ragged.batches import as_one
from jax_vbgemm._src.ragged.primitive import OPERANDS, SCALED, Ragged, RaggedSizes, Shape, batch_of, sizes_of
from jax_vbgemm._src.util import compat


class Choice(NamedTuple):
    """What computes a product.

    parts: what XLA computes around it, outermost first: names of composed.FORMS, each with the reason. product: what
    remains. why: the reason for which XLA computes that, too; None if a kernel does, on a GPU by `plan`.
    """

    parts: dict[str, str]
    product: Ragged
    why: str | None
    plan: plan.RaggedPlan | None


class FactorDtypes(NamedTuple):
    """The dtypes of lhs and rhs."""

    lhs: Any
    rhs: Any


class LoweredProgram(NamedTuple):
    """The program for which a product is lowered. exported: it may run on another machine."""

    platform: str
    exported: bool

    @property
    def on_gpu(self) -> bool:
        return self.platform in backends.GPU_PLATFORMS


def choose(program: LoweredProgram, dtypes: FactorDtypes, shapes: Sequence[Shape], ragged: Ragged) -> Choice:
    """Chooses for operands of these shapes and factors of these dtypes.

    XLA takes over one part after another until a kernel, or XLA itself, can compute what remains.
    """
    parts: dict[str, str] = {}
    while True:
        sizes = sizes_of(shapes, ragged)
        planned = None
        why = _why_not_kernel(program, dtypes, shapes, ragged) or _why_no_sizes(sizes)
        if not why and program.on_gpu:
            planned = _planned(program, dtypes, sizes, ragged)
            why = None if planned else "it has too many tiles"
            if planned and dtypes.rhs.itemsize == 1 and not planned.only_pipelined:
                why, planned = planned.why or "the program may run on another GPU", None
        if why and ragged.implementation == "kernel" and not _is_empty(sizes):
            raise NotImplementedError(f"ragged_dot: implementation='kernel', but {why}")
        kind = kind_on(program.platform, dtypes, ragged.precision) if planned else None
        reasons = _reasons(ragged, sizes, kind, why, planned)
        part = next((part for part in composed.FORMS if part in reasons), None)
        if part is None:
            return Choice(parts, ragged, why, planned)
        parts[part] = reasons[part]
        if part == "scales":
            wide = dtypes.lhs if ragged.is_mixed else np.dtype(np.float32)
            dtypes = FactorDtypes(wide, wide)
        ragged, shapes = _remaining(part, shapes, sizes, ragged)


def _reasons(
    ragged: Ragged, sizes: RaggedSizes, kind: str | None, why: str | None, planned: plan.RaggedPlan | None
) -> dict[str, str]:
    """The parts of a product that its kernel does not compute, each with the reason. If XLA computes the product, it
    takes the same operands as the CPU's kernel."""
    pipelined = planned is not None and planned.only_pipelined
    kernel = "cpu" if planned is None else "pipelined" if pipelined else "tiles"
    lacks = why or (planned.why if planned else "the CPU's kernel does not") or "the program may run on another GPU"
    reasons = {name: lacks for name in ragged.names if name in composed.FORMS and kernel not in OPERANDS[name].kernels}
    if "accumulator" in ragged.extras and pipelined and ragged.out_dtype != np.float32:
        reasons["accumulator"] = "only float32 has accumulators"
    if "gather" in ragged.extras and planned is not None and not planned.gathers:
        reasons.setdefault("gather", "copied rows are faster, or have the only kernel")
    if ragged.has_scales:
        if not pipelined:
            reasons["scales"] = lacks
        elif ragged.epilogue.gated and sizes.rhs_column_blocks not in (None, 1, sizes.columns) and sizes.n % SCALED:
            reasons["scales"] = f"a block of {SCALED} columns has some of both halves"
        elif ragged.contraction and math.prod(sizes.batch) > 1 and sizes.m % SCALED:
            reasons["scales"] = f"a block of {SCALED} rows has some of two entries of the batch"
    if ragged.epilogue.gated and not pipelined:
        reasons["gates"] = lacks
    if ragged.halves != "none" and not pipelined:
        reasons["halves"] = lacks
    elif kind is not None and pipelined and not (ragged.contraction or ragged.epilogue.gated):
        half = {"k": sizes.rhs_k, "columns": sizes.rhs_columns}.get(ragged.halves, 0)
        multiple = _core.ragged_half_elements(list(ARITHMETICS).index(kind))
        if half % multiple:
            reasons["halves"] = f"halves of {half} are no multiples of {multiple}"
    return reasons


def _remaining(part: str, shapes: Sequence[Shape], sizes: RaggedSizes, ragged: Ragged) -> tuple[Ragged, list[Shape]]:
    """The product without a part that XLA computes, and the shapes of its operands."""
    of = dict(zip(ragged.names, shapes, strict=True))
    ranks = dict(zip(ragged.names, ragged.core_ranks(), strict=True))
    if part == "gather":
        leading = [of[name][: len(of[name]) - ranks[name]] for name in ("lhs", "gather", "slots") if name in of]
        for name in ("lhs", "lhs_scale"):
            if name in of:
                of[name] = (*batch_of(leading), sizes.m, of[name][-1])
    if part == "scales" and ragged.contraction:
        for name in ("lhs", "rhs"):
            *leading, columns, rows = of[name]
            of[name] = (*leading, rows, columns)
    if part == "halves":
        halved = {"k": ["lhs"], "columns": ["bias"]}.get(ragged.halves, [ragged.halves.split("_")[0]])
        for name in halved:
            if name in of:
                of[name] = (*of[name][:-1], of[name][-1] // 2)
        if "second" in of:  # one plan serves the products of both halves, of which only one may have a batch
            leading = [of[name][: len(of[name]) - ranks[name]] for name in ("rhs", "second")]
            of["rhs"] = (*batch_of(leading), *of["rhs"][len(of["rhs"]) - ranks["rhs"] :])
    rest = composed.remaining(part, ragged)
    return rest, [of[name] for name in rest.names]


def _why_not_kernel(
    program: LoweredProgram, dtypes: FactorDtypes, shapes: Sequence[Shape], ragged: Ragged
) -> str | None:
    """The reason why XLA has to compute a product; None if a kernel can."""
    platform, dtype = program.platform, dtypes.lhs
    if ragged.implementation == "xla":
        return "XLA was asked for"
    if platform not in backends.RAGGED_PLATFORMS:
        return f"there is no such kernel for {platform}"
    backend = backends.BACKENDS[platform]
    # An exported program may run on a machine that has the backend, even if this machine lacks it.
    if backend.module is None and not program.exported:
        return f"the {platform} backend is {backend.absent}"
    if not all(map(compat.is_static, shapes)):  # jax.export
        return "kernels need static shapes"
    arithmetic = arithmetic_of(dtypes.lhs.name, dtypes.rhs.name)
    has_8_bits = arithmetic is not None and arithmetic.bytes == 1
    if ragged.out_dtype not in ((jnp.bfloat16, np.float32) if has_8_bits else (dtype, accumulator(dtype))):
        return f"there is no kernel for {dtype} -> {ragged.out_dtype}"
    known = [name for name in backend.dtypes if DTYPES[name].bytes > 1]
    if dtype.name not in known and not (has_8_bits and program.on_gpu):
        return f"there is no kernel for {dtype} on this platform (there is for {', '.join(known)})"
    if isinstance(ragged.precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm):
        return f"kernels don't implement the dot algorithm {ragged.precision}"
    return None


def _counts(sizes: RaggedSizes) -> Shape:
    return sizes.m, sizes.k, sizes.n, sizes.groups, sizes.total_groups


def _why_no_sizes(sizes: RaggedSizes) -> str | None:
    """The reason why a kernel cannot take these sizes; None if it can."""
    whole = as_one(sizes)
    stated = (*sizes.batch, *_counts(whole), sizes.columns, whole.lhs_rows)
    if 0 in stated:
        return "nothing is to be multiplied"
    if max(stated) > _core.RAGGED_MOST_SIZE:
        return f"a dimension exceeds {_core.RAGGED_MOST_SIZE}"
    return None


def _is_empty(sizes: RaggedSizes) -> bool:
    """Whether there are no products, so that no kernel is needed."""
    stated = (*sizes.batch, *_counts(sizes))
    return compat.is_static(stated) and 0 in stated


def kind_on(platform: str, dtypes: FactorDtypes, precision: Any) -> str:
    """The arithmetic of a product on the device for which a program is lowered."""
    arithmetic = arithmetic_of(dtypes.lhs.name, dtypes.rhs.name)
    if arithmetic is not None and arithmetic.bytes == 1:
        return arithmetic.name
    return kind_of(dtypes.lhs.name, precision_name(precision), backends.planning_device(platform))


def _planned(
    program: LoweredProgram, dtypes: FactorDtypes, sizes: RaggedSizes, ragged: Ragged
) -> plan.RaggedPlan | None:
    """The plan on a GPU, for the typical group, or for the average one where the caller gave no hint."""
    rows = sizes.m // sizes.total_groups if ragged.typical_rows is None else ragged.typical_rows
    whole = as_one(sizes)
    product = plan.Product(
        ragged.contraction, ragged.transpose_rhs, ragged.epilogue.gated, whole.m, sizes.k, sizes.columns, whole.groups,
        whole.total_groups, rows, dtypes.rhs.name if ragged.is_mixed else None,
    )  # fmt: skip
    # An exported program may run on another device than the one for which it is planned.
    named = backends.named_target()
    certain = (named is not None and named.platform == program.platform) or not program.exported
    kind = kind_on(program.platform, dtypes, ragged.precision)
    return plan.plan(kind, backends.planning_device(program.platform), product, certain=certain)
