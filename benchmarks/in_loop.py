"""One variable-size batch inside one jitted loop: this package beside XLA's loop of dots, padding and ragged_dot.

All are timed in interleaved rounds; jax_vbgemm/_src/tools/timing.py describes how XLA is kept from dropping work.
"""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm._src.problem import Problem
from jax_vbgemm._src.tools.timing import looped, seconds_of
from workloads import PRECISIONS, Row, group_of, problems_named

Arrays = Sequence[jax.Array]
Flags = Sequence[bool]  # for each array, whether it is stored transposed


def turned(arrays: Arrays, transposed: Flags) -> Arrays:
    return [x.T if turn else x for x, turn in zip(arrays, transposed, strict=True)]


def vbgemm(As: Arrays, Bs: Arrays, *, transpose_a: Flags, transpose_b: Flags) -> Any:
    return vb.batched_matmul(As, Bs, transpose_a=transpose_a, transpose_b=transpose_b)


def xla_loop(As: Arrays, Bs: Arrays, *, transpose_a: Flags, transpose_b: Flags) -> Any:
    return list(map(jnp.matmul, turned(As, transpose_a), turned(Bs, transpose_b)))


def padded(As: Arrays, Bs: Arrays, *, transpose_a: Flags, transpose_b: Flags) -> Any:
    """One batched dot of operands padded to the largest one, as a user would write it; padding and slicing are timed
    too."""
    As, Bs = turned(As, transpose_a), turned(Bs, transpose_b)
    m, k = (max(a.shape[i] for a in As) for i in (0, 1))
    n = max(b.shape[1] for b in Bs)
    A = jnp.stack([jnp.pad(a, ((0, m - a.shape[0]), (0, k - a.shape[1]))) for a in As])
    B = jnp.stack([jnp.pad(b, ((0, k - b.shape[0]), (0, n - b.shape[1]))) for b in Bs])
    C = jnp.einsum("bmk,bkn->bmn", A, B)
    return [C[i, : a.shape[0], : b.shape[1]] for i, (a, b) in enumerate(zip(As, Bs, strict=True))]


def ragged_dot(A: jax.Array, B: jax.Array, group_sizes: jax.Array, *, transpose_a: Flags, transpose_b: Flags) -> Any:
    """jax.lax.ragged_dot on operands that are already concatenated, as its users have them."""
    if any((*transpose_a, *transpose_b)):
        raise ValueError("ragged_dot takes no transposed operands")
    return jax.lax.ragged_dot(A, B, group_sizes)


PEERS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (vbgemm, xla_loop, padded, ragged_dot)}


def operands_of(peer: str, As: Arrays, Bs: Arrays) -> tuple[Any, ...]:
    if peer != "ragged_dot":
        return As, Bs
    return jnp.concatenate(As), jnp.stack(Bs), jnp.asarray([a.shape[0] for a in As], jnp.int32)


def products_in(program: Any) -> tuple[int, int]:
    """The numbers of XLA's products and of this package's calls in an optimised program, to check that none is
    missing."""
    text = program.as_text()
    dots = re.findall(r' dot\(|custom_call_target="__(?:cublas|onednn)|gemm_fusion\w* = ', text)
    return len(dots), len(re.findall('custom_call_target="vbgemm', text))


def worst_error(Cs: Arrays, truth: Sequence[np.ndarray]) -> float:
    """max over the products of max |C - truth| / max |truth|."""
    errors = [
        float(np.abs(np.asarray(c).astype(t.dtype) - t).max() / max(np.abs(t).max(), 1e-300))
        for c, t in zip(Cs, truth, strict=True)
        if t.size
    ]
    return max(errors, default=0.0)


def random_operands(problems: Sequence[Problem], dtype: str) -> tuple[list[jax.Array], list[jax.Array]]:
    rng = np.random.default_rng(0)

    def uniform(*shape: int) -> jax.Array:
        x = rng.uniform(-1, 1, shape)
        return jnp.asarray(x + 1j * rng.uniform(-1, 1, shape) if dtype.startswith("complex") else x, dtype)

    As = [uniform(p.k, p.m) if p.transpose_a else uniform(p.m, p.k) for p in problems]
    return As, [uniform(p.n, p.k) if p.transpose_b else uniform(p.k, p.n) for p in problems]


def measure(name: str, precision: str, peers: Sequence[str], rounds: int) -> list[Row]:
    """A row for each peer: the median over the rounds of the time of one iteration, with operands in the caches.

    `note` has the number of products in the compiled loop, and the time of its compilation.
    """
    dtype, matmul_precision = PRECISIONS[precision]
    problems = problems_named(name)
    transposes = {flag: [getattr(p, flag) for p in problems] for flag in ("transpose_a", "transpose_b")}
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    flops = sum(2.0 * p.m * p.n * p.k for p in problems) * (4 if wide is np.complex128 else 1)
    # A call with hundreds of arrays costs the host up to two milliseconds, and each new page for its results a quarter
    # of a microsecond: the loop must be long enough to make this negligible. A core does 1e11 operations and moves 2e10
    # bytes a second.
    size = jnp.dtype(dtype).itemsize
    moved = sum(p.m * p.k + p.k * p.n + p.m * p.n for p in problems) * size
    seconds = max(flops / 1e11, moved / 2e10, 1e-3)
    iterations = 200 if jax.default_backend() == "gpu" else int(min(200, max(3, 0.25 / seconds)))
    with jax.enable_x64(True), jax.default_matmul_precision(matmul_precision):
        As, Bs = random_operands(problems, dtype)
        pairs = zip(*map(turned, (As, Bs), transposes.values()), strict=True)
        truth = [np.asarray(a).astype(wide) @ np.asarray(b).astype(wide) for a, b in pairs]
        programs, operands, errors, notes = {}, {}, {}, {}
        for peer in peers:
            operands[peer] = operands_of(peer, As, Bs)
            start = time.perf_counter()
            programs[peer] = looped(partial(PEERS[peer], **transposes), iterations).lower(*operands[peer]).compile()
            dots, calls = products_in(programs[peer])
            notes[peer] = f"{dots} dots, {calls} calls in the loop; compile {time.perf_counter() - start:.2f} s"
            Cs = programs[peer](*operands[peer])
            if peer == "ragged_dot":
                Cs = jnp.split(Cs, np.cumsum([a.shape[0] for a in As])[:-1])
            errors[peer] = worst_error(Cs, truth)
        times: dict[str, list[float]] = {peer: [] for peer in peers}
        for _ in range(rounds):
            for peer, program in programs.items():
                times[peer].append(seconds_of(program, operands[peer]) / iterations * 1e6)
    where, nan = f"jitted loop on {jax.devices()[0].device_kind}, jax {jax.__version__}", float("nan")
    return [
        Row(
            peer, group_of(name), name, precision, len(problems), flops / 1e9, "hot", statistics.median(times[peer]),
            nan, errors[peer], nan, 0, f"{where}: {notes[peer]}",
        )
        for peer in peers
    ]  # fmt: skip
