"""Ragged products (rows in groups of runtime sizes): this package and its peers, inside one jitted loop.

A workload is "ROWSxGROUPSxKxN" ("4096x64x1024x1024"), "lora_ROWSxDxGROUPS" (adapters of rank 4 to 64, down and up), or
the name of a list: "table" (mixtures of experts), "cpu" (workloads that a few cores do in reasonable time).
"""

import importlib
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm._src.flax.adapters import adapted
from jax_vbgemm._src.ragged.flat_rows import stacked
from jax_vbgemm._src.tools.timing import looped, seconds_of
from workloads import PRECISIONS, Row

LISTS = {
    "table": [
        "4096x64x1024x1024", "256x128x2048x768", "32768x128x2048x768", "32768x64x2048x1024", "16384x32x7168x2048",
        "8192x8x4096x14336",
    ],
    "cpu": ["4096x8x512x512", "2048x64x256x256", "6000x12x128x128", "lora_4096x512x8"],
}  # fmt: skip
SKEWS = ("uniform", "skewed")
DIRECTIONS = ("forward", "dgrad", "wgrad", "forward_backward")

Operands = tuple[Any, Any, Any]  # rows, weights (an array, or a list of pairs), sizes
Product = Callable[[Any, Any, Any], Any]


def expand(names: Sequence[str]) -> list[str]:
    """The workloads; ValueError for a name that is none."""
    found = [name for given in names for name in LISTS.get(given, [given])]
    for name in found:
        if not re.fullmatch(r"\d+x\d+x\d+x\d+|lora_\d+x\d+x\d+", name):
            raise ValueError(
                f"no workload {name!r}: it must be ROWSxGROUPSxKxN, lora_ROWSxDxGROUPS or one of {list(LISTS)}"
            )
    return found


def numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def ranks(groups: int) -> list[int]:
    """The ranks of adapters: 4, 8, 16, 32, 64 in turn."""
    return [4 << index % 5 for index in range(groups)]


def sizes_of(rows: int, groups: int, skew: str) -> np.ndarray:
    """Group sizes. Uniform: each row chooses its group at random. Skewed: fractions like 1 / (rank + 1), in random
    order."""
    rng = np.random.default_rng(0)
    shares = np.ones(groups) if skew == "uniform" else rng.permutation(1 / np.arange(1, groups + 1))
    return rng.multinomial(rows, shares / shares.sum())


def operands_of(name: str, skew: str, dtype: str) -> tuple[Operands, float]:
    """Rows, weights and sizes, and the operations of a forward pass (two for each multiply-add)."""
    rng = np.random.default_rng(0)

    def uniform(*shape: int) -> jax.Array:
        return jnp.asarray(rng.uniform(-1, 1, shape), dtype)

    if name.startswith("lora_"):
        rows, d, groups = numbers(name)
        sizes = sizes_of(rows, groups, skew)
        pairs = [(uniform(d, rank), uniform(rank, d)) for rank in ranks(groups)]
        flops = 4.0 * d * sum(size * rank for size, rank in zip(sizes, ranks(groups), strict=True))
        return (uniform(rows, d), pairs, jnp.asarray(sizes, jnp.int32)), flops
    rows, groups, k, n = numbers(name)
    sizes = jnp.asarray(sizes_of(rows, groups, skew), jnp.int32)
    return (uniform(rows, k), uniform(groups, k, n), sizes), 2.0 * rows * k * n


def padded_ranks(pairs: Sequence[tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """All adapters' weights as two stacks, ranks padded to the largest one by zeros."""
    down, up = map(stacked, zip(*pairs, strict=True))
    return down, up


def vbgemm(rows: Any, weights: Any, sizes: Any) -> Any:
    if isinstance(weights, list):
        return adapted("benchmark", rows, *zip(*weights, strict=True), sizes)  # as the layer MultiLoRA
    return vb.ragged_dot(rows, weights, sizes)


def of_stacks(product: Product) -> Product:
    """Adapts a peer that takes weights of one shape only, to a stack or to the two stacks of adapters."""

    def of_any(rows: Any, weights: Any, sizes: Any) -> Any:
        for stack in weights if isinstance(weights, tuple) else (weights,):
            rows = product(rows, stack, sizes)
        return rows

    return of_any


def static_loop(known: np.ndarray) -> Product:
    """One dot for each group, in a program that knows the sizes at trace time."""
    bounds = np.concatenate([[0], np.cumsum(known)])

    def loop(rows: Any, weights: Any, sizes: Any) -> Any:
        parts = []
        for w, begin, end in zip(weights, bounds, bounds[1:], strict=False):
            x = rows[begin:end]
            parts.append(x @ w[0] @ w[1] if isinstance(weights, list) else x @ w)
        return jnp.concatenate(parts)

    return loop


def xla(rows: Any, weights: Any, sizes: Any) -> Any:
    return vb.ragged_dot(rows, weights, sizes, implementation="xla")


def tokamax(rows: Any, weights: Any, sizes: Any) -> Any:
    return importlib.import_module("tokamax").ragged_dot(rows, weights, sizes)


PADDED = ("vbgemm_padded", "xla", "lax_ragged_dot", "tokamax")  # they take adapters padded to the largest rank
PEERS = ("vbgemm", "static_loop", *PADDED)


def peer_named(peer: str, known: np.ndarray) -> Product:
    """The peer's product; ImportError where its package is not installed."""
    if peer == "tokamax":
        importlib.import_module("tokamax")
    if peer == "static_loop":
        return static_loop(known)
    if peer == "vbgemm":
        return vbgemm
    products = {"vbgemm_padded": vb.ragged_dot, "xla": xla, "lax_ragged_dot": jax.lax.ragged_dot, "tokamax": tokamax}
    return of_stacks(products[peer])


def directed(product: Product, direction: str) -> Callable[..., Any]:
    """The product, one of its gradients for a cotangent of ones, or the value with both gradients."""
    if direction == "forward":
        return product

    def pulled(rows: Any, weights: Any, sizes: Any) -> Any:
        argument = {"dgrad": 0, "wgrad": 1}.get(direction)
        of_one = [
            lambda rows: product(rows, weights, sizes),
            lambda weights: product(rows, weights, sizes),
        ]
        if argument is not None:
            result, pull = jax.vjp(of_one[argument], (rows, weights)[argument])
            return pull(jnp.ones_like(result))
        result, pull = jax.vjp(lambda rows, weights: product(rows, weights, sizes), rows, weights)
        return result, pull(result)

    return pulled


def compared(results: Any, weights: Any) -> list[np.ndarray]:
    """The results as float64 arrays; gradients of stacked adapters cut to their ranks."""

    def is_stacked(x: Any) -> bool:
        return isinstance(x, tuple) and all(isinstance(y, jax.Array) and y.ndim == 3 for y in x)

    def cut(x: Any) -> Any:
        pairs = zip(*x, weights, strict=True)
        return [(down[:, : a.shape[1]], up[: b.shape[0]]) for down, up, (a, b) in pairs]

    if isinstance(weights, list):
        results = jax.tree.map(lambda x: cut(x) if is_stacked(x) else x, results, is_leaf=is_stacked)
    return [np.asarray(x).astype(np.float64) for x in jax.tree.leaves(results)]


def measure(
    name: str, precision: str, skew: str, direction: str, peers: Sequence[str], rounds: int
) -> tuple[list[Row], list[str]]:
    """A row for each peer with the median over interleaved rounds; and the peers that are not installed or failed, with
    the reason."""
    dtype, matmul_precision = PRECISIONS[precision]
    operands, flops = operands_of(name, skew, dtype)
    flops *= 3 if direction == "forward_backward" else 1
    known = np.asarray(operands[2])
    iterations = int(min(200, max(1, 0.05 / (flops / (1e11 if jax.default_backend() == "cpu" else 1e14)))))
    programs, truth, errors, missing = {}, None, {}, []
    with jax.default_matmul_precision(matmul_precision):
        for peer in peers:
            try:
                function = directed(peer_named(peer, known), direction)
                given = operands
                if peer in PADDED and isinstance(operands[1], list):
                    given = (operands[0], padded_ranks(operands[1]), operands[2])
                program = looped(function, iterations).lower(*given).compile()
                leaves = compared(program(*given), operands[1])
                programs[peer] = program, given
            except (ImportError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
                missing.append(f"{peer}, {name} {direction}: {error}")
                continue
            truth = leaves if truth is None else truth
            errors[peer] = max(
                float(np.abs(x - t).max() / max(np.abs(t).max(), 1e-300)) for x, t in zip(leaves, truth, strict=True)
            )
        times: dict[str, list[float]] = {peer: [] for peer in programs}
        for _ in range(rounds):
            for peer, (program, given) in programs.items():
                times[peer].append(seconds_of(program, given) / iterations * 1e6)
    note = f"jitted loop on {jax.devices()[0].device_kind}, jax {jax.__version__}, {time.strftime('%Y-%m-%d')}"
    label = f"{name} {skew} {direction}"
    rows = [
        Row(
            peer, "ragged", label, precision, len(known), flops / 1e9, "hot", statistics.median(times[peer]), math.nan,
            errors[peer], math.nan, int(errors[peer] > (2e-2 if "16" in precision else 1e-3)), note,
        )
        for peer in programs
    ]  # fmt: skip
    return rows, missing
