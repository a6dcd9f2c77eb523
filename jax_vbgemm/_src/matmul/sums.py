"""Sums of products: what the user gave is checked, and becomes terms of which several have one result."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jax_vbgemm._src.matmul.call import Call

NAME = "batched_matmul_sum"


class SumCall(Call):
    """A call whose results are sums of products; `pairs` has each term's operands, in the order of `out`."""

    def __init__(
        self,
        As: Any,
        Bs: Any,
        out: Any,
        segments: Any,
        transpose_a: Any,
        transpose_b: Any,
        symmetric: Any,
        precision: Any,
        preferred: Any,
    ) -> None:
        if (out is None) == (segments is None):
            raise ValueError(f"{NAME}: give either out, each term's result, or segments, each result's terms")
        self._names: dict[str, list[str]] = {}  # of the terms' operands, where As and Bs don't have one leaf a term
        if segments is not None:
            outs, results, keys = _terms_of_segments(segments)
            As, Bs, transpose_a, transpose_b = self._pairs(keys, As, Bs, transpose_a, transpose_b)
        self._pair_trees, self._results = (As, Bs), None
        super().__init__(NAME, As, Bs, transpose_a, transpose_b, False, precision, preferred)
        if segments is None:
            outs, results = _results_of_indices(out, len(self.terms))
        self._results, self.structure = results, jax.tree.structure(results)
        self._gather(outs, symmetric)

    def _pairs(self, keys: list[tuple[Any, Any]], As: Any, Bs: Any, transpose_a: Any, transpose_b: Any) -> list[Any]:
        """As, Bs and their flags with one entry a term, from those that segments name by key."""
        found: list[list[Any]] = [[], [], [], []]
        for side, (name, tree, option, flags) in enumerate(
            (("As", As, "transpose_a", transpose_a), ("Bs", Bs, "transpose_b", transpose_b))
        ):
            if not isinstance(tree, Mapping | list | tuple):
                raise TypeError(f"{NAME}: {name} must be a list or a dict of arrays where there are segments")
            self._names[name] = [f"{name}[{pair[side]!r}]" for pair in keys]
            for pair in keys:
                found[side].append(_entry(name, tree, pair[side]))
                whole = isinstance(flags, bool | np.bool_)
                found[2 + side].append(flags if whole else _entry(option, flags, pair[side]))
        return found

    def _gather(self, outs: list[int], symmetric: Any) -> None:
        """From one result a term to one result a sum, whose terms have one shape and one dtype."""
        count = self.structure.num_leaves
        shapes, dtypes = self.shapes, self.dtypes
        first: list[Any] = [None] * count
        for index, result in enumerate(outs):
            if first[result] is None:
                first[result] = index
            if shapes[index] != shapes[first[result]]:
                raise ValueError(
                    f"{NAME}: {self._product(index)} is {shapes[index]} but {self._product(first[result])} is "
                    f"{shapes[first[result]]}: the terms of {self.result(result)} must have one shape"
                )
            these, those = (self._dtypes(term) for term in (index, first[result]))
            if these != those:
                raise ValueError(
                    f"{NAME}: {self._product(index)} multiplies {these} but {self._product(first[result])} {those}: "
                    f"the terms of {self.result(result)} must have one dtype"
                )
        self.shapes, self.dtypes = [shapes[index] for index in first], [dtypes[index] for index in first]
        self.symmetric = [symmetric] * count if isinstance(symmetric, bool) else self._leaves("symmetric", symmetric)
        for result, (shape, flag) in enumerate(zip(self.shapes, self.symmetric, strict=True)):
            if not isinstance(flag, bool | np.bool_):
                raise TypeError(f"{NAME}: symmetric must hold Python bools, not {flag!r}")
            if flag and shape[-1] != shape[-2]:
                raise ValueError(
                    f"{NAME}: {self.result(result)} is {shape[-2]} x {shape[-1]}, but a symmetric result must be square"
                )
        self.terms = [
            term._replace(out=result, symmetric=bool(self.symmetric[result]))
            for term, result in zip(self.terms, outs, strict=True)
        ]

    def _dtypes(self, index: int) -> str:
        """Those of a term's operands."""
        term = self.terms[index]
        return " x ".join(dict.fromkeys(str(self.operands[side].dtype) for side in (term.lhs, term.rhs)))

    def leaf(self, tree: tuple[str, Any], index: int) -> str:
        name = tree[0]
        if name in self._names:
            return self._names[name][index]
        return super().leaf(tree if name in ("As", "Bs") else (name, self._results), index)

    def result(self, index: int) -> str:
        return self.leaf(("result", None), index)

    def _product(self, term: int) -> str:
        return " x ".join(
            self.leaf((name, tree), term) for name, tree in zip(("As", "Bs"), self._pair_trees, strict=True)
        )

    def _leaves(self, option: str, tree: Any) -> list[Any]:
        if tree is None:
            return [None] * self.structure.num_leaves
        try:
            leaves: list[Any] = self.structure.flatten_up_to(tree)
        except ValueError as error:
            raise ValueError(f"{NAME}: {option} must have the structure of the results: {error}") from None
        return leaves


def _results_of_indices(out: Any, count: int) -> tuple[list[int], list[int]]:
    """Each term's result, and the list of results."""
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
    """Each term's result, a tree with a leaf a result, and each term's keys of As and Bs."""
    if not isinstance(segments, Mapping | list | tuple):
        raise TypeError(f"{NAME}: segments must be a list or a dict with each result's terms, not {segments!r}")
    named, structure = jax.tree.flatten_with_path(segments, is_leaf=lambda node: node is not segments)
    outs, keys = [], []
    for result, (path, pairs) in enumerate(named):
        where = f"{NAME}: segments{jax.tree_util.keystr(path)}"
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise TypeError(f"{where} is {pairs!r}: it must be a list of pairs, a key of As and a key of Bs each")
        if not pairs:
            raise ValueError(f"{where} is empty: each result needs a term")
        outs += [result] * len(pairs)
        keys += [(a, b) for a, b in pairs]
    return outs, jax.tree.unflatten(structure, range(len(named))), keys


def _entry(name: str, tree: Any, key: Any) -> Any:
    try:
        return tree[key]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"{NAME}: segments name {name}[{key!r}], which there is not") from None
