"""A traced function as a flat list of equations: calls with products are inlined and dead code is dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from jax_vbgemm._src.util import compat

Value = int  # the number of a value of the program


@dataclass(eq=False)
class Node:
    """One equation. `inputs` are values or literals; `outputs` are the values of its named results, by position.

    `level`: nodes run in the order of their levels (levels.py).
    """

    eqn: Any
    inputs: list[Any]
    outputs: dict[int, Value]
    level: int = 0

    def values(self) -> list[Value]:
        """The values among the inputs."""
        return [x for x in self.inputs if not isinstance(x, jex_core.Literal)]

    def operands(self, env: dict[Value, Any]) -> list[Any]:
        """The equation's operands."""
        return [x.val if isinstance(x, jex_core.Literal) else env[x] for x in self.inputs]

    def write(self, results: Sequence[Any], env: dict[Value, Any]) -> None:
        """Stores all results of the equation in `env`."""
        env.update((value, results[position]) for position, value in self.outputs.items())


class Program:
    """`nodes` in an order in which they can run, over numbered values. `inputs` are the values of the arguments,
    `known` has the constants, and `bytes` the size of each value; where a size is symbolic, it counts as 1."""

    def __init__(self, closed: Any) -> None:
        self.known: dict[Value, Any] = {}
        self.nodes: list[Node] = []
        self.bytes: dict[Value, int] = {}
        self.inputs = [self._new(variable.aval) for variable in closed.jaxpr.invars]
        self.outputs = self._write_out(closed, self.inputs)
        self._drop_dead()

    def _new(self, type_: Any) -> Value:
        value = len(self.bytes)
        self.bytes[value] = _bytes(type_)
        return value

    def _constant(self, value: Any) -> Value:
        number = self._new(jax.typeof(value))
        self.known[number] = value
        return number

    def _write_out(self, closed: Any, inputs: Sequence[Value]) -> list[Value]:
        """Appends the equations of a closed jaxpr, with calls inlined, and returns the values of its results.

        A call without products stays one equation, as JAX lowers a function that is called often only once.
        """
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
            if called is not None and has_dots(eqn):
                results = self._write_out(called, [read(atom) for atom in eqn.invars])
                env.update(zip(eqn.outvars, results, strict=True))
                continue
            operands: list[Any] = [atom if isinstance(atom, jex_core.Literal) else env[atom] for atom in eqn.invars]
            outputs = {}
            for position, variable in enumerate(eqn.outvars):
                if not isinstance(variable, jex_core.DropVar):
                    outputs[position] = env[variable] = self._new(variable.aval)
            self.nodes.append(Node(eqn, operands, outputs))
        return [read(atom) for atom in jaxpr.outvars]

    def _drop_dead(self) -> None:
        used, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if node.eqn.effects or not used.isdisjoint(node.outputs.values()):
                used.update(node.values())
                kept.append(node)
        self.nodes = kept[::-1]


def _bytes(type_: Any) -> int:
    if not hasattr(type_, "shape"):  # a token
        return 0
    return math.prod((type_.dtype.itemsize, *(size for size in type_.shape if not compat.is_symbolic(size))))


def has_dots(eqn: Any) -> bool:
    """Whether an equation is a product, or has products in its functions."""
    if eqn.primitive.name == "dot_general":
        return True
    return any(has_dots(inner) for jaxpr in jex_core.jaxprs_in_params(eqn.params) for inner in jaxpr.eqns)
