"""The primitive of ragged products: its operands, parameters and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm import _core
from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.util import compat

Shape = tuple[Any, ...]


class Operand(NamedTuple):
    """An operand of a call, or the result. Its shapes in both forms are names of fields of `RaggedSizes`; None if a
    call of that form does not have it. kernels: those that support it."""

    name: str
    type: str
    kernels: tuple[str, ...]
    rows: tuple[str, ...] | None
    contraction: tuple[str, ...] | None


*_OPERANDS, RESULT = (Operand(*row) for row in _core.ragged_operands())
CALL = tuple(operand.name for operand in _OPERANDS)
"""The operands of the custom call, in order (csrc/ragged_operands.def)."""

REQUIRED = CALL[: _core.RAGGED_REQUIRED]
# The primitive has one more, which only the gradient of lhs uses.
OPERANDS = {
    operand.name: operand for operand in (*_OPERANDS, Operand("slots", "index", (), ("lhs_rows", "terms"), None))
}


HALVES = tuple(_core.ragged_halves())
"""What of a product comes in halves, in the order of its numbers (RaggedHalves in csrc/ragged.h). In ragged rows, rhs
and the operand "second" are both halves of each matrix, of its "columns" or of its "k". In a contraction, one half of
the columns of lhs or of rhs takes part."""


SCALED: int = _core.RAGGED_SCALED
"""The number of K elements, and of columns of rhs, per scale."""


class Ragged(NamedTuple):
    """The static description of a call. (...) are batch dimensions, which broadcast among all operands.

    Operands: lhs, rhs and group_sizes, int32 or int64; then those of the epilogue, whose keys are names, and those that
    `extras` names, in any order. `OPERANDS` has their shapes and types. With `transpose_rhs`, rhs is (..., groups,
    columns, k). A `contraction` is added to its accumulator.

    With gather, lhs is (..., rows, k), and row gather[i] of it, which must exist, takes the place of row i. Only the
    gradient of lhs uses slots (..., rows, terms), the inverse selection: which rows of the product each row becomes.

    lhs_scale and rhs_scale multiply the factors of an 8-bit product: one for each SCALED K elements (and columns of
    rhs), or for all of them. Those of rhs may also be of single columns with all of K. In a mixed product rhs alone has
    8 or 4 bits and scales, and those of single columns may be of SCALED K elements. A contraction with scales has
    `transpose_rhs`: then lhs and rhs are (columns, rows), their scales (blocks of columns, blocks of rows), and each
    group's size counts as rounded up to a multiple of SCALED.

    The epilogue is that of ragged rows; a contraction has none. Its bias is that of the row's group. A gated product
    has 2 n columns, and an activation.

    With `halves` of columns or k, rhs and second are two arrays of equal shape that stand for one of twice the size:
    weights that are stored apart take part in one product, as do their gradients.

    With `fast_accumulation`, tensor cores may sum products of 8-bit floats over all of K, where scales hold for it.

    With `undefined_rest`, rows without weights are not written; otherwise they are zeros.

    Group j has the next max(group_sizes[j], 0) rows and, for 0 <= j - group_offset < groups, the weights of that index.
    `hint`: the typical size of groups, or one for each group; results do not depend on it.
    """

    out_dtype: Any
    groups: int
    contraction: bool = False
    transpose_rhs: bool = False
    halves: str = HALVES[0]
    epilogue: Epilogue = Epilogue()
    fast_accumulation: bool = False
    undefined_rest: bool = False
    extras: tuple[str, ...] = ()
    precision: Any = None
    hint: int | tuple[int, ...] | None = None
    implementation: str | None = None

    @property
    def has_epilogue(self) -> bool:
        return self.epilogue != Epilogue()

    @property
    def has_scales(self) -> bool:
        """Whether a factor has scales."""
        return not {"lhs_scale", "rhs_scale"}.isdisjoint(self.extras)

    @property
    def is_mixed(self) -> bool:
        """Whether rhs has 8 or 4 bits and lhs has 16."""
        return "rhs_scale" in self.extras and "lhs_scale" not in self.extras

    @property
    def typical_rows(self) -> int | None:
        """The number of rows of a typical group; None if the caller gave no hint."""
        return sum(self.hint) // max(len(self.hint), 1) if isinstance(self.hint, tuple) else self.hint

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the operands, in order."""
        return (*REQUIRED, *self.epilogue.operands(), *self.extras)

    def core(self, operand: Operand) -> tuple[str, ...]:
        """The shape of an operand, or of the result, without its batch dimensions, by the names of its sizes."""
        shape = operand.contraction if self.contraction else operand.rows
        assert shape is not None, f"{operand.name} is not for this form"
        # In ragged rows, the operands with a matrix for each group; in a contraction, both factors and their scales.
        transposed = self.transpose_rhs and operand != RESULT and len(shape) == (2 if self.contraction else 3)
        return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape

    def core_ranks(self) -> list[int]:
        """The rank of each operand without its batch dimensions."""
        return [len(self.core(OPERANDS[name])) for name in self.names]

    def without(self, *names: str) -> Ragged:
        """The same product without some of its extras."""
        return self._replace(extras=tuple(name for name in self.extras if name not in names))

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
        """lhs, rhs, group_sizes, and the other operands by name."""
        lhs, rhs, group_sizes, *rest = operands
        return lhs, rhs, group_sizes, dict(zip(self.names[len(REQUIRED) :], rest, strict=True))

    def without_epilogue(self, out_dtype: Any, extras: dict[str, Any]) -> tuple[Ragged, list[Any]]:
        """The same product without its epilogue, with result `dtype`, and those of the named extras that remain."""
        kept = [name for name in self.extras if name in ("second", "group_offset")]
        plain = self._replace(out_dtype=out_dtype, epilogue=Epilogue(), extras=tuple(kept))
        return plain, [extras[name] for name in kept]


class RaggedSizes(NamedTuple):
    """The sizes of a call, and its broadcast batch dimensions (RaggedSize in csrc/ragged.h)."""

    batch: Shape
    lhs_rows: Any
    m: Any
    k: Any
    n: Any
    columns: Any
    groups: Any
    total_groups: Any
    rhs_groups: Any
    lhs_columns: Any
    rhs_k: Any
    rhs_columns: Any
    lhs_blocks: Any = None
    rhs_k_blocks: Any = None
    rhs_column_blocks: Any = None
    terms: Any = None

    def shape(self, names: Sequence[str]) -> Shape:
        return tuple(getattr(self, name) for name in names)

    def result(self, ragged: Ragged) -> Shape:
        return (*self.batch, *self.shape(ragged.core(RESULT)))


def sizes_of(shapes: Sequence[Shape], ragged: Ragged) -> RaggedSizes:
    """The sizes of a call over operands of these shapes; ValueError if they don't fit."""
    of = dict(zip(ragged.names, shapes, strict=True))
    ranks = ragged.core_ranks()
    leading = [shape[: len(shape) - rank] for shape, rank in zip(shapes, ranks, strict=True)]
    along_k = ragged.contraction and ragged.transpose_rhs
    lhs_rows, lhs_columns = of["lhs"][-2:][:: -1 if along_k else 1]
    rhs_columns = of["rhs"][-2 if ragged.transpose_rhs else -1]
    k = lhs_columns // 2 if ragged.halves.startswith("lhs") else lhs_columns
    columns = rhs_columns // 2 if ragged.halves.startswith("rhs") else rhs_columns
    if ragged.halves == "columns":
        columns = 2 * rhs_columns
    blocks = of["rhs_scale"][-2:] if "rhs_scale" in of else (None, None)
    lhs_blocks = of["lhs_scale"][-2:] if "lhs_scale" in of else (None, None)
    sizes = RaggedSizes(
        batch=batch_of(leading),
        lhs_rows=lhs_rows,
        m=of["gather"][-1] if "gather" in of else lhs_rows,
        k=k,
        n=columns // 2 if ragged.epilogue.gated else columns,
        columns=columns,
        groups=ragged.groups,
        total_groups=of["group_sizes"][-1],
        rhs_groups=ragged.groups,
        lhs_columns=lhs_columns,
        rhs_k=k // 2 if ragged.halves == "k" else k,
        rhs_columns=rhs_columns,
        lhs_blocks=lhs_blocks[0 if along_k else 1],
        rhs_k_blocks=blocks[1 if ragged.transpose_rhs else 0],
        rhs_column_blocks=blocks[0 if ragged.transpose_rhs else 1],
        terms=of["slots"][-1] if "slots" in of else None,
    )
    for (name, shape), rank in zip(of.items(), ranks, strict=True):
        core = sizes.shape(ragged.core(OPERANDS[name]))
        if shape[len(shape) - rank :] != core:
            raise ValueError(f"ragged_dot: operands of shapes {list(shapes)} don't fit: {shape} must end in {core}")
    return sizes


def batch_of(leading: Sequence[Shape]) -> Shape:
    """The batch dimensions of a call from those of its operands."""
    batch: Shape = (np if all(map(compat.is_static, leading)) else jnp).broadcast_shapes(*leading)
    return batch


ragged_dot_p = jex_core.Primitive("ragged_dot")
ragged_dot_p.def_impl(partial(compat.apply_primitive, ragged_dot_p))


@ragged_dot_p.def_abstract_eval
def _abstract_eval(*operands: Any, ragged: Ragged) -> Any:
    sizes = sizes_of([operand.shape for operand in operands], ragged)
    return compat.shaped_array(sizes.result(ragged), ragged.out_dtype, operands)


def bind(operands: Sequence[jax.Array], ragged: Ragged) -> jax.Array:
    """Binds the primitive; inside shard_map, with all operands made varying over the union of their mesh axes."""
    result: jax.Array = ragged_dot_p.bind(*compat.unite_varying(operands), ragged=ragged)
    return result
