"""Which parameters Muon updates, with what dimension numbers; AdamW updates all others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers

from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.optax.matrices import axes_of
from jax_vbgemm._src.optax.packed import is_ragged
from jax_vbgemm._src.optax.placement import Placement
from jax_vbgemm._src.optax.splitting import Part, parts_of


@dataclass(frozen=True)
class Partition:
    """`given`: muon's argument muon_weight_dimension_numbers, a tree, a callable that makes one, or None.

    None stands for matrices to Muon, everything else to AdamW. `split`: muon's argument of this name. `placement`: of
    the parameters.
    """

    given: Any
    weight_decay_mask: Any
    split: Any
    placement: Placement

    def labels(self, params: Any) -> Any:
        """ "muon" or "adam" for each leaf (of packed parameters, for each buffer), as `optax.partition` wants them."""
        leaf_options = {"weight_decay_mask": self.weight_decay_mask, "muon_weight_dimension_numbers": self.given}
        for name, given in leaf_options.items():
            if given is not None and any(map(is_ragged, jax.tree.leaves(params, is_leaf=is_ragged))):
                raise ValueError(f"muon: {name} cannot be used with packed parameters: it is of leaves")

        def label(number: Any, part: Any) -> Any:
            return jax.tree.map(lambda _: "adam" if number is None else "muon", part)

        return jax.tree.map(label, self._prefix(params), params, is_leaf=_is_number)

    def numbers(self, params: Any) -> Any:
        """Dimension numbers with the structure that `optax.partition` gives Muon's part of the tree."""

        def expand(number: Any, part: Any) -> Any:
            def with_label(label: Any) -> Any:
                if jax.tree.leaves(label) == ["muon"]:
                    return number  # for all members of a RaggedArray
                return jax.tree.map(lambda _: optax.MaskedNode(), label)

            return jax.tree.map(with_label, part, is_leaf=is_ragged)

        return jax.tree.map(expand, self._prefix(params), self.labels(params), is_leaf=_is_number)

    def shape_factors(self, consistent_rms: Any) -> Callable[[Any], Any]:
        """A function that gives one number for each of Muon's leaves, or for each part or member of a leaf.

        The numbers are known at trace time unless consistent_rms is traced.
        """
        traced = isinstance(consistent_rms, jax.Array)

        def factors(updates: Any) -> Any:
            structure: Any = jax.tree.structure(updates, is_leaf=is_ragged)
            numbers = structure.flatten_up_to(self.numbers(updates))
            parts = parts_of(updates, self.split)
            whole_leaves = self.placement.whole_leaves("muon", updates)
            found = [
                shape_factor(x, number, 1 if traced else consistent_rms)
                for leaf, number, leaf_parts in zip(whole_leaves, numbers, parts, strict=True)
                for x in (map(leaf.view, range(len(leaf))) if is_ragged(leaf) else leaf_parts or [leaf])
            ]
            static = np.array(found, jax.dtypes.canonicalize_dtype(float))
            return static * consistent_rms if traced else static

        return factors

    def _prefix(self, params: Any) -> Any:
        """A prefix tree of dimension numbers; None for leaves that AdamW updates."""
        if self.given is None:
            return jax.tree.map(lambda x: MuonDimensionNumbers() if _is_matrix(x) else None, params, is_leaf=is_ragged)
        return self.given(params) if callable(self.given) else self.given


def shape_factor(x: jax.Array | View | Part, numbers: MuonDimensionNumbers, consistent_rms: Any) -> Any:
    """sqrt(max(1, fan out / fan in)), or sqrt(max(fan in, fan out)) * consistent_rms."""
    fan_in, fan_out = (math.prod(x.shape[axis] for axis in axes) for axes in axes_of(x, numbers))
    if consistent_rms is None:
        return math.sqrt(max(1, fan_out / max(fan_in, 1)))  # the fan-in of a leaf without elements may be 0
    return math.sqrt(max(fan_in, fan_out)) * consistent_rms


def _is_number(x: Any) -> bool:
    return x is None or isinstance(x, MuonDimensionNumbers | optax.MaskedNode)


def _is_matrix(x: Any) -> bool:
    """Whether a leaf, or each member of a RaggedArray, is a matrix."""
    if not is_ragged(x):
        return bool(x.ndim == 2)
    found = [len(shape) == 2 for shape in x.shapes]
    if any(found) and not all(found):
        other = found.index(False)
        raise ValueError(
            f"muon: member {other} of a RaggedArray is {x.shapes[other]}, but member {found.index(True)} is a matrix: "
            "matrices and other leaves need buffers of their own, as those of pack_tree"
        )
    return bool(found) and all(found)
