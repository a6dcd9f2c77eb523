"""Checks the epilogues of `batched_gemm` (alpha, beta, C, bias and activation) and adds them to a call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Activation, Epilogue, resolve_activation
from jax_vbgemm._src.matmul.call import Argument, Call, leaves_of, merged
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.packed import unpacked
from jax_vbgemm._src.matmul.scalars import checked_scalar, is_zero, scalars
from jax_vbgemm._src.matmul.view import Operand, View, as_operand, dense
from jax_vbgemm._src.util.arguments import promotes
from jax_vbgemm._src.util.distinct import distinct


def with_epilogues(call: Call, Cs: Any, alpha: Any, beta: Any, bias: Any, activation: Activation) -> Call:
    """The call with activation(alpha result + beta C + bias) in place of each result.

    ValueError or TypeError if one of them does not fit a result; the message names the leaf and the rule.
    """
    name, function = resolve_activation(call.name, activation)
    in_kernel = [name if jnp.issubdtype(dtype, jnp.floating) else None for dtype in call.dtypes]
    after = [] if function is None else [None if known else function for known in in_kernel]
    alphas, betas = scalars(call, "alpha", alpha), scalars(call, "beta", beta)
    sources, biases = _addends(call, "Cs", Cs), _addends(call, "bias", bias)
    symmetric = {term.out for term in call.terms if term.symmetric}
    operands = list(call.operands)

    def place(operand: Argument) -> int:
        operands.append(operand)
        return len(operands) - 1

    epilogues = []
    for index, dtype in enumerate(call.dtypes):
        if biases[index] is not None and index in symmetric:
            raise ValueError(
                f"{call.name}: {call.written('bias', index)} is given for a symmetric result, which takes no bias"
            )
        if isinstance(activation, str) and not in_kernel[index]:
            raise ValueError(
                f"{call.name}: activation={activation!r}, but {call.result(index)} is {dtype}: it must be real and "
                "floating"
            )
        source = _checked_addend(call, "Cs", index, sources[index], exact=True)
        addend = _checked_addend(call, "bias", index, biases[index], exact=False)
        unread = is_zero(betas[index])
        if source is None and not unread:
            where = "Cs is None" if Cs is None else f"{call.written('Cs', index)} is None"
            raise ValueError(f"{call.name}: beta must be the number 0 where there is no C, but {where}")
        alpha_scalar, beta_scalar = (
            (place(value[0]), value[1]) if isinstance(value, tuple) else value
            for value in (
                checked_scalar(call, "alpha", index, alphas[index]),
                checked_scalar(call, "beta", index, betas[index]),
            )
        )
        epilogues.append(
            Epilogue(
                alpha_scalar,
                beta_scalar,
                None if source is None or unread else place(source),
                None if addend is None else place(addend),
                in_kernel[index],
            )
        )
    if all(epilogue == Epilogue() for epilogue in epilogues):
        return call._replace(after=tuple(after))
    different, position = merged(operands)  # the operands of terms come first and keep their positions
    renumbered = tuple(epilogue.renumbered(position) for epilogue in epilogues)
    return call._replace(operands=different, epilogues=renumbered, after=tuple(after))


def _addends(call: Call, option: str, tree: Any) -> list[Operand | None]:
    """C or the bias of each result, or None. An object that is given several times becomes one array."""
    leaves = leaves_of(call, option, unpacked(tree))
    if option == "bias":  # a bias is small and broadcast, so copying a view costs little
        leaves = [dense(leaf) for leaf in leaves]
    given, index = distinct(leaves)
    arrays = [
        leaf
        if leaf is None or isinstance(leaf, jax.Array)
        else as_operand(call.name, call.written(option, index.index(i)), leaf)
        for i, leaf in enumerate(given)
    ]
    return [arrays[i] for i in index]


def _checked_addend(call: Call, option: str, index: int, array: Operand | None, *, exact: bool) -> Argument | None:
    """C or the bias of result `index`, which has the result's shape or broadcasts to it."""
    if array is None:
        return None
    shape, dtype = call.shapes[index], call.dtypes[index]
    if not (array.shape == shape if exact else _broadcasts(array.shape, shape)):
        rule = "have that shape" if exact else "broadcast to that"
        raise ValueError(
            f"{call.name}: {call.written(option, index)} is {array.shape} but {call.result(index)} is {shape}: it must "
            f"{rule}"
        )
    if array.dtype != dtype and not promotes(array.dtype if isinstance(array, View) else array, dtype):
        raise ValueError(
            f"{call.name}: {call.written(option, index)} is {array.dtype}, which does not promote to {dtype}"
        )
    return Argument(array, array.shape, dtype)


def _broadcasts(shape: Shape, target: Shape) -> bool:
    return len(shape) <= len(target) and all(
        size in (1, full) for size, full in zip(shape[::-1], target[::-1], strict=False)
    )
