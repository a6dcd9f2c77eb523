"""Equivariant linear maps: `irreps.LinearMap` beside e3nn-jax's FunctionalLinear and cuequivariance's descriptor.

Each is a jitted program inside one loop: the map itself, the gradients of an energy by weights and features, and the
gradient by weights of its forces' squares (`gradient2`). All are timed in interleaved rounds; the minimum counts, minus
the time of an empty loop. `ratio` is the time divided by that of this package in the same layout: e3nn's features are
stored as (node, mul, 2l + 1), cuequivariance's as (node, 2l + 1, mul). With `--species`, each node chooses one of so
many weights.

    python benchmarks/irreps.py                                       MACE's irreps, 30, 300 and 3000 nodes
    python benchmarks/irreps.py --irreps nequip --nodes 100 --species 10 --csv irreps.csv

Needs e3nn-jax 0.21, and cuequivariance-jax 0.13, whose products run in JAX 0.10 and 0.11 but not in 0.12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cuequivariance as cue
import cuequivariance_jax as cuex
import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from in_loop import products_in
from jax_vbgemm._src.tools.timing import looped, seconds_of
from jax_vbgemm.irreps import LinearMap
from options import one_of
from workloads import write_csv

IRREPS = {
    "mace": "128x0e+128x1o+128x2e+128x3o",
    "mace_small": "128x0e+128x1o",
    "nequip": "64x0e+64x0o+32x1e+32x1o+16x2e+16x2o",
}
Function = Callable[..., Any]


@dataclass
class Row:
    """The times of one implementation, in seconds."""

    device: str
    jax: str
    irreps: str
    nodes: int
    species: int
    dtype: str
    order: str
    layout: str
    way: str
    loop_s: float
    ratio: float
    dots: int
    calls: int
    error: float


def of_vbgemm(irreps: str, layout: str, species: int) -> Function:
    linear = LinearMap(irreps, irreps, layout=layout)
    if not species:
        return lambda weights, x: linear(weights, x)
    if layout == "mul_ir":
        return lambda weights, x, indices: linear(weights, x, indices=indices)
    return lambda weights, x, indices: linear(weights, x, counts=jnp.bincount(indices, length=species))


def of_e3nn(irreps: str, species: int) -> Function:
    linear = e3nn.FunctionalLinear(e3nn.Irreps(irreps), e3nn.Irreps(irreps))

    def of_row(weights: Any, x: jax.Array) -> jax.Array:
        return linear(weights, e3nn.IrrepsArray(irreps, x)).array

    if not species:
        return jax.vmap(of_row, (None, 0))
    return lambda weights, x, indices: jax.vmap(of_row)([w[indices] for w in weights], x)


def of_cuequivariance(irreps: str, species: int) -> Function:
    of_group = cue.Irreps("O3", irreps)
    polynomial = cue.descriptors.linear(of_group, of_group).polynomial
    method = "indexed_linear" if species and jax.default_backend() == "gpu" else "naive"

    def apply(weights: Any, x: jax.Array, indices: Any = None) -> jax.Array:
        leading = (species,) if species else ()
        flat = jnp.concatenate([w.reshape(*leading, -1) for w in weights], axis=-1)
        result = [jax.ShapeDtypeStruct((x.shape[0], polynomial.outputs[0].size), x.dtype)]
        repeats = [cuex.Repeats(jnp.bincount(indices, length=species)), None, None] if species else None
        return cuex.segmented_polynomial(polynomial, [flat, x], result, repeats, method=method)[0]

    return apply


def energy_of(function: Function) -> Function:
    return lambda weights, x, *rest: 0.5 * jnp.sum(function(weights, x, *rest) ** 2)


def gradients(function: Function) -> Function:
    return jax.grad(energy_of(function), (0, 1))


def gradients_of_forces(function: Function) -> Function:
    def loss(weights: Any, x: jax.Array, *rest: Any) -> jax.Array:
        return jnp.sum(jax.grad(energy_of(function), 1)(weights, x, *rest) ** 2)

    return jax.grad(loss)


ORDERS: dict[str, Callable[[Function], Function]] = {
    "map": lambda function: function,
    "gradient": gradients,
    "gradient2": gradients_of_forces,
}


def error_of(found: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.abs(x - y).max() / jnp.abs(y).max()) for x, y in pairs)


def measure(irreps: str, nodes: int, species: int, dtype: str, order: str, rounds: int) -> list[Row]:
    written = IRREPS.get(irreps, irreps)
    peers = {"mul_ir": ("e3nn-jax", of_e3nn), "ir_mul": ("cuequivariance", of_cuequivariance)}
    linear = LinearMap(written, written)
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape), dtype)

    leading = (species,) if species else ()
    weights = [draw(*leading, *path.shape) for path in linear.paths]
    operands = [weights, draw(nodes, linear.dim_in)]
    operands += [jnp.asarray(np.sort(rng.integers(0, species, nodes)), jnp.int32)] if species else []
    functions, rows = [], []
    for layout, (peer, of_peer) in peers.items():
        ways = {"vbgemm": of_vbgemm(written, layout, species), peer: of_peer(written, species)}
        truth = None
        for way, function in ways.items():
            functions.append(ORDERS[order](function))
            program = jax.jit(functions[-1]).lower(*operands).compile()
            result = program(*operands)
            truth = result if truth is None else truth
            rows.append(
                Row(
                    jax.devices()[0].device_kind, jax.__version__, irreps, nodes, species, dtype, order, layout, way,
                    seconds_of(program, operands), 1.0, *products_in(program), error_of(result, truth),
                )
            )  # fmt: skip
    iterations = int(np.clip(0.02 / min(row.loop_s for row in rows), 3, 300))
    programs = [looped(function, iterations).lower(*operands).compile() for function in (*functions, None)]
    for program in programs:
        seconds_of(program, operands)
    best = [np.inf] * len(programs)
    for _ in range(rounds):
        for index, program in enumerate(programs):
            best[index] = min(best[index], seconds_of(program, operands) / iterations)
    for row, seconds in zip(rows, best, strict=False):
        row.loop_s = seconds - best[-1]
    for index, row in enumerate(rows):
        row.ratio = row.loop_s / rows[index - index % 2].loop_s
    return rows


def main(
    irreps: Annotated[list[str], typer.Option(help=f"of features and results: {', '.join(IRREPS)}, or as e3nn's")] = [
        "mace"
    ],
    nodes: Annotated[list[int], typer.Option(help="rows of features")] = [30, 300, 3000],
    orders: Annotated[list[str], typer.Option("--order", help=", ".join(ORDERS), callback=one_of(ORDERS))] = list(
        ORDERS
    ),
    species: Annotated[int, typer.Option(help="weights to choose from; 0: all nodes have the same")] = 0,
    dtype: Annotated[str, typer.Option(help="of weights and features")] = "float32",
    precision: Annotated[str, typer.Option(help="of all products, as jax_default_matmul_precision")] = "highest",
    rounds: Annotated[int, typer.Option(help="interleaved repetitions; the best counts")] = 15,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    """Times linear maps in all implementations."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    jax.config.update("jax_default_matmul_precision", precision)
    console = Console(width=140)
    rows: list[Row] = []
    with Progress(console=console) as progress:
        task = progress.add_task("linear maps", total=len(irreps) * len(nodes) * len(orders))
        for name in irreps:
            for count in nodes:
                for order in orders:
                    rows += measure(name, count, species, dtype, order, rounds)
                    progress.advance(task)
    table = Table(title=f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {dtype}, {species or 'no'} species")
    columns = "irreps nodes order layout way loop/us ratio dots calls error"
    for column in columns.split():
        table.add_column(column, justify="left" if column in ("irreps", "order", "layout", "way") else "right")
    for row in rows:
        table.add_row(
            row.irreps, str(row.nodes), row.order, row.layout, row.way, f"{1e6 * row.loop_s:.0f}", f"{row.ratio:.2f}",
            str(row.dots), str(row.calls), f"{row.error:.0e}",
        )  # fmt: skip
    console.print(table)
    if csv:
        write_csv(csv, rows)


if __name__ == "__main__":
    typer.run(main)
