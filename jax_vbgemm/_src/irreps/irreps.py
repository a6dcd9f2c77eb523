"""Irreps: the irreducible representations of features in order, each with a multiplicity. Those of e3nn and
cuequivariance are accepted too."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import Any, NamedTuple


class MulIrrep(NamedTuple):
    """`mul` copies (channels) of one irrep; the name identifies the irrep within its group."""

    mul: int
    name: str
    irrep_dim: int
    is_scalar: bool

    @property
    def dim(self) -> int:
        return self.mul * self.irrep_dim

    def __str__(self) -> str:
        return f"{self.mul}x{self.name}"


Irreps = tuple[MulIrrep, ...]


def parsed(where: str, given: Any) -> Irreps:
    """The irreps given as a string or as a sequence of (mul, irrep); `where` names the argument in messages."""
    if isinstance(given, str):
        return tuple(_parse_text(where, part) for part in given.split("+")) if given.strip() else ()
    if not isinstance(given, Iterable):
        raise TypeError(f"{where} must be irreps, as a string or as pairs (mul, irrep), not {given!r}")
    return tuple(_parse_entry(where, entry) for entry in given)


def dim(irreps: Irreps) -> int:
    """The total dimension of the irreps."""
    return sum(x.dim for x in irreps)


def starts(irreps: Irreps) -> list[int]:
    """The first index of each irrep in a row."""
    return [sum(x.dim for x in irreps[:index]) for index in range(len(irreps))]


def shown(irreps: Irreps) -> str:
    return "+".join(map(str, irreps)) or "no irreps"


def _parse_text(where: str, text: str, mul: int | None = None) -> MulIrrep:
    match = re.fullmatch(r"\s*(?:(\d+)\s*x\s*)?(\d+)([eo]?)\s*", text)
    if match is None or (mul is not None and match[1]):
        raise ValueError(
            f"{where}: {text.strip()!r} is no irrep: it must be written as 1o, or 128x1o, or 128x1 of SO(3)"
        )
    l = int(match[2])  # noqa: E741
    return MulIrrep(int(match[1] or 1) if mul is None else mul, f"{l}{match[3]}", 2 * l + 1, l == 0 and match[3] != "o")


def _parse_entry(where: str, entry: Any) -> MulIrrep:
    if isinstance(entry, MulIrrep):
        return entry
    try:
        mul, irrep = entry
        mul = operator.index(mul)
    except (TypeError, ValueError):
        raise TypeError(f"{where}: {entry!r} must be a pair (mul, irrep)") from None
    if mul < 0:
        raise ValueError(f"{where}: {entry!r} has a negative multiplicity")
    if isinstance(irrep, str):
        return _parse_text(where, irrep, mul)
    if not hasattr(irrep, "dim") or not hasattr(irrep, "is_scalar"):
        raise TypeError(f"{where}: {irrep!r} is no irrep: it must be a string, or one of e3nn's or cuequivariance's")
    return MulIrrep(mul, str(irrep), int(irrep.dim), bool(irrep.is_scalar()))
