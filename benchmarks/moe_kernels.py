"""The time of all kernels of a layer of experts with its routing, in a profile: in bfloat16 and with 8-bit products.

    python benchmarks/moe_kernels.py --csv moe_kernels.csv

"side by side": gate and up in one array; "apart": in two; "8 bits": e4m3 with scales of blocks, weights quantized
before (once a step, for all micro-batches), gradients of weights in 8 bits too. Random tokens and routing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer

import jax_vbgemm as vb
from options import commands
from profiled import kernels_us
from workloads import write_csv

MODELS = {"qwen3_30b_a3b": (4096, 2048, 768, 128, 8), "olmoe": (16384, 2048, 1024, 64, 8)}
"""Tokens, features, hidden features, experts, experts of a token."""
WEIGHTS = ("side by side", "apart", "8 bits")


@dataclass
class Row:
    """A line of the CSV."""

    model: str
    tokens: int
    direction: str
    weights: str
    us: float
    device: str
    jax: str


def operands(model: str) -> list[jax.Array]:
    """x, gate_up, down, logits, and the cotangent of the result."""
    tokens, d, f, experts, _ = MODELS[model]
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = (tokens, d), (experts, d, 2 * f), (experts, f, d), (tokens, experts), (tokens, d)
    scales = 1, d**-0.5, f**-0.5, 1, 1
    arrays = [jax.random.normal(key, shape) * scale for key, shape, scale in zip(keys, shapes, scales, strict=True)]
    return [x if i == 3 else x.astype(jnp.bfloat16) for i, x in enumerate(arrays)]


def programs(model: str, weights: str) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The layer and the layer with its backward pass, with their arguments."""
    x, gate_up, down, logits, cotangent = operands(model)
    k = MODELS[model][-1]
    quantized = jax.jit(vb.moe.quantize_experts)(gate_up, down) if weights == "8 bits" else None
    first = tuple(jnp.split(gate_up, 2, axis=2)) if weights == "apart" else gate_up

    def layer(x: Any, gate_up: Any, down: Any, logits: Any, quantized: Any) -> jax.Array:
        options = {} if quantized is None else {"quantized": quantized}
        return vb.moe.expert_mlp(x, gate_up, down, vb.moe.route(logits, k), **options)

    def with_backward(x: Any, gate_up: Any, down: Any, logits: Any, quantized: Any, cotangent: Any) -> Any:
        y, back = jax.vjp(lambda *args: layer(*args, quantized), x, gate_up, down, logits)
        return y, back(cotangent)

    args = (x, first, down, logits, quantized)
    return {"forward": (layer, args), "forward and backward": (with_backward, (*args, cotangent))}


app = commands(__doc__)


@app.command()
def main(
    model: Annotated[list[str], typer.Option(help=", ".join(MODELS))] = list(MODELS),
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    for name in model:
        for weights in WEIGHTS:
            for direction, (function, args) in programs(name, weights).items():
                us = kernels_us(jax.jit(function), *args)
                device = jax.devices()[0].device_kind
                row = Row(name, MODELS[name][0], direction, weights, round(us), device, jax.__version__)
                print(f"{name}, {direction}, {weights}: {us:.0f} us", flush=True)
                if csv:
                    write_csv(csv, [row])


if __name__ == "__main__":
    app()
