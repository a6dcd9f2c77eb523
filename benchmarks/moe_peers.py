"""Mixture-of-experts layers beside their peers of today and the hardware's limit, in one run of a few minutes.

\b
  vbgemm            vb.moe.route and vb.moe.expert_mlp
  lax_ragged_dot    the layer around three jax.lax.ragged_dot (moe_layer.py): a grouped product from cuDNN 9.22 on, one
                    dense product with all experts before
  torch_grouped_mm  torch_moe_layer.py, in a process of its own, where torch is installed
  dense             no layer: dense products of as many rows with one expert, by moe_layer.py
  limit             the larger of two times: of the bytes that must be moved at 3.0 TB/s (an H100's memory), and of the
                    operations at the best rate of the dense products in this run. Bytes: in the forward pass the
                    weights of the experts that have tokens, the tokens and the result once each; a backward pass reads
                    the weights once more, and writes their gradients and those of the tokens.

lax_ragged_dot, which may be slow, comes last, and only while the minutes last. Times are microseconds in bfloat16.

    python benchmarks/moe_peers.py --csv moe_peers.csv
"""

import importlib.metadata
import importlib.util
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.table import Table

from moe_layer import MODELS, PASSES, Model, Row, measure
from options import commands, one_of
from workloads import read_csv, write_csv

COLUMNS = ("vbgemm", "lax_ragged_dot", "torch_grouped_mm", "dense", "limit")
BYTES_PER_SECOND = 3.0e12
Case = tuple[str, int, str]
"""A model, tokens and a direction."""


def least_bytes(model: Model, tokens: int, direction: str) -> float:
    """What must be moved between memory and the chip, in 16 bits a number."""
    weights = 3 * min(model.experts, tokens * model.k) * model.d * model.f
    passes = {"forward": (1, 2), "forward_backward": (3, 4)}
    of_weights, of_tokens = passes[direction]
    return 2.0 * (of_weights * weights + of_tokens * tokens * model.d)


def limits(rows: list[Row]) -> Iterator[Row]:
    """A row for each row of dense products."""
    dense = [row for row in rows if row.peer == "dense"]
    rate = max((row.gflop * 1e9 / row.us for row in dense), default=math.nan)  # operations a microsecond
    for row in dense:
        by_bytes = least_bytes(MODELS[row.model], row.tokens, row.direction) / BYTES_PER_SECOND * 1e6
        us = max(by_bytes, row.gflop * 1e9 / rate)
        yield replace(row, peer="limit", us=us, temp_mib=math.nan, error=math.nan)


def cudnn_version() -> str:
    """That of the library which JAX has loaded; of the installed package where JAX does not tell."""
    try:
        from jax._src.lib import cuda_versions

        number = cuda_versions.cudnn_get_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    except (ImportError, AttributeError, RuntimeError):
        packages = [d for d in importlib.metadata.distributions() if d.name.lower().startswith("nvidia-cudnn")]
        return packages[0].version if packages else "not found"


def torch_rows(models: list[str], tokens: list[int], seconds: float) -> Iterator[Row]:
    """Those of torch_moe_layer.py, as many as it measures in the time; before JAX takes the GPU's memory."""
    if importlib.util.find_spec("torch") is None:
        print("torch_grouped_mm: torch is not installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder) / "rows.csv"
        options = [option for number in tokens for option in ("--tokens", str(number))]
        command = [sys.executable, str(Path(__file__).with_name("torch_moe_layer.py")), *models, *options]
        try:
            result = subprocess.run([*command, "--csv", str(csv)], capture_output=True, text=True, timeout=seconds)
            if result.returncode:
                print("torch_grouped_mm:", (result.stderr.strip() or "no message").splitlines()[-1])
        except subprocess.TimeoutExpired:
            print(f"torch_grouped_mm: not all layers within {seconds:.0f} seconds")
        if csv.exists():
            yield from read_csv(Row, csv)


def show(rows: list[Row]) -> None:
    lines: dict[Case, dict[str, float]] = {}
    for row in rows:
        lines.setdefault((row.model, row.tokens, row.direction), {})[row.peer] = row.us
    table = Table(title="us a layer")
    for column in ("model", "tokens", "direction", *COLUMNS, "vbgemm / max(dense, limit)"):
        table.add_column(column, justify="right")
    for case, line in lines.items():
        cells = [f"{line[column]:.0f}" if column in line else "-" for column in COLUMNS]
        known = {"vbgemm", "dense", "limit"} <= line.keys()
        ratio = f"{line['vbgemm'] / max(line['dense'], line['limit']):.2f}" if known else "-"
        table.add_row(*map(str, case), *cells, ratio)
    Console(width=140).print(table)


app = commands(__doc__)


@app.command()
def main(
    csv: Annotated[Path, typer.Option(help="rows are appended")],
    model: Annotated[list[str], typer.Option(help=", ".join(MODELS), callback=one_of(MODELS))] = [
        "granite", "olmoe", "qwen3_30b", "gpt_oss",
    ],
    tokens: Annotated[list[int], typer.Option(help="of a call", min=1)] = [4096, 16384],
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    minutes: Annotated[float, typer.Option(help="in which the run ends")] = 3.7,
) -> None:  # fmt: skip
    deadline = time.monotonic() + 60 * minutes
    rows: list[Row] = []

    def add(found: list[Row]) -> None:
        rows.extend(found)
        if found:
            write_csv(csv, found)

    def measured(case: Case, peers: list[str]) -> list[Row]:
        name, number, direction = case
        try:
            found, missing = measure(name, number, "uniform", direction, "bf16", peers, rounds, with_memory=False)
        except jax.errors.JaxRuntimeError as error:  # one that needs more memory than there is must not end the run
            found, missing = [], [f"{name}, {number} tokens, {direction}: {peers}: {str(error).splitlines()[0]}"]
        for line in missing:
            print(line)
        return found

    add(list(torch_rows(model, tokens, 15 * minutes)))
    cases = [(name, number, direction) for name in model for number in tokens for direction in PASSES]
    for case in cases:
        add(measured(case, ["vbgemm", "dense"]))
    add(list(limits(rows)))
    cudnn = cudnn_version()
    longest = 0.0
    for index, case in enumerate(sorted(cases, key=lambda case: MODELS[case[0]].flops(*case[1:]))):
        start = time.monotonic()
        if start + longest > deadline:
            print(f"lax_ragged_dot: no time for the {len(cases) - index} largest layers")
            break
        # Alone in its run, it is compared with nothing; moe_layer.py compares.
        found = measured(case, ["lax_ragged_dot"])
        add([replace(row, error=math.nan, jax=f"{row.jax}, cuDNN {cudnn}") for row in found])
        longest = max(longest, 2 * (time.monotonic() - start))
    print(f"jax {jax.__version__}, cuDNN {cudnn}, {jax.devices()[0].device_kind}")
    show(rows)


if __name__ == "__main__":
    app()
