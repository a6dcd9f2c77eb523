"""Places the products of a program on levels: each within the slack of its dependencies, where it joins most others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping

import numpy as np

from jax_vbgemm._src.grouping.program import Node, Program, Value

Kinds = Mapping[int, Hashable]
"""By the id of a node that takes a level of its own (a product or a loop), which others it can join."""


def place_early(program: Program, kinds: Kinds) -> None:
    """Sets each node's level to the earliest one: the maximum number of nodes of `kinds` on a dependency path to it."""
    _number(program, kinds, {})


def place(program: Program, kinds: Kinds, live_bytes: int) -> None:
    """Sets the level of each node so that the nodes of a kind share few levels.

    Nodes of `kinds` that are on one level do not depend on each other. Each can be on any level from the earliest,
    which its operands allow, to the latest, which its users allow, and takes the one that has most nodes of its kind,
    placed already or able to come; of several, the earliest. Users are placed before their operands. So the weight
    gradients of all layers, which only the end of the program waits for, share the level of the last.

    Operands that wait for a later level stay live. They raise the peak of live values by at most `live_bytes`.

    The time is O(n) for n equations, and for each product a few passes of numpy over the levels of its slack. For the
    gradient of 8,000 layers (72,000 equations) it is a fifth to a quarter of the time in which JAX traces them.
    """
    end = _number(program, kinds, {})
    peak = _peak(program, end)
    latest: dict[int, int] = {}
    _place_users_first(program, kinds, end, lambda node, last: latest.setdefault(id(node), last))
    placed = _Placement(program, kinds, latest, live_bytes).placed(end)
    _number(program, kinds, placed)
    # Values that wait for a result together with it, such as the other operand of an addition, are not taken into
    # account.
    if _peak(program, end) > peak + live_bytes:
        place_early(program, kinds)


def _number(program: Program, kinds: Kinds, placed: Mapping[int, int]) -> int:
    """Puts the nodes on their level in `placed`, others on the earliest, and returns the number of levels. Equations
    with effects keep their order."""
    depth = dict.fromkeys((*program.known, *program.inputs), 0)
    effect_level = 0
    for node in program.nodes:
        earliest = max((depth[value] for value in node.values()), default=0)
        if node.eqn.effects:
            earliest = effect_level = max(earliest, effect_level)
        node.level = placed.get(id(node), earliest)
        depth.update(dict.fromkeys(node.outputs.values(), node.level + (id(node) in kinds)))
    return max(depth.values(), default=0)


def _place_users_first(program: Program, kinds: Kinds, end: int, choose: Callable[[Node, int], int]) -> None:
    """Calls `choose` with each node of `kinds` and the latest level that the levels chosen for its users allow."""
    needed: dict[Value, int] = {}  # the level on which a value is used first
    effect_level = end
    for node in reversed(program.nodes):
        level = min((needed.get(value, end) for value in node.outputs.values()), default=end)
        if node.eqn.effects:
            level = effect_level = min(level, effect_level)
        if id(node) in kinds:
            level = choose(node, level - 1)
        for value in node.values():
            needed[value] = min(needed.get(value, end), level)


class _Placement:
    """Chooses levels for nodes whose level is the earliest and whose latest level is in `latest`."""

    def __init__(self, program: Program, kinds: Kinds, latest: Mapping[int, int], live_bytes: int) -> None:
        self.program, self.kinds, self.latest, self.live_bytes = program, kinds, latest, live_bytes

    def placed(self, end: int) -> dict[int, int]:
        """The level of each node of `kinds`."""
        self.levels: dict[int, int] = {}
        shared = (kind for kind, count in Counter(self.kinds.values()).items() if count > 1)
        self.scores = {kind: np.zeros(end, np.int64) for kind in shared}
        self.waiting = np.zeros(end, np.int64)  # per level, the bytes of operands that are live but unused
        self.last_use = _last_uses(self.program, end)
        for node in self.program.nodes:
            scores = self.scores.get(self.kinds.get(id(node)))
            if scores is not None:
                scores[node.level : self.latest[id(node)] + 1] += 1
        _place_users_first(self.program, self.kinds, end, self._choose)
        return self.levels

    def _choose(self, node: Node, last: int) -> int:
        self.levels[id(node)] = first = node.level
        scores = self.scores.get(self.kinds[id(node)])
        if scores is None:
            return first
        operands = [value for value in {*node.values()} if self.last_use.get(value, last) < last]
        waiting = self.waiting[first + 1 : last + 1].copy()
        for value in operands:
            waiting[self.last_use[value] - first :] += self.program.bytes[value]
        allowed = np.append(True, np.logical_and.accumulate(waiting <= self.live_bytes))
        level = first + int(np.argmax(np.where(allowed, scores[first : last + 1], -1)))
        scores[first : self.latest[id(node)] + 1] -= 1  # it is fixed to one level now
        scores[level] += 1
        for value in operands:
            self.waiting[self.last_use[value] + 1 : level + 1] += self.program.bytes[value]
            self.last_use[value] = max(self.last_use[value], level)
        self.levels[id(node)] = level
        return level


def _last_uses(program: Program, end: int) -> dict[Value, int]:
    """The level of the last use of each value that a node computes; results of the program are used at its end."""
    uses: dict[Value, int] = {}
    for node in program.nodes:
        uses.update(dict.fromkeys(node.outputs.values(), node.level))
        uses.update((value, max(uses[value], node.level)) for value in node.values() if value in uses)
    return uses | {value: end for value in program.outputs if value in uses}


def _peak(program: Program, end: int) -> int:
    """The maximum number of bytes of computed values that are live on one level."""
    change = np.zeros(end + 2, np.int64)
    for value, level in _last_uses(program, end).items():
        change[level + 1] -= program.bytes[value]
    for node in program.nodes:
        change[node.level] += sum(program.bytes[value] for value in node.outputs.values())
    return int(np.max(np.cumsum(change)))
