"""The primitive of ragged products: its operands, parameters and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm._src import compat

Shape = tuple[Any, ...]

EXTRAS = ("bias", "row_scale", "group_offset", "gather", "slots", "accumulator")
"""The operands that a call may have after lhs, rhs and group_sizes, in this order."""


class Ragged(NamedTuple):
    """The static description of a call. (...) are batch dimensions, which broadcast among all operands.

    Operands: lhs (..., m, k); rhs (..., groups, k, n), or (..., groups, n, k) where `transpose_rhs`; group_sizes
    (..., total groups), int32 or int64; then the operands that `extras` names: bias (..., groups, n) in the result's
    dtype, row_scale (..., m) in the accumulator's dtype, group_offset (...), gather (..., m) int32. The result is
    (..., m, n). A `contraction` has rhs (..., m, n), no extras but group_offset and accumulator, and the result
    (..., groups, k, n). The latter is added to an accumulator of its dtype and shape.

    With gather, lhs is (..., rows, k), and row gather[i] of it, which must exist, takes the place of row i. Only the
    gradient of lhs uses slots (..., rows, terms), the inverse selection: which rows of the product each row becomes.

    A `gated` product has 2 n in place of n in rhs and bias, and its result is row_scale activation(gate) up, where gate
    and up are both halves of the sums; it has an activation and is no contraction.

    Group j has the next max(group_sizes[j], 0) rows and, for 0 <= j - group_offset < groups, the weights of that index.
    `hint`: the typical size of groups, or one for each group; results do not depend on it.
    """

    out_dtype: Any
    groups: int
    contraction: bool = False
    transpose_rhs: bool = False
    extras: tuple[str, ...] = ()
    activation: str | None = None
    gated: bool = False
    precision: Any = None
    hint: int | tuple[int, ...] | None = None
    implementation: str | None = None

    @property
    def has_epilogue(self) -> bool:
        return self.activation is not None or "bias" in self.extras or "row_scale" in self.extras

    @property
    def typical_rows(self) -> int | None:
        """The number of rows of a typical group; None where the caller gave no hint."""
        return sum(self.hint) // max(len(self.hint), 1) if isinstance(self.hint, tuple) else self.hint

    def core_ranks(self) -> list[int]:
        """The rank of each operand without its batch dimensions."""
        extra = {"bias": 2, "row_scale": 1, "group_offset": 0, "gather": 1, "slots": 2, "accumulator": 3}
        return [2, 2 if self.contraction else 3, 1, *(extra[name] for name in self.extras)]

    def split(self, operands: Sequence[Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
        """lhs, rhs, group_sizes, and the extras by name."""
        lhs, rhs, group_sizes, *rest = operands
        return lhs, rhs, group_sizes, dict(zip(self.extras, rest, strict=True))

    def without_epilogue(self, out_dtype: Any, extras: dict[str, Any]) -> tuple[Ragged, list[Any]]:
        """The same product without its epilogue, in a dtype, and the extras that it still has."""
        kept = [name for name in self.extras if name == "group_offset"]
        plain = self._replace(out_dtype=out_dtype, extras=tuple(kept), activation=None, gated=False)
        return plain, [extras[name] for name in kept]


class Sizes(NamedTuple):
    """The sizes of a call, and its broadcast batch dimensions."""

    batch: Shape
    m: Any
    k: Any
    n: Any
    total_groups: Any

    def result(self, ragged: Ragged) -> Shape:
        core = (ragged.groups, self.k, self.n) if ragged.contraction else (self.m, self.n)
        return (*self.batch, *core)

    def columns(self, ragged: Ragged) -> Any:
        """The number of columns of a matrix of rhs and of a bias."""
        return 2 * self.n if ragged.gated else self.n


def sizes_of(shapes: Sequence[Shape], ragged: Ragged) -> Sizes:
    """The sizes of a call over operands of these shapes; ValueError where they don't fit."""
    ranks = ragged.core_ranks()
    leading = [shape[: len(shape) - rank] for shape, rank in zip(shapes, ranks, strict=True)]
    static = all(map(compat.is_static, leading))
    batch: Shape = (np if static else jnp).broadcast_shapes(*leading)
    lhs_rows, k = shapes[0][-2:]
    m = shapes[3 + ragged.extras.index("gather")][-1] if "gather" in ragged.extras else lhs_rows
    columns = shapes[1][-2 if ragged.transpose_rhs else -1]
    sizes = Sizes(batch, m, k, columns // 2 if ragged.gated else columns, shapes[2][-1])
    rhs = (
        (m, columns)
        if ragged.contraction
        else (ragged.groups, *((columns, k) if ragged.transpose_rhs else (k, columns)))
    )
    extra = {"bias": (ragged.groups, columns), "row_scale": (m,), "group_offset": (), "gather": (m,)}
    extra["accumulator"] = (ragged.groups, k, columns)
    if "slots" in ragged.extras:
        extra["slots"] = (lhs_rows, shapes[3 + ragged.extras.index("slots")][-1])
    cores = [(lhs_rows, k), rhs, (sizes.total_groups,), *(extra[name] for name in ragged.extras)]
    for shape, core, rank in zip(shapes, cores, ranks, strict=True):
        if shape[len(shape) - rank :] != core:
            raise ValueError(f"ragged_dot: operands of shapes {list(shapes)} don't fit: {shape} must end in {core}")
    return sizes


ragged_dot_p = jex_core.Primitive("ragged_dot")
ragged_dot_p.def_impl(partial(compat.apply_primitive, ragged_dot_p))


@ragged_dot_p.def_abstract_eval
def _abstract_eval(*operands: Any, ragged: Ragged) -> Any:
    sizes = sizes_of([operand.shape for operand in operands], ragged)
    return compat.shaped_array(sizes.result(ragged), ragged.out_dtype, operands)


def bind(operands: Sequence[jax.Array], ragged: Ragged) -> jax.Array:
    """Binds the primitive; inside shard_map, with all operands made varying over the union of their mesh axes."""
    if any(compat.varies(operand) for operand in operands):
        operands = compat.unite_varying(operands)
    result: jax.Array = ragged_dot_p.bind(*operands, ragged=ragged)
    return result
