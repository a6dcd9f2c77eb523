"""Decides which products of each level become one call, and on which level products run: the predicted times decide
both."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from jax_vbgemm._src.grouping.levels import place, place_early
from jax_vbgemm._src.grouping.program import Program
from jax_vbgemm._src.grouping.sums import DotSum, fused_operands, members_of
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.planner import Planner
from jax_vbgemm._src.planner.single_dots import Split, calls_of, split, worthwhile
from jax_vbgemm._src.planner.tables.device import DeviceSpec


@dataclass(frozen=True)
class Decision:
    """The sums of one kind on a level, and their fastest split between a call and XLA's dots."""

    level: int
    sums: tuple[DotSum, ...]
    split: Split

    @property
    def in_call(self) -> list[DotSum]:
        """The sums that become one call, with at least two products."""
        found = [each for each, alone in zip(self.sums, self.split.alone, strict=True) if not alone]
        return found if sum(len(each.dots) for each in found) > 1 else []


@dataclass(frozen=True)
class Decider:
    """Places the nodes of a program on levels, and decides which of its `sums` (by the id of their node) become calls.

    loops: by the id of its node, which other loops a loop can join.
    """

    program: Program
    sums: Mapping[int, DotSum]
    loops: Mapping[int, Hashable]
    device: DeviceSpec
    planner: Planner

    def decide(self, live_bytes: int) -> list[Decision]:
        """The decisions in the order of the levels. Products run on the level that most others join if that is
        predicted to be faster, otherwise as early as possible, because products that leave a level may leave too few
        for a call there."""
        kinds = {**self.loops, **self._kinds()}
        place_early(self.program, kinds)
        early, earliest_loops = self.on_levels(), self._remaining_loops()
        place(self.program, kinds, live_bytes)
        joined = self.on_levels()
        # Loops have no predicted time: if the products' times are equal, the choice that joins more loops wins.
        times = [sum(each.split.seconds for each in those) for those in (joined, early)]
        if (times[0], self._remaining_loops()) < (times[1], earliest_loops):
            return joined
        place_early(self.program, kinds)
        return early

    def _remaining_loops(self) -> int:
        """The number of loops that remain when loops of one kind on a level are merged."""
        nodes = (node for node in self.program.nodes if id(node) in self.loops)
        return len({(node.level, self.loops[id(node)]) for node in nodes})

    def _kinds(self) -> dict[int, Hashable]:
        """For each sum, by the id of its node, the kind of sums that it can join. Sums so large that they would be
        taken out of a call of all sums join nothing, so that no other sum waits for them."""
        indices_by_kind: dict[Hashable, list[int]] = {}
        for key, each in self.sums.items():
            indices_by_kind.setdefault(each.kind, []).append(key)
        kinds: dict[int, Hashable] = {}
        for kind, keys in indices_by_kind.items():
            dot = self.sums[keys[0]].dots[0]
            problems = tuple(self.sums[key].problem for key in keys)
            best = split((problems,), dot.dtype.name, precision_name(dot.precision), self.device, self.planner)
            kinds |= {key: key if alone else kind for key, alone in zip(keys, best.alone, strict=True)}
        return kinds

    def on_levels(self) -> list[Decision]:
        """A decision for the sums of each level and kind: which of them become one call. Nodes already have levels."""
        fused = fused_operands(self.program) if calls_of(self.device).fuses_operands else ()
        indices_by_kind: dict[tuple[int, Hashable], list[DotSum]] = {}
        for node in self.program.nodes:
            if id(node) in self.sums:
                each = self.sums[id(node)]
                indices_by_kind.setdefault((node.level, each.kind), []).append(each)
        decisions = []
        for (level, _), sums in sorted(indices_by_kind.items(), key=lambda item: item[0][0]):
            dot, members = sums[0].dots[0], members_of(sums, fused)
            best = worthwhile(members, dot.dtype.name, precision_name(dot.precision), self.device, self.planner)
            decisions.append(Decision(level, tuple(sums), best))
        return decisions
