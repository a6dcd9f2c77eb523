"""torch.matmul (cuBLAS) on single products, by the protocol of the peers' figures: CUDA graphs, operands from memory.

The peer of `bench.py kernel tall`; needs a GPU and torch, and JAX for the workloads' names alone.

    python benchmarks/torch_matmul.py tall "one_*" --precision fp32 --precision bf16 --csv torch.csv
"""

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import typer
from rich.progress import track

from jax_vbgemm._src.problem import Problem
from options import Precisions, Workloads
from workloads import Row, group_of, problems_named, write_csv

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
FOOTPRINT, SAMPLES = 208e6, 24  # bytes of all copies, as in gpu_driver; replays

Copy = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def copy_of(problem: Problem, dtype: torch.dtype) -> Copy:
    """Random operands, stored as the problem says, and room for the result."""
    a, b = (problem.m, problem.k), (problem.k, problem.n)
    stored = [a[::-1] if problem.transpose_a else a, b[::-1] if problem.transpose_b else b]
    x, y = (torch.rand(shape, device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(dtype) for shape in stored)
    x, y = x.T if problem.transpose_a else x, y.T if problem.transpose_b else y
    return x, y, torch.empty((problem.m, problem.n), device="cuda", dtype=dtype)


def graph_of(copies: Sequence[Copy]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for a, b, c in copies:
            torch.matmul(a, b, out=c)
    return graph


def microseconds(replays: Sequence[Callable[[], None]], calls: Sequence[int]) -> float:
    """The median over replays in turn, of a call."""
    for replay in replays:
        replay()
    torch.cuda.synchronize()
    count = max(SAMPLES, len(replays))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    replays[-1]()  # keeps the stream busy while the host enqueues the next replays
    events[0].record()
    for i in range(count):
        replays[i % len(replays)]()
        events[i + 1].record()
    torch.cuda.synchronize()
    laps = [1e3 * events[i].elapsed_time(events[i + 1]) / calls[i % len(calls)] for i in range(count)]
    return statistics.median(laps)


def measure(name: str, precision: str) -> Row:
    (problem,) = problems_named(name)
    dtype = DTYPES[precision]
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    one = (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n) * dtype.itemsize
    copies = [copy_of(problem, dtype) for _ in range(min(4096, math.ceil(FOOTPRINT / one)))]
    a, b, c = copies[0]
    torch.matmul(a, b, out=c)  # cuBLAS chooses its kernel here, outside of the graph
    exact = a.double() @ b.double()
    error = ((c.double() - exact).abs().max() / exact.abs().max()).item()
    del exact
    per_graph = len(copies) if len(copies) <= SAMPLES else math.ceil(len(copies) / SAMPLES)
    groups = [copies[i : i + per_graph] for i in range(0, len(copies), per_graph)]
    us = microseconds([graph_of(group).replay for group in groups], [len(group) for group in groups])
    gflop = 2e-9 * problem.m * problem.n * problem.k
    note = f"torch {torch.__version__} on {torch.cuda.get_device_name()}"
    nan = math.nan
    return Row("torch_matmul", group_of(name), name, precision, 1, gflop, "cold", us, nan, error, nan, 0, note)


def main(workloads: Workloads, precision: Precisions = ["fp32"], csv: Path = Path("torch.csv")) -> None:
    """Appends a row for each workload and precision."""
    for which in precision:
        for name in track(workloads, which):
            write_csv(csv, [measure(name, which)])


if __name__ == "__main__":
    typer.run(main)
