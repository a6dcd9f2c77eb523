"""One step of jax_vbgemm.optax's soap and shampoo, for all matrices together and for one matrix after another.

    python benchmarks/preconditioners.py soap shampoo --model yolo26n --shrink 4

"one by one" has an optimizer for each matrix, with XLA's dots for products, as a loop over the parameters compiles to;
"packed muon" and "muon" show the gain by packed parameters. A step computes the update and the new parameters in a
single donated call; steps that update SOAP's bases are timed separately. Medians over interleaved rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from muon import shapes
from rich.console import Console
from rich.table import Table

import jax_vbgemm.optax as vo

FREQUENCY = 10  # of SOAP's updates of the bases, in steps


def one_by_one(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer with a separate state and update for each leaf."""

    def init(params: list[jax.Array]) -> Any:
        return [optimizer.init([p]) for p in params]

    def update(updates: list[jax.Array], state: Any, params: list[jax.Array]) -> Any:
        pairs = [optimizer.update([g], s, [p]) for g, s, p in zip(updates, state, params, strict=True)]
        return [update[0] for update, _ in pairs], [new for _, new in pairs]

    return optax.GradientTransformation(init, update)


def candidates(name: str) -> dict[str, tuple[optax.GradientTransformation, bool]]:
    """Optimizers by name, and whether their parameters are packed."""
    if name == "muon":
        return {"muon": (vo.muon(1e-3), False), "packed muon": (vo.muon(1e-3), True)}
    make: Any = {"soap": vo.soap, "shampoo": vo.shampoo}[name]
    return {
        f"{name}, one by one": (one_by_one(make(1e-3, implementation="xla")), False),
        name: (make(1e-3), False),
    }


def compiled(optimizer: optax.GradientTransformation, params: Any, state: Any) -> tuple[Callable[..., Any], float]:
    """A compiled step, and the seconds of its compilation."""

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return vo.apply_updates(params, updates), state

    start = time.perf_counter()
    return jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params).compile(), time.perf_counter() - start


def main(
    names: Annotated[list[str], typer.Argument(help="soap, shampoo, muon")],
    model: Annotated[str, typer.Option(help="as for muon.py")] = "yolo26n",
    shrink: Annotated[int, typer.Option(help="divide all sizes by this")] = 1,
    count: Annotated[int, typer.Option(help="take so many matrices of the model")] = 1000,
    rounds: Annotated[int, typer.Option(help="interleaved repetitions of ten steps")] = 3,
) -> None:
    rng = np.random.default_rng(0)
    sizes = [tuple(max(n // shrink, 2) for n in shape) for shape in shapes(model)[:count]]
    # Each step has another gradient: the statistics of a single one would be singular.
    draws = [[jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in sizes] for _ in range(FREQUENCY)]
    table = Table(
        title=f"{model} / {shrink}, {len(sizes)} matrices, {jax.devices()[0].device_kind}, jax {jax.__version__}"
    )
    for column in ("optimizer", "step/ms", "refreshing step/ms", "compile/s"):
        table.add_column(column, justify="right")
    for name in names:
        runs = {}
        for label, (optimizer, packed) in candidates(name).items():
            grads = [vo.pack_tree(draw) if packed else draw for draw in draws]
            params = jax.tree.map(jnp.copy, grads[0])
            state = optimizer.init(params)
            step, seconds = compiled(optimizer, params, state)
            runs[label] = [step, seconds, grads, params, state, [], []]
        for index in range(FREQUENCY * rounds + 1):
            for run in runs.values():
                step, _, grads, params, state, ordinary, refreshing = run
                start = time.perf_counter()
                run[3], run[4] = jax.block_until_ready(step(params, state, grads[index % FREQUENCY]))
                if index:
                    (refreshing if index % FREQUENCY == 0 else ordinary).append(time.perf_counter() - start)
        for label, (_, seconds, *_, ordinary, refreshing) in runs.items():
            times = [f"{1e3 * statistics.median(samples):.2f}" for samples in (ordinary, refreshing)]
            table.add_row(label, *times, f"{seconds:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
