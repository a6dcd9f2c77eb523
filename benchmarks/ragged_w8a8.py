"""Times `ragged_dot` of two int8 factors in one jitted program each, beside float8 and bfloat16, in turns.

    python benchmarks/ragged_w8a8.py --csv ragged_w8a8.csv

Random data, groups of equal size; medians of rounds. Scales of "rows": of rows of lhs and single columns of rhs; of
"blocks": of 128 values of a row and of 128 x 128 weights; "rows, fast accumulation": those of rows, with JAX's dot
algorithm ANY_F8_ANY_F8_F32_FAST_ACCUM. First compares products of int8 with those of integers.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import jax_vbgemm as vb
from options import commands
from workloads import write_csv

CASES = [  # rows, groups, K, N
    (32768, 4, 7168, 4096), (32768, 8, 3072, 7168), (32768, 128, 2048, 1536), (32768, 128, 768, 2048),
    (131072, 64, 2048, 2048), (8192, 1, 8192, 8192),
]  # fmt: skip
FAST = jax.lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM
BLOCKS = {"rows": ((1, -1), (1, -1)), "blocks": ((1, 128), (128, 128))}


@dataclass
class Row:
    """A line of the CSV. factors: their dtype; scales: those of BLOCKS."""

    rows: int
    groups: int
    k: int
    n: int
    factors: str
    scales: str
    tflops: float
    device: str
    jax: str


def times(peers: dict[Any, Callable[[], Any]], calls: int = 8, rounds: int = 7) -> dict[Any, float]:
    """Seconds of a call of each peer, in turns, every second round backwards."""
    taken: dict[Any, list[float]] = {name: [] for name in peers}
    for call in peers.values():
        jax.block_until_ready(call())
    for i in range(rounds):
        for name, call in list(peers.items())[:: 1 if i % 2 else -1]:
            begin = time.perf_counter()
            results = [call() for _ in range(calls)]
            jax.block_until_ready(results)
            taken[name].append((time.perf_counter() - begin) / calls)
            del results
    return {name: statistics.median(values) for name, values in taken.items()}


def measured(rows: int, groups: int, k: int, n: int) -> list[Row]:
    of_x, of_w = jax.random.split(jax.random.key(0))
    x = jax.random.normal(of_x, (rows, k), jnp.bfloat16)
    w = jax.random.normal(of_w, (groups, n, k), jnp.bfloat16) * k**-0.5
    sizes = jnp.full((groups,), rows // groups, jnp.int32)
    product = jax.jit(lambda x, w: vb.ragged_dot(x, w, sizes, transpose_rhs=True))
    fast = jax.jit(lambda x, w: vb.ragged_dot(x, w, sizes, transpose_rhs=True, precision=FAST))
    factors: dict[tuple[str, str], tuple[Any, ...]] = {("bfloat16", ""): (x, w)}
    for kind in ("int8", "float8_e4m3fn"):
        for name, blocks in BLOCKS.items():
            factors[kind, name] = tuple(
                vb.quantize(part, kind, block) for part, block in zip((x, w), blocks, strict=True)
            )
    peers = {name: lambda pair=pair: product(*pair) for name, pair in factors.items()}
    in_rows = factors["float8_e4m3fn", "rows"]
    peers["float8_e4m3fn", "rows, fast accumulation"] = lambda: fast(*in_rows)
    device = jax.devices()[0].device_kind
    return [
        Row(rows, groups, k, n, *name, round(2e-12 * rows * k * n / seconds), device, jax.__version__)
        for name, seconds in times(peers).items()
    ]


def is_exact() -> bool:
    """Whether products of int8 are those of integers, where float32 represents the sums."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((300, 992), (3, 272, 992)))
    sizes = np.array([100, 0, 200])
    lhs = vb.Scaled(jnp.asarray(x), jnp.ones((300, 1), jnp.float32), (1, 992))
    rhs = vb.Scaled(jnp.asarray(w), jnp.ones((3, 272, 1), jnp.float32), (1, 992))
    found = jax.jit(
        lambda lhs, rhs: vb.ragged_dot(
            lhs, rhs, jnp.asarray(sizes), transpose_rhs=True, preferred_element_type=jnp.float32
        )
    )(lhs, rhs)
    matrices = np.repeat(np.arange(3), sizes)
    expected = np.einsum("mk,mnk->mn", x.astype(np.float64), w[matrices].astype(np.float64))
    return bool((np.asarray(found) == expected).all())


app = commands(__doc__)


@app.command()
def main(csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None) -> None:
    print("int8 is exact:", is_exact())
    for case in CASES:
        found = measured(*case)
        print(*case, ", ".join(f"{row.factors} {row.scales} {row.tflops:.0f}" for row in found), flush=True)
        if csv:
            write_csv(csv, found)


if __name__ == "__main__":
    app()
