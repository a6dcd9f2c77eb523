"""Times the GPU kernels of ragged products, beside torch's grouped product and a dense cuBLAS product of the same work.

    python benchmarks/ragged_time.py LIBRARY [--more LABEL=LIBRARY ...] [--filter TEXT ...] [--shapes NAME ...]
        [--samples N] [--csv FILE]

The protocol of the other figures: random data in [-1, 1], replays of CUDA graphs over as many copies of the operands as
exceed the level-2 cache four times, medians. Large products make the GPU lower its clock to keep its power limit, so
that a peer's time depends on what ran before it: replays of all peers are interleaved.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from functools import cache, partial
from pathlib import Path

import torch

from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from ragged_cases import CASES
from ragged_library import CHOICES, Library

COLUMNS = [
    "peer", "group", "workload", "precision", "nprob", "gflop", "cache", "graph_us", "stream_us", "max_rel_err",
    "cw_err", "nbad", "note",
]  # fmt: skip
PRECISIONS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}  # as other tables name them
WORKLOADS = Path(__file__).parent / "workloads"


def sizes_of(name, m, g):
    if g == 1:
        return [m]
    file = WORKLOADS / f"{name}.txt"
    found = [int(line.split()[0]) for line in file.read_text().splitlines() if line.strip()]
    if len(found) != g or sum(found) != m:
        raise ValueError(f"{file.name} has {len(found)} groups of {sum(found)} rows, not {g} of {m}")
    return found


def graph_times(peers, samples=20):
    """Microseconds of a call of each peer; a replay has one call for each copy."""
    graphs = {}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for peer, calls in peers.items():
            for call in calls:
                call()
            graph = torch.cuda.CUDAGraph()
            repeat = max(1, 4 // len(calls))
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(repeat):
                    for call in calls:
                        call()
            graph.replay()
            graphs[peer] = graph, repeat * len(calls)
        laps = {peer: [] for peer in peers}
        for _ in range(samples):
            for peer, (graph, _) in graphs.items():
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                graph.replay()  # after another peer's replay, so that no peer finds its operands in the caches
                events[0].record()
                graph.replay()
                events[1].record()
                laps[peer].append(events)
        torch.cuda.synchronize()
    return {peer: statistics.median(a.elapsed_time(b) for a, b in laps[peer]) * 1e3 / graphs[peer][1] for peer in peers}


def calls_of(m, g, k, n, touched, kind):
    """For each direction (lhs, rhs, out, options of the library) of every copy, and the bytes that it must move."""
    dtype = getattr(torch, ARITHMETICS[kind].lhs)
    size = dtype.itemsize
    copies = max(1, math.ceil(208e6 / (size * (m * k + m * n + g * k * n))))

    def uniform(*shape):
        return torch.empty(shape, device="cuda", dtype=torch.float32).uniform_(-1, 1).to(dtype)

    forms = {"fwd": [], "dgrad": [], "wgrad": []}
    for _ in range(copies):
        x, w, y = uniform(m, k), uniform(g, k, n), uniform(m, n)
        forms["fwd"].append((x, w, torch.empty_like(y), {}))
        forms["dgrad"].append((y, w, torch.empty_like(x), {"transpose_rhs": True}))
        forms["wgrad"].append((x, y, torch.empty_like(w), {"contraction": True}))
    rows, matrix = size * (m * k + m * n), size * k * n
    return forms, {"fwd": rows + touched * matrix, "dgrad": rows + touched * matrix, "wgrad": rows + g * matrix}


def ours(library, shape, kind, sizes, lhs, rhs, out, options):
    library(lhs, rhs, sizes, out, shape=shape, kind=kind, **options)


def gathered(library, kind, sizes, lhs, rhs, out, options):
    """As `ours`, with each row of lhs read by index from an eighth as many rows, as where tokens go to 8 experts."""
    library(lhs[: lhs.shape[0] // 8], rhs, sizes, out, gather=gathered_rows(lhs.shape[0]), kind=kind, **options)


@cache  # so that captured graphs have no kernel that makes it
def gathered_rows(rows):
    return torch.randperm(rows, device="cuda").to(torch.int32) % (rows // 8)


def torch_grouped(ends, lhs, rhs, out, options):
    if options.get("contraction"):
        return torch._grouped_mm(lhs.mT, rhs, offs=ends)
    return torch._grouped_mm(lhs, rhs.mT if options.get("transpose_rhs") else rhs, offs=ends)


def dense(lhs, rhs, out, options):
    """The dense product: all rows times the first matrix; for a contraction, all rows contribute to the first
    result."""
    if options.get("contraction"):
        return torch.mm(lhs.mT, rhs, out=out[0])
    return torch.mm(lhs, rhs[0].mT if options.get("transpose_rhs") else rhs[0], out=out)


def time_case(name, libraries, options):
    """Rows of the results' table."""
    m, g, k, n = CASES[name]
    sizes_host = sizes_of(name, m, g)
    sizes = torch.tensor(sizes_host, dtype=torch.int32, device="cuda")
    forms, needed = calls_of(m, g, k, n, sum(size > 0 for size in sizes_host), options.kind)
    peers = {"cublas_dense": dense}
    if options.kind == "bfloat16":  # the only type that torch's has
        peers["torch_grouped_mm"] = partial(torch_grouped, sizes.cumsum(0).to(torch.int32))
    for label, library in libraries.items():
        for shape in options.shapes:
            peer = label if shape == "automatic" else f"{label}_{shape}"
            peers[peer] = partial(ours, library, shape, options.kind, sizes)
    gflop, rows = 2e-9 * m * k * n, []
    for what, calls in forms.items():
        if options.gather and what != "wgrad":
            for label, library in libraries.items():
                peers[f"{label}_gathered"] = partial(gathered, library, options.kind, sizes)
        else:
            peers = {peer: call for peer, call in peers.items() if not peer.endswith("_gathered")}
        found = graph_times(
            {peer: [partial(call, *of_copy) for of_copy in calls] for peer, call in peers.items()}, options.samples
        )
        limit = needed[what] / 3.0e6  # us at the copy bandwidth
        for peer, us in found.items():
            others = [other for other in ("cublas_dense", "torch_grouped_mm") if other in found]
            ratios = ", ".join(f"{other} {found[other] / us:5.2f}" for other in others)
            rate = f"{gflop / us * 1e3:7.1f} TFLOP/s, bytes' limit {limit:7.1f} us"
            print(f"{name:20} {what:6} {peer:24} {us:9.1f} us {rate}; of its time: {ratios}", flush=True)
            work = "one dense product of the same work" if peer == "cublas_dense" else "sizes as data"
            note = f"{what}; {work}; {torch.cuda.get_device_name()}; replays of all peers take turns"
            precision = PRECISIONS.get(options.kind, options.kind)
            row = {
                "peer": peer, "group": "ragged", "workload": f"{name}_{what}", "precision": precision, "nprob": g,
                "gflop": f"{gflop:.6g}", "cache": "cold", "graph_us": f"{us:.4f}", "note": note,
            }  # fmt: skip
            rows.append([row.get(column, "") for column in COLUMNS])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--more", nargs="*", default=[], metavar="LABEL=LIBRARY", help="other builds, timed beside it")
    parser.add_argument("--filter", nargs="*", default=[""], help="parts of cases' names")
    parser.add_argument("--shapes", nargs="*", default=["automatic"], help=f"{', '.join(CHOICES)}, 'tile NAME/THREADS'")
    parser.add_argument("--kind", default="bfloat16", choices=KINDS)
    parser.add_argument("--gather", action="store_true", help="also with rows that are read by index")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.kind == "tf32"
    libraries = {"vbgemm": Library(options.library)}
    libraries.update((label, Library(path)) for label, path in (text.split("=") for text in options.more))
    rows = []
    for name in CASES:
        if any(text in name for text in options.filter):
            rows += time_case(name, libraries, options)
            torch.cuda.empty_cache()
    if options.csv:
        new = not Path(options.csv).exists()
        with open(options.csv, "a", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows] if new else rows)


if __name__ == "__main__":
    main()
