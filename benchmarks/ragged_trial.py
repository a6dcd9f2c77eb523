"""Checks and times the GPU kernels of ragged products, beside torch's grouped product and cuBLAS, without JAX.

    python benchmarks/ragged_trial.py check LIBRARY [--seed N] [--count N] [--seconds S] [--exact]
    python benchmarks/ragged_trial.py time LIBRARY [--filter TEXT] [--shapes automatic wide ...] [--peers] [--csv FILE]

LIBRARY is built from ragged_library.cu. Timing follows the protocol of the other figures: random data in [-1, 1], replays of CUDA graphs
over as many copies of the operands as exceed the level-2 cache four times, the median of the replays.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import math
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

KINDS = {
    torch.float32: 0,
    torch.float64: 1,
    torch.complex64: 2,
    torch.complex128: 3,
    torch.bfloat16: 4,
    torch.float16: 5,
}
KINDS_OF_FLOAT32 = {"tf32": 6, "tf32x3": 7}
SHAPES = [
    "automatic",
    "wide_pair",
    "wide",
    "narrow",
    "automatic_taken",
    "wide_pair_taken",
    "wide_taken",
    "narrow_taken",
]
ACTIVATIONS = ["none", "relu", "gelu", "silu", "tanh", "sigmoid"]
COLUMNS = "peer,group,workload,precision,nprob,gflop,cache,graph_us,stream_us,max_rel_err,cw_err,nbad,note".split(",")
WORKLOADS = Path(__file__).parent / "workloads"


class Library:
    def __init__(self, path):
        self.call = ctypes.CDLL(path).ragged_trial
        self.call.argtypes = [ctypes.c_int] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_void_p] * 8
        self.call.restype = ctypes.c_int

    def __call__(
        self,
        lhs,
        rhs,
        sizes,
        out,
        *,
        contraction=False,
        transpose_rhs=False,
        offset=None,
        bias=None,
        row_scale=None,
        activation="none",
        shape="automatic",
        kind=None,
    ):
        m, k = lhs.shape
        n = out.shape[-1]
        g = out.shape[0] if contraction else rhs.shape[0]
        pointers = [None if x is None else x.data_ptr() for x in (lhs, rhs, sizes, offset, bias, row_scale, out)]
        wide = out.dtype == torch.float32 and lhs.dtype in (torch.bfloat16, torch.float16)
        number = KINDS[lhs.dtype] if kind is None else KINDS_OF_FLOAT32[kind]
        error = self.call(
            number,
            wide,
            contraction,
            transpose_rhs,
            sizes.dtype == torch.int64,
            ACTIVATIONS.index(activation),
            SHAPES.index(shape),
            m,
            k,
            n,
            g,
            sizes.shape[0],
            *pointers,
            torch.cuda.current_stream().cuda_stream,
        )
        if error:
            raise RuntimeError(f"ragged_trial: CUDA error {error}")


def wide_type(dtype):
    return torch.complex128 if dtype.is_complex else torch.float64


def activate(name, x):
    functions = {
        "none": lambda x: x, "relu": torch.relu, "silu": torch.nn.functional.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
        "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }  # fmt: skip
    return functions[name](x)


def reference(lhs, rhs, sizes, out, contraction, transpose_rhs, offset, bias, row_scale, activation):
    """float64, and the product of absolute values, which scales the tolerance; group by group."""
    m = lhs.shape[0]
    wide = wide_type(lhs.dtype)
    result = torch.zeros(out.shape, dtype=wide, device=out.device)
    size = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    begin = 0
    for group, rows in enumerate(sizes.tolist()):
        end = min(begin + max(rows, 0), m)
        matrix = group - (0 if offset is None else int(offset))
        if 0 <= matrix < (out if contraction else rhs).shape[0] and end > begin:
            a = lhs[begin:end].to(wide)
            if contraction:
                b = rhs[begin:end].to(wide)
                result[matrix] = a.mT @ b
                size[matrix] = a.abs().mT @ b.abs()
            else:
                b = rhs[matrix].to(wide)
                b = b.mT if transpose_rhs else b
                x = a @ b
                size[begin:end] = a.abs() @ b.abs() + 1
                if bias is not None:
                    x = x + bias[matrix].to(wide)
                x = activate(activation, x)
                if row_scale is not None:
                    x = x * row_scale[begin:end, None].to(wide)
                    size[begin:end] *= row_scale[begin:end, None].abs().clamp(min=1)
                result[begin:end] = x
        begin = end
    return result, size


def random_sizes(rng, g, m):
    kind = rng.integers(7)
    if kind == 0:
        sizes = rng.multinomial(m, rng.dirichlet(np.full(g, 0.3)))
    elif kind == 1:
        sizes = rng.choice([0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257], g)
    elif kind == 2:
        sizes = np.zeros(g, int)
        sizes[rng.integers(g)] = m
    elif kind == 3:
        sizes = rng.integers(-5, max(2 * m // g, 2), g)
    elif kind == 4:
        sizes = np.full(g, m // g)
    elif kind == 5:
        sizes = rng.integers(0, 3, g) * rng.integers(0, 200, g)
    else:
        sizes = rng.integers(0, 2, g) * (2**31 - 1)  # far above m
    return sizes


def check(library, options):
    """Random calls against float64; memory around the result, and rows of other groups, must not change what is compared."""
    rng = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)
    begin, done, failed = time.time(), 0, 0
    while done < options.count and time.time() - begin < options.seconds:
        dtype = (
            [torch.bfloat16, torch.float16][rng.integers(2)] if options.dtype is None else getattr(torch, options.dtype)
        )
        step = 8 if options.dtype in (None, "bfloat16", "float16") and (options.aligned or rng.integers(8)) else 1
        high = 80 if rng.integers(2) else 20
        k, n = (int(rng.integers(1, high)) * step for _ in range(2))
        g = int(rng.choice([1, 2, 3, 8, 31, 32, 127, 129, 300]))
        m = int(rng.choice([1, 2, 63, 64, 128, 129, 500, 1000, 2000]))
        contraction, transpose = bool(rng.integers(2)), bool(rng.integers(2))
        transpose = transpose and not contraction
        num_sizes = g if rng.integers(2) else int(rng.integers(1, g + 3))
        sizes = torch.tensor(
            random_sizes(rng, num_sizes, m), dtype=[torch.int32, torch.int64][rng.integers(2)], device="cuda"
        )
        offset = None if rng.integers(2) else torch.tensor(int(rng.integers(-2, 4)), dtype=torch.int32, device="cuda")
        narrow = dtype in (torch.bfloat16, torch.float16)
        out_dtype = torch.float32 if narrow and rng.integers(3) == 0 else dtype
        accumulator = torch.float32 if narrow else dtype
        shape = SHAPES[rng.integers(len(SHAPES))]
        lhs = torch.randn(m, k, device="cuda", dtype=accumulator).to(dtype)
        rhs_shape = (m, n) if contraction else (g, n, k) if transpose else (g, k, n)
        rhs = torch.randn(rhs_shape, device="cuda", dtype=accumulator).to(dtype)
        extras = not contraction and not dtype.is_complex and rng.integers(3) == 0
        bias = torch.randn(g, n, device="cuda", dtype=accumulator).to(out_dtype) if extras and rng.integers(2) else None
        row_scale = torch.randn(m, device="cuda", dtype=accumulator) if extras and rng.integers(2) else None
        activation = ACTIVATIONS[rng.integers(6)] if extras else "none"
        out_shape = (g, k, n) if contraction else (m, n)
        margin = 0 if options.exact else 4096
        memory = torch.full((math.prod(out_shape) + 2 * margin,), float("nan"), device="cuda", dtype=out_dtype)
        out = memory[margin : margin + math.prod(out_shape)].view(out_shape)
        # Rows that belong to no group must not reach any result.
        total = min(int(sizes.clamp(min=0).to(torch.int64).sum()), m)
        lhs[total:] = float("nan")
        if contraction:
            rhs[total:] = float("nan")
        kwargs = dict(
            contraction=contraction,
            transpose_rhs=transpose,
            offset=offset,
            bias=bias,
            row_scale=row_scale,
            activation=activation,
        )
        library(lhs, rhs, sizes, out, shape=shape, **kwargs)
        torch.cuda.synchronize()
        expected, size = reference(lhs, rhs, sizes, out, **kwargs)
        epsilon = torch.finfo(dtype).eps if not narrow else 2e-6
        tolerance = (
            size * epsilon * 4
            + expected.abs() * torch.finfo(out_dtype).eps
            + torch.finfo(out_dtype).smallest_normal * torch.finfo(out_dtype).eps
        )
        wrong = ~((out.to(wide_type(dtype)) - expected).abs() <= tolerance)
        outside = not bool(
            torch.isnan(memory[:margin].abs()).all() & torch.isnan(memory[margin + out.numel() :].abs()).all()
        )
        again = torch.empty_like(out)
        library(lhs, rhs, sizes, again, shape=shape, **kwargs)
        same = torch.equal(
            torch.view_as_real(again) if dtype.is_complex else again,
            torch.view_as_real(out) if dtype.is_complex else out,
        )
        done += 1
        if wrong.any() or outside or not same:
            failed += 1
            where = torch.nonzero(wrong)[:3].tolist()
            print(f"FAILED m={m} k={k} n={n} g={g} {dtype} -> {out_dtype} {shape} wrong={int(wrong.sum())} of {wrong.numel()} at {where} "
                  f"outside={outside} same={same} sizes={sizes.dtype}{sizes.tolist()[:12]} extras={extras} {activation} "
                  f"bias={bias is not None} offset={offset} {kwargs['contraction']=} {transpose=}", flush=True)  # fmt: skip
            if failed >= options.failures:
                break
    print(f"checked {done} calls in {time.time() - begin:.0f} s: {failed} failed")
    return failed == 0


# name: rows, groups, K, N; sizes of the file, or skewed ones.
CASES = {
    "moe_e64_k1024_t4096": (4096, 64, 1024, 1024),
    "real_decode": (256, 128, 2048, 768),
    "real_qwen3": (32768, 128, 2048, 768),
    "real_olmoe": (32768, 64, 2048, 1024),
    "real_dsv3": (16384, 32, 7168, 2048),
    "real_mixtral": (8192, 8, 4096, 14336),
    "dense_8192": (8192, 1, 8192, 8192),
}


def sizes_of(name, m, g):
    file = WORKLOADS / f"{name}.txt"
    if file.exists():
        found = [int(line.split()[0]) for line in file.read_text().splitlines() if line.strip()]
        if len(found) == g and sum(found) == m:
            return found
        print(f"# {file.name} has {len(found)} groups, {sum(found)} rows", file=sys.stderr)
    weights = np.random.default_rng(0).uniform(0, 2, g)
    sizes = np.floor(weights / weights.sum() * m).astype(int)
    sizes[: m - sizes.sum()] += 1
    return sizes.tolist()


def graph_times(peers, samples=20):
    """Microseconds of a call of each peer, whose calls go over all copies once. Replays take turns, so that all find the card as warm."""
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
                graph.replay()  # after another peer's, so that none profits from what it finds in the caches
                events[0].record()
                graph.replay()
                events[1].record()
                laps[peer].append(events)
        torch.cuda.synchronize()
    return {peer: statistics.median(a.elapsed_time(b) for a, b in laps[peer]) * 1e3 / graphs[peer][1] for peer in peers}


def time_all(libraries, options):
    rows = []
    for name, (m, g, k, n) in CASES.items():
        if options.filter and not any(text in name for text in options.filter):
            continue
        sizes_host = sizes_of(name, m, g)
        sizes = torch.tensor(sizes_host, dtype=torch.int32, device="cuda")
        ends = sizes.cumsum(0).to(torch.int32)
        touched = sum(size > 0 for size in sizes_host)
        gflop = 2e-9 * m * k * n
        needed = {
            "fwd": 2 * (m * k + touched * k * n + m * n),
            "dgrad": 2 * (m * k + touched * k * n + m * n),
            "wgrad": 2 * (m * k + m * n + g * k * n),
        }
        per_copy = 2 * (m * k + m * n + g * k * n)
        copies = 1 if options.hot else max(1, math.ceil(208e6 / per_copy))

        def uniform(*shape):
            return torch.empty(shape, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)

        xs, ws, ys = (
            [uniform(m, k) for _ in range(copies)],
            [uniform(g, k, n) for _ in range(copies)],
            [uniform(m, n) for _ in range(copies)],
        )
        forms = {
            "fwd": [(x, w, torch.empty_like(y), {}) for x, w, y in zip(xs, ws, ys, strict=True)],
            "dgrad": [(y, w, torch.empty_like(x), {"transpose_rhs": True}) for x, w, y in zip(xs, ws, ys, strict=True)],
            "wgrad": [(x, y, torch.empty_like(w), {"contraction": True}) for x, w, y in zip(xs, ws, ys, strict=True)],
        }
        for what, calls in forms.items():
            if options.what and what not in options.what:
                continue
            peers = {}
            for label, library in libraries.items():
                for shape in options.shapes if label == "vbgemm" else options.shapes[:1]:
                    peer = label if shape == "automatic_taken" else f"{label}_{shape}"
                    peers[peer] = [
                        lambda c=c, s=shape, library=library: library(c[0], c[1], sizes, c[2], shape=s, **c[3])
                        for c in calls
                    ]
            if options.peers:
                weights = {"fwd": lambda c: c[1], "dgrad": lambda c: c[1].mT, "wgrad": lambda c: c[1]}[what]
                lhs = {"fwd": lambda c: c[0], "dgrad": lambda c: c[0], "wgrad": lambda c: c[0].mT}[what]
                # One product of the same work: all rows with the first matrix; where groups are summed, all rows into the first one.
                one = (lambda x: x) if what == "wgrad" else (lambda x: x[0])
                peers["torch_grouped_mm"] = [
                    lambda c=c: torch._grouped_mm(lhs(c), weights(c), offs=ends) for c in calls
                ]
                peers["cublas_dense"] = [
                    lambda c=c: torch.mm(lhs(c), one(weights(c)), out=c[2][0] if what == "wgrad" else c[2])
                    for c in calls
                ]
            found = graph_times(peers, options.samples)
            limit = needed[what] / 3.0e6
            for peer, us in found.items():
                print(f"{name:20} {what:6} {peer:24} {us:9.1f} us {gflop / us * 1e3:7.1f} TFLOP/s  bytes' limit {limit:7.1f} us "
                      f"{limit / us:5.2f}" + (f"  dense/ours {found['cublas_dense'] / us:5.2f}  torch/ours {found['torch_grouped_mm'] / us:5.2f}"
                                               if options.peers else ""), flush=True)  # fmt: skip
                note = f"{what}; sizes as data; {torch.cuda.get_device_name()}; replays of all peers take turns"
                if peer == "cublas_dense":
                    note = note.replace("sizes as data", "one dense product of the same work")
                cache = "hot" if options.hot else "cold"
                rows.append(
                    [
                        peer,
                        "ragged",
                        f"{name}_{what}",
                        "bf16",
                        g,
                        f"{gflop:.6g}",
                        cache,
                        f"{us:.4f}",
                        "nan",
                        "nan",
                        "nan",
                        "",
                        note,
                    ]
                )
        del xs, ws, ys, forms
        torch.cuda.empty_cache()
    if options.csv:
        new = not Path(options.csv).exists()
        with open(options.csv, "a", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows] if new else rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check", "time"])
    parser.add_argument("library")
    parser.add_argument("--more", nargs="*", default=[], metavar="LABEL=LIBRARY", help="other builds, timed beside it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--failures", type=int, default=5)
    parser.add_argument("--dtype")
    parser.add_argument("--aligned", action="store_true", help="only what the pipelined kernel computes")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--hot", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--filter", nargs="*")
    parser.add_argument("--what", nargs="*")
    parser.add_argument("--shapes", nargs="*", default=["automatic_taken"], choices=SHAPES)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    if options.command == "check":
        return 0 if check(Library(options.library), options) else 1
    libraries = {"vbgemm": Library(options.library)}
    libraries.update((label, Library(path)) for label, path in (text.split("=") for text in options.more))
    time_all(libraries, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
