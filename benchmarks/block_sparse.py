"""Block-sparse contractions: `blocksparse.tensordot` beside symmray's own, both of its ways, on JAX arrays.

Each contraction is a jitted program from blocks to blocks. All are timed in interleaved rounds, in a loop inside one
program (`loop`) and as single calls (`call`, which includes passing every block to the program); the minimum over the
rounds counts. `ratio` is the time in the loop divided by that of this package. `trace` and `compile` are those of the
single call.

    python benchmarks/block_sparse.py                          all contractions, float64
    python benchmarks/block_sparse.py density density_4x --dtype complex128 --gradient --csv block_sparse.csv

Needs symmray 0.4.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import symmray
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from in_loop import products_in
from jax_vbgemm import blocksparse
from jax_vbgemm._src.tools.timing import looped, seconds_of
from options import one_of
from workloads import write_csv


@dataclass(frozen=True)
class Contraction:
    """Two arrays and the axes of their contraction."""

    a: Any
    b: Any
    axes: Any


@dataclass
class Row:
    """The times of one implementation, in seconds."""

    device: str
    jax: str
    contraction: str
    dtype: str
    gradient: bool
    products: int
    outputs: int
    way: str
    loop_s: float
    call_s: float
    ratio: float
    trace_s: float
    compile_s: float
    dots: int
    calls: int
    error: float


def array(symmetry: str, *indices: tuple[dict[Any, int], bool], fermionic: bool = False, seed: int = 0) -> Any:
    """A random array with all sectors that conserve the charge; an index is the sizes of its charges and whether it is
    dual."""
    statistics = "Fermionic" if fermionic else ""
    kind = getattr(symmray, f"{symmetry}{statistics}Array")
    return kind.random(tuple(symmray.BlockIndex(sizes, dual) for sizes, dual in indices), seed=seed)


def spinful(sizes: tuple[int, ...], first: int = 0) -> dict[tuple[int, int], int]:
    """Charges (up, down) of a Hubbard chain, of the product of the sizes for one spin."""
    charges = enumerate(sizes, first)
    return {(u, d): m * n for (u, m), (d, n) in itertools.product(charges, enumerate(sizes, first))}


def density(scale: int, fermionic: bool = False) -> Contraction:
    """The density matrix of two sites and half a chain: 324 products into 25 blocks."""
    bond, site = spinful((1, 4, 6, 4, 1)), spinful((1, 1))
    bond = {charge: scale * size for charge, size in bond.items()}
    right = {(u + 1, d + 1): size for (u, d), size in bond.items()}
    theta = array("U1U1", (bond, False), (site, False), (site, False), (right, True), fermionic=fermionic)
    return Contraction(theta, theta.conj(), ([0, 1, 2], [0, 1, 2]))


def environment(scale: int) -> Contraction:
    """A two-site Heisenberg wave function times the left block of a matrix product operator, one pair of axes."""
    bond = {2 * i - 6: scale * size for i, size in enumerate((1, 6, 15, 20, 15, 6, 1))}
    site, operator = {-1: 1, 1: 1}, {-2: 1, 0: 3, 2: 1}
    left = array("U1", (bond, False), (operator, False), (bond, True))
    theta = array("U1", (bond, False), (site, False), (site, False), (bond, True), seed=1)
    return Contraction(left, theta, ([2], [0]))


def operator() -> Contraction:
    """That wave function with an operator's axis times the operator's own tensor: K and N are 1 or 3."""
    bond = {2 * i - 6: size for i, size in enumerate((1, 6, 15, 20, 15, 6, 1))}
    site, between = {-1: 1, 1: 1}, {-2: 1, 0: 3, 2: 1}
    x = array("U1", (bond, False), (site, False), (bond, True), (between, False), (site, False))
    return Contraction(x, array("U1", (between, True), (site, True), (between, False), (site, False)), ([3, 4], [0, 1]))


def inner_axes() -> Contraction:
    """Contracted axes in the middle of both, in another order: every block is copied."""
    charges = {i - 2: size for i, size in enumerate((2, 5, 7, 4, 3))}
    a = array("U1", (charges, False), (charges, False), (charges, True), (charges, True))
    b = array("U1", (charges, False), (charges, False), (charges, True), (charges, True), seed=1)
    return Contraction(a, b, ([2, 0], [1, 2]))


CONTRACTIONS: dict[str, Callable[[], Contraction]] = {
    "density": lambda: density(1),
    "density_4x": lambda: density(4),
    "density_fermionic": lambda: density(1, fermionic=True),
    "environment": lambda: environment(1),
    "environment_4x": lambda: environment(4),
    "operator": operator,
    "inner_axes": inner_axes,
}
WAYS: dict[str, Callable[..., Any]] = {
    "vbgemm": blocksparse.tensordot,
    "symmray fused": lambda a, b, axes: a.tensordot(b, axes, mode="fused"),
    "symmray blockwise": lambda a, b, axes: a.tensordot(b, axes, mode="blockwise"),
}


def program_of(way: Callable[..., Any], work: Contraction, gradient: bool) -> Callable[..., Any]:
    """From both arrays' blocks to the result's, or to the gradients of the sum of their squares."""

    def blocks(a: Any, b: Any) -> Any:
        return way(work.a.copy_with(blocks=a), work.b.copy_with(blocks=b), work.axes).blocks

    def loss(a: Any, b: Any) -> jax.Array:
        return sum(jnp.sum(jnp.abs(block) ** 2) for block in blocks(a, b).values())

    return jax.grad(loss, (0, 1)) if gradient else blocks


def error_of(found: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in pairs)


def measure(name: str, dtype: str, gradient: bool, rounds: int, progress: Progress) -> list[Row]:
    work = CONTRACTIONS[name]()
    rng = np.random.default_rng(0)

    def draw(shape: tuple[int, ...]) -> jax.Array:
        parts = rng.standard_normal((2, *shape))
        return jnp.asarray(parts[0] + 1j * parts[1] if "complex" in dtype else parts[0], dtype)

    operands = [{sector: draw(block.shape) for sector, block in x.blocks.items()} for x in (work.a, work.b)]
    task = progress.add_task(name, total=len(WAYS) + rounds)
    calls, loops, rows, truth = [], [], [], None
    for way, function in WAYS.items():
        program = program_of(function, work, gradient)
        start = time.perf_counter()
        lowered = jax.jit(program).lower(*operands)
        middle = time.perf_counter()
        calls.append(lowered.compile())
        end = time.perf_counter()
        truth = calls[0](*operands) if truth is None else truth
        seconds_of(calls[-1], operands)
        iterations = int(np.clip(0.02 / seconds_of(calls[-1], operands), 3, 200))
        loops.append((looped(program, iterations).lower(*operands).compile(), iterations))
        dots, ours = products_in(calls[-1])
        rows.append(
            Row(
                jax.devices()[0].device_kind, jax.__version__, name, dtype, gradient, products(work),
                len(truth) if not gradient else sum(map(len, truth)), way, np.inf, np.inf, 1.0,
                middle - start, end - middle, dots, ours, error_of(calls[-1](*operands), truth),
            )
        )  # fmt: skip
        progress.advance(task)
    for _ in range(rounds):
        for row, call, (loop, iterations) in zip(rows, calls, loops, strict=True):
            row.loop_s = min(row.loop_s, seconds_of(loop, operands) / iterations)
            row.call_s = min(row.call_s, seconds_of(call, operands))
        progress.advance(task)
    for row in rows:
        row.ratio = row.loop_s / rows[0].loop_s
    return rows


def products(work: Contraction) -> int:
    """The number of pairs of blocks that are multiplied."""
    axes_a, axes_b = work.axes
    charges = [tuple(sector[axis] for axis in axes_b) for sector in work.b.blocks]
    return sum(charges.count(tuple(sector[axis] for axis in axes_a)) for sector in work.a.blocks)


def main(
    contractions: Annotated[
        list[str], typer.Argument(help=", ".join(CONTRACTIONS), callback=one_of(CONTRACTIONS))
    ] = list(CONTRACTIONS),
    dtype: Annotated[str, typer.Option(help="of the blocks")] = "float64",
    gradient: Annotated[bool, typer.Option("--gradient", help="the gradients, not the contraction")] = False,
    rounds: Annotated[int, typer.Option(help="interleaved repetitions; the best counts")] = 15,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    """Times each contraction with all implementations."""
    jax.config.update("jax_enable_x64", True)
    console = Console(width=140)
    rows: list[Row] = []
    with Progress(console=console) as progress:
        for name in contractions:
            rows += measure(name, dtype, gradient, rounds, progress)
    table = Table(title=f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {dtype}{', gradients' * gradient}")
    columns = "contraction products outputs way loop/us call/us ratio trace/s compile/s dots calls error"
    for column in columns.split():
        table.add_column(column, justify="left" if column in ("contraction", "way") else "right")
    for row in rows:
        table.add_row(
            row.contraction, str(row.products), str(row.outputs), row.way, f"{1e6 * row.loop_s:.0f}",
            f"{1e6 * row.call_s:.0f}", f"{row.ratio:.2f}", f"{row.trace_s:.2f}", f"{row.compile_s:.2f}",
            str(row.dots), str(row.calls), f"{row.error:.0e}",
        )  # fmt: skip
    console.print(table)
    if csv:
        write_csv(csv, rows)


if __name__ == "__main__":
    typer.run(main)
