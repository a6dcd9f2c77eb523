"""The report of `group`: what it did with the products of one trace, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jax_vbgemm._src.planner.single_dots import Split
from jax_vbgemm._src.problem import Problem

_MAX_SHAPES = 4  # how many shapes of a call are printed


class Report:
    """The calls and the dots in the order of the decisions; to be printed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.grouped = 0
        self._lines: list[str] = []
        self._left: Counter[tuple[str, str]] = Counter()
        self._hints: Counter[str] = Counter()

    def join(self, where: str, problems: Sequence[Problem], products: int, split: Split) -> None:
        """Records products that become one call, whose sums are these problems."""
        self.calls += 1
        self.grouped += products
        shapes = Counter((p.m, p.n, p.k) if p.batch == 1 else (p.m, p.n, p.k, p.batch) for p in problems)
        shown = ", ".join(f"{count} of {shape}" for shape, count in shapes.most_common(_MAX_SHAPES))
        more = f", {_counted(len(shapes) - _MAX_SHAPES, 'more shape')}" if len(shapes) > _MAX_SHAPES else ""
        sums = f" with {_counted(len(problems), 'result')}" if products > len(problems) else ""
        self._lines.append(
            f"  {where}: {products} products are one call{sums} ({shown}{more}); predicted "
            f"{split.seconds * 1e6:.1f} us, {split.dots_seconds * 1e6:.1f} us as dots"
        )

    def leave(self, where: str, eqn: Any, why: str) -> None:
        """Records a product that stays a dot."""
        lhs, rhs = (variable.aval for variable in eqn.invars)
        self._left[f"  {where}: {lhs.dtype}{list(lhs.shape)} x {list(rhs.shape)}", why] += 1

    def hint(self, hints: Counter[str]) -> None:
        """Records the number of products for which other functions are faster."""
        self._hints += hints

    def include(self, other: Report) -> None:
        """Adds the records of the report of a part of the program."""
        self.calls += other.calls
        self.grouped += other.grouped
        self._lines += other._lines
        self._left += other._left
        self._hints += other._hints

    def __str__(self) -> str:
        reasons: Counter[str] = Counter()
        for (_, why), count in self._left.items():
            reasons[why] += count
        calls, dots = _counted(self.calls, "call"), _counted(reasons.total(), "dot")
        head = f"group({self.name}): {self.grouped} products in {calls}, {dots}"
        summary = [f"  {_counted(count, 'dot')}: {why}" for why, count in reasons.most_common()]
        seen = [f"  {_counted(count, 'product')} of {what}" for what, count in self._hints.most_common()]
        left = [
            f"{what} stays a dot: {why}" + (f" ({count} times)" if count > 1 else "")
            for (what, why), count in self._left.items()
        ]
        return "\n".join([head, *summary, *seen, *self._lines, *left])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
