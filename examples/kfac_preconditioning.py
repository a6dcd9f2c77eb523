"""K-FAC's preconditioning, left @ G @ right for every layer, as two operations over a tree of odd sizes.

    pip install ".[examples]"
    python examples/kfac_preconditioning.py

The autoencoder of Martens and Grosse (2015): 784-1000-500-250-30 and back, inputs with a bias entry. All sixteen
Kronecker factors are one batched_matmul, each a^T a / batch; after their damped inverses, all gradients are
preconditioned by two more. Checked against, and timed beside, one dot a product.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_vbgemm as vb

WIDTHS = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
Tree = dict[str, jax.Array]


def factors(inputs: Tree) -> Tree:
    """E[x x^T] of each layer: x is (batch, width), the result (width, width). x is transposed by a flag."""
    scale = {name: 1 / x.shape[0] for name, x in inputs.items()}
    return vb.batched_gemm(inputs, inputs, alpha=scale, transpose_a=True)


def damped_inverses(matrices: Tree, damping: float) -> Tree:
    return {name: jnp.linalg.inv(a + damping * jnp.eye(a.shape[0], dtype=a.dtype)) for name, a in matrices.items()}


def precondition(left: Tree, grads: Tree, right: Tree) -> Tree:
    """left @ G @ right, two operations for all layers."""
    return vb.batched_matmul(vb.batched_matmul(left, grads), right)


def precondition_one_by_one(left: Tree, grads: Tree, right: Tree) -> Tree:
    return jax.tree.map(lambda a, g, b: a @ g @ b, left, grads, right)


def milliseconds(function: Callable[..., Any], *args: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    return 1e3 * (time.perf_counter() - start)


def main(
    batch: Annotated[int, typer.Option(help="examples the factors are estimated from")] = 512,
    shrink: Annotated[int, typer.Option(help="divide all widths by this")] = 1,
    rounds: Annotated[int, typer.Option(help="interleaved repetitions")] = 15,
) -> None:
    widths = [max(width // shrink, 2) for width in WIDTHS]
    rng = np.random.default_rng(0)
    layers = {f"layer{i}": pair for i, pair in enumerate(itertools.pairwise(widths))}

    def draw(rows: int, cols: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal((rows, cols)), jnp.float32)

    activations = {name: draw(batch, fan_in + 1) for name, (fan_in, _) in layers.items()}
    errors = {name: draw(batch, fan_out) for name, (_, fan_out) in layers.items()}
    grads = {name: draw(fan_in + 1, fan_out) for name, (fan_in, fan_out) in layers.items()}

    console = Console()
    with Progress(console=console) as progress:
        task = progress.add_task("factors, inverses, products", total=2 + rounds)
        both = jax.jit(factors)(
            {f"in {k}": v for k, v in activations.items()} | {f"out {k}": v for k, v in errors.items()}
        )
        inverses = jax.jit(damped_inverses)(both, 1e-1)
        progress.advance(task)
        left, right = ({name: inverses[f"{side} {name}"] for name in layers} for side in ("in", "out"))
        candidates = {"two operations": jax.jit(precondition), "one dot a product": jax.jit(precondition_one_by_one)}
        results = [function(left, grads, right) for function in candidates.values()]
        progress.advance(task)
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(rounds):
            for name, function in candidates.items():
                times[name].append(milliseconds(function, left, grads, right))
            progress.advance(task)
    difference = max(
        float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(*map(jax.tree.leaves, results), strict=True)
    )
    table = Table(title=f"left @ G @ right, {len(layers)} layers, {jax.devices()[0].device_kind}")
    table.add_column("how")
    table.add_column("ms", justify="right")
    for name, samples in times.items():
        table.add_row(name, f"{statistics.median(samples):.2f}")
    console.print(table)
    console.print(f"largest relative difference: {difference:.1e}")
    if not difference < 1e-3:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
