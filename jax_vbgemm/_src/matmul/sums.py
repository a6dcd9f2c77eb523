"""Sums of products: gathers terms into results by the indices or the segments that the caller gives."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jax_vbgemm._src.matmul.call import Call, leaves_of
from jax_vbgemm._src.matmul.factors import FactorTree, paired, products
from jax_vbgemm._src.matmul.packed import RaggedArray, unpacked
from jax_vbgemm._src.util.arguments import shown

NAME = "batched_matmul_sum"


def sums_of_products(
    As: Any,
    Bs: Any,
    out: Any,
    segments: Any,
    *,
    transpose_a: Any,
    transpose_b: Any,
    symmetric: Any,
    precision: Any,
    preferred: Any,
) -> Call:
    """The call whose results are the sums that `out` or `segments` describes."""
    if (out is None) == (segments is None):
        raise ValueError(f"{NAME}: give either out (the result of each term) or segments (the terms of each result)")
    written: tuple[Any, Any] = (None, None)
    is_packed = any(isinstance(tree, RaggedArray) for tree in (As, Bs))
    As, Bs = unpacked(As), unpacked(Bs)
    if segments is not None:
        outs, results, keys = _terms_of_segments(segments)
        left, right = ([pair[side] for pair in keys] for side in (0, 1))
        As, transpose_a = _entries("As", As, "transpose_a", transpose_a, left)
        Bs, transpose_b = _entries("Bs", Bs, "transpose_b", transpose_b, right)
        written = (lambda term: f"As[{left[term]!r}]", lambda term: f"Bs[{right[term]!r}]")
    lhs, rhs = paired(NAME, As, Bs, written=written)
    call = products(
        NAME,
        lhs,
        rhs,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        symmetric=False,
        precision=precision,
        preferred=preferred,
    )
    if segments is None:
        outs, results = _results_of_indices(out, len(call.terms))
    call = call._replace(is_packed=is_packed)
    return _gathered(call, lhs, rhs, outs, jax.tree.structure(results), symmetric)


def _gathered(call: Call, lhs: FactorTree, rhs: FactorTree, outs: list[int], structure: Any, symmetric: Any) -> Call:
    """Turns a call with one result for each term into one with a result for each sum.

    The terms of a sum must agree in shape and in the dtypes of their factors.
    """
    by_term = call._replace(argument=None, structure=structure)
    first: dict[int, int] = {}  # the first term of each result
    for term, result in enumerate(outs):
        _check_same(by_term, lhs, rhs, term, first.setdefault(result, term), result)
    firsts = [first[result] for result in range(len(first))]
    call = by_term._replace(
        shapes=tuple(call.shapes[term] for term in firsts), dtypes=tuple(call.dtypes[term] for term in firsts)
    )
    flags = (
        [symmetric] * len(first) if isinstance(symmetric, bool | np.bool_) else leaves_of(call, "symmetric", symmetric)
    )
    for result, (shape, flag) in enumerate(zip(call.shapes, flags, strict=True)):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{NAME}: symmetric must hold Python bools, not {shown(flag)}")
        if flag and shape[-1] != shape[-2]:
            raise ValueError(
                f"{NAME}: {call.result(result)} is {shape[-2]} x {shape[-1]}, but a symmetric result must be square"
            )
    terms = zip(call.terms, outs, strict=True)
    return call._replace(terms=tuple(term._replace(out=out, symmetric=bool(flags[out])) for term, out in terms))


def _check_same(call: Call, lhs: FactorTree, rhs: FactorTree, term: int, first: int, result: int) -> None:
    """Raises if two terms of one result differ in shape or in the dtypes of their factors."""

    def product(index: int) -> str:
        return f"{lhs.written(index)} x {rhs.written(index)}"

    def dtypes(index: int) -> str:
        operands = (call.operands[side] for side in call.terms[index][:2])
        return " x ".join(dict.fromkeys(str(operand.dtype) for operand in operands))

    if call.shapes[term] != call.shapes[first]:
        raise ValueError(
            f"{NAME}: {product(term)} is {call.shapes[term]} but {product(first)} is {call.shapes[first]}: "
            f"the terms of {call.result(result)} must have one shape"
        )
    if dtypes(term) != dtypes(first):
        raise ValueError(
            f"{NAME}: {product(term)} multiplies {dtypes(term)} but {product(first)} {dtypes(first)}: "
            f"the terms of {call.result(result)} must have one dtype"
        )


def _results_of_indices(out: Any, count: int) -> tuple[list[int], list[int]]:
    """The index of each term's result, and the structure of the results: a list."""
    try:
        outs = [operator.index(index) for index in out]
    except TypeError as error:
        raise TypeError(f"{NAME}: out must be integers, one a term: {error}") from None
    if len(outs) != count:
        raise ValueError(f"{NAME}: out has {len(outs)} entries but there are {count} terms: one result for each term")
    for term, result in enumerate(outs):
        if result < 0:
            raise ValueError(f"{NAME}: out[{term}] is {result}: results are numbered from 0 on")
    numbers = set(outs)
    for result in range(max(outs, default=-1) + 1):
        if result not in numbers:
            raise ValueError(f"{NAME}: out has {max(outs)} but not {result}: each result needs a term")
    return outs, list(range(len(numbers)))


def _terms_of_segments(segments: Any) -> tuple[list[int], Any, list[tuple[Any, Any]]]:
    """The index of each term's result, a tree with one leaf for each result, and each term's keys of As and Bs."""
    if not isinstance(segments, Mapping | list | tuple):
        raise TypeError(f"{NAME}: segments must be a list or a dict with each result's terms, not {shown(segments)}")
    named, structure = jax.tree.flatten_with_path(segments, is_leaf=lambda node: node is not segments)
    outs, keys = [], []
    for result, (path, pairs) in enumerate(named):
        where = f"{NAME}: segments{jax.tree_util.keystr(path)}"
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise TypeError(f"{where} is {shown(pairs)}: it must be a list of pairs, a key of As and a key of Bs each")
        if not pairs:
            raise ValueError(f"{where} is empty: each result needs a term")
        outs += [result] * len(pairs)
        keys += [(a, b) for a, b in pairs]
    return outs, jax.tree.unflatten(structure, range(len(named))), keys


def _entries(argument: str, tree: Any, option: str, flags: Any, keys: list[Any]) -> tuple[list[Any], Any]:
    """The left or right factors and their transpose flags, one entry for each term, looked up by the segments' keys."""
    if not isinstance(tree, Mapping | list | tuple):
        raise TypeError(f"{NAME}: {argument} must be a list or a dict of arrays where there are segments")
    factors = [_entry(argument, tree, key) for key in keys]
    return factors, flags if isinstance(flags, bool | np.bool_) else [_entry(option, flags, key) for key in keys]


def _entry(name: str, tree: Any, key: Any) -> Any:
    try:
        return tree[key]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"{NAME}: segments name {name}[{key!r}], which does not exist") from None
