"""The element types and the ways to multiply them, as csrc/dtypes.def declares them: read from the compiled module."""

from collections.abc import Mapping
from typing import NamedTuple

from jax_vbgemm import _core


class DType(NamedTuple):
    """An element type: its products are added up as `accumulator`s and rounded once, to one of `results`."""

    name: str
    bytes: int
    accumulator: str
    fraction_bits: int  # of a floating-point number, or of each part of a complex one
    results: tuple[str, ...]


DTYPES: Mapping[str, DType] = {row[0]: DType(*row) for row in _core.dtypes()}


class Arithmetic(NamedTuple):
    """How products are formed: of an element type on each side, of equal size and accumulator."""

    name: str
    lhs: str
    rhs: str

    @property
    def bytes(self) -> int:
        """Of an operand's element."""
        return DTYPES[self.lhs].bytes

    @property
    def accumulator(self) -> str:
        return DTYPES[self.lhs].accumulator

    @property
    def results(self) -> tuple[str, ...]:
        """What sums may be rounded to: what both sides allow."""
        return tuple(dtype for dtype in DTYPES[self.lhs].results if dtype in DTYPES[self.rhs].results)


ARITHMETICS: Mapping[str, Arithmetic] = {row[0]: Arithmetic(*row) for row in _core.arithmetics()}
"""By name, in the order of the numbers by which calls name them."""

OPERANDS: tuple[str, ...] = tuple(dict.fromkeys(one.lhs for one in ARITHMETICS.values()))
"""The dtypes that operands may have."""


def arithmetic_of(lhs: str, rhs: str) -> Arithmetic | None:
    """The arithmetic of two dtypes as they are; None where there is none."""
    return next((one for one in ARITHMETICS.values() if (one.lhs, one.rhs) == (lhs, rhs)), None)


def accumulator_of(dtype: str) -> str:
    """The dtype in which products of this dtype are added; the dtype itself where the kernels don't know it."""
    return DTYPES[dtype].accumulator if dtype in DTYPES else dtype
