"""Errors of Newton-Schulz by the dtype of the iterates and by the iteration, on a CPU.

    python benchmarks/muon_errors.py --csv benchmarks/results/cpu_muon_errors.csv

Relative errors in the Frobenius norm, against the same polynomial in float64 ("rounding") and against the polar factor
U V^T ("polar"). Matrices of 192 x 768: normal numbers, singular values in a geometric series down to 1/100 or 1/1000 of
the largest, and rank 8 with noise of 1/1000 of it. "tf32" multiplies as a GPU does at precision DEFAULT: operands are
rounded to 10 bits of mantissa, and results are float32. The results of ours are those of the CPU's products, which sum
in float32 as tensor cores do.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import jax_vbgemm as vb
from jax_vbgemm._src.newton_schulz.coefficients import coefficients
from jax_vbgemm._src.newton_schulz.cost import segments

M, N = 192, 768
COEFFICIENTS = (("simple", 5), ("quintic", 5), ("polar_express", 5), ("polar_express", 8))
COLUMNS = ("matrix", "coefficients", "steps", "iterates", "iteration", "rounding", "polar")

app = typer.Typer(add_completion=False)


def matrices() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.standard_normal((size, M)))[0] for size in (M, N))
    low = rng.standard_normal((M, 8)) @ rng.standard_normal((8, N))
    noise = rng.standard_normal((M, N))
    return {
        "normal": rng.standard_normal((M, N)),
        "condition 100": (u * np.geomspace(1, 1e-2, M)) @ v.T,
        "condition 1000": (u * np.geomspace(1, 1e-3, M)) @ v.T,
        "rank 8 and noise": low + 1e-3 * np.linalg.norm(low, 2) / np.linalg.norm(noise, 2) * noise,
    }


def tf32(a: Any, b: Any) -> jax.Array:
    a, b = (jax.lax.reduce_precision(x, 8, 10) for x in (a, b))
    return jnp.matmul(a, b, precision="highest")


def by_tf32(x: Any, rows: np.ndarray, gram: bool) -> jax.Array:
    """The iteration in float32 with products of TF32, written out."""
    x = jnp.asarray(x, "float32")
    x = x / jnp.linalg.norm(x)
    identity = jnp.eye(len(x), dtype="float32")
    rest = [(c0 * identity, c0, c1, c2) for c0, c1, c2 in rows.astype("float32")]
    for length in segments(len(rows)) if gram else [1] * len(rows):
        steps, rest = rest[:length], rest[length:]
        r, product = tf32(x, x.T), None
        for first, c0, c1, c2 in steps:
            z = c1 * r + c2 * tf32(r, r)
            product = z + first if product is None else tf32(product, z) + c0 * product
            moved = tf32(r, z) + c0 * r
            r = tf32(z, moved) + c0 * moved
        x = tf32(product, x) if length > 1 else tf32(z, x) + c0 * x
    return x


def relative(found: Any, expected: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(found, "float64") - expected) / np.linalg.norm(expected))


@app.command(help=__doc__)
def main(file: Annotated[Path | None, typer.Option("--csv", help="where to write the figures")] = None) -> None:
    jax.config.update("jax_enable_x64", True)
    rows: list[tuple[Any, ...]] = []
    for title, matrix in matrices().items():
        u, _, v = np.linalg.svd(matrix, full_matrices=False)
        single = jnp.asarray(matrix, "float32")
        for name, steps in COEFFICIENTS:
            exact = np.asarray(vb.newton_schulz([jnp.asarray(matrix)], steps, name)[0])
            table = np.broadcast_to(coefficients(name, steps), (steps, 3))
            found = {("tf32", way): by_tf32(matrix, table, way == "Gram") for way in ("X", "Gram")}
            for dtype in ("float32", "float16", "bfloat16"):
                for gram in (False, True) if dtype != "bfloat16" else (False,):
                    (result,) = vb.newton_schulz([single], steps, name, dtype=dtype, gram=gram)
                    found[dtype, "Gram" if gram else "X"] = result
            for (iterates, iteration), result in found.items():
                errors = (f"{relative(result, expected):.2g}" for expected in (exact, u @ v))
                rows.append((title, name, steps, iterates, iteration, *errors))
    shown = Table(*COLUMNS, title=f"Newton-Schulz of a {M} x {N} matrix, jax {jax.__version__}")
    for row in rows:
        shown.add_row(*map(str, row))
    Console().print(shown)
    if file:
        with file.open("w", newline="") as out:
            csv.writer(out).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    app()
