"""A checked call: the value that the checks of factors, sums and epilogues make, and how it is bound to the primitive.

    factors.py     pairs As and Bs, checks each pair, and makes a Call of one product a result
    sums.py        gathers its products into sums
    epilogues.py   adds alpha, beta, C, bias and activation
    bind           hands it to the primitive

Each step takes a Call and returns another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from jax_vbgemm._src import compat
from jax_vbgemm._src.distinct import distinct
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.options import checked_implementation
from jax_vbgemm._src.matmul.primitive import Epilogue, Term, contract
from jax_vbgemm._src.planner import Planner, resolve_planner
from jax_vbgemm._src.structure import difference, path_of


class Operand(NamedTuple):
    """An array as it was given, and the shape and dtype in which the primitive takes it."""

    array: jax.Array
    shape: Shape
    dtype: Any


class Call(NamedTuple):
    """A call in which nothing is wrong. Terms and epilogues name operands and results by their positions."""

    name: str  # of the public function, for messages
    argument: str | None  # the one whose structure the results have; None: none has
    structure: Any  # the results' tree
    operands: tuple[Operand, ...]
    terms: tuple[Term, ...]
    shapes: tuple[Shape, ...]  # of the results
    dtypes: tuple[Any, ...]  # of the results
    precision: Any
    epilogues: tuple[Epilogue, ...] = ()  # one a result, or none
    after: tuple[Callable[[jax.Array], jax.Array] | None, ...] = ()  # likewise: activations that no kernel knows

    def written(self, argument: str, index: int) -> str:
        """result[3], bias['w']: how the user would write leaf `index` of an argument with the results' structure."""
        return argument + path_of(self.structure, index)

    def result(self, index: int) -> str:
        return self.written("result", index)


def leaves_of(call: Call, option: str, tree: Any) -> list[Any]:
    """A leaf of the option for each result; None where there is none."""
    if tree is None:
        return [None] * len(call.dtypes)
    try:
        leaves: list[Any] = call.structure.flatten_up_to(tree)
    except ValueError as error:
        of, found = "the results", str(error)
        if call.argument is not None:
            like = jax.tree.unflatten(call.structure, call.dtypes)
            of, found = call.argument, str(difference(call.argument, like, option, tree, prefix=True))
        raise ValueError(f"{call.name}: {option} must have the structure of {of}: {found}") from None
    return leaves


def merged(operands: Sequence[Operand]) -> tuple[tuple[Operand, ...], list[int]]:
    """The different operands, in order of first occurrence, and for each one given its position among them."""
    arrays = distinct([operand.array for operand in operands])[1]
    keys = [(array, operand.shape, operand.dtype) for array, operand in zip(arrays, operands, strict=True)]
    unique = dict(zip(keys, operands, strict=True))
    position = {key: place for place, key in enumerate(unique)}
    return tuple(unique.values()), [position[key] for key in keys]


def bind(call: Call, planner: str | Planner, implementation: str | None) -> Any:
    """The call's results, in their structure."""
    implementation = checked_implementation(call.name, implementation)
    planner = resolve_planner(planner)
    # Nothing can be planned for symbolic dimensions (jax.export).
    by_plan = implementation == "kernel" or all(compat.is_static(operand.shape) for operand in call.operands)

    def run(arrays: list[jax.Array]) -> list[jax.Array]:
        operands = [_as(x, *operand[1:]) for x, operand in zip(arrays, call.operands, strict=True)]
        if not by_plan:
            return reference.results(operands, call.terms, call.dtypes, call.epilogues, call.precision)
        return contract(
            operands,
            call.terms,
            call.dtypes,
            epilogues=call.epilogues,
            precision=call.precision,
            planner=planner,
            implementation=implementation,
        )

    results = list(_unchecked(run, call.epilogues)([operand.array for operand in call.operands]))
    for index, function in enumerate(call.after):
        results[index] = results[index] if function is None else function(results[index])
    return jax.tree.unflatten(call.structure, results)


def _as(array: jax.Array, shape: Shape, dtype: Any) -> jax.Array:
    array = array if array.shape == shape else array.reshape(shape)
    return array if array.dtype == dtype else array.astype(dtype)


def _unchecked(run: Callable[..., Any], epilogues: Sequence[Epilogue]) -> Callable[..., Any]:
    """`run` for arguments that may hold NaN which its results don't, as C may where beta is 0: JAX's checkers
    (jax_debug_nans, jax_debug_infs) then see the results alone, not what becomes of C on the way."""
    checked = jax.config.jax_debug_nans or jax.config.jax_debug_infs  # type: ignore[attr-defined]
    return jax.jit(run) if checked and any(epilogue.source is not None for epilogue in epilogues) else run
