"""The demo: checks and times the 1x1 convolutions of GoogLeNet's nine inception blocks, each block as one operation.

A block has four 1x1 convolutions of different widths; three read the block's input, and the fourth the pooled input.
Each is a matrix product of weights (out channels, in channels) and a feature map (in channels, pixels).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_vbgemm as vb
from jax_vbgemm._src.problem import Problem
from jax_vbgemm._src.tools.shapes import parse_problems

Block = tuple[list[jax.Array], list[jax.Array]]


def blocks() -> dict[str, tuple[Problem, ...]]:
    """The shapes of each block, by name (3a to 5b)."""
    found = sorted(files("jax_vbgemm._src.tools").joinpath("workloads").iterdir(), key=lambda file: file.name)
    return {file.name.split("_")[1].removesuffix(".txt"): parse_problems(file.read_text(), file.name) for file in found}


def operands(problems: tuple[Problem, ...], batch: int, seed: int) -> Block:
    """Random weights and feature maps; the first three convolutions share one feature map."""
    keys = iter(jax.random.split(jax.random.key(seed), len(problems) + 2))
    weights = [jax.random.normal(next(keys), (p.m, p.k)) / np.sqrt(p.k) for p in problems]
    shape = (batch, problems[0].k, problems[0].n) if batch > 1 else (problems[0].k, problems[0].n)
    features, pooled = (jax.random.normal(next(keys), shape) for _ in range(2))
    return weights, [features] * (len(problems) - 1) + [pooled]


def loop(weights: list[jax.Array], features: list[jax.Array]) -> list[jax.Array]:
    """The program without this package: one dot for each branch."""
    return [jnp.matmul(w, x) for w, x in zip(weights, features, strict=True)]


def with_gradient(forward: Callable[..., list[jax.Array]]) -> Callable[..., Any]:
    """Value and gradient of a loss over all branches, with respect to weights and feature maps."""

    def loss(weights: list[jax.Array], features: list[jax.Array]) -> Any:
        return sum(jnp.sum(jnp.square(c)) for c in forward(weights, features))

    return jax.value_and_grad(loss, (0, 1))


def relative_error(ours: Any, truth: Any) -> float:
    """Largest max|x - truth| / max|truth| over all leaves."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(truth), strict=True)
    return max(float(np.abs(np.asarray(x, np.float64) - t).max() / np.abs(t).max()) for x, t in pairs)


def float64_truth(weights: list[jax.Array], features: list[jax.Array]) -> tuple[Any, Any]:
    """The results and gradients in NumPy's float64."""
    w, x = ([np.asarray(leaf, np.float64) for leaf in leaves] for leaves in (weights, features))
    results = [a @ b for a, b in zip(w, x, strict=True)]
    d_weights = [
        np.sum(2 * c @ b.swapaxes(-1, -2), axis=tuple(range(c.ndim - 2))) for c, b in zip(results, x, strict=True)
    ]
    d_features = [2 * a.T @ c for a, c in zip(w, results, strict=True)]
    return results, (d_weights, d_features)


def side_by_side(functions: list[Callable[..., Any]], args: Block, rounds: int = 15) -> list[float]:
    """The median seconds of a call of each jitted function. Rounds are interleaved, so that noise affects all
    functions."""
    jitted = [jax.jit(function) for function in functions]
    samples: list[list[float]] = [[] for _ in functions]
    for function in jitted:
        jax.block_until_ready(function(*args))
    for _ in range(rounds):
        for function, times in zip(jitted, samples, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function(*args))
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in samples]


def run(batch: int = 1) -> int:
    """Runs the demo; returns the process's exit code, 1 if a result is wrong beyond rounding."""
    console = Console()
    title = f"GoogLeNet, {batch} image(s), float32 on {jax.devices()[0].device_kind}; times in us"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, pad_edge=False)  # fits 80 columns
    for column in ("block", "GEMMs", "MFLOP", "error", "forward", "XLA", "ratio", "gradient", "XLA", "ratio"):
        table.add_column(column, justify="right")
    # One function each for all blocks and uses, whose programs JAX keeps.
    gradient, loop_gradient = with_gradient(vb.batched_matmul), with_gradient(loop)
    worst, ratios, gradient_ratios = 0.0, [], []
    with Progress(console=console, transient=True) as progress, jax.default_matmul_precision("highest"):
        shapes = blocks()
        for seed, (name, problems) in enumerate(progress.track(shapes.items(), description="inception blocks")):
            args = operands(problems, batch, seed)
            truth, gradients = float64_truth(*args)
            error = relative_error(jax.jit(vb.batched_matmul)(*args), truth)
            error = max(error, relative_error(jax.jit(gradient)(*args)[1], gradients))
            worst = max(worst, error)
            ours, theirs = side_by_side([vb.batched_matmul, loop], args)
            fused_result, loop_result = side_by_side([gradient, loop_gradient], args)
            ratios.append(theirs / ours)
            gradient_ratios.append(loop_result / fused_result)
            flops = sum(2 * p.m * p.n * p.k * batch for p in problems)
            table.add_row(
                name, str(len(problems)), f"{flops / 1e6:.1f}", f"{error:.0e}",
                f"{ours * 1e6:.0f}", f"{theirs * 1e6:.0f}", f"{ratios[-1]:.2f}x",
                f"{fused_result * 1e6:.0f}", f"{loop_result * 1e6:.0f}", f"{gradient_ratios[-1]:.2f}x",
            )  # fmt: skip
    console.print(table)
    right = worst < 1e-4
    forward, step = statistics.geometric_mean(ratios), statistics.geometric_mean(gradient_ratios)
    console.print(
        f"One call per block is {forward:.2f} times as fast as XLA's loop of dots forward, and {step:.2f} times with "
        f"the gradient (geometric means); the largest error against float64 is {worst:.0e}, "
        f"{'right to rounding' if right else 'WRONG'}."
    )
    return 0 if right else 1
