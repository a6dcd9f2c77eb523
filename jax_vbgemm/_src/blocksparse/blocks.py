"""One operand of a block-sparse contraction, with the checks of its blocks."""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping
from typing import Any

import jax

from jax_vbgemm._src.util.arguments import as_array

NAME = "tensordot"

Sector = tuple[Hashable, ...]
"""The charge of each axis: an int for U1 or Z2, a tuple of ints for a product of groups."""


class Blocks:
    """A block-sparse tensor: its blocks by sector, in the order of sectors, independently of the order of insertion.

    `name` is the operand's name in messages. `ndim` is None for a tensor without blocks, whose axes are unknown.
    """

    def __init__(self, name: str, blocks: Mapping[Sector, Any]) -> None:
        self.name = name
        for sector in blocks:
            if not isinstance(sector, tuple):
                raise TypeError(
                    f"{NAME}: {name} has the key {sector!r}: a sector must be a tuple with the charge of each axis"
                )
        try:
            sectors = sorted(blocks)
        except TypeError as error:
            raise TypeError(
                f"{NAME}: the sectors of {name} must have an order, as JAX wants of keys: {error}"
            ) from None
        self.blocks: dict[Sector, jax.Array] = {
            sector: as_array(NAME, f"{name}[{sector!r}]", blocks[sector]) for sector in sectors
        }
        first = next(iter(sectors), None)
        self.ndim = None if first is None else len(first)
        self.dtype = None if first is None else self.blocks[first].dtype
        self._sizes: dict[tuple[int, Hashable], tuple[int, Sector]] = {}
        self._kinds: list[Any] = [_kind(charge) for charge in first or ()]
        self._first: Sector = first or ()
        for sector, block in self.blocks.items():
            self._check(sector, block, first)

    def _check(self, sector: Sector, block: jax.Array, first: Any) -> None:
        if len(sector) != self.ndim:
            raise ValueError(
                f"{NAME}: {self.name} has the sectors {first!r} and {sector!r}: all must have one charge for each axis"
            )
        if block.ndim != self.ndim:
            raise ValueError(
                f"{NAME}: {self._shown(sector)}: it must have an axis for each of its sector's {self.ndim} charges"
            )
        if block.dtype != self.dtype:
            raise ValueError(
                f"{NAME}: {self.name}[{sector!r}] is {block.dtype} but {self.name}[{first!r}] is {self.dtype}: "
                "the blocks of one tensor must have one dtype"
            )
        for axis, (charge, size) in enumerate(zip(sector, block.shape, strict=True)):
            if _kind(charge) != self._kinds[axis]:
                raise ValueError(
                    f"{NAME}: {self.name} has the sectors {first!r} and {sector!r}: the charges {first[axis]!r} and "
                    f"{charge!r} of axis {axis} must be of one kind"
                )
            known, where = self._sizes.setdefault((axis, charge), (size, sector))
            if known != size:
                raise ValueError(
                    f"{NAME}: {self._shown(sector)} but {self._shown(where)}: charge {charge!r} of axis {axis} "
                    f"must have one size, not {size} and {known}"
                )

    def _shown(self, sector: Sector) -> str:
        return f"{self.name}[{sector!r}] is {tuple(self.blocks[sector].shape)}"

    def check_contracted(self, axes: tuple[int, ...], other: Blocks, others: tuple[int, ...]) -> None:
        """Raises where a charge has different sizes in an axis of this tensor and in the axis contracted with it, or
        where the charges of these axes are of different kinds, so that none could be equal."""
        meets = dict(zip(axes, others, strict=True))
        for axis, its in meets.items():
            if self._kinds[axis] != other._kinds[its]:
                mine, yours = (x._first for x in (self, other))
                raise ValueError(
                    f"{NAME}: axis {axis} of {self.name} and axis {its} of {other.name} are contracted, but "
                    f"{self.name} has the sector {mine!r} with the charge {mine[axis]!r}, and {other.name} has "
                    f"{yours!r} with {yours[its]!r}: charges of both must be of one kind"
                )
        for (axis, charge), (size, sector) in self._sizes.items():
            found = other._sizes.get((meets[axis], charge)) if axis in meets else None
            if found is not None and found[0] != size:
                raise ValueError(
                    f"{NAME}: axis {axis} of {self.name} and axis {meets[axis]} of {other.name} are contracted, but "
                    f"{self._shown(sector)} and {other._shown(found[1])}: charge {charge!r} must have one size, "
                    f"not {size} and {found[0]}"
                )


def _kind(charge: Hashable) -> Any:
    """What charges must have in common to be comparable: all are numbers, or tuples of equally many parts."""
    if isinstance(charge, tuple):
        return tuple(map(_kind, charge))
    return "number" if isinstance(charge, numbers.Number) else type(charge).__name__
