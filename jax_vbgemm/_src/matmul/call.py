"""A checked call: a value that the checks of factors, sums and epilogues build, and that is bound to the primitive.

    factors.py     pairs As and Bs, checks each pair, and makes a Call with one product for each result
    sums.py        gathers the products into sums
    epilogues.py   adds alpha, beta, C, bias and activation
    with_windows   adds the windows into which results are written
    bind           binds the primitive
    placed         puts results that have been computed in other ways where bind puts its own

Each step takes a Call and returns another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Epilogue, Function
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.contract import contract
from jax_vbgemm._src.matmul.into import check_windows, windows_into
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.members import Members, members_of
from jax_vbgemm._src.matmul.options import checked_implementation
from jax_vbgemm._src.matmul.packed import RaggedArray, unpacked
from jax_vbgemm._src.matmul.primitive import Batched, Term, Window
from jax_vbgemm._src.matmul.view import Operand, View
from jax_vbgemm._src.planner import Planner, resolve_planner
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.distinct import distinct
from jax_vbgemm._src.util.structure import difference, path_of


class Argument(NamedTuple):
    """An array or a view as the caller gave it, with the shape and dtype that the primitive needs."""

    array: Operand
    shape: Shape
    dtype: Any


class Call(NamedTuple):
    """A call whose arguments have been checked. Terms and epilogues refer to operands and results by position."""

    name: str  # of the public function, for messages
    argument: str | None  # the argument whose structure the results have, if there is one
    structure: Any  # the tree definition of the results
    operands: tuple[Argument, ...]
    terms: tuple[Term, ...]
    shapes: tuple[Shape, ...]  # of the results
    dtypes: tuple[Any, ...]  # of the results
    precision: Any
    epilogues: tuple[Epilogue, ...] = ()  # one for each result, or empty
    after: tuple[Function | None, ...] = ()  # one for each result, or empty: activations that no kernel has
    is_packed: bool = False  # whether the results are a RaggedArray, as some factors were
    views: tuple[View | None, ...] | None = None  # into which results are written; None: into arrays of their own
    members: Members | None = None  # of the RaggedArray whose members these views are

    def written(self, argument: str, index: int) -> str:
        """The name of leaf `index` of an argument with the results' structure in messages: result[3], bias['w']."""
        return argument + path_of(self.structure, index)

    def result(self, index: int) -> str:
        return self.written("result", index)


def leaves_of(call: Call, option: str, tree: Any) -> list[Any]:
    """The leaf of the option for each result; None if the option has no leaf."""
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


def with_windows(call: Call, into: Any) -> Call:
    """The call with its results written into `into`; where that is None, into arrays of their own."""
    if into is None:
        return call
    views = leaves_of(call, "into", unpacked(into))
    check_windows(call.name, views, lambda index: call.written("into", index), call.result, call.shapes, call.dtypes)
    members = into.members if isinstance(into, RaggedArray) else None
    return call._replace(views=tuple(views), members=members, is_packed=members is not None)


def _with_new_members(call: Call) -> Call:
    """The call with its results written into the members of a new RaggedArray."""
    for index, dtype in enumerate(call.dtypes):
        if dtype != call.dtypes[0]:
            raise ValueError(
                f"{call.name}: {call.result(index)} is {dtype} but {call.result(0)} is {call.dtypes[0]}: a RaggedArray "
                "has one dtype"
            )
    members = members_of(call.structure, call.shapes, call.dtypes[0])
    return call._replace(views=tuple(members.views(jnp.zeros(members.elements, call.dtypes[0]))), members=members)


def merged(operands: Sequence[Argument]) -> tuple[tuple[Argument, ...], list[int]]:
    """The distinct operands in order of first occurrence, and the position of each given operand among them."""
    arrays = distinct([operand.array for operand in operands])[1]
    keys = [(array, operand.shape, operand.dtype) for array, operand in zip(arrays, operands, strict=True)]
    unique = dict(zip(keys, operands, strict=True))
    position = {key: place for place, key in enumerate(unique)}
    return tuple(unique.values()), [position[key] for key in keys]


def bind(call: Call, planner: str | Planner, implementation: str | None) -> Any:
    """Binds the primitive and gives the results in their structure."""
    implementation = checked_implementation(call.name, implementation)
    planner = resolve_planner(planner)
    if call.is_packed and call.views is None and call.shapes:
        call = _with_new_members(call)
    arrays: list[Any] = [operand.array for operand in call.operands]
    # Symbolic dimensions (jax.export) cannot be planned for.
    read = (x.buffer.shape if isinstance(x, View) else x.shape for x in arrays)
    shapes = chain(call.shapes, read, (operand.shape for operand in call.operands))
    by_plan = implementation == "kernel" or all(map(compat.is_static, shapes))
    writes, targets = ([], []) if call.views is None else windows_into(call.views, call.shapes, arrays)
    # If XLA computes some of the results, they become arrays first and are copied into their windows afterwards.
    copies_into_windows = not by_plan or any(call.after)

    def run(given: list[Any]) -> list[jax.Array]:
        operands = [as_argument(x, *operand[1:]) for x, operand in zip(given, call.operands, strict=False)]
        if not by_plan:
            return reference.results(operands, call.terms, call.dtypes, call.epilogues, call.precision)
        batched = Batched(
            terms=call.terms,
            out_dtypes=call.dtypes,
            epilogues=call.epilogues,
            writes=() if copies_into_windows else tuple(writes),
            targets=() if copies_into_windows else tuple(targets),
            precision=call.precision,
            planner=planner,
            implementation=implementation,
        )
        return contract([*operands, *given[len(operands) :]], batched)

    results = list(unchecked(run, call.epilogues)(arrays))
    for index, function in enumerate(call.after):
        if function is not None:
            results[index] = function(results[index])
    if call.views is not None and copies_into_windows:
        results = reference.put(results, writes, targets, arrays, [[]] * len(targets))
    return _in_structure(call, results, writes)


def placed(call: Call, results: Sequence[jax.Array]) -> Any:
    """Results that were computed as arrays, in the structure that the call returns; results of the call's views are
    written into their windows first."""
    if call.is_packed and call.views is None and call.shapes:
        call = _with_new_members(call)
    if call.views is None:
        return _in_structure(call, results, ())
    arrays: list[Any] = []
    writes, targets = windows_into(call.views, call.shapes, arrays)
    return _in_structure(call, reference.put(results, writes, targets, arrays, [[]] * len(targets)), writes)


def _in_structure(call: Call, results: Sequence[Any], writes: Sequence[Window]) -> Any:
    """The arrays that the primitive returned as the results of a call: in the operands' structure, as windows of
    `into`'s arrays, or as a RaggedArray."""
    if call.views is not None:
        results = [
            results[window.array] if view is None else View.with_layout(results[window.array], view.layout)
            for view, window in zip(call.views, writes, strict=True)
        ]
    if not call.is_packed:
        return jax.tree.unflatten(call.structure, results)
    if call.members is None or not results:
        return RaggedArray(jnp.zeros(0), members_of(call.structure, (), jnp.zeros(()).dtype))
    return RaggedArray(results[0].buffer, call.members)


def as_argument(array: Any, shape: Shape, dtype: Any) -> Any:
    array = array if array.shape == shape else array.reshape(shape)
    return array if array.dtype == dtype else array.astype(dtype)


def unchecked(run: Callable[..., Any], epilogues: Sequence[Epilogue]) -> Callable[..., Any]:
    """`run`, with JAX's checkers (jax_debug_nans, jax_debug_infs) applied only to the final results.

    If beta is 0, C may hold NaN that does not reach the results, and a check of each step would report it.
    """
    checked = jax.config.jax_debug_nans or jax.config.jax_debug_infs  # type: ignore[attr-defined]
    return jax.jit(run) if checked and any(epilogue.source is not None for epilogue in epilogues) else run
