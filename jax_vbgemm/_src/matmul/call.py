"""A checked call: a value that the checks of factors, sums and epilogues build, and that is bound to the primitive.

    factors.py     pairs As and Bs, checks each pair, and makes a Call with one product for each result
    sums.py        gathers the products into sums
    epilogues.py   adds alpha, beta, C, bias and activation
    with_windows   adds the windows into which results are written
    bind           binds the primitive

Each step takes a Call and returns another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src import compat
from jax_vbgemm._src.distinct import distinct
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.contract import contract
from jax_vbgemm._src.matmul.into import Windows, checked_windows
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.options import checked_implementation
from jax_vbgemm._src.matmul.packed import RaggedArray, members_of, unpacked
from jax_vbgemm._src.matmul.primitive import Epilogue, Target, Term
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.planner import Planner, resolve_planner
from jax_vbgemm._src.structure import difference, path_of


class Operand(NamedTuple):
    """An array or a view as the caller gave it, with the shape and dtype that the primitive needs."""

    array: jax.Array | View
    shape: Shape
    dtype: Any


class Call(NamedTuple):
    """A call whose arguments have been checked. Terms and epilogues refer to operands and results by position."""

    name: str  # of the public function, for messages
    argument: str | None  # the argument whose structure the results have, if there is one
    structure: Any  # the tree definition of the results
    operands: tuple[Operand, ...]
    terms: tuple[Term, ...]
    shapes: tuple[Shape, ...]  # of the results
    dtypes: tuple[Any, ...]  # of the results
    precision: Any
    epilogues: tuple[Epilogue, ...] = ()  # one for each result, or empty
    after: tuple[
        Callable[[jax.Array], jax.Array] | None, ...
    ] = ()  # one for each result, or empty: activations that no kernel has
    is_packed: bool = False  # whether the results are a RaggedArray, as some factors were
    windows: Windows | None = None  # where results are written; None: into arrays of their own

    def written(self, argument: str, index: int) -> str:
        """The name of leaf `index` of an argument with the results' structure in messages: result[3], bias['w']."""
        return argument + path_of(self.structure, index)

    def result(self, index: int) -> str:
        return self.written("result", index)


def leaves_of(call: Call, option: str, tree: Any) -> list[Any]:
    """The leaf of the option for each result; None where the option has no leaf."""
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
    leaves = leaves_of(call, "into", unpacked(into))
    windows = checked_windows(
        call.name, leaves, lambda index: call.written("into", index), call.result, call.shapes, call.dtypes
    )
    members = into.members if isinstance(into, RaggedArray) else None
    return call._replace(windows=windows._replace(members=members), is_packed=members is not None)


def _packed_windows(call: Call) -> Windows:
    """The members of a new RaggedArray, for the results."""
    for index, dtype in enumerate(call.dtypes):
        if dtype != call.dtypes[0]:
            raise ValueError(
                f"{call.name}: {call.result(index)} is {dtype} but {call.result(0)} is {call.dtypes[0]}: a RaggedArray "
                "has one dtype"
            )
    dtype = call.dtypes[0] if call.dtypes else jnp.zeros(()).dtype
    members = members_of(call.structure, call.shapes, dtype)
    return Windows(tuple(members.views(jnp.zeros(members.elements, dtype))), members, is_new=True)


def merged(operands: Sequence[Operand]) -> tuple[tuple[Operand, ...], list[int]]:
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
    windows = call.windows
    if call.is_packed and windows is None and call.shapes:
        windows = _packed_windows(call)
    read = [x.buffer if isinstance(x, View) else x for x in (operand.array for operand in call.operands)]
    # Nothing can be planned for symbolic dimensions (jax.export).
    shapes = chain(call.shapes, (x.shape for x in read), (operand.shape for operand in call.operands))
    by_plan = implementation == "kernel" or all(map(compat.is_static, shapes))
    into = None if windows is None else windows.into(call.shapes, read)
    # Where XLA computes part of the results, they are arrays first and are put into their windows afterwards.
    put_later = into is not None and (not by_plan or any(call.after))

    def run(arrays: list[Any]) -> list[jax.Array]:
        operands = [_as(x, *operand[1:]) for x, operand in zip(arrays, call.operands, strict=True)]
        if not by_plan:
            return reference.results(operands, call.terms, call.dtypes, call.epilogues, call.precision)
        return contract(
            operands,
            call.terms,
            call.dtypes,
            epilogues=call.epilogues,
            into=None if put_later else into,
            precision=call.precision,
            planner=planner,
            implementation=implementation,
        )

    results = list(_unchecked(run, call.epilogues)([operand.array for operand in call.operands]))
    for index, function in enumerate(call.after):
        if function is not None:
            results[index] = function(results[index])
    if into is not None and windows is not None:
        if put_later:
            bases = [None if base is None else index for index, base in enumerate(into.bases)]
            targets = [Target(shape, base) for shape, base in zip(into.shapes, bases, strict=True)]
            results = reference.put(results, into.writes, targets, into.bases, [[]] * len(targets))
        results = windows.results(into.writes, results)
    if not call.is_packed:
        return jax.tree.unflatten(call.structure, results)
    if windows is None or windows.members is None:  # there are no results
        return RaggedArray(jnp.zeros(0), members_of(call.structure, (), jnp.zeros(()).dtype))
    return RaggedArray(results[0].buffer, windows.members)


def _as(array: Any, shape: Shape, dtype: Any) -> Any:
    array = array if array.shape == shape else array.reshape(shape)
    return array if array.dtype == dtype else array.astype(dtype)


def _unchecked(run: Callable[..., Any], epilogues: Sequence[Epilogue]) -> Callable[..., Any]:
    """`run` with JAX's checkers (jax_debug_nans, jax_debug_infs) looking at the final results alone.

    Where beta is 0, C may hold NaN that does not reach the results, and a check of each step would report it.
    """
    checked = jax.config.jax_debug_nans or jax.config.jax_debug_infs  # type: ignore[attr-defined]
    return jax.jit(run) if checked and any(epilogue.source is not None for epilogue in epilogues) else run
