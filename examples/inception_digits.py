"""A small inception network learns scikit-learn's handwritten digits, with its 1x1 branches as one operation and with a
loop of nnx.Conv layers in turns. Both start from the same seed and see the same batches, so they learn the same.

    python examples/inception_digits.py                # picture and figures in inception_digits.png
    python examples/inception_digits.py --epochs 2
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from flax import nnx
from matplotlib.figure import Figure  # without pyplot: no screen is needed
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from jax_vbgemm.flax.nnx import BranchedConv1x1


class LoopOfConvs(nnx.List):
    """The branches without this package: one layer after another."""

    def __init__(self, in_features: int, out_features: list[int], *, activation: Any, rngs: nnx.Rngs) -> None:
        super().__init__([nnx.Conv(in_features, features, (1, 1), rngs=rngs) for features in out_features])
        self.activation = activation

    def __call__(self, inputs: list[jax.Array]) -> list[jax.Array]:
        return [self.activation(layer(x)) for layer, x in zip(self, inputs, strict=True)]


KINDS = {"batched": BranchedConv1x1, "loop": LoopOfConvs}


class Inception(nnx.Module):
    """GoogLeNet's block: four 1x1 convolutions, two of which feed a 3x3 and a 5x5 one."""

    def __init__(self, kind: Any, in_features: int, widths: tuple[int, ...], rngs: nnx.Rngs) -> None:
        one, reduce_three, three, reduce_five, five, pool = widths
        self.branches = kind(in_features, [one, reduce_three, reduce_five, pool], activation=nnx.relu, rngs=rngs)
        self.three = nnx.Conv(reduce_three, three, (3, 3), rngs=rngs)
        self.five = nnx.Conv(reduce_five, five, (5, 5), rngs=rngs)
        self.out_features = one + three + five + pool

    def __call__(self, x: jax.Array) -> jax.Array:
        pooled = nnx.max_pool(x, (3, 3), strides=(1, 1), padding="SAME")
        one, three, five, pool = self.branches([x, x, x, pooled])
        return jnp.concatenate([one, nnx.relu(self.three(three)), nnx.relu(self.five(five)), pool], axis=-1)


class Network(nnx.Module):
    """8 x 8 grey images to ten logits."""

    def __init__(self, kind: Any, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(1, 24, (3, 3), rngs=rngs)
        self.first = Inception(kind, 24, (16, 16, 24, 4, 8, 8), rngs)
        self.second = Inception(kind, self.first.out_features, (24, 20, 32, 6, 12, 12), rngs)
        self.head = nnx.Linear(4 * 4 * self.second.out_features, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.first(nnx.relu(self.stem(x)))
        x = self.second(nnx.max_pool(x, (2, 2), strides=(2, 2)))
        return self.head(x.reshape(x.shape[0], -1))


@nnx.jit
def train_step(model: Network, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    """One step of training; the loss before it."""

    def loss(model: Network) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


@nnx.jit
def accuracy(model: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Share of images that get their label."""
    return jnp.mean(jnp.argmax(model(images), axis=-1) == labels)


class Run:
    """One network in training, and what is known about it so far."""

    def __init__(self, kind: Any, seed: int, learning_rate: float, steps: int) -> None:
        self.model = Network(kind, nnx.Rngs(seed))
        schedule = optax.cosine_decay_schedule(learning_rate, steps)
        self.optimizer = nnx.Optimizer(self.model, optax.adam(schedule), wrt=nnx.Param)
        self.step = nnx.cached_partial(train_step, self.model, self.optimizer)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.accuracies: list[float] = []

    def train(self, images: jax.Array, labels: jax.Array) -> None:
        start = time.perf_counter()
        loss = jax.block_until_ready(self.step(images, labels))
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(float(loss))

    def milliseconds(self) -> float:
        """Median time of a step; the first one compiles."""
        return 1e3 * statistics.median(self.seconds[1:] or self.seconds)


def digits(seed: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Training images (n, 8, 8, 1) in [0, 1], test images, training labels, test labels."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[..., None]
    parts = train_test_split(
        images, data.target.astype(np.int32), test_size=0.2, random_state=seed, stratify=data.target
    )
    train_images, test_images, train_labels, test_labels = map(jnp.asarray, parts)
    return train_images, test_images, train_labels, test_labels


def picture(runs: dict[str, Run], file: Path) -> None:
    """Loss curves, test accuracy and time per step, side by side."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        left.semilogy(run.losses, style, label=name)
        middle.plot(range(1, len(run.accuracies) + 1), [100 * a for a in run.accuracies], style + "o", label=name)
    left.set(xlabel="step", ylabel="training loss", title="the same loss curve")
    middle.set(xlabel="epoch", ylabel="test accuracy, %", title="the same accuracy")
    bars = right.bar(list(runs), [run.milliseconds() for run in runs.values()], color=["C0", "C1"])
    right.bar_label(bars, fmt="%.1f ms")
    right.set(ylabel="median time of a step, ms", title=f"time per step, {jax.devices()[0].device_kind}")
    left.legend()
    middle.legend()
    figure.savefig(file, dpi=120)


def main(
    epochs: Annotated[int, typer.Option(help="passes over the training images")] = 12,
    batch_size: Annotated[int, typer.Option(help="images a step")] = 64,
    learning_rate: Annotated[float, typer.Option(help="of Adam, at the start of a cosine decay")] = 4e-3,
    seed: Annotated[int, typer.Option(help="of parameters, batches and the split of the data")] = 0,
    steps_per_epoch: Annotated[int, typer.Option(help="fewer steps an epoch, for a quick look; 0: all")] = 0,
    output: Annotated[Path, typer.Option(help="the picture")] = Path("inception_digits.png"),
) -> None:
    """Trains both networks in turns, so that both see the same machine, and saves a picture."""
    train_images, test_images, train_labels, test_labels = digits(seed)
    steps = steps_per_epoch or len(train_images) // batch_size
    runs = {name: Run(kind, seed, learning_rate, epochs * steps) for name, kind in KINDS.items()}
    rng = np.random.default_rng(seed)
    console = Console()
    with Progress(console=console) as progress:
        task = progress.add_task("training", total=epochs * steps)
        for epoch in range(epochs):
            order = rng.permutation(len(train_images))
            for step in range(steps):
                batch = order[step * batch_size : (step + 1) * batch_size]
                images, labels = train_images[batch], train_labels[batch]
                for run in runs.values():
                    run.train(images, labels)
                progress.advance(task)
            for run in runs.values():
                run.accuracies.append(float(accuracy(run.model, test_images, test_labels)))
            reached = ", ".join(f"{name} {run.accuracies[-1]:.2%}" for name, run in runs.items())
            progress.update(task, description=f"epoch {epoch + 1}: test accuracy {reached}")

    table = Table(title=f"digits, {epochs} epochs, {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for column in ("branches", "training loss", "test accuracy", "ms a step", "first step, s (compiles)"):
        table.add_column(column, justify="left" if column == "branches" else "right")
    for name, run in runs.items():
        table.add_row(
            name, f"{run.losses[-1]:.5f}", f"{run.accuracies[-1]:.2%}", f"{run.milliseconds():.1f}",
            f"{run.seconds[0]:.1f}",
        )  # fmt: skip
    console.print(table)
    picture(runs, output)
    console.print(f"picture: {output}")


if __name__ == "__main__":
    typer.run(main)
