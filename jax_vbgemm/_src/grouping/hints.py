"""Finds products for which another function of this package is faster than `group`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from jax.extend import core as jex_core

from jax_vbgemm._src.grouping.program import Program, Value
from jax_vbgemm._src.util import compat

_VIEWS = ("transpose", "convert_element_type", "reshape", "squeeze", "copy")
_SLICES = ("slice", "dynamic_slice")
_FEWEST_EXPERTS = 3  # from this many products with slices of one argument on, they count as a loop over its matrices

_RAGGED_DOT = "lax.ragged_dot: use jax_vbgemm.ragged_dot"
_NEWTON_SCHULZ = (
    "what looks like the iteration of Newton and Schulz, as in optax.contrib.muon: use jax_vbgemm.optax.muon"
)
_EXPERTS = (
    "what looks like masked experts, each on all rows: use jax_vbgemm.moe.route and moe.expert_mlp, or ragged_dot"
)


def hints(program: Program) -> Counter[str]:
    """The functions to use in place of products of the program, with the number of these products."""
    found: Counter[str] = Counter()
    primitives: Counter[str] = Counter()
    for node in program.nodes:
        inside = _primitives(node.eqn)
        primitives += inside
        if not inside["dot_general"]:  # equations that contain products are searched as separate programs
            found[_RAGGED_DOT] += inside["ragged_dot_general"]
    found[_NEWTON_SCHULZ] += _squares_of_grams(program)
    if primitives["top_k"]:
        found[_EXPERTS] += _with_slices(program) + sum(
            _with_steps(node.eqn) for node in program.nodes if node.eqn.primitive.name == "scan"
        )
    return +found


def _primitives(eqn: Any) -> Counter[str]:
    """The number of occurrences of each primitive in an equation and its functions."""
    names = Counter((eqn.primitive.name,))
    for jaxpr in jex_core.jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            names += _primitives(inner)
    return names


def _sources(program: Program, primitives: tuple[str, ...]) -> dict[Value, Value]:
    """Maps each value that a chain of `primitives` computes from one value to that value."""
    sources: dict[Value, Value] = {}
    for node in program.nodes:
        if node.eqn.primitive.name in primitives and node.values():
            source = node.values()[0]
            sources.update(dict.fromkeys(node.outputs.values(), sources.get(source, source)))
    return sources


def _factors(program: Program) -> list[tuple[list[Value], Value | None]]:
    """The factors and the result of each product."""
    products = (node for node in program.nodes if node.eqn.primitive.name == "dot_general")
    return [(node.values(), node.outputs.get(0)) for node in products]


def _squares_of_grams(program: Program) -> int:
    """The number of products of multiples of X X^T by themselves."""
    views, factors = _sources(program, _VIEWS), {out: values for values, out in _factors(program)}
    multiples: dict[Value, Value] = {}  # maps a value to the X X^T of which it is a multiple
    count = 0
    for node in program.nodes:
        of = {multiples[value] for value in node.values() if value in multiples}
        for out in node.outputs.values():
            if out in factors:
                values = factors[out]
                if len(values) == 2 and all(value in multiples for value in values) and len(of) == 1:
                    count += 1
                elif len({views.get(value, value) for value in values}) == 1 and _is_gram(node, values, views):
                    multiples[out] = out
            elif node.eqn.primitive.name in ("mul", *_VIEWS) and len(of) == 1:
                multiples[out] = of.pop()
    return count


def _is_gram(node: Any, values: list[Value], views: dict[Value, Value]) -> bool:
    """Whether the product of a matrix by itself contracts the same dimension twice, as X X^T does and X X does not."""
    if node.eqn.primitive.name != "dot_general":
        return True  # a function that has the product
    (contracted_lhs, contracted_rhs), _ = node.eqn.params["dimension_numbers"]
    is_transposed = (values[0] in views) != (values[1] in views)
    return (tuple(contracted_lhs) == tuple(contracted_rhs)) != is_transposed


def _with_slices(program: Program) -> int:
    """The number of products with slices of one argument, where these are many."""
    views, slices = _sources(program, _VIEWS), _sources(program, (*_VIEWS, *_SLICES))
    multiplied: dict[Value, set[Value]] = {}
    counts: Counter[Value] = Counter()
    for value in (value for values, _ in _factors(program) for value in values):
        if slices.get(value) in program.inputs and slices[value] != views.get(value):
            multiplied.setdefault(slices[value], set()).add(views.get(value, value))
            counts[slices[value]] += 1
    return sum(counts[array] for array, each in multiplied.items() if len(each) >= _FEWEST_EXPERTS)


def _with_steps(scan: Any) -> int:
    """The number of products of a scan's constant with its loop inputs, or with slices of another constant."""
    body = Program(scan.params["jaxpr"])
    constants, carry = compat.scan_counts(scan)
    fixed, looped = set(body.inputs[:constants]), set(body.inputs[constants + carry :])
    views, slices = _sources(body, _VIEWS), _sources(body, (*_VIEWS, *_SLICES))

    def varies(value: Value) -> bool:
        source, view = slices.get(value, value), views.get(value, value)
        return view in looped or (source in fixed and source != view)

    pairs = (values for values, _ in _factors(body) if len(values) == 2)
    return sum(any(varies(x) and views.get(y, y) in fixed for x, y in ((a, b), (b, a))) for a, b in pairs)
