"""Trace + lower and compile time of variable-size batches, beside XLA's loop of dots.

The median of 5, minus that of a jitted identity of the same arguments; all caches are cleared, that of plans included.

    python benchmarks/trace_time.py                       64, 256 and 1000 problems
    python benchmarks/trace_time.py 64 --gradient --loop --csv trace.csv
    python benchmarks/trace_time.py 1000 5000 --floor     beside the time of JAX and XLA for so many arrays
"""

import statistics
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
from rich.progress import track
from rich.table import Table

import jax_vbgemm as vb
from jax_vbgemm._src.native.backends import TARGET_NAME
from jax_vbgemm._src.planner import entry
from workloads import write_csv


@dataclass
class Row:
    """Seconds in excess of a jitted identity of the same arguments."""

    device: str
    jax: str
    program: str
    gradient: bool
    problems: int
    lower_s: float
    compile_s: float


def loop(As: Sequence[jax.Array], Bs: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.matmul(a, b) for a, b in zip(As, Bs, strict=True)]


def empty_call(As: Sequence[jax.Array], Bs: Sequence[jax.Array]) -> Any:
    """A custom call with the operands and results of the products, and nothing else; it is compiled but never run."""
    results = [jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype) for a, b in zip(As, Bs, strict=True)]
    return jax.ffi.ffi_call(TARGET_NAME, results)(*As, *Bs)


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda As, Bs: sum(map(jnp.sum, function(As, Bs))), (0, 1))


def seconds(function: Callable[..., Any], args: Any) -> tuple[float, float]:
    """The seconds of tracing and lowering a new jitted function, and of compiling it, with all caches cleared."""
    jax.clear_caches()
    entry._plan.cache_clear()
    start = time.perf_counter()
    lowered = jax.jit(lambda *a: function(*a)).lower(*args)
    middle = time.perf_counter()
    lowered.compile()
    return middle - start, time.perf_counter() - middle


def medians(function: Callable[..., Any], args: Any, times: int) -> tuple[float, ...]:
    samples = [seconds(function, args) for _ in range(times)]
    return tuple(statistics.median(column) for column in zip(*samples, strict=True))


def main(
    counts: Annotated[list[int], typer.Argument(help="problems of a batch", min=1)] = [64, 256, 1000],
    gradient: Annotated[bool, typer.Option("--gradient", help="value and gradient, not the forward pass")] = False,
    xla_loop: Annotated[bool, typer.Option("--loop", help="XLA's loop, too (a minute and more on a GPU)")] = False,
    floor: Annotated[
        bool, typer.Option("--floor", help="an empty custom call of the same arrays, too, forward")
    ] = False,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    """Prints the times of tracing and lowering, and of compiling."""
    device, rng, rows = jax.devices()[0].device_kind, np.random.default_rng(0), []
    programs = {"ours": vb.batched_matmul} | ({"XLA loop": loop} if xla_loop else {})
    programs |= {"empty call": empty_call} if floor and not gradient else {}
    console = Console()
    for count in track(counts, "batches", console=console):
        sizes = rng.integers(16, 129, (count, 3))
        args = [jnp.ones((m, k)) for m, _, k in sizes], [jnp.ones((k, n)) for _, n, k in sizes]
        base = medians(lambda As, Bs: (As, Bs), args, 5)
        for name, function in programs.items():
            took = medians(with_gradient(function) if gradient else function, args, 1 if function is loop else 5)
            lower_s, compile_s = (mine - identity for mine, identity in zip(took, base, strict=True))
            rows.append(Row(device, jax.__version__, name, gradient, count, lower_s, compile_s))
    table = Table(title=f"{device}, jax {jax.__version__}, {'with gradient' if gradient else 'forward'}: seconds")
    for column in ("problems", "program", "trace + lower", "compile"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(str(row.problems), row.program, f"{row.lower_s:.3f}", f"{row.compile_s:.3f}")
    console.print(table)
    if csv:
        write_csv(csv, rows)


if __name__ == "__main__":
    typer.run(main)
