"""Training losses of the example examples/muon_digits.py by optax's Muon and by ours, with iterates of each dtype.

    python benchmarks/muon_losses.py --csv benchmarks/results/cpu_muon_losses.csv

The same data, steps and initial parameters for all optimizers of a seed; a loss is the mean of the last 20 steps.
Errors of iterates do not depend on the device, so that a CPU answers for all.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import optax
import optax.contrib
import typer
from rich.progress import track

import jax_vbgemm.optax

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import muon_digits

WIDTH, LAYERS, BATCH, LAST = 32, 3, 64, 20
OURS: dict[str, dict[str, Any]] = {
    "default": {},
    "float16": {"ns_dtype": "float16"},
    "float16, Gram": {"ns_dtype": "float16", "ns_gram": True},
    "bfloat16": {"ns_dtype": "bfloat16"},
}
COLUMNS = ("optimizer", "seed", "loss", "accuracy", "device", "jax")

app = typer.Typer(add_completion=False)


@app.command()
def main(
    seeds: Annotated[int, typer.Option(help="numbers of data, steps and parameters")] = 4,
    steps: Annotated[int, typer.Option(help="training steps")] = 120,
    file: Annotated[Path | None, typer.Option("--csv", help="where to write the losses")] = None,
) -> None:
    images, labels, test_images, test_labels = muon_digits.data()
    schedule = optax.cosine_decay_schedule(0.02, steps)
    optimizers = {"optax": (optax.contrib.muon(schedule), optax.apply_updates)}
    for name, options in OURS.items():
        optimizers[name] = (jax_vbgemm.optax.muon(schedule, **options), jax_vbgemm.optax.apply_updates)
    rows: list[tuple[Any, ...]] = []
    for seed in track(range(seeds)):
        order = np.random.default_rng(seed)
        batches = [order.choice(len(images), BATCH, replace=False) for _ in range(steps)]
        for name, (optimizer, apply_updates) in optimizers.items():
            params = muon_digits.initial(jax.random.key(seed), WIDTH, LAYERS)
            state, losses = optimizer.init(params), []
            for batch in batches:
                params, state, loss = muon_digits.train_step(
                    optimizer, apply_updates, params, state, images[batch], labels[batch]
                )
                losses.append(loss)
            loss = np.mean([float(loss) for loss in losses[-LAST:]])
            accuracy = np.mean(muon_digits.logits(params, test_images).argmax(-1) == test_labels)
            rows.append((name, seed, f"{loss:.4f}", f"{accuracy:.3f}", jax.devices()[0].device_kind, jax.__version__))
            print(*rows[-1], flush=True)
    if file:
        with file.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    app()
