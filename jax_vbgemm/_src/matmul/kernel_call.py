"""One custom call: its operands, its results, and the plan's descriptor arrays as constants of the program."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._core import catalogue_hash
from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.descriptors import (
    KINDS,
    Descriptors,
    epilogue_table,
    pack,
    problem_table,
    sums_fit,
    workspace_bytes,
)
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.overlap import covers
from jax_vbgemm._src.matmul.placement import Placed, Sum, Use, array_of, layout_of, place
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.matmul.primitive import Batched
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import Operand, View, dense
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import Auto, DeviceSpec, kind_of, plan_problems
from jax_vbgemm._src.planner.plan.draft import DraftPlanner
from jax_vbgemm._src.problem import Problem
from jax_vbgemm._src.util.distinct import distinct


def kernel_call(
    operands: Sequence[Operand],
    sums: Sequence[Sum],
    dtype: Any,
    targets: Sequence[jax.Array | None],
    batched: Batched,
    platform: str,
    device: DeviceSpec,
) -> tuple[list[jax.Array | None], list[jax.Array | None]]:
    """One custom call for sums of terms of one arithmetic and one result dtype, with all their epilogues or none.

    `targets`: the arrays that hold the windows of results; None for an array that does not exist yet.
    Returns each sum's result, None if the result is a window of a target, and the updated targets.
    """
    placed = [place(operands, x) for x in sums]
    products = [product for x in placed for product in x.products]
    owner = np.repeat(np.arange(len(sums)), [len(x.products) for x in placed])
    lhs_dtype, rhs_dtype = (operands[index].dtype.name for index in sums[0].terms[0][:2])
    kind = kind_of(lhs_dtype, precision_name(batched.precision), device, rhs_dtype)
    terms = [_terms_side_by_side(x, device, batched.planner) for x in placed]
    problems = tuple(_batch_of_terms(x.problem, count) for x, count in zip(placed, terms, strict=True))
    plan = plan_problems(problems, kind, device, batched.planner)
    if len(owner) > len(sums) and not sums_fit(plan, owner, np.array([product.k for product in products], np.int64)):
        return list(_added_by_xla(operands, sums, dtype, batched, platform, device)), list(targets)

    target_shapes = [target.shape for target in batched.targets]
    given = _Buffers(operands, placed, _bases(placed, targets, target_shapes, dtype))
    returned, position = _results(placed)
    buffers = [
        (given.factor(a), given.factor(b), given.count + position[index])
        for index, x in enumerate(placed)
        for a, b in x.pairs
    ]
    finishing = [given.epilogue(x, x.sum.epilogue) for x in placed if x.sum.epilogue]
    epilogues = epilogue_table([finishing[index] for index in owner.tolist()] if finishing else [], products)
    descriptors = pack(plan, problem_table(products, buffers), epilogues, owner, np.array(terms))

    shapes = [x.sum.shape for x in placed if x.window is None] + [target_shapes[index] for index in returned]
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    workspace = workspace_bytes(platform, given.count + len(types), descriptors, accumulator(dtype))
    if workspace:
        types.append(jax.ShapeDtypeStruct((workspace // 4,), np.int32))
    values = _bound(descriptors, kind, given, types, _aliases(given, placed, returned, position))
    new_targets = list(targets)
    for index, at in returned.items():
        new_targets[index] = values[at]
    return [values[at] if x.window is None else None for x, at in zip(placed, position, strict=True)], new_targets


def _terms_side_by_side(x: Placed, device: DeviceSpec, planner: Any) -> int:
    """The number of a sum's products if they are planned as a batch, otherwise 1.

    A GPU computes the products of a tile side by side, as K slices of it whose partial sums are added. If these
    slices have one length, the planner sees a batch of products in place of one product with a long K. A user's planner
    does not, as it might give the matrices of a batch different tiles.
    """
    is_ours = isinstance(planner, Auto | DraftPlanner)
    equal = len({product.k for product in x.products}) == 1
    return len(x.products) if device.device_type == "gpu" and is_ours and equal else 1


def _batch_of_terms(problem: Problem, terms: int) -> Problem:
    return dataclasses.replace(problem, k=problem.k // terms, batch=problem.batch * terms)


def _bases(
    placed: Sequence[Placed], targets: Sequence[jax.Array | None], target_shapes: Sequence[Shape], dtype: Any
) -> dict[int, jax.Array]:
    """The initial contents of the call's targets, by target number; a target that the call overwrites whole is left
    out."""
    bases = {}
    windows = [x.window for x in placed if x.window is not None]
    for index in sorted({window.array for window in windows}):
        base, layouts = targets[index], tuple(window.layout for window in windows if window.array == index)
        if base is None and not covers(layouts, int(np.prod(target_shapes[index]))):
            base = jnp.zeros(target_shapes[index], dtype)
        if base is not None:
            bases[index] = base
    return bases


class _Buffers:
    """The arrays passed to the call, each one once: factors; then sources, biases and targets; then alphas and
    betas."""

    def __init__(self, operands: Sequence[Operand], placed: Sequence[Placed], bases: Mapping[int, jax.Array]) -> None:
        self._operands = operands
        number = distinct([*(x.buffer if isinstance(x, View) else x for x in operands), *bases.values()])[1]
        self._array_of_operand = number[: len(operands)]
        self._array_of_base = dict(zip(bases, number[len(operands) :], strict=True))
        epilogues = [x.sum.epilogue for x in placed if x.sum.epilogue is not None]

        factors: dict[Any, jax.Array] = {}
        for use in itertools.chain(*(pair for x in placed for pair in x.pairs)):
            factors.setdefault(self._key(use), array_of(operands, use))
        addends: dict[Any, jax.Array] = {}
        for x in placed:
            if x.source is not None:
                addends.setdefault(self._key_of_source(x), array_of(operands, x.source))
        biases = [Use(epilogue.bias) for epilogue in epilogues if epilogue.bias is not None]
        addends |= {("bias", self._key(use)): array_of(operands, use) for use in biases}
        addends |= {("target", index): base for index, base in bases.items()}
        scalars = [index for epilogue in epilogues for index in epilogue.scalars]
        self._factors, self._addends = list(factors), list(addends)
        self._factor_at, self._addend_at = _positions(factors, 0), _positions(addends, len(factors))
        self._scalar_at = _positions(dict.fromkeys(scalars), len(factors) + len(addends))
        self.num_factors, self.num_addends = len(factors), len(addends)
        self.arrays = [*factors.values(), *addends.values(), *(dense(operands[index]) for index in self._scalar_at)]
        self.count = len(self.arrays)

    def factor(self, use: Use) -> int:
        return self._factor_at[self._key(use)]

    def source(self, x: Placed) -> int:
        return self._addend_at[self._key_of_source(x)]

    def target(self, index: int) -> int | None:
        """The position of the target's initial contents; None if the call overwrites the whole target."""
        return self._addend_at.get(("target", index))

    def epilogue(self, x: Placed, epilogue: Epilogue) -> Epilogue:
        """The sum's epilogue, with positions of arrays for operands."""
        scalars = Epilogue(epilogue.alpha, epilogue.beta).renumbered(self._scalar_at)
        return scalars._replace(
            source=None if x.source is None else self.source(x),
            bias=None if epilogue.bias is None else self._addend_at["bias", self._key(Use(epilogue.bias))],
            activation=epilogue.activation,
        )

    def reads(self, placed: Sequence[Placed]) -> Counter[Any]:
        """The number of times that each array is passed to the call or read as a source."""
        reads = Counter([*self._factors, *(name[1] for name in self._addends if name[0] == "bias")])
        reads.update(self._key_of_source(x) for x in placed if x.source is not None)
        reads.update(("array", array) for array in self._array_of_base.values())
        return reads

    def is_read_once(self, x: Placed, reads: Counter[Any]) -> bool:
        """Whether the sum's source is a whole array that nothing else in the call reads."""
        if x.source is None or x.source.copy is not None or isinstance(self._operands[x.source.operand], View):
            return False
        return reads[self._key(x.source)] == 1

    def _key(self, use: Use) -> Any:
        return ("array", self._array_of_operand[use.operand]) if use.copy is None else use

    def _key_of_source(self, x: Placed) -> Any:
        """The key of the sum's source. If the source is the result's own window of a target, the key is that target,
        which the call updates in place."""
        assert x.source is not None
        if x.window is None or not layout_of(self._operands, x.source).is_same(x.window.layout):
            return self._key(x.source)
        is_there = x.source.copy is None and (
            self._array_of_base.get(x.window.array) == self._array_of_operand[x.source.operand]
        )
        return ("target", x.window.array) if is_there else self._key(x.source)


def _results(placed: Sequence[Placed]) -> tuple[dict[int, int], list[int]]:
    """Positions of the results among the outputs of the custom call.

    A sum is returned as an array of its own, or written into a window of a target array; the outputs are the arrays of
    their own, then the targets. Returns {target's number: position} and the position of each sum's output.
    """
    alone = [index for index, x in enumerate(placed) if x.window is None]
    written = sorted({x.window.array for x in placed if x.window is not None})
    targets, at_alone = _positions(dict.fromkeys(written), len(alone)), _positions(dict.fromkeys(alone), 0)
    position = [at_alone[i] if x.window is None else targets[x.window.array] for i, x in enumerate(placed)]
    return targets, position


def _positions(names: Mapping[Any, Any], first: int) -> dict[Any, int]:
    return {name: first + place for place, name in enumerate(names)}


def _aliases(
    given: _Buffers, placed: Sequence[Placed], returned: Mapping[int, int], position: Sequence[int]
) -> dict[int, int]:
    """Pairs (argument, result) that share a buffer: targets, and sources that the call reads once. XLA copies an
    argument whose value is needed after the call."""
    reads = given.reads(placed)
    aliases = {
        given.source(x): at
        for x, at in zip(placed, position, strict=True)
        if x.window is None and given.is_read_once(x, reads)
    }
    for index, at in returned.items():
        base = given.target(index)
        if base is not None:
            aliases[base] = at
    return aliases


def _bound(
    descriptors: Descriptors, kind: str, given: _Buffers, types: Sequence[Any], aliases: Mapping[int, int]
) -> Any:
    """Binds the custom call and gives its results."""
    call = jax.ffi.ffi_call(
        backends.TARGET_NAME,
        types,
        input_output_aliases={
            1 + argument: result for argument, result in aliases.items()
        },  # argument 0 is the descriptor array
    )
    return call(
        jnp.asarray(descriptors.words),
        *given.arrays,
        catalogue=np.int64(catalogue_hash()),
        kind=np.int64(KINDS.index(kind)),
        problems=descriptors.problems,
        epilogues=descriptors.epilogues,
        launches=descriptors.launches,
        num_factors=np.int64(given.num_factors),
        num_addends=np.int64(given.num_addends),
        num_runs=np.int64(descriptors.num_runs),
        num_tiles=np.int64(descriptors.num_tiles),
        num_blocks=np.int64(descriptors.num_blocks),
        num_splits=np.int64(descriptors.num_splits),
        num_sums=np.int64(descriptors.num_sums),
    )


def _added_by_xla(
    operands: Sequence[Operand], sums: Sequence[Sum], dtype: Any, batched: Batched, platform: str, device: DeviceSpec
) -> list[jax.Array]:
    """The sums of `kernel_call` if there are too many tiles for one record each, which sums of products need.

    Each product is a result of its own in the accumulator's dtype, and XLA adds the products.
    """
    # Views are copied, because a K of several levels would again become several products.
    operands = [dense(x) for x in operands]
    alone = [
        Sum([term._replace(symmetric=term.symmetric and len(x.terms) == 1)], x.shape, x.dtypes, x.depth)
        for x in sums
        for term in x.terms
    ]
    wide = accumulator(dtype)
    values: Any = iter(kernel_call(operands, alone, wide, (), batched._replace(targets=()), platform, device)[0])
    totals: list[jax.Array] = [functools.reduce(jnp.add, [next(values) for _ in x.terms]) for x in sums]
    return [
        total.astype(dtype) if x.epilogue is None else reference.finish(total, x.epilogue, operands, dtype)
        for total, x in zip(totals, sums, strict=True)
    ]
