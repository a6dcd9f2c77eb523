"""Whole programs before and after: `group`, and the function of this package that is made for a program.

Each program is one jitted function, forward or a gradient step. The stand-ins (`whole_programs_standins.py`) need
no package beside JAX; the other programs (`whole_programs_real.py`) need one each, and are skipped with the reason
where it is missing:

\b
  messages    stand-in: message passing of an equivariant network, a linear map for each irrep on nodes and on edges
  species     stand-in: an energy as the sum of networks of different width, one for each chemical element
  blocks      stand-in: a chain of block-sparse tensors, contracted from the left, as dicts of blocks
  experts     stand-in: a mixture of experts as a loop over all experts with masks
  lora        stand-in: a stack of dense layers with adapters of low rank
  mlp         stand-in: a stack of dense layers
  ensemble    stand-in: networks of different width and depth
  heads       stand-in: many heads, networks of different width on the features of one layer
  types       stand-in: a network for each chemical element, all of one shape, on atoms in any order
  nequix      nequix: forces of a crystal, and a training step on forces
  mace        mace-jax (from its repository): the same
  fennol      FeNNol: an energy of species-indexed networks, and its forces
  qwen3       tunix: the mixture-of-experts layer of Qwen3 without a mesh
  gemma4      tunix: the mixture-of-experts layer of Gemma 4
  peps        quimb and symmray: the norm of a fermionic PEPS

All variants of a program are timed in interleaved rounds after three calls; `before / after` are medians of the wall
time of a call, `ratio` is before / after (above 1, this package is faster), `cpu` the same of the process's own time,
which other work on the machine disturbs less, and `compile` that of lowering and compiling. `error` is the largest
difference to `before`, relative to the largest entry of its array.

\b
    python benchmarks/whole_programs.py messages species blocks experts lora mlp ensemble heads types --size small
    python benchmarks/whole_programs.py all --size gpu --csv whole_programs.csv
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from whole_programs_standins import PROGRAMS, Case

import jax_vbgemm as vb
from options import commands, one_of
from workloads import write_csv

SIZES = ("small", "cpu", "gpu")


@dataclass
class Row:
    """A line of the CSV: one variant of a program beside the program as it was."""

    program: str
    step: str
    size: str
    variant: str
    before_us: float
    after_us: float
    ratio: float
    cpu_ratio: float
    before_compile_s: float
    after_compile_s: float
    compile_ratio: float
    calls: int
    error: float
    device: str
    jax: str
    date: str


REAL = ("nequix", "mace", "fennol", "qwen3", "gemma4", "peps")


def cases_of(program: str, size: str) -> list[Case]:
    """The cases of a program; ImportError where its package is not installed."""
    if program in PROGRAMS:
        return PROGRAMS[program](size)
    import whole_programs_real

    return getattr(whole_programs_real, program)(size)  # type: ignore[no-any-return]


def error_of(found: Any, expected: Any) -> float:
    """The largest difference relative to the largest entry of its array; arrays of rounding noise are measured by a
    ten-thousandth of the largest array. Computed where the arrays are: gradients of experts are gigabytes."""

    @jax.jit
    def largest(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, y = (a.astype(jnp.promote_types(a.dtype, jnp.float32)) for a in (x, y))
        return jnp.max(jnp.abs(x - y)), jnp.max(jnp.abs(y))

    xs, ys = ([x for x in jax.tree.leaves(tree) if np.size(x)] for tree in (found, expected))
    pairs = [[float(value) for value in largest(x, y)] for x, y in zip(xs, ys, strict=True)]
    floor = 1e-4 * max((size for _, size in pairs), default=0.0) + 1e-30
    return max((difference / max(size, floor) for difference, size in pairs), default=0.0)


def measure(program: str, size: str, case: Case, budget: float, least_rounds: int) -> list[Row]:
    """A row for each variant; all variants are timed in interleaved rounds."""
    functions = {"before": case.before, "group": vb.group(case.before), **case.variants}
    jax.eval_shape(case.before, *case.args)  # fills caches of the program, so that compile times compare
    compiled: dict[str, Any] = {}
    results: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for name, function in functions.items():
        start = time.perf_counter()
        compiled[name] = jax.jit(function).lower(*case.args).compile()
        seconds[name] = time.perf_counter() - start
        for _ in range(3):
            results[name] = jax.block_until_ready(compiled[name](*case.args))
    wall: dict[str, list[float]] = {name: [] for name in compiled}
    cpu: dict[str, list[float]] = {name: [] for name in compiled}
    start = time.perf_counter()
    while len(wall["before"]) < least_rounds or time.perf_counter() - start < budget:
        for name, function in compiled.items():
            began, of_process = time.perf_counter(), time.process_time()
            jax.block_until_ready(function(*case.args))
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - of_process)
    us = {name: 1e6 * statistics.median(values) for name, values in wall.items()}
    of_process_us = {name: 1e6 * statistics.median(values) for name, values in cpu.items()}
    where = jax.devices()[0].device_kind, jax.__version__, time.strftime("%Y-%m-%d")
    return [
        Row(
            program, case.step, size, name, us["before"], us[name], us["before"] / us[name],
            of_process_us["before"] / max(of_process_us[name], 1e-9), seconds["before"], seconds[name],
            seconds["before"] / seconds[name], compiled[name].as_text().count('custom_call_target="vbgemm'),
            error_of(results[name], results["before"]), *where,
        )
        for name in functions
        if name != "before"
    ]  # fmt: skip


def show(rows: list[Row]) -> None:
    title = f"us before and after, {rows[0].device}, jax {rows[0].jax}" if rows else "nothing was measured"
    table = Table(title=title)
    for column in (
        "program",
        "step",
        "variant",
        "before",
        "after",
        "ratio",
        "cpu",
        "compile/s",
        "ratio",
        "calls",
        "error",
    ):
        table.add_column(column, justify="left" if column in ("program", "step", "variant") else "right")
    for row in rows:
        table.add_row(
            row.program, row.step, row.variant, f"{row.before_us:.0f}", f"{row.after_us:.0f}", f"{row.ratio:.2f}",
            f"{row.cpu_ratio:.2f}", f"{row.before_compile_s:.2f} {row.after_compile_s:.2f}", f"{row.compile_ratio:.2f}",
            str(row.calls), f"{row.error:.0e}",
        )  # fmt: skip
    Console(width=140).print(table)


app = commands(__doc__)


@app.command()
def main(
    programs: Annotated[
        list[str],
        typer.Argument(help=", ".join(("all", *PROGRAMS, *REAL)), callback=one_of(("all", *PROGRAMS, *REAL))),
    ],
    size: Annotated[str, typer.Option(help=", ".join(SIZES), callback=one_of(SIZES))] = "cpu",
    budget: Annotated[float, typer.Option(help="seconds of timing for each step of a program", min=0)] = 10.0,
    rounds: Annotated[int, typer.Option(help="at least so many interleaved rounds", min=1)] = 11,
    explain: Annotated[bool, typer.Option("--explain", help="print what `group` decides, and time nothing")] = False,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    rows: list[Row] = []
    skipped = []
    for program in [*PROGRAMS, *REAL] if "all" in programs else programs:
        try:
            cases = cases_of(program, size)
        except ImportError as error:
            skipped.append(f"{program}: skipped, {error}")
            continue
        for case in cases:
            if explain:
                print(f"{program}, {case.step}:")
                jax.eval_shape(vb.group(case.before, explain=True), *case.args)
                continue
            found = measure(program, size, case, budget, rounds)
            rows += found
            if csv:
                write_csv(csv, found)
    if not explain:
        show(rows)
    for line in skipped:
        print(line)


if __name__ == "__main__":
    app()
