"""The element types and arithmetics that csrc/dtypes.def declares, read from the compiled module."""

from collections.abc import Mapping
from typing import NamedTuple

from jax_vbgemm import _core


class DType(NamedTuple):
    """An element type. Its products are summed in the dtype `accumulator` and rounded once, to one of `results`."""

    name: str
    bytes: int
    accumulator: str
    fraction_bits: int  # bits of a floating-point number, or of each part of a complex number
    results: tuple[str, ...]


DTYPES: Mapping[str, DType] = {row[0]: DType(*row) for row in _core.dtypes()}


def stored_bytes(dtype: str) -> float:
    """The size of an element in a device's memory, where two int4 share a byte."""
    return 0.5 if dtype == "int4" else DTYPES[dtype].bytes


class Arithmetic(NamedTuple):
    """How products are formed: from an element type for each operand, both of equal size and accumulator."""

    name: str
    lhs: str
    rhs: str

    @property
    def bytes(self) -> int:
        """The size of an operand's element."""
        return DTYPES[self.lhs].bytes

    @property
    def accumulator(self) -> str:
        return DTYPES[self.lhs].accumulator

    @property
    def results(self) -> tuple[str, ...]:
        """The dtypes to which sums may be rounded: those that both element types allow."""
        return tuple(dtype for dtype in DTYPES[self.lhs].results if dtype in DTYPES[self.rhs].results)


ARITHMETICS: Mapping[str, Arithmetic] = {row[0]: Arithmetic(*row) for row in _core.arithmetics()}
"""The arithmetics by name; calls refer to an arithmetic by its position in this order."""

FLOAT8: tuple[str, ...] = tuple(
    name for name, one in ARITHMETICS.items() if one.bytes == 1 and DTYPES[one.lhs].fraction_bits > 0
)
"""The arithmetics of 8-bit floats."""

OPERANDS: tuple[str, ...] = tuple(dict.fromkeys(one.lhs for one in ARITHMETICS.values()))
"""The dtypes that operands may have."""


def arithmetic_of(lhs: str, rhs: str) -> Arithmetic | None:
    """The arithmetic that multiplies two dtypes without conversion; None if there is none."""
    return next((one for one in ARITHMETICS.values() if (one.lhs, one.rhs) == (lhs, rhs)), None)


def accumulator_of(dtype: str) -> str:
    """The dtype in which products of this dtype are summed. Of the dtypes without kernels, floats are narrow and are
    summed in float32, others in their own dtype."""
    if dtype in DTYPES:
        return DTYPES[dtype].accumulator
    return "float32" if dtype.startswith("float") else dtype
