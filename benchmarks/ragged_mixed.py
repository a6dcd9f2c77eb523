"""Decoding steps of mixtures: rows of bfloat16 with weights in 8 or 4 bits beside weights in bfloat16.

The sum of the kernels of a gated product (gate and up, silu) and of the one behind it, in a profile, random groups.

    python benchmarks/ragged_mixed.py --csv ragged_mixed.csv
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer

import jax_vbgemm as vb
from options import commands
from profiled import kernels_us
from workloads import write_csv

LAYERS = {"qwen3_30b": (128, 2048, 768), "gpt_oss_20b": (32, 2880, 2880)}  # experts, features, hidden features
WEIGHTS: dict[str, tuple[str, tuple[int, int]] | None] = {
    "bfloat16": None, "int8, channels": ("int8", (1, -1)), "int8, 128": ("int8", (1, 128)),
    "float8_e4m3fn, channels": ("float8_e4m3fn", (1, -1)), "int4, channels": ("int4", (1, -1)),
    "int4, 128": ("int4", (1, 128)),
}  # fmt: skip


@dataclass
class Row:
    """A line of the CSV. terabytes: of weights, a second."""

    layer: str
    rows: int
    weights: str
    up_us: float
    down_us: float
    speedup: float
    terabytes: float
    device: str
    jax: str


def stored_bytes(x: jax.Array) -> float:
    """Of which two int4 share one."""
    return x.size / 2 if x.dtype == jnp.int4 else x.nbytes


def measured(layer: str, rows: int) -> list[Row]:
    experts, d, f = LAYERS[layer]
    keys = jax.random.split(jax.random.key(0), 4)
    wide = [
        jax.random.normal(key, shape, jnp.bfloat16) / 8
        for key, shape in zip(keys, ((experts, 2 * f, d), (experts, d, f)), strict=False)
    ]
    x, hidden = (jax.random.normal(key, (rows, size), jnp.bfloat16) for key, size in zip(keys[2:], (d, f), strict=True))
    sizes = jnp.asarray(np.random.default_rng(0).multinomial(rows, np.full(experts, 1 / experts)), jnp.int32)
    up = jax.jit(lambda x, w: vb.ragged_dot(x, w, sizes, transpose_rhs=True, gated=True, activation="silu"))
    down = jax.jit(lambda x, w: vb.ragged_dot(x, w, sizes, transpose_rhs=True))
    found: list[Row] = []
    for name, how in WEIGHTS.items():
        weights = wide if how is None else [vb.quantize(w, how[0], block=how[1]) for w in wide]
        us = kernels_us(up, x, weights[0]), kernels_us(down, hidden, weights[1])
        read = sum(stored_bytes(x) for x in jax.tree.leaves(weights))
        speedup = (found[0].up_us + found[0].down_us) / sum(us) if found else 1.0
        device = jax.devices()[0].device_kind
        found.append(Row(layer, rows, name, *us, speedup, read / sum(us) / 1e6, device, jax.__version__))
        print(f"{layer}, {rows} rows, {name}: {us[0]:.1f} + {us[1]:.1f} us, {speedup:.2f}x", flush=True)
    return found


app = commands(__doc__)


@app.command()
def main(
    layer: Annotated[list[str], typer.Option(help=", ".join(LAYERS))] = list(LAYERS),  # noqa: B006
    rows: Annotated[list[int], typer.Option(help="of all groups together")] = [256, 1024],  # noqa: B006
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    for name in layer:
        for count in rows:
            found = measured(name, count)
            if csv:
                write_csv(csv, found)


if __name__ == "__main__":
    app()
