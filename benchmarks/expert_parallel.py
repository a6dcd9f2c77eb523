"""A mixture-of-experts layer whose experts are divided among devices, and the same layer on one device.

\b
  one_device       vb.moe.expert_mlp with all tokens and experts
  expert_mlp       vb.moe.expert_mlp(mesh_axis=, exchange=, chunks=)
  expert_parallel  vb.moe.dispatch, vb.moe.expert_parallel(exchange=) and vb.moe.combine: rows in place of tokens

Tokens are those of all devices together (--tokens), or of each device (--tokens-a-device). With skewed routing an
expert's part of the tokens falls as 1 / (index + 1). All programs of a case are compiled first, in parallel. Calls
follow each other without waiting; medians of the rounds. `speedup` is that over one device with the same tokens a
device, times the number of devices (so that it is the throughput's), or with the same tokens in all; it is 0 where one
device was not measured before. `error` is the largest difference from the first result of the same tokens, sampled, of
a result or a gradient, over its largest entry. `taken` is whether exchange=None takes this exchange.

A program that fails is a row whose note is the error. After --minutes no further case is begun; what is left out is
printed. Each row is written at once.

    python benchmarks/expert_parallel.py olmoe qwen3_30b --tokens 16384 --tokens-a-device 4096 --csv expert_parallel.csv
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_vbgemm as vb
from jax_vbgemm._src.exchange.choice import EXCHANGES, choose, traffic_of_tokens
from jax_vbgemm._src.native.backends import default_device
from moe_layer import MODELS, PASSES, SKEWS, Model
from options import commands, one_of
from workloads import write_csv

AXIS = "expert"


@dataclass
class Row:
    """A line of the CSV; `tokens` of all devices together."""

    layer: str
    model: str
    tokens: int
    skew: str
    direction: str
    devices: int
    exchange: str
    chunks: int
    us: float
    speedup: float
    error: float
    taken: str
    note: str
    device: str
    jax: str
    date: str


class Case(NamedTuple):
    """One mixture on some devices."""

    model: str
    tokens: int
    skew: str
    devices: int


class Way(NamedTuple):
    """One program for a case."""

    layer: str
    exchange: str = ""
    chunks: int = 1


app = commands(__doc__)


def expert_mlp(x: Any, gate_up: Any, down: Any, logits: Any, *, k: int, **options: Any) -> jax.Array:
    return vb.moe.expert_mlp(x, gate_up, down, vb.moe.route(logits, k), **options)


def rows_exchanged(x: Any, gate_up: Any, down: Any, logits: Any, *, k: int, exchange: str) -> jax.Array:
    routing = vb.moe.route(logits, k)

    def experts(rows: jax.Array, sizes: jax.Array) -> jax.Array:
        return vb.ragged_dot(vb.moe.gated_dot(rows, gate_up, sizes), down, sizes)

    rows = vb.moe.dispatch(x, routing)
    there = vb.moe.expert_parallel(experts, rows, routing.group_sizes, mesh_axis=AXIS, exchange=exchange)
    return vb.moe.combine(there, routing)


def with_backward(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    return jax.grad(lambda *args: jnp.sum(function(*args).astype(jnp.float32) ** 2), (0, 1, 2, 3))


def mesh_of(devices: int) -> jax.sharding.Mesh:
    return jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def operands(case: Case) -> list[jax.Array]:
    """x, gate_up, down and logits, each divided along its first axis."""
    model, place = MODELS[case.model], NamedSharding(mesh_of(case.devices), P(AXIS))
    shapes = (case.tokens, model.d), (model.experts, model.d, 2 * model.f), (model.experts, model.f, model.d)

    def draw() -> list[jax.Array]:
        x, gate_up, down = (jax.random.normal(jax.random.key(i), s, jnp.bfloat16) for i, s in enumerate(shapes))
        logits = jax.random.gumbel(jax.random.key(3), (case.tokens, model.experts), jnp.float32)
        if case.skew == "skewed":
            logits -= jnp.log(jnp.arange(1, model.experts + 1, dtype=jnp.float32))[None]
        return [x, 0.02 * gate_up, 0.02 * down, logits]

    drawn: list[jax.Array] = jax.jit(draw, out_shardings=place)()
    return drawn


def function_of(way: Way, model: Model, devices: int) -> Callable[..., jax.Array]:
    if way.layer == "one_device":
        return partial(expert_mlp, k=model.k)
    if way.layer == "expert_mlp":
        function = partial(expert_mlp, k=model.k, mesh_axis=AXIS, exchange=way.exchange, chunks=way.chunks)
    else:
        function = partial(rows_exchanged, k=model.k, exchange=way.exchange)
    return jax.shard_map(function, mesh=mesh_of(devices), in_specs=P(AXIS), out_specs=P(AXIS))


def sampled(results: Any) -> list[np.ndarray]:
    """Some entries of each array, on the host."""

    def some(x: jax.Array) -> np.ndarray:
        steps = (slice(None, None, max(1, size // 16)) for size in x.shape[:-1])
        return np.asarray(x[tuple(steps)], np.float32)

    return [some(x) for x in jax.tree.leaves(results)]


def timed(program: Callable[..., Any], args: Any, seconds: float, rounds: int) -> tuple[float, Any]:
    """Seconds of a call, and its results; `seconds`: of a round, about."""
    jax.block_until_ready(program(*args))
    begin = time.perf_counter()
    results = jax.block_until_ready(program(*args))
    calls = int(min(50, max(2, seconds / (time.perf_counter() - begin))))
    samples = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            results = program(*args)
            if (
                jax.default_backend() == "cpu"
            ):  # where the collectives of several calls may wait for each other's threads
                jax.block_until_ready(results)
        jax.block_until_ready(results)
        samples.append((time.perf_counter() - begin) / calls)
    return statistics.median(samples), results


def message(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error) or '-').splitlines()[0][:200]}"


def chosen(case: Case) -> str:
    """What exchange=None takes, and why."""
    model, dtype = MODELS[case.model], jnp.dtype(jnp.bfloat16)
    traffic = traffic_of_tokens(
        case.tokens // case.devices, model.d, model.d, model.k, case.devices, dtype.itemsize, 2 * dtype.itemsize
    )
    return choose(traffic, default_device()).why


class Measured:
    """What other cases are compared with: times of one device, and first results."""

    def __init__(self, threads: int) -> None:
        """threads: that compile."""
        self.threads = threads
        self.one_device: dict[tuple[str, int, str, str], float] = {}
        self.results: dict[tuple[str, int, str, str], list[np.ndarray]] = {}

    def rows(
        self, case: Case, ways: Sequence[Way], directions: Sequence[str], seconds: float, rounds: int
    ) -> Iterator[Row]:
        model = MODELS[case.model]
        jobs = [(way, direction) for way in ways for direction in directions]
        why = chosen(case) if case.devices > 1 else ""

        def compiled(job: tuple[Way, str]) -> Any:
            try:
                function = function_of(job[0], model, case.devices)
                return jax.jit(with_backward(function) if job[1] == PASSES[1] else function).lower(*args).compile()
            except Exception as error:  # a result, and the other programs are measured
                return error

        try:
            args = operands(case)
            with ThreadPoolExecutor(self.threads) as pool:
                programs = list(pool.map(compiled, jobs))
        except Exception as error:  # operands that don't fit into memory
            programs = [error for _ in jobs]
        for (way, direction), program in zip(jobs, programs, strict=True):
            taken = way.layer == "expert_mlp" and way.chunks == 1 and why.startswith(f"{way.exchange} of")
            row = Row(
                way.layer, case.model, case.tokens, case.skew, direction, case.devices, way.exchange, way.chunks, 0.0,
                0.0, 0.0, "yes" if taken else "", "", jax.devices()[0].device_kind, jax.__version__,
                time.strftime("%Y-%m-%d"),
            )  # fmt: skip
            try:
                if isinstance(program, Exception):
                    raise program
                took, results = timed(program, args, seconds, rounds)
                row.us = 1e6 * took
                self._compare(row, sampled(results))
            except Exception as error:
                row.note = message(error)
            yield row

    def _compare(self, row: Row, found: list[np.ndarray]) -> None:
        key = row.model, row.tokens, row.skew, row.direction
        expected = self.results.setdefault(key, found)
        row.error = max(
            float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)) for x, y in zip(found, expected, strict=True)
        )
        if row.devices == 1:
            self.one_device[key] = row.us
        a_device = row.model, row.tokens // row.devices, row.skew, row.direction
        if key in self.one_device:
            row.speedup = self.one_device[key] / row.us
        elif a_device in self.one_device:
            row.speedup = row.devices * self.one_device[a_device] / row.us


def ways_of(devices: int, exchanges: Sequence[str], chunks: Sequence[int]) -> list[Way]:
    if devices == 1:
        return [Way("one_device")]
    # The ragged exchange is timed undivided, as a call of it may take tens of milliseconds.
    mlps = [
        Way("expert_mlp", exchange, parts)
        for parts in chunks
        for exchange in exchanges
        if parts == 1 or exchange != "ragged_all_to_all"
    ]
    return mlps + [Way("expert_parallel", exchange) for exchange in exchanges if exchange != "all_to_all"]


def cases_of(
    models: Sequence[str], in_all: Sequence[int], a_device: Sequence[int], skews: Sequence[str], devices: Sequence[int]
) -> list[Case]:
    """In the order of models, then of routing, then of tokens; one device first."""
    cases = []
    for model in models:
        for skew in skews:
            cases += [Case(model, tokens, skew, n) for tokens in in_all for n in devices]
            cases += [Case(model, tokens * n, skew, n) for tokens in a_device for n in devices]
    return list(dict.fromkeys(case for case in cases if MODELS[case.model].experts % case.devices == 0))


def shown(row: Row) -> str:
    way = f"{row.layer} {row.exchange} {row.chunks if row.exchange else ''}"
    figures = f"{row.us:10.1f} us  {row.speedup:5.2f}x  error {row.error:.1e}{'  taken' if row.taken else ''}"
    return f"  {row.direction:17}{way:42}{row.note or figures}"


@app.command()
def main(
    models: Annotated[list[str], typer.Argument(help=", ".join(MODELS), callback=one_of(MODELS))],
    tokens: Annotated[list[int] | None, typer.Option(help="of all devices together; any number of times")] = None,
    tokens_a_device: Annotated[list[int] | None, typer.Option(help="of each device; any number of times")] = None,
    skew: Annotated[list[str], typer.Option(help=", ".join(SKEWS), callback=one_of(SKEWS))] = ["uniform"],  # noqa: B006
    directions: Annotated[list[str], typer.Option("--direction", callback=one_of(PASSES))] = list(PASSES),  # noqa: B006
    devices: Annotated[list[int] | None, typer.Option(help="numbers of devices; 1, 2, 4 ... by default")] = None,
    exchanges: Annotated[list[str], typer.Option("--exchange", callback=one_of(EXCHANGES))] = list(EXCHANGES),  # noqa: B006
    chunks: Annotated[list[int], typer.Option(help="of expert_mlp")] = [1, 2, 4],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="timed repetitions")] = 5,
    seconds: Annotated[float, typer.Option(help="of one round, about")] = 0.05,
    threads: Annotated[int, typer.Option(help="that compile programs of a case, before all are timed")] = 8,
    minutes: Annotated[float, typer.Option(help="after which no case is begun")] = 10.0,
    output: Annotated[Path | None, typer.Option("--csv", help="append the rows to this file")] = None,
) -> None:
    end, there = time.monotonic() + 60 * minutes, jax.device_count()
    counts = devices or [2**i for i in range(there.bit_length())]
    if max(counts) > there:
        raise typer.BadParameter(f"--devices {max(counts)}: there are {there}")
    measured, left_out = Measured(threads), []
    print(f"{there} x {jax.devices()[0].device_kind}, jax {jax.__version__}")
    for case in cases_of(models, tokens or [], tokens_a_device or [], skew, counts):
        if time.monotonic() > end:
            left_out.append(case)
            continue
        print(f"{case.model}, {case.tokens} tokens, {case.skew}, {case.devices} devices", flush=True)
        if case.devices > 1:
            print(f"  exchange=None takes {chosen(case)}")
        for row in measured.rows(case, ways_of(case.devices, exchanges, chunks), directions, seconds, rounds):
            print(shown(row), flush=True)
            if output is not None:
                write_csv(output, [row])
    for case in left_out:
        print(f"left out, as the time is over: {case}")


if __name__ == "__main__":
    app()
