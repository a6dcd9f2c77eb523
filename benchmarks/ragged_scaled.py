"""Times the GPU kernel of ragged products of 8-bit floats with scales, beside bfloat16 and torch's 8-bit products.

    python benchmarks/ragged_scaled.py LIBRARY [--csv FILE]

The library is that of ragged_time.py. Scales are of 128 values of a row and of 128 x 128 weights; torch's grouped
product has a scale for each row and column, its dense one a single scale. Random data, peers in turns, medians.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from functools import partial

import torch

from ragged_library import Library

FLOAT8, SKEW = torch.float8_e4m3fn, 30.0
CASES = [  # rows, groups, K, N, whether groups differ in size
    (32768, 4, 7168, 4096, False), (32768, 4, 2048, 7168, False), (32768, 8, 3072, 7168, False),
    (32768, 128, 2048, 1536, True), (32768, 128, 768, 2048, True), (131072, 64, 2048, 2048, True),
    (8192, 1, 8192, 8192, False), (256, 128, 2048, 768, True),
]  # fmt: skip


def quantized_rows(x):
    blocks = x.float().view(len(x), -1, 128)
    scales = blocks.abs().amax(-1).clamp(min=1e-12) / 448
    return (blocks / scales[..., None]).to(FLOAT8).view(x.shape), scales.contiguous()


def quantized_weights(w):
    g, n, k = w.shape
    blocks = w.float().view(g, n // 128, 128, k // 128, 128)
    scales = blocks.abs().amax((2, 4)).clamp(min=1e-12) / 448
    return (blocks / scales[:, :, None, :, None]).to(FLOAT8).view(w.shape), scales.contiguous()


def sizes_of(rows, groups, skewed):
    if not skewed:
        return torch.full((groups,), rows // groups, dtype=torch.int32, device="cuda")
    shares = torch.distributions.Dirichlet(torch.full((groups,), SKEW)).sample()
    return torch.multinomial(shares, rows, True).bincount(minlength=groups).to(torch.int32).to("cuda")


def times(peers, calls=6, rounds=7):
    """Microseconds of a call of each peer, in turns."""
    taken = {name: [] for name in peers}
    for call in peers.values():
        call()
    for _ in range(rounds):
        for name, call in peers.items():
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            taken[name].append(begin.elapsed_time(end) / calls * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def peers_of(library, rows, groups, k, n, skewed):
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
    sizes = sizes_of(rows, groups, skewed)
    (x8, x_scale), (w8, w_scale) = quantized_rows(x), quantized_weights(w)
    out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
    scales = {"lhs_scale": x_scale, "rhs_scale": w_scale}
    ours = partial(library, x8, w8, sizes, out, transpose_rhs=True, kind="float8_e4m3fn", **scales)
    peers = {
        **{f"8 bits, {shape}": partial(ours, shape=shape) for shape in ("wide", "wide_taken", "narrow")},
        "bfloat16": partial(library, x, w, sizes, out, transpose_rhs=True),
    }
    one = torch.ones((), device="cuda")
    if groups == 1:
        return peers | {"torch, one scale": lambda: torch._scaled_mm(x8, w8[0].t(), one, one, out_dtype=torch.bfloat16)}
    ends = torch.cumsum(sizes, 0).to(torch.int32)
    of_rows, of_columns = x_scale.amax(-1).contiguous(), torch.ones(groups, n, device="cuda")
    return peers | {
        "torch, grouped": lambda: torch._scaled_grouped_mm(
            x8, w8.transpose(-2, -1), of_rows, of_columns, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.manual_seed(0)
    library, lines = Library(options.library), []
    for rows, groups, k, n, skewed in CASES:
        for peer, us in times(peers_of(library, rows, groups, k, n, skewed)).items():
            lines.append((rows, groups, k, n, peer, round(us, 1), round(2e-6 * rows * k * n / us)))
            print(*lines[-1], flush=True)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            csv.writer(file).writerows([("rows", "groups", "k", "n", "peer", "us", "tflops"), *lines])


if __name__ == "__main__":
    main()
