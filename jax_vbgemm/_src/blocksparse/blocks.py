"""One operand of a block-sparse contraction, with the checks of its blocks."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Hashable, Mapping
from typing import Any

from jax_vbgemm._src.matmul.view import Operand, View, as_operand
from jax_vbgemm._src.util.shown import shown

Sector = tuple[Hashable, ...]
"""The charge of each axis: an int for U1 or Z2, a tuple of ints for a product of groups."""

Modulus = int | tuple[int | None, ...] | None
"""Charges are numbers modulo this one (Z_N); None: integers (U1). A tuple has one entry for each part of a charge."""


def is_block_array(x: Any) -> bool:
    """Whether x is an array of symmray with blocks by sector (symmray's flat arrays have one stacked array instead)."""
    return isinstance(getattr(x, "blocks", None), Mapping) and all(
        hasattr(x, name) for name in ("indices", "symmetry", "copy_with", "tensordot")
    )


class Blocks:
    """A block-sparse tensor: its blocks by sector, in the order of sectors, independently of the order of insertion.

    `function`, `name`: of the public function and of its argument in messages. `ndim` is None for a tensor without
    blocks, whose axes are unknown. With a modulus, the sectors are those of the reduced charges.
    """

    def __init__(self, function: str, name: str, blocks: Mapping[Sector, Any], modulus: Modulus = None) -> None:
        self.function, self.name = function, name
        for sector in blocks:
            if not isinstance(sector, tuple):
                raise TypeError(
                    f"{function}: {name} has the key {sector!r}: a sector must be a tuple with the charge of each axis"
                )
        written = dict(zip(blocks, blocks, strict=True)) if modulus is None else self._reduced(blocks, modulus)
        try:
            sectors = sorted(written)
        except TypeError as error:
            raise TypeError(
                f"{function}: the sectors of {name} must have an order, as JAX wants of keys: {error}"
            ) from None
        self.blocks: dict[Sector, Operand] = {
            sector: as_operand(function, f"{name}[{written[sector]!r}]", blocks[written[sector]]) for sector in sectors
        }
        first = next(iter(sectors), None)
        self.ndim = None if first is None else len(first)
        self.dtype = None if first is None else self.blocks[first].dtype
        self._sizes: dict[tuple[int, Hashable], tuple[int, Sector]] = {}
        self._kinds: list[Any] = [_charge_kind(charge) for charge in first or ()]
        self._first: Sector = first or ()
        for sector, block in self.blocks.items():
            self._check_block(sector, block, first)

    def _reduced(self, blocks: Mapping[Sector, Any], modulus: Modulus) -> dict[Sector, Sector]:
        """{sector with its charges modulo `modulus`: the same sector as the caller wrote it}."""
        written: dict[Sector, Sector] = {}
        for sector in blocks:
            try:
                key = tuple(reduced(charge, modulus) for charge in sector)
            except TypeError:
                raise TypeError(
                    f"{self.function}: {self.name} has the sector {sector!r}, whose charges must be integers, or "
                    f"tuples of as many integers as modulus={modulus!r} has entries"
                ) from None
            if key in written:
                raise ValueError(
                    f"{self.function}: {self.name} has the sectors {written[key]!r} and {sector!r}, which are one "
                    f"sector modulo {modulus}: add their blocks"
                )
            written[key] = sector
        return written

    def _check_block(self, sector: Sector, block: Operand, first: Any) -> None:
        """Raises ValueError if a block's number of axes, dtype, charges or sizes do not fit its sector and the blocks
        before it."""
        if len(sector) != self.ndim:
            raise ValueError(
                f"{self.function}: {self.name} has the sectors {first!r} and {sector!r}: all must have one charge for "
                "each axis"
            )
        if block.ndim != self.ndim:
            raise ValueError(
                f"{self.function}: {self._shown(sector)}: it must have an axis for each of its sector's {self.ndim} "
                "charges"
            )
        if block.dtype != self.dtype:
            raise ValueError(
                f"{self.function}: {self.name}[{sector!r}] is {block.dtype} but {self.name}[{first!r}] is "
                f"{self.dtype}: the blocks of one tensor must have one dtype"
            )
        for axis, (charge, size) in enumerate(zip(sector, block.shape, strict=True)):
            if _charge_kind(charge) != self._kinds[axis]:
                raise ValueError(
                    f"{self.function}: {self.name} has the sectors {first!r} and {sector!r}: the charges "
                    f"{first[axis]!r} and {charge!r} of axis {axis} must be of one kind"
                )
            known, where = self._sizes.setdefault((axis, charge), (size, sector))
            if known != size:
                raise ValueError(
                    f"{self.function}: {self._shown(sector)} but {self._shown(where)}: charge {charge!r} of axis "
                    f"{axis} must have one size, not {size} and {known}"
                )

    def _shown(self, sector: Sector) -> str:
        return f"{self.name}[{sector!r}] is {tuple(self.blocks[sector].shape)}"

    def charge_sizes(self, axis: int) -> dict[Hashable, int]:
        """The size of each charge of an axis."""
        return {charge: size for (at, charge), (size, _) in sorted(self._sizes.items()) if at == axis}

    @property
    def memory(self) -> tuple[int, ...]:
        """The axes in memory order, outermost first: the order of the largest block that is a view, or of arrays."""
        views = [block for block in self.blocks.values() if isinstance(block, View)]
        axes = range(self.ndim or 0)
        if not views:
            return tuple(axes)
        dimensions = max(views, key=lambda view: view.size).layout.dimensions
        return tuple(sorted(axes, key=lambda axis: -dimensions[axis][0][1]))

    def check_contracted(self, axes: tuple[int, ...], other: Blocks, others: tuple[int, ...]) -> None:
        """Raises if a charge has different sizes in an axis of this tensor and in the axis contracted with it, or
        where the charges of these axes are of different kinds, so that none could be equal."""
        meets = dict(zip(axes, others, strict=True))
        for axis, its in meets.items():
            if self._kinds[axis] != other._kinds[its]:
                mine, yours = (x._first for x in (self, other))
                raise ValueError(
                    f"{self.function}: axis {axis} of {self.name} and axis {its} of {other.name} are contracted, but "
                    f"{self.name} has the sector {mine!r} with the charge {mine[axis]!r}, and {other.name} has "
                    f"{yours!r} with {yours[its]!r}: charges of both must be of one kind"
                )
        for (axis, charge), (size, sector) in self._sizes.items():
            found = other._sizes.get((meets[axis], charge)) if axis in meets else None
            if found is not None and found[0] != size:
                raise ValueError(
                    f"{self.function}: axis {axis} of {self.name} and axis {meets[axis]} of {other.name} are "
                    f"contracted, but {self._shown(sector)} and {other._shown(found[1])}: charge {charge!r} must have "
                    f"one size, not {size} and {found[0]} (the sizes of charges are {self.charge_sizes(axis)} and "
                    f"{other.charge_sizes(meets[axis])})"
                )


def reduced(charge: Any, modulus: Modulus) -> Any:
    """The charge with each part reduced to 0..N - 1, for parts that have a modulus N."""
    if isinstance(charge, tuple):
        moduli = modulus if isinstance(modulus, tuple) else (modulus,) * len(charge)
        if len(moduli) != len(charge):
            raise TypeError
        return tuple(reduced(part, part_modulus) for part, part_modulus in zip(charge, moduli, strict=True))
    if isinstance(modulus, tuple):
        raise TypeError
    return operator.index(charge) if modulus is None else operator.index(charge) % modulus


def checked_modulus(function: str, modulus: Any) -> Modulus:
    """The modulus; ValueError or TypeError if it is invalid."""
    for part in modulus if isinstance(modulus, tuple) else (modulus,):
        if part is None:
            continue
        if isinstance(part, bool) or not isinstance(part, numbers.Integral):
            raise TypeError(f"{function}: modulus must be an integer, None or a tuple of these, not {shown(modulus)}")
        if part < 1:
            raise ValueError(f"{function}: modulus is {modulus}: it must be positive")
    checked: Modulus = modulus
    return checked


def _charge_kind(charge: Hashable) -> Any:
    """The kind of a charge: "number", the tuple of its parts' kinds, or else the name of its type. Only charges of one
    kind are comparable."""
    if isinstance(charge, tuple):
        return tuple(map(_charge_kind, charge))
    return "number" if isinstance(charge, numbers.Number) else type(charge).__name__
