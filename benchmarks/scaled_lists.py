"""Times lists of square products of `Scaled` factors in jitted loops: in one call, and by a kernel of ragged_dot each.

    python benchmarks/scaled_lists.py --csv scaled_lists.csv

"rows": scales of rows of lhs and of columns of rhs; "blocks": of 128 values of a row and of 128 x 128 weights, which in
one call are widened to float32. "chosen": the way that the package chooses by predicted times.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer

import jax_vbgemm as vb
from jax_vbgemm._src.matmul import scaled_products
from jax_vbgemm._src.matmul.scaled_choice import Choice
from jax_vbgemm._src.tools.timing import seconds_in_loop
from options import commands
from workloads import write_csv

COUNTS = [2, 8, 32]
SIZES = [64, 256, 512, 1024, 2048, 4096]
BLOCKS = {"rows": ((1, -1), (1, -1)), "blocks": ((1, 128), (128, 128))}
CASES = [("int8", "rows"), ("float8_e4m3fn", "rows"), ("float8_e4m3fn", "blocks")]


@dataclass
class Row:
    """A line of the CSV; us of all products of a list."""

    factors: str
    scales: str
    count: int
    size: int
    call_us: float
    each_us: float
    chosen: str
    device: str
    jax: str


def product(As: list[vb.Scaled], Bs: list[vb.Scaled]) -> Any:
    return vb.batched_matmul(As, Bs, transpose_b=True)


def forced(how: str) -> Callable[..., Any]:
    """The products of a list, all multiplied in the same way."""

    def function(As: list[vb.Scaled], Bs: list[vb.Scaled]) -> Any:
        choose = scaled_products.choose
        scaled_products.choose = lambda products, *_: [Choice(how, "measured")] * len(products)
        try:
            return product(As, Bs)
        finally:
            scaled_products.choose = choose

    return function


def operands(kind: str, scales: str, count: int, size: int) -> tuple[list[vb.Scaled], list[vb.Scaled]]:
    """Random factors, of different arrays, so that none stays in L2 because another product reads it."""
    keys = jax.random.split(jax.random.key(0), 2 * count)
    lhs, rhs = (
        [jax.random.normal(key, (size, size), jnp.bfloat16) for key in half] for half in (keys[::2], keys[1::2])
    )
    quantize = jax.jit(vb.quantize, static_argnums=(1, 2))
    of_lhs, of_rhs = BLOCKS[scales]
    return [quantize(x, kind, of_lhs) for x in lhs], [quantize(x, kind, of_rhs) for x in rhs]


def measured(sizes: list[int], counts: list[int], rounds: int) -> Iterator[Row]:
    for kind, scales in CASES:
        in_call = "sums" if scales == "rows" else "wide"
        for count in counts:
            for size in sizes:
                factors = operands(kind, scales, count, size)
                expected = count * (2.0 * size**3 / 4e14 + 3e-6)
                call, each = seconds_in_loop([forced(in_call), forced("narrow")], factors, expected, rounds)
                narrow = "ragged_dot" in str(jax.make_jaxpr(product)(*factors))
                device = jax.devices()[0].device_kind
                yield Row(
                    kind, scales, count, size, round(1e6 * call, 1), round(1e6 * each, 1),
                    "each" if narrow else "call", device, jax.__version__,
                )  # fmt: skip


app = commands(__doc__)


@app.command()
def main(
    size: Annotated[list[int], typer.Option(help="M, N and K")] = SIZES,
    count: Annotated[list[int], typer.Option(help="products of a list")] = COUNTS,
    rounds: int = 5,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    for row in measured(size, count, rounds):
        print(
            f"{row.factors}, {row.scales}, {row.count} x {row.size}: {row.call_us} us in a call, {row.each_us} each, "
            f"chosen: {row.chosen}",
            flush=True,
        )
        if csv:
            write_csv(csv, [row])


if __name__ == "__main__":
    app()
