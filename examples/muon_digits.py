"""A small vision transformer on scikit-learn's digits, trained with optax.contrib.muon and with jax_vbgemm.optax.muon.

    pip install ".[examples]"
    python examples/muon_digits.py

The same seed, data and steps for both. The picture shows both loss curves, which lie on each other, and the time of one
training step. Two minutes on two CPU cores; it runs unchanged on a GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import optax.contrib
import typer
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits

import jax_vbgemm.optax

PATCH, HEADS, CLASSES = 2, 4, 10
Params = dict[str, Any]


def data() -> tuple[Any, Any, Any, Any]:
    """1,797 images of 8 x 8 as 16 patches of 2 x 2, the last 297 for testing."""
    images, labels = load_digits(return_X_y=True)
    side = 8 // PATCH
    patches = images.reshape(-1, side, PATCH, side, PATCH).swapaxes(2, 3).reshape(-1, side**2, PATCH**2) / 8 - 1
    patches, labels = patches.astype(np.float32), labels.astype(np.int32)
    return patches[:1500], labels[:1500], patches[1500:], labels[1500:]


def initial(key: jax.Array, width: int, layers: int) -> Params:
    """Weights of the transformer; matrices are (in, out)."""
    keys = iter(jax.random.split(key, 4 * layers + 3))

    def matrix(rows: int, cols: int) -> jax.Array:
        return jax.random.normal(next(keys), (rows, cols)) / rows**0.5

    def layer() -> Params:
        return {
            "qkv": matrix(width, 3 * width), "project": matrix(width, width),
            "up": matrix(width, 4 * width), "down": matrix(4 * width, width),
            "norms": jnp.ones((2, 1, width)), "bias": jnp.zeros(4 * width),
        }  # fmt: skip

    return {
        "embed": matrix(PATCH**2, width),
        "position": 0.1 * matrix(64 // PATCH**2, width),
        "layers": [layer() for _ in range(layers)],
        "head": matrix(width, CLASSES),
    }


def normalised(x: jax.Array, gain: jax.Array) -> jax.Array:
    return gain * x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def logits(params: Params, patches: jax.Array) -> jax.Array:
    """(images, patches, pixels) to (images, classes)."""
    x = patches @ params["embed"] + params["position"]
    for layer in params["layers"]:
        qkv = normalised(x, layer["norms"][0]) @ layer["qkv"]
        q, k, v = jnp.split(qkv.reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
        x += jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ layer["project"]
        x += jax.nn.gelu(normalised(x, layer["norms"][1]) @ layer["up"] + layer["bias"]) @ layer["down"]
    return x.mean(axis=1) @ params["head"]


def loss(params: Params, patches: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, patches), labels).mean()


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def train_step(
    optimizer: optax.GradientTransformation,
    apply_updates: Callable[..., Any],
    params: Params,
    state: Any,
    patches: Any,
    labels: Any,
) -> Any:
    value, grads = jax.value_and_grad(loss)(params, patches, labels)
    updates, state = optimizer.update(grads, state, params)
    return apply_updates(params, updates), state, value


def picture(curves: dict[str, list[float]], step_ms: dict[str, float], file: Path) -> None:
    """Loss curves on the left, time a step on the right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(2, 1), layout="constrained")
    styles = {"lw": 4, "alpha": 0.4}, {"lw": 1.2, "color": "black"}
    for (name, curve), style in zip(curves.items(), styles, strict=True):
        left.semilogy(curve, label=name, **style)
    left.set(xlabel="step", ylabel="training loss", title="the same curve")
    left.legend()
    bars = right.bar([name.split(".")[0] for name in step_ms], list(step_ms.values()), color=["tab:blue", "black"])
    right.bar_label(bars, fmt="%.1f ms")
    right.set(ylabel="one training step, ms", title=f"on {jax.devices()[0].device_kind}")
    figure.savefig(file, dpi=120)


def main(
    steps: Annotated[int, typer.Option(help="training steps")] = 200,
    width: Annotated[int, typer.Option(help="of the transformer")] = 64,
    layers: Annotated[int, typer.Option(help="transformer blocks, four matrices each")] = 6,
    batch: Annotated[int, typer.Option(help="images a step")] = 64,
    seed: int = 0,
    output: Annotated[Path, typer.Option(help="the picture")] = Path("muon_digits.png"),
) -> None:
    images, labels, test_images, test_labels = data()
    schedule = optax.cosine_decay_schedule(0.02, steps)
    optimizers = {
        "optax.contrib.muon": (optax.contrib.muon(schedule), optax.apply_updates),
        "jax_vbgemm.optax.muon": (jax_vbgemm.optax.muon(schedule), jax_vbgemm.optax.apply_updates),
    }
    curves: dict[str, list[float]] = {name: [] for name in optimizers}
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    carried: dict[str, Any] = {}
    for name, (optimizer, _) in optimizers.items():
        params = initial(jax.random.key(seed), width, layers)
        carried[name] = params, optimizer.init(params)
    order = np.random.default_rng(seed)
    console = Console()
    with Progress(console=console) as progress:
        # Turn by turn, so that both see the same machine.
        for _ in progress.track(range(steps), description=f"{steps} steps with each"):
            chosen = order.choice(len(images), batch, replace=False)
            for name, (optimizer, apply_updates) in optimizers.items():
                start = time.perf_counter()
                arguments = *carried[name], images[chosen], labels[chosen]
                *carried[name], value = train_step(optimizer, apply_updates, *arguments)
                curves[name].append(float(value))
                times[name].append(time.perf_counter() - start)
    step_ms = {name: 1e3 * statistics.median(samples) for name, samples in times.items()}
    for name, (params, _) in carried.items():
        accuracy = float(jnp.mean(logits(params, test_images).argmax(-1) == test_labels))
        console.print(
            f"{name:22}  loss {curves[name][-1]:.5f}  test accuracy {accuracy:.1%}  "
            f"step {step_ms[name]:.1f} ms  first step, with compilation, {times[name][0]:.1f} s"
        )
    ours, theirs = (np.array(curve) for curve in reversed(curves.values()))
    console.print(f"largest difference of the curves: {np.abs(ours - theirs).max():.1e}")
    picture(curves, step_ms, output)
    console.print(f"picture: {output}")


if __name__ == "__main__":
    typer.run(main)
