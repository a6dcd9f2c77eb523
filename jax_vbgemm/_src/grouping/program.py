"""A traced function as a flat list of equations: calls written out, dead code dropped, each with its level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.extend import core as jex_core

from jax_vbgemm._src import compat

Value = int  # the number of a value of the program


@dataclass(eq=False)
class Node:
    """One equation: `inputs` are values or literals, `outputs` the values of results that have a name, by position.

    `level`: how many products, at the least, have to come before it, one after the other.
    """

    eqn: Any
    inputs: list[Any]
    outputs: dict[int, Value]
    level: int = 0

    def values(self) -> list[Value]:
        """The values among the inputs."""
        return [x for x in self.inputs if not isinstance(x, jex_core.Literal)]

    def operands(self, env: dict[Value, Any]) -> list[Any]:
        """What the equation gets."""
        return [x.val if isinstance(x, jex_core.Literal) else env[x] for x in self.inputs]

    def write(self, results: Sequence[Any], env: dict[Value, Any]) -> None:
        """Puts all results of the equation where they belong."""
        env.update((value, results[position]) for position, value in self.outputs.items())


class Program:
    """`nodes` in an order in which they can run, over numbered values; `known` has those there from the start."""

    def __init__(self, closed: Any, args: Sequence[Any]) -> None:
        self.known: dict[Value, Any] = {}
        self.nodes: list[Node] = []
        self._count = 0
        inputs = [self._constant(arg) for arg in args]
        self.outputs = self._write_out(closed, inputs)
        self._drop_dead()

    def _new(self) -> Value:
        self._count += 1
        return self._count

    def _constant(self, value: Any) -> Value:
        number = self._new()
        self.known[number] = value
        return number

    def _write_out(self, closed: Any, inputs: Sequence[Value]) -> list[Value]:
        """Appends the equations of a closed jaxpr, those of calls in their place; its results."""
        jaxpr = closed.jaxpr
        env: dict[Any, Value] = {}

        def read(atom: Any) -> Value:
            if not isinstance(atom, jex_core.Literal):
                return env[atom]
            type_: Any = atom.aval
            return self._constant(jnp.asarray(atom.val, type_.dtype))

        env.update(zip(jaxpr.constvars, map(self._constant, closed.consts), strict=True))
        env.update(zip(jaxpr.invars, inputs, strict=True))
        for eqn in jaxpr.eqns:
            called = compat.called_jaxpr(eqn)
            if called is not None:
                results = self._write_out(called, [read(atom) for atom in eqn.invars])
                env.update(zip(eqn.outvars, results, strict=True))
                continue
            operands: list[Any] = [atom if isinstance(atom, jex_core.Literal) else env[atom] for atom in eqn.invars]
            outputs = {}
            for position, variable in enumerate(eqn.outvars):
                if not isinstance(variable, jex_core.DropVar):
                    outputs[position] = env[variable] = self._new()
            self.nodes.append(Node(eqn, operands, outputs))
        return [read(atom) for atom in jaxpr.outvars]

    def _drop_dead(self) -> None:
        used, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if node.eqn.effects or not used.isdisjoint(node.outputs.values()):
                used.update(node.values())
                kept.append(node)
        self.nodes = kept[::-1]

    def number_levels(self, deepens: Callable[[Node], bool]) -> None:
        """Sets each node's level: those of one level for which `deepens` is true depend on none of each other.

        Equations with effects keep their order.
        """
        depth = dict.fromkeys(self.known, 0)
        of_effects = 0
        for node in self.nodes:
            node.level = max((depth[value] for value in node.values()), default=0)
            if node.eqn.effects:
                node.level = of_effects = max(node.level, of_effects)
            after = node.level + deepens(node)
            depth.update(dict.fromkeys(node.outputs.values(), after))
