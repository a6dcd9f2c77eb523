"""`group`: the independent small products of a traced function, level by level, each level as one operation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import jax
import numpy as np
from jax.extend import core as jex_core

from jax_vbgemm._src.grouping.decisions import Decider, Decision
from jax_vbgemm._src.grouping.dots import dot_of
from jax_vbgemm._src.grouping.hints import hints
from jax_vbgemm._src.grouping.program import Node, Program, Value, has_dots
from jax_vbgemm._src.grouping.report import Report
from jax_vbgemm._src.grouping.sums import DotSum, add_up
from jax_vbgemm._src.matmul.contract import contract
from jax_vbgemm._src.matmul.primitive import Batched, Term
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import Planner, resolve_planner
from jax_vbgemm._src.planner.single_dots import calls_of
from jax_vbgemm._src.util import compat

F = TypeVar("F", bound=Callable[..., Any])


@overload
def group(f: F, *, planner: str | Planner = "auto", explain: bool = False, live_bytes: int = ...) -> F: ...


@overload
def group(
    f: None = None, *, planner: str | Planner = "auto", explain: bool = False, live_bytes: int = ...
) -> Callable[[F], F]: ...


def group(
    f: F | None = None, *, planner: str | Planner = "auto", explain: bool = False, live_bytes: int = 2**28
) -> F | Callable[[F], F]:
    """`f` with its independent small matrix products as one operation for each level of its dependencies.

    The function is traced. Products (`dot_general`) that do not depend on each other become one call where the cost
    model predicts it to be faster on the device that JAX uses; large products, and products without a kernel, stay
    unchanged. A product whose result is needed later waits for others: the weight gradients of all layers become one
    call. All other operations stay unchanged too, except additions of products that nothing else uses: these
    become sums, which are rounded once. Products inside of jit, scan, while, cond, checkpoint and functions with their
    own derivative rules are grouped as well (the rules stay), and independent scans of equal length become one scan.

    The result computes the same as `f` under jit, vmap, grad and every other transformation, and its derivatives are
    grouped too. Use it under jit, preferably around the whole program: `jax.jit(vb.group(train_step))`. Outside of jit,
    each call traces the function again.

    Args:
      f: a function of pytrees. Leaves that are not arrays (Python numbers, strings, functions) are passed unchanged.
        Its results must be arrays or numbers, as under jit. Without f, `group` is a decorator with options:
        `@vb.group(explain=True)`.
      planner: as for `batched_matmul`.
      explain: print, for each trace, what was grouped, what was not, and why, and which other functions of this package
        would serve.
      live_bytes: upper bound of the bytes by which the operands of waiting products may raise the peak of the values
        that are alive; for each body of a loop by itself. With 0, no operand lives longer than without `group`.

    Returns:
      A function with the arguments and the results of `f`.

    Raises:
      ValueError, TypeError: the planner is unknown or is not a planner, f is not a function, or live_bytes is not a
        non-negative integer. A call raises TypeError if a result of f is neither an array nor a number.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> weights = [jnp.ones((4, n)) for n in (3, 5, 2)]
      >>> f = jax.jit(vb.group(lambda weights, x: [x @ w for w in weights]))
      >>> [y.shape for y in f(weights, jnp.ones((6, 4)))]
      [(6, 3), (6, 5), (6, 2)]
    """
    planner = resolve_planner(planner)
    if isinstance(live_bytes, bool) or not isinstance(live_bytes, int | np.integer):
        raise TypeError(f"group: live_bytes must be an integer, got {live_bytes!r}")
    if live_bytes < 0:
        raise ValueError(f"group: live_bytes must not be negative, got {live_bytes}")
    if f is None:
        return functools.partial(group, planner=planner, explain=explain, live_bytes=live_bytes)
    if not callable(f):
        raise TypeError(f"group: expected a function, got {f!r}")
    name = getattr(f, "__name__", repr(f))

    @functools.wraps(f)
    def grouped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray | np.generic)]

        def call_with_arrays(*arrays: Any) -> Any:
            given = list(leaves)
            for index, array in zip(places, arrays, strict=True):
                given[index] = array
            again, named = jax.tree.unflatten(structure, given)
            results = f(*again, **named)
            for path, result in jax.tree.leaves_with_path(results):
                try:
                    jax.typeof(result)
                except TypeError:
                    where, found = f"{name}{jax.tree_util.keystr(path)}", type(result).__name__
                    raise TypeError(f"group: the result of {where} is a {found}, not an array or a number") from None
            return results

        arrays = [leaves[place] for place in places]
        closed, shapes = jax.make_jaxpr(call_with_arrays, return_shape=True)(*arrays)
        report = Report(name)
        found = _Grouping(planner, report, live_bytes).grouped(closed, report.name)
        if explain:
            print(report)
        results = found.run(arrays) if found.gains else jex_core.jaxpr_as_fun(closed)(*arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return grouped


Env = dict[Value, Any]


@dataclass(frozen=True)
class _Grouped:
    """A program as steps, each of which computes some of its values; `gains` is false if it has no new calls compared
    to the original program."""

    program: Program
    steps: list[Callable[[Env], None]]
    gains: bool

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The results of the program."""
        env = self.program.known | dict(zip(self.program.inputs, args, strict=True))
        for step in self.steps:
            step(env)
        return [env[value] for value in self.program.outputs]


class _Grouping:
    """Groups the products of programs, and records the decisions in the report."""

    def __init__(self, planner: Planner, report: Report, live_bytes: int) -> None:
        self.planner, self.report, self.live_bytes = planner, report, live_bytes
        self.device = backends.traced_target()
        self.dtypes = backends.BACKENDS[self.device.platform].dtypes

    def grouped(self, closed: Any, where: str) -> _Grouped:
        """A closed jaxpr with its products grouped; `where` is its name in the report. Nothing is traced again unless
        there is a call to be made."""
        program = Program(closed)
        self.report.hint(hints(program))
        sums = self._sums(program, where)
        loops = {id(node): _loop_key(node.eqn) for node in program.nodes if _is_loop(node.eqn)}
        decisions = Decider(program, sums, loops, self.device, self.planner).decide(self.live_bytes)
        levels: dict[int, list[Node]] = {}
        for node in program.nodes:
            levels.setdefault(node.level, []).append(node)
        decisions_by_level: dict[int, list[Decision]] = {}
        for decision in decisions:
            decisions_by_level.setdefault(decision.level, []).append(decision)

        steps: list[Callable[[Env], None]] = []
        before = self.report.calls
        for level in sorted(levels):
            scans: dict[Any, list[Node]] = {}
            for node in levels[level]:
                if id(node) in loops:
                    scans.setdefault(loops[id(node)], []).append(node)
                elif id(node) not in sums:
                    steps.append(self._step(node, where))
            for nodes in scans.values():
                merged = self._merged(nodes, where) if len(nodes) > 1 else None
                steps += [self._step(node, where) for node in nodes] if merged is None else [merged]
            for decision in decisions_by_level.get(level, ()):
                in_call = self._reported(decision, where)
                if in_call:
                    steps.append(functools.partial(self._bind, in_call))
                bound = set(map(id, in_call))
                steps += [self._step(x, where) for each in decision.sums if id(each) not in bound for x in each.parts]
        return _Grouped(program, steps, self.report.calls > before)

    def _sums(self, program: Program, where: str) -> dict[int, DotSum]:
        """The products that kernels can compute, summed where nothing else uses them, by the id of their node."""
        found: dict[int, DotSum] = {}
        costs = calls_of(self.device)
        for node in program.nodes:
            if node.eqn.primitive.name == "dot_general":
                dot = dot_of(node.eqn, self.dtypes, costs)
                if isinstance(dot, str):
                    self.report.leave(where, node.eqn, dot)
                else:
                    found[id(node)] = DotSum(node, (dot,), (node,))
        return add_up(program, found)

    def _step(self, node: Node, where: str) -> Callable[[Env], None]:
        """Runs one equation unchanged, except that the functions in it have their products grouped."""
        eqn = self._with_grouped_bodies(node.eqn, where) if has_dots(node.eqn) else node.eqn
        return lambda env: node.write(compat.run_equation(eqn, node.operands(env)), env)

    def _reported(self, decision: Decision, where: str) -> list[DotSum]:
        """The sums of a decision that become one call, with the reasons in the report."""
        sums, in_call = decision.sums, decision.in_call
        bound = set(map(id, in_call))
        why = "it is large enough for a dot of its own" if in_call else "dots are faster"
        why = "it is alone on its level" if len(sums) == len(sums[0].dots) == 1 else why
        for node in (node for each in sums if id(each) not in bound for node in each.products):
            self.report.leave(where, node.eqn, why)
        if in_call:
            self.report.join(
                f"{where}, level {decision.level}",
                [each.problem for each in in_call],
                sum(len(each.dots) for each in in_call),
                decision.split,
            )
        return in_call

    def _bind(self, sums: list[DotSum], env: Env) -> None:
        """One call for all products of `sums`."""
        operands: list[Any] = []
        terms, dtypes = [], []
        reshaped: dict[Any, tuple[Any, jax.Array]] = {}  # an operand of several products is reshaped once
        for out, member in enumerate(sums):
            for dot, node in zip(member.dots, member.products, strict=True):
                for value, side in zip(node.operands(env), (dot.lhs, dot.rhs), strict=True):
                    key = id(value), side[:2]
                    if key not in reshaped:
                        # the value is kept too, because ids are unique only among live objects
                        reshaped[key] = value, side(value)
                    operands.append(reshaped[key][1])
                a, b = (len(operands) - 1, len(operands) - 2) if dot.swapped else (len(operands) - 2, len(operands) - 1)
                terms.append(Term(a, b, out, dot.problem.transpose_a, dot.problem.transpose_b))
            dtypes.append(member.dots[0].out_dtype)
        precision = sums[0].dots[0].precision
        batched = Batched(tuple(terms), tuple(dtypes), precision=precision, planner=self.planner)
        results = contract(operands, batched)
        for member, result in zip(sums, results, strict=True):
            member.node.write([result.reshape(member.dots[0].shape)], env)

    def _with_grouped_bodies(self, eqn: Any, where: str) -> Any:
        """The equation with grouped products in its functions, where these have products to group."""
        params = dict(eqn.params)
        for key in compat.BODIES.get(eqn.primitive.name, ()):
            bodies = params[key] if isinstance(params[key], tuple) else (params[key],)
            name = f"{where}, {eqn.primitive.name}"
            grouped = tuple(
                self._grouped(body, f"{name} {key}" if len(bodies) == 1 else f"{name} branch {i}")
                for i, body in enumerate(bodies)
            )
            params[key] = grouped if isinstance(params[key], tuple) else grouped[0]
        return eqn if params == eqn.params else eqn.replace(params=params)

    def _grouped(self, body: Any, where: str) -> Any:
        """A closed jaxpr, or an open one without constants, with its products grouped; unchanged if none are
        grouped."""
        is_open = isinstance(body, jex_core.Jaxpr)
        closed = jex_core.ClosedJaxpr(body, ()) if is_open else body
        grouped = self.grouped(closed, where)
        if not grouped.gains:
            return body
        new = jax.make_jaxpr(lambda *args: grouped.run(args))(*closed.in_avals)
        if is_open and new.consts:
            return body
        return new.jaxpr if is_open else new

    def _merged(self, nodes: list[Node], where: str) -> Callable[[Env], None] | None:
        """Runs independent scans of equal length as one scan whose step does a step of each; None if that would not
        group any products."""
        bodies = [node.eqn.params["jaxpr"] for node in nodes]
        counts = [compat.scan_counts(node.eqn) for node in nodes]
        ends = np.cumsum([len(body.in_avals) for body in bodies])[:-1].tolist()

        def bodies_run(*args: Any) -> list[Any]:
            parts = (args[begin:end] for begin, end in zip([0, *ends], [*ends, None], strict=True))
            return [jex_core.jaxpr_as_fun(body)(*part) for body, part in zip(bodies, parts, strict=True)]

        attempt = _Grouping(self.planner, Report(self.report.name), self.live_bytes)
        closed = jax.make_jaxpr(bodies_run)(*(aval for body in bodies for aval in body.in_avals))
        grouped = attempt.grouped(closed, f"{where}, {len(nodes)} scans")
        if not grouped.gains:
            return None
        self.report.include(attempt.report)
        params = nodes[0].eqn.params
        options = {name: params[name] for name in ("length", "reverse", "unroll")}

        def run(env: Env) -> None:
            values = [node.operands(env) for node in nodes]
            constants = [x[:begin] for x, (begin, _) in zip(values, counts, strict=True)]
            firsts = [x[begin : begin + carry] for x, (begin, carry) in zip(values, counts, strict=True)]
            inputs = [x[begin + carry :] for x, (begin, carry) in zip(values, counts, strict=True)]

            def step(carries: list[list[Any]], xs: list[list[Any]]) -> tuple[list[list[Any]], list[list[Any]]]:
                args = [x for parts in zip(constants, carries, xs, strict=True) for part in parts for x in part]
                results = iter(grouped.run(args))
                each = [[next(results) for _ in body.out_avals] for body in bodies]
                return [x[:carry] for x, (_, carry) in zip(each, counts, strict=True)], [
                    x[carry:] for x, (_, carry) in zip(each, counts, strict=True)
                ]

            carries, outputs = jax.lax.scan(step, firsts, inputs, **options)
            for node, carry, output in zip(nodes, carries, outputs, strict=True):
                node.write([*carry, *output], env)

        return run


def _is_loop(eqn: Any) -> bool:
    """Whether an equation is a scan with products, which may be merged with other scans."""
    return eqn.primitive.name == "scan" and not eqn.effects and has_dots(eqn)


def _loop_key(eqn: Any) -> tuple[Any, ...]:
    return tuple(eqn.params[name] for name in ("length", "reverse", "unroll"))
