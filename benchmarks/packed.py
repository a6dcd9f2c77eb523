"""Packed buffers: the cost of calling many small products with packed operands, and the gain by padded rows.

`dispatch` times single calls of jitted functions on randomly drawn shapes: adding 1 to one array as large as the packed
operands; adding 1 to the packed operands; and the products of packed operands, of lists, and of lists by XLA's dots.
`call` is the time until the call returns (on a GPU, the work of the host), and `us` the time until the results are
ready;
`ratio` is `call` divided by that of the first row.

`rows` times the same products in a loop inside one program, packed (rows padded to 16 bytes) and unpacked (rows as
long as they are); the results of both are written into zeros. `ratio` is the time divided by that of the packed ones.

    python benchmarks/packed.py                                  both, 1000 products
    python benchmarks/packed.py rows --dtype bfloat16 --count 256 --largest 512 --csv packed.csv

All rows of a table are timed in interleaved rounds; the minimum over the rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import jax_vbgemm as vb
from jax_vbgemm._src.tools.timing import looped, seconds_of
from options import one_of
from workloads import write_csv

Way = tuple[Callable[..., Any], Sequence[Any]]
"""A function and its arguments."""

TABLES = ("dispatch", "rows")

SAMPLE_SECONDS = 0.05  # of iterations in a loop


@dataclass
class Row:
    """The times of one implementation, in seconds."""

    device: str
    jax: str
    dtype: str
    count: int
    largest: int
    table: str
    way: str
    seconds: float
    call_seconds: float
    ratio: float


def operands(count: int, largest: int, dtype: str) -> tuple[list[jax.Array], list[jax.Array]]:
    """Random factors; sizes are drawn from 1 to `largest`."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, largest + 1, (count, 3))
    shapes = [(m, k) for m, _, k in sizes.tolist()], [(k, n) for _, n, k in sizes.tolist()]
    left, right = ([rng.uniform(-1, 1, shape).astype(np.float32) for shape in side] for side in shapes)
    return [jnp.asarray(x, dtype) for x in left], [jnp.asarray(x, dtype) for x in right]


def dispatch(count: int, largest: int, dtype: str) -> dict[str, Way]:
    """The functions of `dispatch`, that of one array first."""
    As, Bs = operands(count, largest, dtype)
    packed = vb.pack(As), vb.pack(Bs)
    buffer = jnp.concatenate([x.buffer for x in packed])
    return {
        "one array + 1": (lambda x: x + 1, [buffer]),
        "packed operands + 1": (lambda *xs: jax.tree.map(lambda x: x + 1, xs), packed),
        "products, packed": (vb.batched_matmul, packed),
        "products, lists": (vb.batched_matmul, [As, Bs]),
        "products, lists, XLA": (lambda As, Bs: [a @ b for a, b in zip(As, Bs, strict=True)], [As, Bs]),
    }


def rows(count: int, largest: int, dtype: str) -> dict[str, Way]:
    """The functions of `rows`, packed first. Both have one buffer for each operand, so that only the padding
    differs."""
    As, Bs = operands(count, largest, dtype)
    packed = vb.pack(As), vb.pack(Bs)

    def unpacked(a: jax.Array, b: jax.Array) -> jax.Array:
        left, right = views(a, As), views(b, Bs)
        shapes = [(x.shape[0], y.shape[1]) for x, y in zip(As, Bs, strict=True)]
        results = views(jnp.zeros(sum(m * n for m, n in shapes), dtype), [jnp.empty(shape) for shape in shapes])
        return vb.batched_matmul(left, right, into=results)[0].buffer

    tight = [jnp.concatenate([x.reshape(-1) for x in side]) for side in (As, Bs)]
    return {"packed": (vb.batched_matmul, packed), "unpacked": (unpacked, tight)}


def views(buffer: jax.Array, arrays: Sequence[jax.Array]) -> list[vb.View]:
    """Views of arrays of these shapes in a buffer, one after another without gaps."""
    offsets = np.cumsum([0, *(x.size for x in arrays)]).tolist()
    return [vb.View(buffer, x.shape, offset=offset) for x, offset in zip(arrays, offsets, strict=False)]


def measure(ways: dict[str, Way], rounds: int, *, in_loop: bool) -> list[tuple[float, float]]:
    """For each function, the seconds until its results are ready, and until the call returns."""
    programs = []
    for function, arguments in ways.values():
        program, iterations = jax.jit(function), 1
        jax.block_until_ready(program(*arguments))
        if in_loop:
            iterations = int(min(500, max(2, SAMPLE_SECONDS / seconds_of(program, arguments))))
            program = looped(function, iterations)
            jax.block_until_ready(program(*arguments))
        programs.append((program, arguments, iterations))
    best = [(float("inf"), float("inf"))] * len(programs)
    for _ in range(rounds):
        for index, (program, arguments, iterations) in enumerate(programs):
            start = time.perf_counter()
            results = program(*arguments)
            returned = time.perf_counter()
            jax.block_until_ready(results)
            taken = (time.perf_counter() - start) / iterations, (returned - start) / iterations
            best[index] = min(best[index][0], taken[0]), min(best[index][1], taken[1])
    return best


def main(
    tables: Annotated[list[str], typer.Argument(help=", ".join(TABLES), callback=one_of(TABLES))] = list(TABLES),
    count: Annotated[int, typer.Option(help="products")] = 1000,
    largest: Annotated[int, typer.Option(help="size of a dimension")] = 32,
    dtype: Annotated[str, typer.Option(help="of the operands")] = "float32",
    rounds: Annotated[int, typer.Option(help="interleaved repetitions; the best counts")] = 25,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    """Times packed calls beside unpacked ones."""
    console = Console(width=120)
    runs = [(table, {"dispatch": dispatch, "rows": rows}[table](count, largest, dtype)) for table in tables]
    found: list[Row] = []
    device, version = jax.devices()[0].device_kind, jax.__version__
    for table, ways in runs:
        in_loop = table == "rows"
        seconds = measure(ways, rounds, in_loop=in_loop)
        shown = Table(title=f"{table}: {count} products up to {largest}, {dtype}, {device}, jax {version}")
        for column in ("way", "us", "ratio") if in_loop else ("way", "us", "call/us", "ratio"):
            shown.add_column(column, justify="left" if column == "way" else "right")
        for way, taken in zip(ways, seconds, strict=True):
            which = 0 if in_loop else 1
            row = Row(device, version, dtype, count, largest, table, way, *taken, taken[which] / seconds[0][which])
            found.append(row)
            times = taken[:1] if in_loop else taken
            shown.add_row(way, *(f"{1e6 * x:.1f}" for x in times), f"{row.ratio:.2f}")
        console.print(shown)
    if csv:
        write_csv(csv, found)


if __name__ == "__main__":
    typer.run(main)
