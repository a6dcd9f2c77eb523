"""A small language model with a mixture of experts, trained beside the dense model that does as much work for a token.

    pip install ".[examples]"
    python examples/moe_language_model.py

Both models predict the next byte of the Python language reference, which is part of Python's standard library. A token
of the mixture has 2 of 8 experts, so that it has four times the dense model's weights in its gated layers and the same
number of multiplications. The picture shows the loss curves, the time of one training step, and how many tokens each
expert had. One to two and a half minutes on two CPU cores, depending on what else they do; it runs unchanged on a GPU.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("agg")
from pydoc_data import topics

import matplotlib.pyplot as plt
import numpy as np
import optax
import typer
from flax import nnx
from rich.console import Console
from rich.progress import Progress

from jax_vbgemm.flax.nnx import MixtureOfExperts

EXPERTS, K, HEADS, VOCABULARY = 8, 2, 4, 128
LOAD_BALANCE, ROUTER_Z = 1e-2, 1e-3


def text() -> tuple[np.ndarray, np.ndarray]:
    """The language reference as ASCII codes: nine tenths to train with, the rest to test with."""
    everything = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    codes = np.frombuffer(everything.encode("ascii", "replace"), np.uint8).astype(np.int32)
    cut = len(codes) * 9 // 10
    return codes[:cut], codes[cut:]


class Dense(nnx.Module):
    """The gated layer of the dense model: as many hidden features as the K experts of one token have together."""

    def __init__(self, features: int, hidden: int, rngs: nnx.Rngs) -> None:
        self.gate_up = nnx.Linear(features, 2 * K * hidden, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(K * hidden, features, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(nnx.silu(gate) * up)


class Block(nnx.Module):
    """Attention to what came before, then the gated layer."""

    def __init__(self, features: int, hidden: int, is_mixture: bool, rngs: nnx.Rngs) -> None:
        self.before, self.between = nnx.RMSNorm(features, rngs=rngs), nnx.RMSNorm(features, rngs=rngs)
        self.qkv = nnx.Linear(features, 3 * features, use_bias=False, rngs=rngs)
        self.project = nnx.Linear(features, features, use_bias=False, rngs=rngs)
        if is_mixture:
            self.gated = MixtureOfExperts(features, hidden, experts=EXPERTS, k=K, rngs=rngs)
        else:
            self.gated = Dense(features, hidden, rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, Any]:
        qkv = self.qkv(self.before(x)).reshape(*x.shape[:2], 3 * HEADS, -1)
        attended = jax.nn.dot_product_attention(*jnp.split(qkv, 3, axis=2), is_causal=True)
        x = x + self.project(attended.reshape(x.shape))
        y = self.between(x)
        y, losses = self.gated(y, auxiliary=True) if isinstance(self.gated, MixtureOfExperts) else (self.gated(y), None)
        return x + y, losses


class LanguageModel(nnx.Module):
    def __init__(self, features: int, hidden: int, layers: int, context: int, is_mixture: bool, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, features, rngs=rngs)
        self.position = nnx.Param(0.02 * jax.random.normal(rngs.params(), (context, features)))
        self.blocks = nnx.List([Block(features, hidden, is_mixture, rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(features, rngs=rngs)
        self.head = nnx.Linear(features, VOCABULARY, use_bias=False, rngs=rngs)

    def __call__(self, codes: jax.Array) -> tuple[jax.Array, list[Any]]:
        """(sequences, context) to logits (sequences, context, vocabulary), and the routers' losses."""
        x, losses = self.embed(codes) + self.position[...], []
        for block in self.blocks:
            x, of_block = block(x)
            losses += [] if of_block is None else [of_block]
        return self.head(self.norm(x)), losses


def loss(model: LanguageModel, windows: jax.Array) -> tuple[jax.Array, tuple[jax.Array, list[jax.Array]]]:
    """What is minimised; the cross entropy alone, and how many choices each expert of each layer has."""
    logits, losses = model(windows[:, :-1])
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, windows[:, 1:]).mean()
    total = entropy + sum(LOAD_BALANCE * aux.load_balance + ROUTER_Z * aux.router_z for aux in losses)
    return total, (entropy, [aux.group_sizes for aux in losses])


@partial(nnx.jit, donate_argnums=(0, 1))
def train_step(model: LanguageModel, optimizer: nnx.Optimizer, windows: jax.Array) -> Any:
    gradients, result = nnx.grad(loss, has_aux=True)(model, windows)
    optimizer.update(model, gradients)
    return result


def windows_of(codes: np.ndarray, starts: np.ndarray, context: int) -> np.ndarray:
    """(starts, context + 1) codes."""
    return codes[starts[:, None] + np.arange(context + 1)]


def picture(
    curves: dict[str, list[float]], step_ms: dict[str, float], loads: np.ndarray, mixed: np.ndarray, file: Path
) -> None:
    """Loss curves, time a step, and the share of choices that each expert had in each step, for the first layer."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4), width_ratios=(3, 1.2, 3), layout="constrained")
    colors = {"dense": "black", "mixture": "tab:blue"}
    for name, curve in curves.items():
        width = max(1, len(curve) // 40)
        smooth = np.convolve(curve, np.ones(width) / width, "valid")
        left.plot(np.arange(len(smooth)) + width - 1, smooth, label=name, color=colors[name])
    left.set(xlabel="step", ylabel="training loss, nats a byte", title=f"{len(mixed)} layers")
    left.legend()
    bars = middle.bar(list(step_ms), list(step_ms.values()), color=[colors[name] for name in step_ms])
    middle.bar_label(bars, fmt="%.0f ms")
    middle.set(title="one training step", ylabel="ms")
    image = right.imshow(loads[:, 0].T, aspect="auto", vmin=0, interpolation="nearest", cmap="viridis")
    right.set(xlabel="step", ylabel="expert of the first layer", title="share of choices")
    figure.colorbar(image, ax=right)
    figure.savefig(file, dpi=110)


def main(
    steps: Annotated[int, typer.Option(help="training steps of each model")] = 1200,
    features: Annotated[int, typer.Option(help="of the transformer")] = 64,
    hidden: Annotated[int, typer.Option(help="features of each expert")] = 64,
    layers: Annotated[int, typer.Option(help="transformer blocks")] = 2,
    context: Annotated[int, typer.Option(help="bytes a sequence")] = 64,
    batch: Annotated[int, typer.Option(help="sequences a step")] = 16,
    seed: int = 0,
    output: Annotated[Path, typer.Option(help="the picture")] = Path("moe_language_model.png"),
) -> None:
    training, testing = text()
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, max(1, steps // 20), max(2, steps))
    carried, curves, times, loads = {}, {}, {}, []
    for name in ("dense", "mixture"):
        model = LanguageModel(features, hidden, layers, context, name == "mixture", nnx.Rngs(seed))
        carried[name] = model, nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)
        curves[name], times[name] = [], []
    order = np.random.default_rng(seed)
    console = Console()
    with Progress(console=console) as progress:
        # Turn by turn, so that both see the same bytes and the same machine.
        for _ in progress.track(range(steps), description=f"{steps} steps with each"):
            windows = windows_of(training, order.integers(0, len(training) - context - 1, batch), context)
            for name, (model, optimizer) in carried.items():
                start = time.perf_counter()
                entropy, sizes = train_step(model, optimizer, windows)
                curves[name].append(float(entropy))
                times[name].append(time.perf_counter() - start)
                if sizes:
                    loads.append(np.array(sizes) / (K * batch * context))

    step_ms = {name: 1e3 * statistics.median(samples) for name, samples in times.items()}
    test = windows_of(testing, np.linspace(0, len(testing) - context - 1, 64).astype(int), context)
    for name, (model, _) in carried.items():
        _, (entropy, _) = nnx.jit(loss)(model, test)
        parameters = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
        console.print(
            f"{name:8} {parameters:9,} parameters  test loss {float(entropy):.4f}  step {step_ms[name]:.1f} ms  "
            f"first step {times[name][0]:.1f} s"
        )
    shares = np.array(loads)
    last = shares[-max(1, steps // 10) :].mean(axis=0)
    for layer, share in enumerate(last):
        console.print(f"experts of layer {layer}: " + "  ".join(f"{part:.0%}" for part in share))
    picture(curves, step_ms, shares, last, output)
    console.print(f"picture: {output}")


if __name__ == "__main__":
    typer.run(main)
