"""Time of one ragged batch inside one jitted loop: this package beside XLA's loop of dots and a padded einsum.

All are timed in interleaved rounds. Every iteration's operands pass an optimisation barrier together with the loop's
counter, and its results are carried, so that nothing is hoisted or dropped and no kernel is added; `--hlo` counts the
products in the compiled program.
"""

import argparse
import csv
import re
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import jax_vbgemm as vb
from jax_vbgemm.shapes import read_problems

WORKLOADS = Path(__file__).parent / "workloads"
COLUMNS = (
    "peer group workload precision nprob gflop cache graph_us stream_us max_rel_err cw_err nbad note".split()  # noqa: SIM905
)


def uniform(low, high, batch):
    """M, N, K uniform integers in [low, high]: the protocol of the CPU peers."""
    sizes = np.random.default_rng(batch).integers(low, high + 1, (batch, 3))
    return [tuple(int(x) for x in row) for row in sizes]


def workload(name):
    """[16,128]x64: 64 uniform problems; any_mn128_k128_b64: the first 64 lines of a file; else a whole file."""
    if match := re.fullmatch(r"\[(\d+),(\d+)\]x(\d+)", name):
        return uniform(*map(int, match.groups()))
    stem, _, batch = name.partition("_b")
    exact = WORKLOADS / f"{name}.txt"
    problems = read_problems(exact if exact.exists() else WORKLOADS / f"{stem}.txt")
    return [(p.m, p.n, p.k) for p in (problems if exact.exists() else problems[: int(batch)])]


def ours(As, Bs):
    return vb.batched_matmul(As, Bs)


def xla_loop(As, Bs):
    return [jnp.matmul(a, b) for a, b in zip(As, Bs, strict=True)]


def padded(As, Bs):
    """One batched dot of operands padded to the largest, as a user would write it; padding and slicing count."""
    m, k = (max(a.shape[i] for a in As) for i in (0, 1))
    n = max(b.shape[1] for b in Bs)
    A = jnp.stack([jnp.pad(a, ((0, m - a.shape[0]), (0, k - a.shape[1]))) for a in As])
    B = jnp.stack([jnp.pad(b, ((0, k - b.shape[0]), (0, n - b.shape[1]))) for b in Bs])
    C = jnp.einsum("bmk,bkn->bmn", A, B)
    return [C[i, : a.shape[0], : b.shape[1]] for i, (a, b) in enumerate(zip(As, Bs, strict=True))]


PEERS = {"vbgemm": ours, "xla_loop": xla_loop, "padded": padded}


def looped(function, iterations):
    """function, that many times; the results of the last time are returned, or XLA would drop them all."""

    def run(As, Bs):
        def body(_, carry):
            count, _ = carry
            a, b, count = jax.lax.optimization_barrier((As, Bs, count))
            return count + 1, function(a, b)

        zeros = jax.tree.map(lambda c: jnp.zeros(c.shape, c.dtype), jax.eval_shape(function, As, Bs))
        return jax.lax.fori_loop(0, iterations, body, (jnp.int32(0), zeros))[1]

    return jax.jit(run)


def products_in_body(program):
    """Dots and custom calls in the optimised program; each must stand there as often as the batch needs it."""
    text = program.as_text()
    return len(re.findall(r" dot\(|__onednn|cublas|__cublas", text)), len(
        re.findall(r'custom_call_target="vbgemm', text)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "workloads", nargs="*", default=["[16,128]x8", "[16,128]x64", "[16,128]x256", "[16,256]x64", "[16,512]x64"]
    )
    parser.add_argument("--peers", nargs="*", default=["vbgemm", "xla_loop"], choices=PEERS)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--precision", default="highest", help="of float32 on a GPU")
    parser.add_argument("--planner", default="auto")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--hlo", action="store_true", help="print the products found in the compiled loop")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.dtype in ("float64", "complex128"))
    jax.config.update("jax_default_matmul_precision", options.precision)
    PEERS["vbgemm"] = lambda As, Bs: vb.batched_matmul(As, Bs, planner=options.planner)

    device = jax.devices()[0]
    console, table = (
        Console(),
        Table(
            title=f"{device.device_kind}, jax {jax.__version__}, {options.dtype}: us a batch, inside one jitted loop"
        ),
    )
    for column in (
        "workload",
        "problems",
        "GFLOP",
        *(f"{p} us" for p in options.peers),
        *(f"{p} GFLOP/s" for p in options.peers),
        "vs xla_loop",
        "error",
    ):
        table.add_column(column, justify="right")
    rows = []
    with Progress(console=console) as progress:
        for name in progress.track(options.workloads, description="workloads"):
            sizes = workload(name)
            rng = np.random.default_rng(0)
            As = [jnp.asarray(rng.uniform(-1, 1, (m, k)), options.dtype) for m, _, k in sizes]
            Bs = [jnp.asarray(rng.uniform(-1, 1, (k, n)), options.dtype) for _, n, k in sizes]
            flops = sum(2.0 * m * n * k for m, n, k in sizes)
            iterations = int(min(200, max(3, 2e9 / max(flops, 2e7))))
            programs, errors = {}, {}
            for peer in options.peers:
                Cs = jax.jit(PEERS[peer])(As, Bs)
                truth = [np.asarray(a, np.float64) @ np.asarray(b, np.float64) for a, b in zip(As, Bs, strict=True)]
                errors[peer] = max(
                    float(np.abs(np.asarray(c, np.float64) - t).max() / np.abs(t).max())
                    for c, t in zip(Cs, truth, strict=True)
                    if t.size
                )
                programs[peer] = looped(PEERS[peer], iterations).lower(As, Bs).compile()
                if options.hlo:
                    console.print(name, peer, "dots, calls in the loop:", products_in_body(programs[peer]))
                jax.block_until_ready(programs[peer](As, Bs))
            times = {peer: [] for peer in options.peers}
            for _ in range(options.rounds):
                for peer, program in programs.items():
                    start = time.perf_counter()
                    jax.block_until_ready(program(As, Bs))
                    times[peer].append((time.perf_counter() - start) / iterations * 1e6)
            us = {peer: statistics.median(samples) for peer, samples in times.items()}
            ratio = f"{us['xla_loop'] / us['vbgemm']:.2f}x" if {"vbgemm", "xla_loop"} <= us.keys() else "-"
            table.add_row(
                name, str(len(sizes)), f"{flops / 1e9:.3f}", *(f"{us[p]:.1f}" for p in options.peers),
                *(f"{flops / us[p] / 1e3:.0f}" for p in options.peers), ratio, f"{errors[options.peers[0]]:.0e}",
            )  # fmt: skip
            for peer in options.peers:
                note = f"jitted loop; {device.device_kind}; {options.dtype}"
                rows.append(
                    [
                        peer,
                        name.split("_")[0],
                        name,
                        options.precision,
                        len(sizes),
                        f"{flops / 1e9:.6g}",
                        "hot",
                        f"{us[peer]:.4f}",
                        "",
                        f"{errors[peer]:.3g}",
                        "",
                        0,
                        note,
                    ]
                )
    console.print(table)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
