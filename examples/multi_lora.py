"""Four low-rank adapters of different rank on one frozen network, trained together.

A network learns scikit-learn's handwritten digits as they are. Then it is frozen, and four adapters of ranks 4 to 16
learn four distortions of the same digits, each in its own group of every batch. Only adapters get gradients. Last, the
network serves requests: every batch asks for other numbers of images by each adapter, and one compiled program answers
them all, because the sizes of the groups are data.

    python examples/multi_lora.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from flax import nnx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from jax_vbgemm.flax.nnx import MultiLoRA

RANKS = (4, 8, 12, 16)
SERVED_BATCHES, SERVED_IMAGES = 50, 64
DISTORTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "faint": lambda images: images / 8,
    "mirrored": lambda images: images[:, :, ::-1],
    "upside down": lambda images: images[:, ::-1, ::-1],
    "a quarter turn": lambda images: np.rot90(images, axes=(1, 2)),
}
BASE = nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam))

GroupSizes = tuple[int, ...] | jax.Array  # known when a program is made, or when it runs


class Classifier(nnx.Module):
    """Two layers, each with four adapters; without training, adapters change nothing."""

    def __init__(self, features: int, rngs: nnx.Rngs) -> None:
        hidden, out = nnx.Linear(64, features, rngs=rngs), nnx.Linear(features, 10, rngs=rngs)
        self.hidden = MultiLoRA(64, RANKS, features, base_module=hidden, rngs=rngs)
        self.out = MultiLoRA(features, RANKS, 10, base_module=out, rngs=rngs)

    def __call__(self, images: jax.Array, group_sizes: GroupSizes) -> jax.Array:
        return self.out(nnx.relu(self.hidden(images, group_sizes)), group_sizes)


def loss(model: Classifier, images: jax.Array, labels: jax.Array, group_sizes: GroupSizes) -> jax.Array:
    """Mean cross entropy over all groups."""
    logits = model(images, group_sizes)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def drawn(
    rng: np.random.Generator, groups: list[tuple[np.ndarray, np.ndarray]], sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """So many images and labels of each group, one group after the other."""
    given = [(group, size) for group, size in zip(groups, sizes, strict=True) if size]
    chosen = [rng.integers(0, len(images), size) for (images, _), size in given]
    images = np.concatenate([images[rows] for ((images, _), _), rows in zip(given, chosen, strict=True)])
    labels = np.concatenate([labels[rows] for ((_, labels), _), rows in zip(given, chosen, strict=True)])
    return images, labels


def train(
    model: Classifier, wrt: nnx.filterlib.Filter, groups: list[tuple[np.ndarray, np.ndarray]], steps: int, batch: int,
    progress: Progress, description: str,
) -> float:  # fmt: skip
    """Trains the variables that `wrt` names, each adapter on its own group's images; the seconds a step took."""
    optimizer = nnx.Optimizer(model, optax.adam(5e-3), wrt=wrt)
    sizes = tuple(batch if len(images) else 0 for images, _ in groups)

    @nnx.jit
    def step(model: Classifier, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> None:
        gradients = nnx.grad(loss, argnums=nnx.DiffState(0, wrt))(model, images, labels, sizes)
        optimizer.update(model, gradients)

    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for index in progress.track(range(steps), description=description):
        images, labels = drawn(rng, groups, sizes)
        step(model, optimizer, images, labels)
        if index == 0:  # compiled
            start = time.perf_counter()
    jax.block_until_ready(nnx.state(model))
    return (time.perf_counter() - start) / max(1, steps - 1)


def accuracies(model: Classifier, groups: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Each group's share of images that get their label."""
    sizes = tuple(len(images) for images, _ in groups)
    logits = nnx.jit(Classifier.__call__, static_argnums=2)(
        model, jnp.concatenate([images for images, _ in groups]), sizes
    )
    right = jnp.argmax(logits, axis=-1) == jnp.concatenate([labels for _, labels in groups])
    return [float(part.mean()) for part in jnp.split(right, np.cumsum(sizes)[:-1])]


def serve(
    model: Classifier, groups: list[tuple[np.ndarray, np.ndarray]], batch: int, calls: int
) -> tuple[float, int, float]:
    """Answers batches that ask for the adapters in changing shares; the share of right answers, how many programs were
    compiled, and the seconds of a call."""
    programs = 0

    @nnx.jit
    def answer(model: Classifier, images: jax.Array, group_sizes: jax.Array) -> jax.Array:
        nonlocal programs
        programs += 1  # runs where JAX traces
        return jnp.argmax(model(images, group_sizes), axis=-1)

    rng = np.random.default_rng(0)
    right, seconds = 0, 0.0
    for call in range(calls + 1):
        sizes = rng.multinomial(batch, rng.dirichlet(np.full(len(groups), 0.5)))
        images, labels = drawn(rng, groups, sizes)
        start = time.perf_counter()
        answers = np.asarray(answer(model, images, jnp.asarray(sizes, jnp.int32)))
        if call:  # the first one is compiled
            seconds += time.perf_counter() - start
            right += int((answers == labels).sum())
    return right / (batch * calls), programs, seconds / calls


def flat(images: np.ndarray) -> np.ndarray:
    """(n, 8, 8) to (n, 64) in float32."""
    return np.ascontiguousarray(images, np.float32).reshape(len(images), 64)


def main(
    steps: Annotated[int, typer.Option(help="of training, for the base and for the adapters")] = 600,
    features: Annotated[int, typer.Option(help="hidden features")] = 256,
    batch: Annotated[int, typer.Option(help="images a group and step")] = 32,
) -> None:
    """Trains the base on plain digits, then the adapters on distorted ones."""
    data = load_digits()
    train_images, test_images, train_labels, test_labels = train_test_split(
        data.images / 16.0, data.target.astype(np.int32), test_size=0.2, random_state=0, stratify=data.target
    )
    nobody = (np.zeros((0, 64), np.float32), np.zeros(0, np.int32))
    plain = [(flat(train_images), train_labels), nobody, nobody, nobody]
    tests = [(flat(distort(test_images)), test_labels) for distort in DISTORTIONS.values()]
    groups = [(flat(distort(train_images)), train_labels) for distort in DISTORTIONS.values()]

    model = Classifier(features, nnx.Rngs(0))
    console = Console()
    with Progress(console=console) as progress:
        train(model, BASE, plain, steps, batch, progress, "base")
        (undistorted, *_) = accuracies(model, [(flat(test_images), test_labels), *tests[1:]])
        before, frozen = accuracies(model, tests), jax.tree.map(np.array, nnx.to_pure_dict(nnx.state(model, BASE)))
        seconds = train(model, nnx.LoRAParam, groups, steps, batch, progress, "adapters")
        after = accuracies(model, tests)
    served, programs, seconds_a_call = serve(model, tests, SERVED_IMAGES, SERVED_BATCHES)
    assert programs == 1
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(nnx.state(model, BASE)), frozen)

    table = Table(title=f"base on plain digits: {undistorted:.1%}; adapters: {1e3 * seconds:.1f} ms a step")
    for column in ("adapter", "rank", "parameters", "accuracy before", "after"):
        table.add_column(column, justify="left" if column == "adapter" else "right")
    for name, rank, old, new in zip(DISTORTIONS, RANKS, before, after, strict=True):
        table.add_row(name, str(rank), str(rank * (64 + 2 * features + 10)), f"{old:.1%}", f"{new:.1%}")
    console.print(table)
    console.print(
        f"served {SERVED_BATCHES} batches of {SERVED_IMAGES} images in changing groups by {programs} program: "
        f"{served:.1%} right, {1e3 * seconds_a_call:.1f} ms a batch"
    )


if __name__ == "__main__":
    typer.run(main)
