"""A chain of block-sparse contractions, compile time included: blocks in one buffer, blocks as arrays, symmray fused.

A sweep step of DMRG: the left block of a matrix product operator, two sites and the operator's two tensors, contracted
one after another with U(1) charges, the norm of the result and its gradient. Each is a jitted program; the minimum of
interleaved rounds counts.

    python benchmarks/block_chain.py                   float64, multiples 1 and 4 of the sectors' sizes
    python benchmarks/block_chain.py --scales 8 --csv block_chain.csv

Needs symmray 0.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from block_sparse import array
from rich.console import Console
from rich.table import Table

from in_loop import products_in
from jax_vbgemm import blocksparse
from jax_vbgemm._src.tools.timing import seconds_of
from workloads import write_csv


@dataclass
class Row:
    """The times of one way, in seconds."""

    device: str
    jax: str
    scale: int
    gradient: bool
    way: str
    call_s: float
    ratio: float
    trace_s: float
    compile_s: float
    operations: int
    dots: int
    calls: int


def tensors(scale: int) -> list[Any]:
    """The left block, two sites, and two tensors of the operator."""
    bond = {2 * i - 6: scale * size for i, size in enumerate((1, 6, 15, 20, 15, 6, 1))}
    site, operator = {-1: 1, 1: 1}, {-2: 1, 0: 3, 2: 1}
    left = array("U1", (bond, False), (operator, False), (bond, True))
    sites = array("U1", (bond, False), (site, False), (site, False), (bond, True), seed=1)
    w1, w2 = (array("U1", (operator, True), (site, False), (site, True), (operator, False), seed=s) for s in (2, 3))
    return [left, sites, w1, w2]


def applied(tensordot: Callable[..., Any], left: Any, sites: Any, w1: Any, w2: Any) -> Any:
    """The operator applied to two sites, with the left block."""
    x = tensordot(left, sites, ([2], [0]))  # bond, operator, site, site, bond
    x = tensordot(x, w1, ([1, 2], [0, 2]))  # bond, site, bond, site, operator
    return tensordot(x, w2, ([1, 4], [2, 0]))  # bond, bond, site, site, operator


def fused(a: Any, b: Any, axes: Any) -> Any:
    return a.tensordot(b, axes, mode="fused")


def programs(work: list[Any], gradient: bool) -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """Each way's function and its arguments: dicts of blocks, or BlockArrays."""
    blocks = [{sector: jnp.asarray(x) for sector, x in tensor.blocks.items()} for tensor in work]

    def of_arrays(*given: Any) -> Any:
        return applied(fused, *(x.copy_with(blocks=y) for x, y in zip(work, given, strict=True))).blocks

    def ours(*given: Any) -> Any:
        return applied(blocksparse.tensordot, *given)

    def loss(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: sum(jnp.sum(x**2) for x in jax.tree.leaves(f(*given)))

    ways = {"packed": (ours, list(map(blocksparse.pack, blocks))), "arrays": (ours, blocks),
            "symmray fused": (of_arrays, blocks)}  # fmt: skip
    return {
        name: (jax.grad(loss(f), tuple(range(len(work)))) if gradient else loss(f), arguments)
        for name, (f, arguments) in ways.items()
    }


def operations(program: str) -> int:
    """The instructions of the compiled program that are not mere names of other values."""
    names = ("parameter(", "constant(", "bitcast(", "get-tuple-element(", "tuple(")
    lines = [line for line in program[program.index("ENTRY") :].splitlines() if " = " in line]
    return sum(not any(name in line for name in names) for line in lines)


def main(
    scales: Annotated[list[int] | None, typer.Option(help="multiples of the sectors' sizes")] = None,
    rounds: Annotated[int, typer.Option(help="interleaved repetitions; the best counts")] = 15,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    """Times the chain and its gradient in all ways."""
    jax.config.update("jax_enable_x64", True)
    rows: list[Row] = []
    for scale in scales or [1, 4]:
        for gradient in (False, True):
            own: list[tuple[Row, Any, Any]] = []
            for way, (program, arguments) in programs(tensors(scale), gradient).items():
                start = time.perf_counter()
                lowered = jax.jit(program).lower(*arguments)
                middle = time.perf_counter()
                compiled = lowered.compile()
                end = time.perf_counter()
                dots, calls = products_in(compiled)
                row = Row(jax.devices()[0].device_kind, jax.__version__, scale, gradient, way, np.inf, 1.0,
                          middle - start, end - middle, operations(compiled.as_text()), dots, calls)  # fmt: skip
                own.append((row, compiled, arguments))
                seconds_of(compiled, arguments)
            for _ in range(rounds):
                for row, compiled, arguments in own:
                    row.call_s = min(row.call_s, seconds_of(compiled, arguments))
            for row, _, _ in own:
                row.ratio = row.call_s / own[0][0].call_s
            rows += [row for row, _, _ in own]
    table = Table(title=f"{rows[0].device}, jax {rows[0].jax}, float64")
    for column in [
        "scale",
        "gradient",
        "way",
        "call/us",
        "ratio",
        "trace/s",
        "compile/s",
        "operations",
        "dots",
        "calls",
    ]:
        table.add_column(column)
    for row in rows:
        table.add_row(
            str(row.scale), str(row.gradient), row.way, f"{1e6 * row.call_s:.0f}", f"{row.ratio:.2f}",
            f"{row.trace_s:.2f}", f"{row.compile_s:.2f}", str(row.operations), str(row.dots), str(row.calls),
        )  # fmt: skip
    Console(width=120).print(table)
    if csv:
        write_csv(csv, rows)


if __name__ == "__main__":
    typer.run(main)
