"""Finds sums of products in a program: products that are added, or transposed, and used nowhere else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jax_vbgemm._src.grouping.dots import Dot
from jax_vbgemm._src.grouping.program import Node, Program, Value
from jax_vbgemm._src.planner.single_dots import Member
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem

_ADDITIONS = ("add", "add_any")

# Operations that XLA computes in the kernel that uses their result.
_ELEMENTWISE = frozenset(
    (
        "abs", "add", "add_any", "broadcast_in_dim", "convert_element_type", "cos", "div", "exp", "exp2", "integer_pow",
        "log", "log1p", "logistic", "max", "min", "mul", "neg", "pow", "reshape", "rsqrt", "select_n", "sign", "sin",
        "sqrt", "square", "sub", "tan", "tanh", "transpose",
    )
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class DotSum:
    """A sum of products: `node` has the sum of `dots`, in their order, as its result. `parts` are the equations that
    the sum replaces, in an order in which they can run.
    """

    node: Node
    dots: tuple[Dot, ...]
    parts: tuple[Node, ...]

    @property
    def products(self) -> list[Node]:
        """The equations of `dots`."""
        return [node for node in self.parts if node.eqn.primitive.name == "dot_general"]

    @property
    def kind(self) -> tuple[Any, Any]:
        """The properties that all sums of a call must share."""
        return self.dots[0].dtype, self.dots[0].precision

    @cached_property
    def problem(self) -> Problem:
        """The sum as the planner sees it: one product whose K is the total K of its products."""
        flags = [
            all(flag) for flag in zip(*((d.problem.transpose_a, d.problem.transpose_b) for d in self.dots), strict=True)
        ]
        first = self.dots[0].problem
        return Problem(first.m, first.n, sum(dot.problem.k for dot in self.dots), first.batch, *flags)

    def can_add(self, other: DotSum) -> bool:
        """Whether a kernel can compute the sum of both."""
        ours, theirs = self.dots[0], other.dots[0]
        sizes = [
            (d.problem.m, d.problem.n, d.problem.batch, d.shape, d.dtype, d.out_dtype, d.precision)
            for d in (ours, theirs)
        ]
        return sizes[0] == sizes[1] and self.problem.k + other.problem.k <= LARGEST_SIZE


def add_up(program: Program, found: dict[int, DotSum]) -> dict[int, DotSum]:
    """The sums of the products `found`, by the id of their node, with transpositions of their results. In `program`,
    one node replaces the nodes of each sum."""
    uses = Counter(value for node in program.nodes for value in node.values())
    uses.update(program.outputs)
    made: dict[int, DotSum] = {}  # sums by the value of their result
    sum_by_node: dict[int, DotSum] = {}
    absorbed: set[int] = set()
    for place, node in enumerate(program.nodes):
        if id(node) in found:
            made.update(dict.fromkeys(node.outputs.values(), found[id(node)]))
            sum_by_node[id(node)] = found[id(node)]
        terms = [made[value] for value in node.values() if value in made and uses[value] == 1]
        dots = _result(node, terms)
        if dots:
            total = replace(node, inputs=[value for term in terms for value in term.node.inputs])
            added = DotSum(total, dots, (*(part for term in terms for part in term.parts), node))
            absorbed.update(id(term.node) for term in terms)
            sum_by_node[id(total)] = added
            made.update(dict.fromkeys(node.outputs.values(), added))
            program.nodes[place] = total
    program.nodes = [node for node in program.nodes if id(node) not in absorbed]
    return {key: value for key, value in sum_by_node.items() if key not in absorbed}


def _result(node: Node, terms: Sequence[DotSum]) -> tuple[Dot, ...]:
    """The products whose sum is the result of a node with the operands `terms`; none unless it adds two of them, or
    exchanges the rows and columns of one."""
    if node.eqn.primitive.name in _ADDITIONS and len(terms) == 2 and terms[0].can_add(terms[1]):
        return terms[0].dots + terms[1].dots
    if node.eqn.primitive.name == "transpose" and len(terms) == 1:
        transposed_dots = [dot.transposed(node.eqn.params["permutation"]) for dot in terms[0].dots]
        return tuple(dot for dot in transposed_dots if dot is not None) if None not in transposed_dots else ()
    return ()


def fused_operands(program: Program) -> frozenset[Value]:
    """The values that only one equation uses and that an elementwise operation computes."""
    uses = Counter(value for node in program.nodes for value in node.values())
    uses.update(program.outputs)
    made = (
        value for node in program.nodes if node.eqn.primitive.name in _ELEMENTWISE for value in node.outputs.values()
    )
    return frozenset(value for value in made if uses[value] == 1)


def members_of(sums: Sequence[DotSum], fused: Collection[Value] = ()) -> tuple[Member, ...]:
    """The sums as members of one call, with the arrays that the call is passed.

    fused: the values that XLA would compute inside of a dot, and that have to be written for a call.
    """
    members = []
    passed: set[object] = set()
    for each in sums:
        arrays, copied = 1, []  # the result
        for dot, node in zip(each.dots, each.products, strict=True):
            for value, side in zip(node.inputs, (dot.lhs, dot.rhs), strict=True):
                key = (value if isinstance(value, int) else id(value)), side[:2]
                if key in passed:
                    continue
                passed.add(key)
                arrays += 1
                if side.order is not None or (isinstance(value, int) and value in fused):
                    copied.append(math.prod(side.shape))
        members.append(Member(each.problem, tuple(dot.problem for dot in each.dots), arrays, tuple(copied)))
    return tuple(members)
