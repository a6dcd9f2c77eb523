"""A mixture-of-experts layer whose experts are divided among the devices here, and the same layer on one device.

\b
  one_device       vb.moe.expert_mlp with all tokens and experts
  expert_mlp       vb.moe.expert_mlp(mesh_axis=): tokens are gathered, and contributions of the experts added up
  expert_parallel  vb.moe.dispatch, vb.moe.expert_parallel and vb.moe.combine: rows are gathered, one for each choice

Calls follow each other without waiting; medians of five rounds. `error` is the largest difference from one device of a
result or a gradient, over its largest entry.

    python benchmarks/expert_parallel.py olmoe --tokens 16384 --csv expert_parallel.csv
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.table import Table

import jax_vbgemm as vb
from moe_layer import MODELS
from options import commands, one_of
from workloads import write_csv

AXIS = "expert"


@dataclass
class Row:
    """A line of the CSV."""

    layer: str
    model: str
    tokens: int
    direction: str
    devices: int
    us: float
    error: float
    device: str
    jax: str
    date: str


app = commands(__doc__)


def layer(x: Any, gate_up: Any, down: Any, logits: Any, *, k: int, axis: str | None = None) -> jax.Array:
    return vb.moe.expert_mlp(x, gate_up, down, vb.moe.route(logits, k), mesh_axis=axis)


def rows_exchanged(x: Any, gate_up: Any, down: Any, logits: Any, *, k: int) -> jax.Array:
    routing = vb.moe.route(logits, k)

    def experts(rows: jax.Array, sizes: jax.Array) -> jax.Array:
        return vb.ragged_dot(vb.moe.gated_dot(rows, gate_up, sizes), down, sizes)

    rows = vb.moe.dispatch(x, routing)
    return vb.moe.combine(vb.moe.expert_parallel(experts, rows, routing.group_sizes, mesh_axis=AXIS), routing)


def with_backward(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sum(function(*args).astype(jnp.float32) ** 2), (0, 1, 2, 3))


def timed(function: Callable[..., Any], args: Any, calls: int, rounds: int = 5) -> tuple[float, Any]:
    """Seconds of a call, and its results."""
    results = jax.block_until_ready(function(*args))
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            results = function(*args)
        jax.block_until_ready(results)
        seconds.append((time.perf_counter() - begin) / calls)
    return statistics.median(seconds), results


@app.command()
def main(
    models: Annotated[list[str], typer.Argument(help=", ".join(MODELS), callback=one_of(MODELS))],
    tokens: Annotated[int, typer.Option(help="of all devices together")] = 16384,
    calls: Annotated[int, typer.Option(help="in a round")] = 20,
    output: Annotated[Path | None, typer.Option("--csv", help="write the rows to this file")] = None,
) -> None:
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), (AXIS,), axis_types=(AxisType.Auto,))
    over = partial(jax.shard_map, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS))
    rows = []
    for name in models:
        model = MODELS[name]
        shapes = (tokens, model.d), (model.experts, model.d, 2 * model.f), (model.experts, model.f, model.d)
        args = [jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i, shape in enumerate(shapes)]
        args = [
            args[0],
            *(0.02 * weights for weights in args[1:]),
            jax.random.normal(jax.random.key(3), (tokens, model.experts)),
        ]
        layers = {
            "one_device": partial(layer, k=model.k),
            "expert_mlp": over(partial(layer, k=model.k, axis=AXIS)),
            "expert_parallel": over(partial(rows_exchanged, k=model.k)),
        }
        right: dict[str, list[np.ndarray]] = {}
        for which, function in layers.items():
            alone = which == "one_device"
            placed = jax.device_put(args, devices[0] if alone else NamedSharding(mesh, P(AXIS)))
            for direction, of in {"forward": function, "forward_backward": with_backward(function)}.items():
                seconds, results = timed(jax.jit(of), placed, calls)
                found = [np.asarray(x, np.float32) for x in jax.tree.leaves(results)]
                expected = right.setdefault(direction, found)
                error = max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(found, expected, strict=True))
                rows.append(
                    Row(
                        which, name, tokens, direction, 1 if alone else len(devices), 1e6 * seconds, error,
                        devices[0].device_kind, jax.__version__, time.strftime("%Y-%m-%d"),
                    )
                )  # fmt: skip
    shown = ("layer", "model", "tokens", "direction", "devices", "us", "error")
    table = Table(*shown, title=f"{len(devices)} x {devices[0].device_kind}")
    for row in rows:
        values = (getattr(row, column) for column in shown)
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    Console().print(table)
    if output is not None:
        write_csv(output, rows)


if __name__ == "__main__":
    app()
