"""A mixture-of-experts layer, from router logits to its result, in this package and with other products.

A layer is routing by the k largest logits, rows sorted by expert, two products with gate and up, silu(gate) * up, the
product with down, and the sum of each token's choices by probability. Peers:

\b
  vbgemm           vb.moe.route and vb.moe.expert_mlp
  lax_ragged_dot   argsort, gather, three jax.lax.ragged_dot, gather and einsum, as MaxText's layer does
  tokamax          the same with tokamax.ragged_dot
  dense            no layer, but dense products of as many rows with one expert. The difference to it is the cost of
                   routing, moving rows and uneven groups
  vbgemm_then_add  of micro_batches (gradients summed in float32 over four calls): the sums are additions after the
                   kernel, where vbgemm adds in it

Each is timed inside one jitted loop, in interleaved rounds; `temp_mib` is the compiled program's temporary memory.

    python benchmarks/moe_layer.py olmoe qwen3_30b mixtral deepseek_v3 --tokens 32 --tokens 4096 --csv moe_layer.csv
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import dynamic
import jax_vbgemm as vb
from jax_vbgemm._src.tools.timing import looped, seconds_of
from options import Precisions, commands, one_of
from workloads import PRECISIONS, write_csv


class Model(NamedTuple):
    """The widths of the model and of an expert, the number of experts, and the choices of a token."""

    d: int
    f: int
    experts: int
    k: int

    def flops(self, tokens: int, direction: str) -> float:
        """The operations of the three products (two for each multiply-add); a backward pass has twice those of a
        forward pass."""
        passes = {"forward": 1, "forward_backward": 3, "micro_batches": 3 * MICRO_BATCHES}
        return 6.0 * tokens * self.k * self.d * self.f * passes[direction]


MODELS = {
    "granite": Model(1536, 512, 40, 8),
    "olmoe": Model(2048, 1024, 64, 8),
    "qwen3_30b": Model(2048, 768, 128, 8),
    "gpt_oss": Model(2880, 2880, 128, 4),
    "mixtral": Model(4096, 14336, 8, 2),
    "deepseek_v3": Model(7168, 2048, 32, 8),  # an eighth of its 256 experts
    "tiny": Model(256, 128, 8, 2),  # for a few cores
}
PASSES = ("forward", "forward_backward")
DIRECTIONS = (*PASSES, "micro_batches")
MICRO_BATCHES = 4
ENOUGH_SECONDS = 2.0  # of samples of a peer
SKEWS = ("uniform", "skewed")


@dataclass
class Row:
    """A line of the CSV."""

    peer: str
    model: str
    tokens: int
    skew: str
    direction: str
    precision: str
    gflop: float
    us: float
    temp_mib: float
    error: float
    device: str
    jax: str
    date: str


def host_operands(model: Model, tokens: int, skew: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and logits. Skewed: an expert's part of the tokens falls as 1 / (index + 1)."""
    rng = np.random.default_rng(0)
    logits = rng.gumbel(size=(tokens, model.experts)).astype(np.float32)
    if skew == "skewed":
        logits -= np.log(np.arange(1, model.experts + 1, dtype=np.float32))
    return rng.standard_normal((tokens, model.d), np.float32), logits


def weight_shapes(model: Model) -> tuple[tuple[int, int, int], ...]:
    """Gate and up side by side, and down."""
    return (model.experts, model.d, 2 * model.f), (model.experts, model.f, model.d)


@lru_cache(maxsize=1)
def _weights(model: Model, dtype: str) -> tuple[jax.Array, ...]:
    """Made on the device: for gpt-oss the host would take half a minute."""

    def normal(seed: int, shape: tuple[int, int, int]) -> jax.Array:
        return (jax.random.normal(jax.random.key(seed), shape) / math.sqrt(shape[1])).astype(dtype)

    return jax.jit(lambda: tuple(normal(seed, shape) for seed, shape in enumerate(weight_shapes(model))))()


def operands_of(model: Model, tokens: int, skew: str, dtype: str) -> tuple[jax.Array, ...]:
    x, logits = host_operands(model, tokens, skew)
    return jnp.asarray(x, dtype), jnp.asarray(logits), *_weights(model, dtype)


def vbgemm(k: int, x: Any, logits: Any, gate_up: Any, down: Any, gradients: Any = None) -> jax.Array:
    return vb.moe.expert_mlp(x, gate_up, down, vb.moe.route(logits, k), gradients=gradients)


def of_parts(ragged_dot: Callable[..., Any], k: int, x: Any, logits: Any, gate_up: Any, down: Any) -> jax.Array:
    """The layer as users write it around a ragged product."""
    tokens, experts = logits.shape
    top, chosen = jax.lax.top_k(logits, k)
    probabilities = jax.nn.softmax(top)
    chosen = chosen.reshape(-1)
    order = jnp.argsort(chosen)
    sizes = jnp.bincount(chosen, length=experts).astype(jnp.int32)
    rows = x[order // k]
    gate, up = jnp.split(gate_up, 2, axis=-1)
    hidden = jax.nn.silu(ragged_dot(rows, gate, sizes)) * ragged_dot(rows, up, sizes)
    results = ragged_dot(hidden, down, sizes)
    of_choices = results[jnp.argsort(order)].reshape(tokens, k, -1)
    return jnp.einsum("tkn,tk->tn", of_choices, probabilities.astype(x.dtype))


def dense(k: int, x: Any, logits: Any, gate_up: Any, down: Any) -> jax.Array:
    """The layer's three products for one expert that has all rows."""
    rows = jnp.concatenate([x] * k)
    gate, up = jnp.split(rows @ gate_up[0], 2, axis=-1)
    return ((gate + up) @ down[0])[: x.shape[0]]


LAYERS = ("vbgemm", "lax_ragged_dot", "tokamax", "dense")
PEERS = (*LAYERS, "vbgemm_then_add")


def layer_of(peer: str, k: int) -> Callable[..., jax.Array]:
    """The peer's layer; ImportError where its package is not installed."""
    own = {"vbgemm": vbgemm, "vbgemm_then_add": vbgemm, "dense": dense}
    if peer in own:
        return partial(own[peer], k)
    return partial(of_parts, dynamic.peer_named(peer, np.zeros(0)), k)


def with_gradients(layer: Callable[..., jax.Array]) -> Callable[..., Any]:
    def both(*operands: Any) -> Any:
        result, pull = jax.vjp(layer, *operands)
        return result, pull(result)

    return both


def over_micro_batches(layer: Callable[..., jax.Array], in_kernel: bool) -> Callable[..., Any]:
    """The weights' gradients of several micro-batches, summed in float32: in the kernel, or by additions after it."""

    def both(x: Any, logits: Any, *weights: Any) -> Any:
        sums = tuple(jax.new_ref(jnp.zeros(w.shape, jnp.float32)) for w in weights)

        def step(carry: None, batch: Any) -> Any:
            x, logits = batch
            if in_kernel:
                result, pull = jax.vjp(lambda x: layer(x, logits, *weights, gradients=sums), x)
                return carry, pull(result)[0]
            result, pull = jax.vjp(lambda x, weights: layer(x, logits, *weights), x, weights)
            d_x, found = pull(result)
            for total, one in zip(sums, found, strict=True):
                total[...] += one.astype(total.dtype)
            return carry, d_x

        _, d_x = jax.lax.scan(step, None, tuple(jnp.stack([one] * MICRO_BATCHES) for one in (x, logits)))
        return tuple(map(jax.freeze, sums)), d_x

    return both


def measure(
    name: str, tokens: int, skew: str, direction: str, precision: str, peers: list[str], rounds: int,
    with_memory: bool = True,
) -> tuple[list[Row], list[str]]:  # fmt: skip
    """A row for each peer; and the peers that are not installed or failed, with the reason. A slow peer has fewer
    rounds. The memory is that of a program that has to be compiled for it."""
    model = MODELS[name]
    dtype, matmul_precision = PRECISIONS[precision]
    operands = operands_of(model, tokens, skew, dtype)
    flops = model.flops(tokens, direction)
    iterations = int(min(200, max(1, 0.05 / (flops / (5e10 if jax.default_backend() == "cpu" else 2e14)))))
    programs, memory, errors, missing = {}, {}, {}, []
    truth: Any = None
    with jax.default_matmul_precision(matmul_precision):
        for peer in peers:
            try:
                layer = layer_of(peer, model.k)
                function = {
                    "forward": layer,
                    "forward_backward": with_gradients(layer),
                    "micro_batches": over_micro_batches(layer, peer == "vbgemm"),
                }[direction]
                programs[peer] = looped(function, iterations).lower(*operands).compile()
                leaves = jax.tree.leaves(programs[peer](*operands))
                # The memory of one layer outside of the loop, whose program also carries the results.
                memory[peer] = temporary_mebibytes(function, operands) if with_memory else math.nan
            except (ImportError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
                programs.pop(peer, None)
                missing.append(f"{peer}, {name} {tokens} {direction}: {str(error).splitlines()[0]}")
                continue
            if peer == "dense":
                errors[peer] = math.nan
                continue
            truth = leaves if truth is None else truth
            errors[peer] = max(map(_error, leaves, truth))
        truth = leaves = None  # the gradients are as large as the weights
        times: dict[str, list[float]] = {peer: [] for peer in programs}
        for _ in range(rounds):
            for peer, program in programs.items():
                if sum(times[peer]) * iterations < ENOUGH_SECONDS * 1e6:
                    times[peer].append(seconds_of(program, operands) / iterations * 1e6)
    where = jax.devices()[0].device_kind, jax.__version__, time.strftime("%Y-%m-%d")
    rows = [
        Row(
            peer, name, tokens, skew, direction, precision, flops / 1e9, statistics.median(times[peer]), memory[peer],
            errors[peer], *where,
        )
        for peer in programs
    ]  # fmt: skip
    return rows, missing


def temporary_mebibytes(function: Callable[..., Any], operands: tuple[jax.Array, ...]) -> float:
    compiled = jax.jit(function).lower(*operands).compile()
    return float(compiled.memory_analysis().temp_size_in_bytes / 2**20)


def _error(value: jax.Array, truth: jax.Array) -> float:
    """The largest difference divided by the largest absolute value."""
    value, truth = value.astype(jnp.float32), truth.astype(jnp.float32)
    return float(jnp.abs(value - truth).max() / jnp.maximum(jnp.abs(truth).max(), 1e-30))


def show(rows: list[Row], peers: list[str]) -> None:
    table = Table(title="us a layer (MiB of temporary memory)")
    for column in ("model", "tokens", "skew", "direction", "precision", "GFLOP", *peers, "error"):
        table.add_column(column, justify="right")
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(astuple(row)[1:7], {})[row.peer] = row
    for key, line in lines.items():
        cells = [f"{line[peer].us:.0f} ({line[peer].temp_mib:.0f})" if peer in line else "-" for peer in peers]
        errors = [row.error for row in line.values() if not math.isnan(row.error)]
        table.add_row(*map(str, key[:5]), f"{key[5]:.1f}", *cells, f"{max(errors, default=math.nan):.0e}")
    Console().print(table)


app = commands(__doc__)


@app.command()
def main(
    models: Annotated[list[str], typer.Argument(help=", ".join(MODELS), callback=one_of(MODELS))],
    tokens: Annotated[list[int], typer.Option(help="of a call", min=1)] = [32, 4096],
    peers: Annotated[list[str], typer.Option("--peer", help=", ".join(PEERS), callback=one_of(PEERS))] = list(LAYERS),
    direction: Annotated[list[str], typer.Option(help=", ".join(DIRECTIONS), callback=one_of(DIRECTIONS))] = list(
        PASSES
    ),
    skew: Annotated[list[str], typer.Option(help=", ".join(SKEWS), callback=one_of(SKEWS))] = ["uniform"],
    precision: Precisions = ["bf16"],
    rounds: int = 11,
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    work = [(m, t, s, d, p) for p in precision for m in models for t in tokens for s in skew for d in direction]
    rows: list[Row] = []
    missing: list[str] = []
    for case in track(work, "layers", console=Console(stderr=True)):
        found, absent = measure(*case, peers, rounds)
        rows += found
        missing += absent
        if csv:
            write_csv(csv, found)
    show(rows, peers)
    for line in dict.fromkeys(missing):
        print(line)


if __name__ == "__main__":
    app()
