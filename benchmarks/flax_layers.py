"""Flax layers of different sizes: this package beside the loop of Flax layers, in one jitted program.

GoogLeNet's 36 branches (1x1 convolutions and relu, nine blocks) and MultiLoRA's 32 adapters (ranks 8 to 64, without the
base layer, which is the same for all), forward and forward with backward (gradients in parameters and inputs). All are
timed in interleaved rounds; `dots` counts the products left after XLA merged those with a shared input.

    python benchmarks/flax_layers.py googlenet_b1 lora_t16 lora_t512                # on the CPU, and, because XLA's
    python benchmarks/flax_layers.py googlenet_b32 --without flax_conv              # convolutions take minutes there
    python benchmarks/flax_layers.py --csv h100.csv                                 # on a GPU, float32
    python benchmarks/flax_layers.py --csv h100.csv --precision bf16                # and bfloat16
    python benchmarks/flax_layers.py --csv h100.csv --precision tf32                # and TF32, where XLA uses it
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from flax import nnx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from in_loop import products_in
from jax_vbgemm._src.problem import Problem
from jax_vbgemm._src.tools.demo import blocks
from jax_vbgemm._src.tools.shapes import read_problems
from jax_vbgemm._src.tools.timing import looped, seconds_of
from jax_vbgemm.flax.nnx import BranchedConv1x1, MultiLoRA
from options import checked, one_of
from workloads import FOLDER, PRECISIONS, Row, write_csv

Kind = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """A model in several implementations (the first is this package's), its inputs, and its forward products."""

    name: str
    peers: dict[str, Any]
    inputs: Any
    problems: int
    flops: float


class LinearLoop(nnx.List):
    """One nnx.Linear after another."""

    def __init__(self, i: int, outs: list[int], *, rngs: nnx.Rngs, **options: Any) -> None:
        super().__init__([nnx.Linear(i, o, rngs=rngs, **options) for o in outs])

    def __call__(self, inputs: list[jax.Array]) -> list[jax.Array]:
        return [nnx.relu(layer(x)) for layer, x in zip(self, inputs, strict=True)]


class ConvLoop(LinearLoop):
    """One 1x1 nnx.Conv after another."""

    def __init__(self, i: int, outs: list[int], *, rngs: nnx.Rngs, **options: Any) -> None:
        nnx.List.__init__(self, [nnx.Conv(i, o, (1, 1), rngs=rngs, **options) for o in outs])


def ours(i: int, outs: list[int], *, rngs: nnx.Rngs, **options: Any) -> BranchedConv1x1:
    """The branches of a block as one operation."""
    return BranchedConv1x1(i, outs, activation=nnx.relu, rngs=rngs, **options)


class Inception(nnx.Module):
    """The branches of blocks; three read the block's input, the fourth the pooled one."""

    def __init__(self, kind: Kind, shapes: Sequence[tuple[Problem, ...]], **options: Any) -> None:
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([kind(block[0].k, [p.m for p in block], rngs=rngs, **options) for block in shapes])

    def __call__(self, maps: list[tuple[jax.Array, jax.Array]]) -> list[list[jax.Array]]:
        return [block([x, x, x, pooled]) for block, (x, pooled) in zip(self.blocks, maps, strict=True)]


class LoRALoop(nnx.Module):
    """One nnx.LoRA after another, each on its own tokens."""

    def __init__(self, i: int, ranks: list[int], o: int, *, rngs: nnx.Rngs, **options: Any) -> None:
        self.adapters = nnx.List([nnx.LoRA(i, rank, o, rngs=rngs, **options) for rank in ranks])

    def __call__(self, x: jax.Array, group_sizes: tuple[int, ...]) -> jax.Array:
        parts = jnp.split(x, np.cumsum(group_sizes)[:-1].tolist())
        return jnp.concatenate([adapter(part) for adapter, part in zip(self.adapters, parts, strict=True)])


class Adapters(nnx.Module):
    """Adapters on groups of equal size."""

    def __init__(self, kind: Kind, features: int, ranks: list[int], tokens: int, **options: Any) -> None:
        normal = nnx.initializers.normal(features**-0.5)
        self.lora = kind(features, ranks, features, rngs=nnx.Rngs(0), b_initializer=normal, **options)
        self.group_sizes = (tokens,) * len(ranks)

    def __call__(self, x: jax.Array) -> jax.Array:
        result: jax.Array = self.lora(x, self.group_sizes)
        return result


def googlenet(batch: int, dtype: str, only: str | None = None) -> Workload:
    """The 1x1 convolutions of nine inception blocks, or of one of them, for `batch` images."""
    shapes = [block for name, block in blocks().items() if only in (None, name)]
    kinds: dict[str, Kind] = {"vbgemm": ours, "flax_linear": LinearLoop, "flax_conv": ConvLoop}
    options = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(dtype)}
    maps = []
    for index, block in enumerate(shapes):
        side = math.isqrt(block[0].n)
        x = jax.random.normal(jax.random.key(index), (2, batch, side, side, block[0].k), dtype)
        maps.append((x[0], x[1]))
    flops = sum(2.0 * p.m * p.n * p.k * batch for block in shapes for p in block)
    peers = {name: Inception(kind, shapes, **options) for name, kind in kinds.items()}
    name = f"googlenet_b{batch}" if only is None else f"inception_{only}_b{batch}"
    return Workload(name, peers, maps, sum(map(len, shapes)), flops)


def lora(tokens: int, dtype: str) -> Workload:
    """The adapters of workloads/lora_*, with `tokens` tokens each."""
    shrink = read_problems(FOLDER / "lora_shrink.txt")
    ranks, features = [p.n for p in shrink], shrink[0].k
    options = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(dtype)}
    kinds: dict[str, Kind] = {"vbgemm": MultiLoRA, "flax_lora": LoRALoop}
    peers = {name: Adapters(kind, features, ranks, tokens, **options) for name, kind in kinds.items()}
    x = jax.random.normal(jax.random.key(0), (tokens * len(ranks), features), dtype)
    flops = sum(4.0 * tokens * features * rank for rank in ranks)
    return Workload(f"lora_t{tokens}", peers, x, 2 * len(ranks), flops)


def passes(model: Any) -> tuple[Any, dict[str, Callable[[Any, Any], Any]]]:
    """The parameters, and the functions of (parameters, inputs) that are timed."""
    graph, parameters = nnx.split(model)

    def forward(parameters: Any, inputs: Any) -> Any:
        return nnx.merge(graph, parameters)(inputs)

    def loss(parameters: Any, inputs: Any) -> Any:
        outputs = jax.tree.leaves(forward(parameters, inputs))
        return sum(jnp.sum(jnp.square(y), dtype=jnp.float32) for y in outputs)

    return parameters, {"forward": forward, "forward+backward": jax.value_and_grad(loss, (0, 1))}


def error(found: Any, expected: Any) -> float:
    """Largest max|a - b| / max|b| over the leaves."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    wide = [(np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()) for a, b in pairs]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in wide)


MODELS: dict[str, Callable[[int, str], Workload]] = {"googlenet_b": googlenet, "lora_t": lora}
MODELS |= {f"inception_{name}_b": partial(googlenet, only=name) for name in blocks()}
NAMES = "googlenet_b<images>, inception_<block>_b<images> (3a to 5b) and lora_t<tokens an adapter>"
PEERS = ("flax_linear", "flax_conv", "flax_lora")
NARROW = [name for name, (dtype, _) in PRECISIONS.items() if dtype in ("float32", "bfloat16", "float16")]


def models(names: list[str]) -> list[tuple[Callable[[int, str], Workload], int]]:
    """For each workload, the function that makes it and its size."""
    found = []
    for name in names:
        stem = name.rstrip("0123456789")
        if stem not in MODELS or stem == name:
            raise ValueError(f"unknown name {name!r}; there are {NAMES}")
        found.append((MODELS[stem], int(name.removeprefix(stem))))
    return found


def main(
    names: Annotated[list[str], typer.Argument(help=NAMES, callback=checked(models))] = [
        "googlenet_b1",
        "googlenet_b32",
        "lora_t16",
        "lora_t512",
    ],
    without: Annotated[list[str], typer.Option(help="peers to leave out", callback=one_of(PEERS))] = [],
    precision: Annotated[str, typer.Option(help=", ".join(NARROW), callback=one_of(NARROW))] = "fp32",
    rounds: Annotated[int, typer.Option(help="interleaved rounds; the median counts")] = 15,
    limit: Annotated[float, typer.Option(help="seconds after which there are no more rounds, but at least 3")] = 60,
    backward: Annotated[bool, typer.Option(help="whether the gradients are timed as well")] = True,
    iterations: Annotated[int, typer.Option(help="steps in one program; 0: 50 on a GPU, fewer on a CPU")] = 0,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="written in the format of the other benchmarks")
    ] = None,
) -> None:
    """Times each workload, forward and with backward, in all implementations."""
    dtype, matmul_precision = PRECISIONS[precision]
    jax.config.update("jax_default_matmul_precision", matmul_precision)
    device = jax.devices()[0]
    console = Console(width=140)
    table = Table(title=f"{device.device_kind}, jax {jax.__version__}, {precision}: us a step")
    for column in ("workload", "pass", "GFLOP", "peer", "us", "vs vbgemm", "quartiles", "dots", "calls", "compile s"):
        table.add_column(column, justify="left" if column in ("workload", "pass", "peer") else "right")
    with Progress(console=console) as progress:
        for make, size in progress.track(names, description="workloads"):
            work = make(size, dtype)
            group = f"flax_{work.name.partition('_')[0]}"
            rows: list[Row] = []
            for stage in ("forward", "forward+backward") if backward else ("forward",):
                flops = work.flops * (1 if stage == "forward" else 3)
                steps = iterations or (50 if device.platform == "gpu" else int(min(50, max(1, 3e9 / flops))))
                programs, seconds, results = {}, {}, {}
                for peer, model in work.peers.items():
                    if peer in without:
                        continue
                    parameters, functions = passes(model)
                    start = time.perf_counter()
                    program = looped(functions[stage], steps).lower(parameters, work.inputs).compile()
                    seconds[peer] = time.perf_counter() - start
                    programs[peer] = (program, parameters)
                    results[peer] = jax.device_get(program(parameters, work.inputs))
                errors = {peer: error(result, results[next(reversed(results))]) for peer, result in results.items()}
                results.clear()
                samples: dict[str, list[float]] = {peer: [] for peer in programs}
                begin = time.perf_counter()
                while len(samples["vbgemm"]) < rounds:
                    if time.perf_counter() - begin > limit and len(samples["vbgemm"]) >= 3:
                        break
                    for peer, (program, parameters) in programs.items():
                        samples[peer].append(seconds_of(program, (parameters, work.inputs)) / steps * 1e6)
                us = {peer: statistics.median(times) for peer, times in samples.items()}
                for peer, (program, _) in programs.items():
                    low, high = np.percentile(samples[peer], [25, 75])
                    dots, calls = products_in(program)
                    table.add_row(
                        work.name, stage, f"{flops / 1e9:.3g}", peer, f"{us[peer]:.0f}",
                        f"{us[peer] / us['vbgemm']:.2f}x", f"{low:.0f}-{high:.0f}", str(dots), str(calls),
                        f"{seconds[peer]:.1f}",
                    )  # fmt: skip
                    note = (
                        f"{stage}; {device.device_kind}; {dtype}; loop of {steps} in one jitted program; "
                        f"{dots} dots, {calls} calls; compile {seconds[peer]:.2f} s; error against the last peer"
                    )
                    rows.append(
                        Row(
                            peer, group, f"{work.name}_{stage}", precision, work.problems, flops / 1e9, "hot",
                            us[peer], math.nan, errors[peer], math.nan, 0, note,
                        )
                    )  # fmt: skip
            if csv_file:  # before the next workload, whose convolutions may take a minute to compile
                write_csv(csv_file, rows)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
