"""Checks the GPU kernels of ragged products: random calls against float64.

    python benchmarks/ragged_check.py LIBRARY [--seed N] [--seconds S] [--kinds NAME ...] [--pipelined] [--exact]

Shapes, sizes (empty groups, negative ones, ones around a tile's, sums below and far above the rows), arithmetics,
tiles, epilogues and windows of groups are random. Rows without a group hold NaN, and the memory around the result is
checked. Every call runs twice and must give the same bits.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import numpy as np
import torch

from jax_vbgemm._src.epilogue import ACTIVATIONS
from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.ragged.plan import Product, has_pipeline
from ragged_library import H100, PIPELINED, Library, product_of, tiles_of

KINDS = [name for name, one in ARITHMETICS.items() if one.bytes > 1]


LAYOUTS = [(False, False), (False, True), (True, False)]  # contraction, transpose_rhs


def pipelined_layouts(kind):
    return [layout for layout in LAYOUTS if has_pipeline(kind, H100, Product(*layout, False, 0, 0, 0, 0, 0, 0))]


def wide_type(dtype):
    return torch.complex128 if dtype.is_complex else torch.float64


def activate(name, x):
    functions = {
        None: lambda x: x, "relu": torch.relu, "silu": torch.nn.functional.silu, "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    }  # fmt: skip
    return functions[name](x)


def reference(
    lhs, rhs, sizes, out, start, *, contraction, transpose_rhs, gated, offset, bias, row_scale, gather, activation
):  # fmt: skip
    """The result in float64, group by group, and the product of absolute values, which scales the tolerance."""
    if gather is not None:
        lhs = lhs[gather.long().clamp(0, lhs.shape[0] - 1)]
    m = lhs.shape[0]
    wide = wide_type(lhs.dtype)
    result = torch.zeros(out.shape, dtype=wide, device=out.device)
    size = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    if start is not None:
        result, size = start.to(wide), start.to(wide).abs()
    begin = 0
    for group, rows in enumerate(sizes.tolist()):
        end = min(begin + max(rows, 0), m)
        matrix = group - (0 if offset is None else int(offset))
        if 0 <= matrix < (out if contraction else rhs).shape[0] and end > begin:
            a = lhs[begin:end].to(wide)
            if contraction:
                b = rhs[begin:end].to(wide)
                result[matrix] += a.mT @ b
                size[matrix] += a.abs().mT @ b.abs()
            else:
                b = rhs[matrix].to(wide)
                b = b.mT if transpose_rhs else b
                x = a @ b
                error = a.abs() @ b.abs() + 1
                if bias is not None:
                    x = x + bias[matrix].to(wide)
                if gated:
                    x, up = x.chunk(2, dim=-1)
                    of_gate, of_up = error.chunk(2, dim=-1)
                    value = activate(activation, x)
                    error, x = of_gate * up.abs() + of_up * value.abs(), value * up
                else:
                    x = activate(activation, x)
                size[begin:end] = error
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


class Case:
    """A random call: its operands, and a result inside a larger array of NaN."""

    def __init__(self, rng, options):
        self.kind = options.kinds[rng.integers(len(options.kinds))]
        dtype = getattr(torch, ARITHMETICS[self.kind].lhs)
        narrow = dtype in (torch.bfloat16, torch.float16)
        compiled = pipelined_layouts(self.kind)
        layouts = compiled if options.pipelined else LAYOUTS
        contraction, transpose = layouts[rng.integers(len(layouts))]
        in_layout = (contraction, transpose) in compiled
        step = 16 // ARITHMETICS[self.kind].bytes if in_layout and (options.pipelined or rng.integers(3)) else 1
        high = 80 if rng.integers(2) else 20
        k, n = (int(rng.integers(1, high)) * step for _ in range(2))
        g = int(rng.choice([1, 2, 3, 8, 31, 32, 127, 129, 300]))
        m = int(rng.choice([1, 2, 63, 64, 128, 129, 500, 1000, 2000]))
        num_sizes = g if rng.integers(2) else int(rng.integers(1, g + 3))
        size_type = [torch.int32, torch.int64][rng.integers(2)]
        accumulator = torch.float32 if narrow else dtype

        def normal(shape, dtype):
            return torch.randn(shape, device="cuda", dtype=accumulator).to(dtype)

        self.sizes = torch.tensor(random_sizes(rng, num_sizes, m), dtype=size_type, device="cuda")
        in_pipeline = step > 1 and (options.pipelined or bool(rng.integers(2)))
        gathers = in_pipeline and narrow and not contraction and rng.integers(3) == 0
        lhs_rows = int(rng.integers(1, 2 * m + 1)) if gathers else m
        gather = (
            torch.tensor(rng.integers(-3, lhs_rows + 3, m), dtype=torch.int32, device="cuda") if lhs_rows != m else None
        )
        self.lhs = normal((lhs_rows, k), dtype)
        gated = in_pipeline and not contraction and bool(rng.integers(3) == 0)
        columns = 2 * n if gated else n
        self.rhs = normal((m, n) if contraction else (g, columns, k) if transpose else (g, k, columns), dtype)
        total = min(int(self.sizes.clamp(min=0).to(torch.int64).sum()), m)
        if gather is None:
            self.lhs[total:] = float("nan")
        if contraction:
            self.rhs[total:] = float("nan")
        out_dtype = torch.float32 if narrow and rng.integers(3) == 0 else dtype
        finishes = gated or (not contraction and not dtype.is_complex and rng.integers(3) == 0)
        self.options = {
            "contraction": contraction,
            "transpose_rhs": transpose,
            "gated": gated,
            "offset": torch.tensor(int(rng.integers(-2, 4)), dtype=torch.int32, device="cuda")
            if rng.integers(2)
            else None,
            "bias": normal((g, columns), out_dtype) if finishes and rng.integers(2) else None,
            "row_scale": normal((m,), accumulator) if in_pipeline and finishes and rng.integers(2) else None,
            "gather": gather,
            "activation": (None, *ACTIVATIONS)[rng.integers(1 + len(ACTIVATIONS))] if finishes else None,
        }
        product = product_of(m, k, self.rhs, g, self.sizes, contraction, transpose, gated)
        choices = ["automatic", *PIPELINED] if in_pipeline else ["tiles", *tiles_of(self.kind, product)]
        self.shape = choices[rng.integers(len(choices))]
        out_shape = (g, k, n) if contraction else (m, n)
        self.margin = 0 if options.exact else 4096
        size = math.prod(out_shape)
        self.start = None
        if in_pipeline and contraction and out_dtype == torch.float32 and self.shape in ("automatic", *PIPELINED):
            self.start = normal(out_shape, torch.float32) if rng.integers(2) else None
        self.memory = torch.full((size + 2 * self.margin,), float("nan"), device="cuda", dtype=out_dtype)
        self.out = self.memory[self.margin : self.margin + size].view(out_shape)

    def compute(self, library, out):
        if self.start is not None:
            out.copy_(self.start)
        library(
            self.lhs, self.rhs, self.sizes, out, accumulates=self.start is not None, shape=self.shape, kind=self.kind,
            **self.options,
        )  # fmt: skip

    def run(self, library):
        """Runs the case; a description of the error, or None."""
        self.compute(library, self.out)
        torch.cuda.synchronize()
        expected, size = reference(self.lhs, self.rhs, self.sizes, self.out, self.start, **self.options)
        narrow = self.lhs.dtype.itemsize == 2
        # Three products in TF32 have 21 bits of each factor's fraction.
        of_kind = {"tf32": 2.0**-9, "tf32x3": 2.0**-18}
        sums = of_kind.get(self.kind, torch.finfo(torch.float32 if narrow else self.lhs.dtype).eps * 16)
        rounding = torch.finfo(self.out.dtype)
        tolerance = size * sums + expected.abs() * rounding.eps + rounding.smallest_normal * rounding.eps
        wrong = ~((self.out.to(expected.dtype) - expected).abs() <= tolerance)
        if wrong.any():
            return f"{int(wrong.sum())} of {wrong.numel()} elements, at {torch.nonzero(wrong)[:3].tolist()}"
        around = torch.cat([self.memory[: self.margin], self.memory[self.margin + self.out.numel() :]])
        if not torch.isnan(around.abs()).all():
            return "memory around the result"
        again = torch.empty_like(self.out)
        self.compute(library, again)
        if not torch.equal(again, self.out):
            return "other bits in a second run"
        return None

    def __str__(self):
        given = {name: value for name, value in self.options.items() if name not in ("bias", "row_scale", "gather")}
        given["accumulates"] = self.start is not None
        given |= {name: self.options[name] is not None for name in ("bias", "row_scale", "gather")}
        return (
            f"lhs {tuple(self.lhs.shape)} rhs {tuple(self.rhs.shape)} {self.kind} -> {self.out.dtype}, "
            f"{self.shape}, {given}, sizes {self.sizes.dtype} {self.sizes.tolist()[:12]}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--pipelined", action="store_true", help="only by the pipelined kernel, in its layouts")
    parser.add_argument("--exact", action="store_true", help="no margins around results, for memcheck")
    options = parser.parse_args()
    if options.pipelined:
        options.kinds = [kind for kind in options.kinds if pipelined_layouts(kind)]
    library = Library(options.library)
    rng = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)
    begin, done, failed = time.time(), 0, 0
    while done < options.count and time.time() - begin < options.seconds and failed < 5:
        case = Case(rng, options)
        wrong = case.run(library)
        done += 1
        if wrong:
            failed += 1
            print(f"FAILED: {wrong}: {case}", flush=True)
    print(f"checked {done} calls in {time.time() - begin:.0f} s: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
