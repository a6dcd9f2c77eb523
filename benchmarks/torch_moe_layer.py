"""The mixture-of-experts layer of moe_layer.py in torch: sort, gather, torch's grouped_mm, silu, gather and sum.

By CUDA graphs where there is a GPU. Results go to the same table; torch and JAX would share the GPU's memory badly in
one process, so this is one of its own.

    python benchmarks/torch_moe_layer.py olmoe qwen3_30b --tokens 4096 --csv moe_layer.csv
"""

import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from moe_layer import DIRECTIONS, MODELS, Row, host_operands, show
from options import commands, one_of
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


def seconds(run: Callable[[], Any], rounds: int) -> float:
    """The median over rounds: of replays of a graph, or of calls on the CPU."""
    for _ in range(3):
        run()
    if DEVICE == "cpu":
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # what autograd allocates has to be known before a capture
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(1e-3 * a.elapsed_time(b) for a, b in pairwise(events))


def measure(name: str, tokens: int, direction: str, rounds: int) -> Row:
    model = MODELS[name]
    arrays = host_operands(model, tokens, "uniform")
    operands = tuple(
        torch.from_numpy(array).to(DEVICE, torch.float32 if index == 1 else torch.bfloat16).requires_grad_()
        for index, array in enumerate(arrays)
    )
    flops = 6.0 * tokens * model.k * model.d * model.f
    if direction == "forward":
        with torch.no_grad():
            us = 1e6 * seconds(lambda: layer(model.k, *operands), rounds)
    else:
        flops *= 3
        us = 1e6 * seconds(with_gradients(model.k, operands), rounds)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    return Row(
        "torch_grouped_mm", name, tokens, "uniform", direction, "bf16", flops / 1e9, us, math.nan, math.nan, where,
        f"torch {torch.__version__}", time.strftime("%Y-%m-%d"),
    )  # fmt: skip


app = commands(__doc__)


@app.command()
def main(
    models: Annotated[list[str], typer.Argument(help=", ".join(MODELS), callback=one_of(MODELS))],
    tokens: Annotated[list[int], typer.Option(help="of a call", min=1)] = [32, 4096],
    rounds: int = 31,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    rows = [measure(m, t, d, rounds) for m in track(models, "models") for t in tokens for d in DIRECTIONS]
    if csv:
        write_csv(csv, rows)
    show(rows, ["torch_grouped_mm"])


if __name__ == "__main__":
    app()
