"""Problem: the static sizes of one matrix product, which are all that a planner knows about it."""

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm import _core
from jax_vbgemm._src.util.shown import shown

LARGEST_SIZE = 2**31 - 1  # the kernels' descriptors hold int32


@dataclass(frozen=True)
class Problem:
    """C[b] = op(A[b]) op(B[b]) for b in [0, batch), where op(A) is m x k, op(B) is k x n and C is m x n.

    Sizes are integers in [0, 2**31 - 1]. `transpose_a`: A is stored as k x m; `transpose_b`: B is stored as n x k.
    `symmetric`: C[b] is symmetric, as X X^T is, so that half of it may be computed and stored twice. `line`: the
    alignment of stored rows in elements, that is the greatest common divisor of the offsets and row strides of A, B
    and C; None if rows lie without gaps, so that the sizes determine it.

    Raises:
      TypeError: a size is not an integer (a bool does not count as one), or a flag is not a bool.
      ValueError: a size is negative or above 2**31 - 1, or a symmetric C is not square.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    transpose_a: bool = False
    transpose_b: bool = False
    symmetric: bool = False
    line: int | None = None

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            object.__setattr__(self, name, _size(name, getattr(self, name)))
        if self.line is not None:
            object.__setattr__(self, "line", _size("line", self.line))
        flags = {"transpose_a": "transpose flags", "transpose_b": "transpose flags", "symmetric": "flags"}
        for name, what in flags.items():
            flag = getattr(self, name)
            if not isinstance(flag, bool | np.bool_):
                raise TypeError(f"Problem has {name} = {shown(flag)}: {what} must be bools")
            object.__setattr__(self, name, bool(flag))
        if self.symmetric and self.m != self.n:
            raise ValueError(f"Problem has symmetric = True, m = {self.m} and n = {self.n}: m and n must be equal")

    @classmethod
    def of(cls, value: "Problem | Sequence[int]") -> "Problem":
        """`value` itself, or the Problem for a plain (m, n, k) or (m, n, k, batch) tuple."""
        if isinstance(value, Problem):
            return value
        if isinstance(value, tuple | list) and 3 <= len(value) <= 4:
            return cls(*value)
        raise TypeError(f"Problem is {shown(value)}: expected a Problem or a tuple (m, n, k) or (m, n, k, batch)")


def problems_of(values: Iterable["Problem | Sequence[int]"]) -> tuple[Problem, ...]:
    """Problem.of of each value; an error names the index of the value."""
    if not isinstance(values, Iterable):
        raise TypeError(f"plan: problems is {shown(values)}: expected a sequence of problems")
    problems = []
    for index, value in enumerate(values):
        try:
            problems.append(Problem.of(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"plan: problems[{index}]" + str(error).removeprefix("Problem")) from None
    return tuple(problems)


@dataclass(frozen=True, eq=False)
class ProblemSizes:
    """The sizes of a list of problems as int64 columns, one entry for each problem, for vectorised planning."""

    m: NDArray[np.int64]
    n: NDArray[np.int64]
    k: NDArray[np.int64]
    batch: NDArray[np.int64]
    line: NDArray[np.int64]  # greatest common divisor of the distances of A's and B's stored rows
    result_line: NDArray[np.int64]  # that of C's rows
    symmetric: NDArray[np.bool_]
    rows_along: NDArray[np.bool_]  # whether A is contiguous along K (K-major)
    # planner/tiles/runs.py
    tile_counts: dict[tuple[int, int], NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> "ProblemSizes":
        if not isinstance(problems, tuple):
            return cls._of(problems)
        # The last result is kept, as each step of planning asks for the sizes of the same tuple.
        global _latest
        known, sizes = _latest
        if known is not problems:
            sizes = cls._of(problems)
            _latest = problems, sizes
        return sizes

    @classmethod
    def _of(cls, problems: Sequence[Problem]) -> "ProblemSizes":
        fields = operator.attrgetter("m", "n", "k", "batch", "transpose_a", "transpose_b", "symmetric")
        rows = itertools.chain.from_iterable(map(fields, problems))
        table = np.fromiter(rows, np.int64, 7 * len(problems)).reshape(len(problems), 7)
        m, n, k, batch, transpose_a, transpose_b, symmetric = table.T.copy()
        line, result_line = np.gcd(np.where(transpose_a, m, k), np.where(transpose_b, k, n)), n.copy()
        for index, problem in enumerate(problems):
            if problem.line is not None:
                line[index] = result_line[index] = problem.line
        return cls(m, n, k, batch, line, result_line, symmetric > 0, transpose_a == 0)

    def with_products(self) -> "ProblemSizes":
        """The sizes of the problems that have products, as only these reach a kernel; of all problems where none
        has."""
        kept = np.flatnonzero(self.has_products)
        if len(kept) in (0, len(self.m)):
            return self
        return ProblemSizes(
            *(
                getattr(self, name)[kept]
                for name in ("m", "n", "k", "batch", "line", "result_line", "symmetric", "rows_along")
            )
        )

    @property
    def has_products(self) -> NDArray[np.bool_]:
        """For each problem, whether no size is 0."""
        has: NDArray[np.bool_] = (self.m > 0) & (self.n > 0) & (self.k > 0) & (self.batch > 0)
        return has

    def elements(self) -> NDArray[np.float64]:
        """For each problem, the elements of A, B and C together, for one batch entry."""
        m, n, k = (column.astype(np.float64) for column in (self.m, self.n, self.k))
        elements: NDArray[np.float64] = m * k + k * n + m * n
        return elements

    def aligned(self, element_bytes: int) -> NDArray[np.bool_]:
        """Whether all stored rows of A and B begin at multiples of a vector load's size."""
        aligned: NDArray[np.bool_] = self.line * element_bytes % _core.VECTOR_LOAD_BYTES == 0
        return aligned


_latest: tuple[tuple[Problem, ...], ProblemSizes] = ((), ProblemSizes._of(()))


def _size(field: str, value: Any) -> int:
    """`value` as an int, where it is a legal size."""
    try:
        size = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        size = None
    if size is None:
        raise TypeError(f"Problem has {field} = {shown(value)}: sizes must be non-negative integers")
    if size < 0:
        raise ValueError(f"Problem has {field} = {size}: sizes must be non-negative integers")
    if size > LARGEST_SIZE:
        raise ValueError(f"Problem has {field} = {size}: sizes must be at most 2**31 - 1")
    return size
