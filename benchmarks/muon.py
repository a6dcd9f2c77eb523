"""One step of optax.contrib.muon and of jax_vbgemm.optax.muon, side by side, for the matrices of whole models.

A step computes the update and the new parameters, each package with its own apply_updates.

    python benchmarks/muon.py yolo26n resnet50 gpt2_small llama vit_s --csv muon.csv

Each is timed inside one jitted loop (parameters and state are carried, so every step differs) and as single donated
calls, in interleaved rounds; medians. An empty jitted loop costs about 17 us an iteration on a GPU. `error` is the
largest difference of the two first updates of a leaf over that leaf's largest update.

--ours names how ours iterates, once for each way: "default" is optax's way, the others set `ns_dtype` and `ns_gram`.
--no-calls leaves out the single calls, so that each optimizer is compiled once. In under four minutes on one GPU:

    python benchmarks/muon.py yolo26n resnet50 vit_s gpt2_small llama_layer --no-calls --rounds 3 --budget 0.2 \
      --ours default --ours bfloat16 --ours float16 --ours gram --ours float16_gram --csv muon_iterations.csv

With --devices 1 --devices 2 each model is measured on one device and on two devices, among which this package divides
the matrices (mesh_axis). --sharded says what each device holds of parameters and gradients, once for each way: all of
them ("no"), some rows of each matrix ("rows"), some columns, or a part along the larger side ("fsdp"); where the number
of devices does not divide the side, the whole. --shard-map puts the step inside shard_map, where all devices hold
everything. XLA partitions the computations of optax. On two GPUs:

    python benchmarks/muon.py gpt2_small resnet50 gpt2_medium llama_layers --devices 1 --devices 2 --no-calls \
      --sharded no --sharded rows --sharded fsdp --rounds 3 --budget 0.2 --csv muon_devices.csv
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
import typer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from optax.contrib import MuonDimensionNumbers
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_vbgemm.optax
from jax_vbgemm._src.tools.shapes import read_problems
from options import one_of

WORKLOADS = Path(__file__).parent / "workloads"
NS_STEPS = 5
# FLOP/s of the products alone on an H100 (shared peers' ceilings), and of one launch in a graph.
H100_RATES = {"default": 359e12, "highest": 51.6e12}
H100_LAUNCH = 0.8e-6
NAMES = ("default", "high", "highest")  # of jax.default_matmul_precision
COLUMNS = (
    "model", "optimizer", "device", "jax", "precision", "matrices", "gflop",
    "loop_us", "call_us", "trace_s", "compile_s", "temp_mib", "error", "devices", "placement",
)  # fmt: skip

OURS: dict[str, dict[str, Any]] = {
    "default": {},
    "bfloat16": {"ns_dtype": "bfloat16"},
    "float16": {"ns_dtype": "float16"},
    "gram": {"ns_gram": "auto"},
    "float16_gram": {"ns_dtype": "float16", "ns_gram": "auto"},
}
SHARDED = ("no", "rows", "columns", "fsdp")

app = typer.Typer(add_completion=False)


def shapes(model: str) -> list[tuple[int, ...]]:
    """The weight matrices of a model, or stacks of them: a file muon_<model>_apply.txt (all wide), or one of those
    below."""
    if model == "llama":  # one attention and one feed-forward matrix of a 7B-8B layer: the negative control
        return [(4096, 4096), (4096, 14336)]
    if model == "llama_layer":  # all matrices of such a layer
        return 4 * [(4096, 4096)] + 3 * [(4096, 14336)]
    if model == "llama_layers":  # eight such layers, stacked as jax.lax.scan takes them
        return [(8, *shape) for shape in shapes("llama_layer")]
    if model == "gpt2_medium":  # 24 blocks of width 1024: projection, query-key-value, the wide and the tall MLP matrix
        return 24 * [(1024, 1024), (1024, 3072), (1024, 4096), (4096, 1024)]
    if model == "vit_s":  # 12 blocks of width 384: query-key-value, projection, the tall and the wide MLP matrix
        return [(768, 384)] + 12 * [(384, 1152), (384, 384), (384, 1536), (1536, 384)] + [(384, 1000)]
    return [(problem.m, problem.n) for problem in read_problems(WORKLOADS / f"muon_{model}_apply.txt")]


def products_flops(sizes: list[tuple[int, ...]]) -> float:
    """Floating-point operations of one step's products."""
    sides = [(math.prod(shape[:-2]), *sorted(shape[-2:])) for shape in sizes]
    return NS_STEPS * sum(2.0 * count * (2 * m * m * n + m**3) for count, m, n in sides)


def numbers(params: Any) -> Any:
    """Leading axes are a batch."""
    return jax.tree.map(lambda x: MuonDimensionNumbers(x.ndim - 2, x.ndim - 1), params)


def _sharding(x: jax.Array) -> Any:
    return x.sharding


@dataclass
class Candidate:
    """A compiled optimizer and its measurements."""

    optimizer: optax.GradientTransformation
    apply_updates: Callable[..., Any]
    spread: Callable[..., Any] = lambda function: function
    loop: Any = None
    call: Any = None
    trace_s: float = 0.0
    compile_s: float = 0.0
    temp_mib: float = 0.0
    loop_s: list[float] = field(default_factory=list)
    call_s: list[float] = field(default_factory=list)

    def step(self, params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = self.optimizer.update(grads, state, params)
        return self.apply_updates(params, updates), state

    def looped(self, count: Any, params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        return jax.lax.fori_loop(0, count, lambda _, carry: self.step(*carry, grads), (params, state))

    def state(self, params: Any) -> Any:
        """The optimizer's first state: each moment is sharded like its parameter, all other arrays are on all
        devices."""
        mesh = params[0].sharding.mesh
        specs = {x.shape: x.sharding for x in params}
        place = lambda x: jax.device_put(jnp.copy(x), specs.get(x.shape, NamedSharding(mesh, P())))  # noqa: E731
        return jax.tree.map(place, self.optimizer.init(params))

    def compile(self, params: Any, grads: Any, calls: bool) -> None:
        """Compiles the loop and, if `calls`, the single call, of which the times and the memory are then."""
        state = self.state(params)
        self.loop = self._compiled(jax.jit(self.spread(self.looped)), jnp.int32(1), params, state, grads)
        if calls:
            step = jax.jit(
                self.spread(self.step), donate_argnums=(0, 1), out_shardings=jax.tree.map(_sharding, (params, state))
            )
            self.call = self._compiled(step, params, state, grads)

    def _compiled(self, function: Any, *args: Any) -> Any:
        start = time.perf_counter()
        lowered = function.lower(*args)
        self.trace_s = time.perf_counter() - start
        start = time.perf_counter()
        compiled = lowered.compile()
        self.compile_s = time.perf_counter() - start
        self.temp_mib = compiled.memory_analysis().temp_size_in_bytes / 2**20
        return compiled

    def seconds(self, function: Callable[..., Any], *leading: Any, params: Any, grads: Any) -> float:
        args = jax.block_until_ready((jax.tree.map(jnp.copy, params), self.state(params)))
        start = time.perf_counter()
        jax.block_until_ready(function(*leading, *args, grads))
        return time.perf_counter() - start


def spec_of(shape: tuple[int, ...], devices: int, sharded: str) -> P:
    """The sharding of a matrix or of a stack of matrices."""
    if sharded == "no":
        return P()
    rank = len(shape)
    axis = {"rows": rank - 2, "columns": rank - 1, "fsdp": rank - 2 + (shape[-1] > shape[-2])}[sharded]
    return P(*(None,) * axis, "x") if shape[axis] % devices == 0 else P()


@partial(jax.jit, static_argnums=(1, 2))
def normal(key: jax.Array, shape: tuple[int, ...], sharding: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(jax.random.normal(key, shape), sharding)


@jax.jit
def difference(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(x - y)) / jnp.max(jnp.abs(x))


def measure(
    model: str,
    ours: Sequence[str],
    devices: int,
    sharded: str,
    shard_map: bool,
    rounds: int,
    budget: float,
    calls: bool,
    progress: Progress,
) -> tuple[dict[str, Candidate], dict[str, float]]:
    """The optimizers on one model, and the difference of each first update from that of optax."""
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])

    def in_shard_map(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)

    places = [NamedSharding(mesh, spec_of(shape, devices, sharded)) for shape in shapes(model)]

    def draw(seed: int) -> list[jax.Array]:
        keys = jax.random.split(jax.random.key(seed), len(places))
        return [normal(key, shape, place) for key, shape, place in zip(keys, shapes(model), places, strict=True)]

    params, grads = draw(0), draw(1)
    many = {"mesh_axis": "x", "mesh": mesh, "shardings": places} if devices > 1 else {}
    if shard_map:
        many.pop("shardings", None)
    apply_updates = partial(
        jax_vbgemm.optax.apply_updates, **{name: many[name] for name in ("mesh", "shardings") if "shardings" in many}
    )
    spread = in_shard_map if devices > 1 and shard_map else lambda function: function
    common = {"ns_steps": NS_STEPS, "muon_weight_dimension_numbers": numbers}
    candidates = {"optax": Candidate(optax.contrib.muon(1e-3, **common), optax.apply_updates, spread)}
    for way in ours:
        optimizer = jax_vbgemm.optax.muon(1e-3, **common, **OURS[way], **many)
        name = "vbgemm" if way == "default" else f"vbgemm {way}"
        candidates[name] = Candidate(optimizer, apply_updates, spread)
    task = progress.add_task(model, total=len(candidates) * (2 + rounds))
    first, errors = None, {}
    for name, candidate in candidates.items():
        candidate.compile(params, grads, calls)
        progress.advance(task)
        zeros = jax.tree.map(jnp.zeros_like, params)  # so that the new parameters are the updates, unrounded
        found = candidate.loop(jnp.int32(1), zeros, candidate.state(params), grads)[0]
        first = found if first is None else first  # of optax
        errors[name] = max(float(difference(x, y)) for x, y in zip(first, found, strict=True))
        progress.advance(task)
    del first, found, zeros
    # The loop has as many steps as the slower optimizer does in the budget. On a GPU, XLA makes command buffers in the
    # first runs of a loop.
    timed = partial(Candidate.seconds, params=params, grads=grads)
    slowest = 0.0
    for candidate in candidates.values():
        tries = [timed(candidate, candidate.loop, jnp.int32(steps)) / steps for steps in (1, 5, 5)]
        slowest = max(slowest, tries[-1])
    count = int(np.clip(budget / slowest, 1, 100))
    for _ in range(rounds):
        for candidate in candidates.values():
            candidate.loop_s.append(timed(candidate, candidate.loop, jnp.int32(count)) / count)
            if calls:
                candidate.call_s.append(timed(candidate, candidate.call))
            progress.advance(task)
    return candidates, errors


@app.command(help=__doc__)
def main(
    models: Annotated[
        list[str],
        typer.Argument(help="yolo26n, resnet50, gpt2_small, gpt2_medium, llama, llama_layer, llama_layers, vit_s"),
    ],
    precision: Annotated[str, typer.Option(help=", ".join(NAMES), callback=one_of(NAMES))] = "default",
    rounds: Annotated[int, typer.Option(help="interleaved repetitions")] = 9,
    ours: Annotated[list[str], typer.Option(help=", ".join(OURS), callback=one_of(OURS))] = ["default"],  # noqa: B006
    calls: Annotated[bool, typer.Option(help="time single calls too")] = True,
    devices: Annotated[list[int], typer.Option(help="numbers of devices, each measured")] = [1],  # noqa: B006
    sharded: Annotated[list[str], typer.Option(help=", ".join(SHARDED), callback=one_of(SHARDED))] = ["no"],  # noqa: B006
    shard_map: Annotated[bool, typer.Option(help="the step inside shard_map")] = False,
    budget: Annotated[float, typer.Option(help="seconds of one timed loop, about")] = 0.5,
    file: Annotated[Path | None, typer.Option("--csv", help="where to write the figures")] = None,
) -> None:
    jax.config.update("jax_default_matmul_precision", precision)
    device = jax.devices()[0].device_kind
    if not 1 <= min(devices) <= max(devices) <= jax.device_count():
        raise typer.BadParameter(f"--devices {devices}: there are {jax.device_count()}")
    console = Console()
    table = Table(title=f"Muon, one step: {device}, jax {jax.__version__}, float32, precision {precision}")
    columns = (
        "model devices arrays GFLOP optimizer loop/us call/us trace/s compile/s temp/MiB TFLOP/s limit ratio error"
    )
    for column in columns.split():
        table.add_column(column, justify="right")
    rows = []
    with Progress(console=console) as progress:
        # One device holds everything.
        ways = [(count, way) for count in devices for way in (sharded if count > 1 else ["no"])]
        for model, (count, way) in ((model, each) for model in models for each in ways):
            candidates, errors = measure(model, ours, count, way, shard_map, rounds, budget, calls, progress)
            placement = "shard_map" if shard_map else "replicated" if way == "no" else way
            sizes = shapes(model)
            flops = products_flops(sizes)
            medians = {name: statistics.median(candidate.loop_s) for name, candidate in candidates.items()}
            for name, candidate in candidates.items():
                loop, error = medians[name], errors[name]
                call_us = f"{statistics.median(candidate.call_s) * 1e6:.1f}" if calls else ""
                known = "H100" in device and precision in H100_RATES and name in ("optax", "vbgemm")
                limit = flops / H100_RATES[precision] + 3 * NS_STEPS * H100_LAUNCH if known else None
                table.add_row(
                    model, f"{count} {placement}", str(len(sizes)), f"{flops / 1e9:.1f}", name,
                    f"{loop * 1e6:.0f}", call_us,
                    f"{candidate.trace_s:.2f}", f"{candidate.compile_s:.2f}", f"{candidate.temp_mib:.1f}",
                    f"{flops / loop / 1e12:.2f}", f"{limit / loop:.0%}" if limit else "-",
                    f"{medians['optax'] / loop:.2f}x", f"{error:.0e}",
                )  # fmt: skip
                rows.append(
                    (model, name, device, jax.__version__, precision, len(sizes), f"{flops / 1e9:.6g}",
                     f"{loop * 1e6:.1f}", call_us, f"{candidate.trace_s:.3f}",
                     f"{candidate.compile_s:.3f}", f"{candidate.temp_mib:.2f}", f"{error:.2g}", count, placement)
                )  # fmt: skip
            if file:  # written after each model, so that no measurement is lost if the next one fails
                with file.open("w", newline="") as out:
                    csv.writer(out).writerows([COLUMNS, *rows])
    console.print(table)


if __name__ == "__main__":
    app()
