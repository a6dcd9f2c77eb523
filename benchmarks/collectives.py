"""The collectives that exchange tokens and rows, each alone: their latency and bandwidth, as device.toml has them.

Each is timed in one jitted loop inside shard_map; medians of the rounds. `received` is what each device receives from
others. Prints the lines of [collectives] of the device's device.toml: the latency is the time of the smallest call, and
the bandwidth is that of the bytes by which the largest call exceeds it. Names every collective that is far from its
rate there, or from the fastest one of the run.

    python benchmarks/collectives.py --csv collectives.csv
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import typer
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jax_vbgemm._src.exchange.ragged_exchange import ragged_exchange
from jax_vbgemm._src.native.backends import default_device
from jax_vbgemm._src.tools.timing import looped, seconds_of
from options import commands
from workloads import write_csv

AXIS = "x"
COLUMNS = 2048
FAR = 3.0  # times the expected time


@dataclass
class Row:
    """A line of the CSV; `note`: an error, or that the collective is slow."""

    collective: str
    dtype: str
    devices: int
    received_bytes: int
    us: float
    gb_per_s: float
    note: str
    device: str
    jax: str
    date: str


@dataclass(frozen=True)
class Collective:
    """What one device does with its rows, and how many rows it needs to receive so many: `parts` of its own are sent
    or received beside the one that it keeps."""

    call: Callable[[jax.Array], jax.Array]
    dtype: str
    gathers: bool = False

    def rows(self, received: int, devices: int) -> int:
        """A device's rows, so that it receives about so many bytes."""
        wanted = received // (COLUMNS * jnp.dtype(self.dtype).itemsize * (devices - 1))
        return max(wanted, 1) * (1 if self.gathers else devices)

    def received(self, rows: int, devices: int) -> int:
        """The bytes that it then receives."""
        size = rows * COLUMNS * jnp.dtype(self.dtype).itemsize
        return size * (devices - 1) // (1 if self.gathers else devices)


def balanced(rows: jax.Array) -> jax.Array:
    """As many rows to each device, by the exchange of rows whose number is data."""
    devices = jax.lax.axis_size(AXIS)
    counts = jnp.full((devices, devices), rows.shape[0] // devices, jnp.int32)
    return ragged_exchange(rows, counts, rows.shape[0], (AXIS,))


COLLECTIVES = {
    "all_gather": Collective(partial(jax.lax.all_gather, axis_name=AXIS, tiled=True), "bfloat16", gathers=True),
    "psum_scatter": Collective(partial(jax.lax.psum_scatter, axis_name=AXIS, tiled=True), "float32"),
    "psum_scatter of bfloat16": Collective(partial(jax.lax.psum_scatter, axis_name=AXIS, tiled=True), "bfloat16"),
    "all_to_all": Collective(
        partial(jax.lax.all_to_all, axis_name=AXIS, split_axis=0, concat_axis=0, tiled=True), "bfloat16"
    ),
    "ragged_all_to_all": Collective(balanced, "bfloat16"),
}

app = commands(__doc__)


def timed(collective: Collective, rows: int, devices: int, rounds: int, calls: int) -> float:
    """Seconds of one call; `calls`: of a round."""
    mesh = jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    place = jax.NamedSharding(mesh, P(AXIS))
    operand = jnp.ones((devices * rows, COLUMNS), collective.dtype, device=place)
    spread = jax.shard_map(
        looped(collective.call, calls), mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    program = jax.jit(spread).lower(operand).compile()
    for _ in range(2):
        jax.block_until_ready(program(operand))
    return statistics.median(seconds_of(program, (operand,)) / calls for _ in range(rounds))


def measured(devices: int, mebibytes: Sequence[float], rounds: int, calls: int) -> Iterator[Row]:
    """The rows of all collectives on so many devices, without notes but for errors."""
    kind, date = jax.devices()[0].device_kind, time.strftime("%Y-%m-%d")
    for name, collective in COLLECTIVES.items():
        for size in mebibytes:
            own = collective.rows(int(size * 2**20), devices)
            received = collective.received(own, devices)
            took, note = 0.0, ""
            try:
                took = timed(collective, own, devices, rounds, calls)
            except Exception as error:  # a result, and the others are measured
                note = f"{type(error).__name__}: {(str(error) or '-').splitlines()[0][:200]}"
            rate = 1e-9 * received / took if took else 0.0
            yield Row(name, collective.dtype, devices, received, 1e6 * took, rate, note, kind, jax.__version__, date)


def notes(rows: list[Row]) -> None:
    """Says of each row whether it is far from the device's measured rate, or from the fastest one of as many bytes."""
    rates = dict(default_device().collectives)
    for row in rows:
        if row.note:
            continue
        name = row.collective.split()[0]
        alike = [x.gb_per_s for x in rows if 0.5 <= x.received_bytes / row.received_bytes <= 2]
        if name in rates:
            expected = rates[name].latency + row.received_bytes / rates[name].bandwidth
            if row.us > FAR * 1e6 * expected or FAR * row.us < 1e6 * expected:
                row.note = f"far from the {1e6 * expected:.0f} us of device.toml"
        elif FAR * row.gb_per_s < max(alike):
            row.note = f"{max(alike) / row.gb_per_s:.1f} times slower than the fastest collective"


def toml_lines(rows: list[Row]) -> list[str]:
    """The lines of device.toml."""
    lines = ["[collectives]"]
    for name in COLLECTIVES:
        found = [row for row in rows if row.collective == name and row.us > 0]
        if " " in name or len(found) < 2:
            continue
        small, large = found[0], found[-1]
        seconds = 1e-6 * max(large.us - small.us, 1e-3)
        lines.append(
            f"{name} = {{ latency = {1e-6 * small.us:.3g}, bandwidth = "
            f"{(large.received_bytes - small.received_bytes) / seconds:.3g} }} # measured {large.date}, COMMIT, "
            f"{large.devices} {large.device}, jax {large.jax}"
        )
    return lines


@app.command()
def main(
    devices: Annotated[list[int] | None, typer.Option(help="numbers of devices; all there are by default")] = None,
    mebibytes: Annotated[list[float], typer.Option("--mib", help="that a device receives")] = [0.0625, 16, 128],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="timed repetitions")] = 3,
    calls: Annotated[int, typer.Option(help="of a round")] = 20,
    output: Annotated[Path | None, typer.Option("--csv", help="append the rows to this file")] = None,
) -> None:
    for count in devices or [jax.device_count()]:
        if count < 2:
            print("collectives: one device exchanges nothing")
            continue
        rows = list(measured(count, mebibytes, rounds, calls))
        notes(rows)
        for row in rows:
            print(
                f"{row.devices} devices  {row.collective:25} {row.received_bytes / 2**20:9.3f} MiB {row.us:10.1f} us "
                f"{row.gb_per_s:8.2f} GB/s  {row.note}"
            )
        print("\n".join(toml_lines(rows)), flush=True)
        if output is not None:
            write_csv(output, rows)


if __name__ == "__main__":
    app()
