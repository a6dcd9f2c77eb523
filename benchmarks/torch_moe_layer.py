"""The mixture-of-experts layer of moe_layer.py in torch: sort, gather, torch's grouped_mm, silu, gather and sum.

It uses CUDA graphs where there is a GPU. Results go to the same table. It is a separate program, as torch and JAX would
compete for the GPU's memory in one process.

    python benchmarks/torch_moe_layer.py olmoe qwen3_30b --tokens 4096 --csv moe_layer.csv
"""

import math
import statistics
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from moe_layer import MODELS, PASSES, Row, host_operands, show, weight_shapes
from options import commands, one_of
from torch_matmul import SAMPLES, microseconds
from workloads import write_csv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Tensors = tuple[torch.Tensor, ...]


def layer(k: int, x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    tokens, experts = logits.shape
    top, chosen = logits.topk(k)
    probabilities = top.softmax(-1)
    order = chosen.reshape(-1).argsort(stable=True)
    ends = torch.zeros(experts, dtype=torch.int32, device=x.device)
    ends = ends.scatter_add(0, chosen.reshape(-1), torch.ones_like(order, dtype=torch.int32)).cumsum(0).int()
    grouped_mm: Any = torch.nn.functional.grouped_mm
    gate, up = grouped_mm(x[order // k], gate_up, offs=ends).chunk(2, -1)
    results = grouped_mm(torch.nn.functional.silu(gate) * up, down, offs=ends)
    of_choices = results[order.argsort()].view(tokens, k, -1)
    return (of_choices * probabilities[..., None].to(x.dtype)).sum(1)


def with_gradients(k: int, operands: Tensors) -> Callable[[], Any]:
    def run() -> Any:
        result = layer(k, *operands)
        return result, torch.autograd.grad(result, operands, result)

    return run


def microseconds_of(run: Callable[[], Any]) -> float:
    """The median over replays of a graph, or over calls on the CPU."""
    for _ in range(3):
        run()
    if DEVICE == "cpu":
        return statistics.median(timeit.repeat(run, number=1, repeat=SAMPLES)) * 1e6
    # a warm-up, as autograd must have allocated its memory before the capture
    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return microseconds([graph.replay], [1])


def temporary_mebibytes(run: Callable[[], Any]) -> float:
    """The peak of the memory that a call allocates beside its results."""
    if DEVICE == "cpu":
        return math.nan
    torch.cuda.reset_peak_memory_stats()
    results = run()  # held, so that they count as allocated below
    torch.cuda.synchronize()
    temporary = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del results
    return temporary / 2**20


def measure(name: str, tokens: int, direction: str) -> Row:
    model = MODELS[name]
    x, logits = (torch.from_numpy(array).to(DEVICE) for array in host_operands(model, tokens, "uniform"))
    weights = [torch.randn(shape, device=DEVICE).div_(math.sqrt(shape[1])).bfloat16() for shape in weight_shapes(model)]
    operands = tuple(operand.requires_grad_() for operand in (x.bfloat16(), logits, *weights))
    with torch.set_grad_enabled(direction == "forward_backward"):
        run = with_gradients(model.k, operands) if torch.is_grad_enabled() else partial(layer, model.k, *operands)
        us, mebibytes = microseconds_of(run), temporary_mebibytes(run)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    gflop = model.flops(tokens, direction) / 1e9
    return Row(
        "torch_grouped_mm", name, tokens, "uniform", direction, "bf16", gflop, us, mebibytes, math.nan, where,
        f"torch {torch.__version__}", time.strftime("%Y-%m-%d"),
    )  # fmt: skip


app = commands(__doc__)


@app.command()
def main(
    models: Annotated[list[str], typer.Argument(help=", ".join(MODELS), callback=one_of(MODELS))],
    tokens: Annotated[list[int], typer.Option(help="of a call", min=1)] = [32, 4096],
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    rows = []
    for case in track([(m, t, d) for m in models for t in tokens for d in PASSES], "layers"):
        rows.append(measure(*case))
        if csv:
            write_csv(csv, rows[-1:])
    show(rows, ["torch_grouped_mm"])


if __name__ == "__main__":
    app()
