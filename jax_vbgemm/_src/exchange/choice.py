"""Chooses the exchange of tokens and rows between devices that is fastest by bytes sent and measured rates.

For t tokens a device of d columns, results of p columns, k experts a token and n devices, each device receives

  all_gather         (n - 1) t d elements, and contributions to its tokens: (n - 1) t p wide ones, by psum_scatter
  all_to_all         (n - 1) t d elements, and (n - 1) t p
  ragged_all_to_all  k t d (n - 1) / n elements, and k t p (n - 1) / n, where the experts are equally loaded

With derivatives each exchange is done once more, transposed: a psum_scatter for each all_gather, and the other way
around. So the order of the three stays.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import jax

from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.util import compat

EXCHANGES = ("all_gather", "all_to_all", "ragged_all_to_all")
DEFAULT = "all_gather"


class Received(NamedTuple):
    """One collective: its name in jax.lax, and the bytes that a device receives."""

    collective: str
    bytes: int


Traffic = Mapping[str, Sequence[Received]]  # by exchange


class Choice(NamedTuple):
    """An exchange and the reason for it: each exchange's predicted time, or the measurement that is missing."""

    exchange: str
    why: str


def traffic_of_tokens(
    tokens: int, columns: int, results: int, k: int, devices: int, itemsize: int, wide_itemsize: int
) -> Traffic:
    """The bytes that `expert_mlp` sends for `tokens` tokens per device, with k choices each.

    itemsize: of tokens and results; wide_itemsize: of the dtype in which contributions are added, and of probabilities.
    """
    others = devices - 1
    gathered = (
        Received("all_gather", others * tokens * columns * itemsize),
        Received("all_gather", others * tokens * k * 4),  # experts
        Received("all_gather", others * tokens * k * wide_itemsize),  # probabilities
    )
    rows = tokens * k * others // devices
    return {
        "all_gather": (*gathered, Received("psum_scatter", others * tokens * results * wide_itemsize)),
        "all_to_all": (*gathered, Received("all_to_all", others * tokens * results * itemsize)),
        "ragged_all_to_all": tuple(
            Received("ragged_all_to_all", rows * size)
            for size in (columns * itemsize, wide_itemsize, results * itemsize)
        ),
    }


def traffic_of_rows(rows: int, columns: int, devices: int, itemsize: int) -> Traffic:
    """The bytes that `expert_parallel` sends for `rows` rows per device, if results are as wide as rows."""
    others, size = devices - 1, rows * columns * itemsize
    return {
        "all_gather": (
            Received("all_gather", others * size),
            Received("all_gather", others * rows * 4),
            Received("psum_scatter", others * size),
        ),
        "ragged_all_to_all": 2 * (Received("ragged_all_to_all", size * others // devices),),
    }


def check_exchange(name: str, exchange: str | None, known: Collection[str]) -> None:
    """ValueError if `exchange` is neither None nor one of the known ones."""
    if exchange is not None and exchange not in known:
        raise ValueError(f"{name}: exchange is {exchange!r}: it must be None or one of {', '.join(known)}")


def choose(traffic: Traffic, device: DeviceSpec) -> Choice:
    """The exchange with the shortest predicted time: the latency of each collective and its bytes over its bandwidth.

    An exchange is compared only if all of its collectives were measured on the device. The choice is `DEFAULT` if it
    cannot be compared, if sizes are symbolic, or if devices belong to several processes, because rates were measured on
    one host: another exchange must be known to be faster.
    """
    rates = dict(device.collectives) if jax.process_count() == 1 else {}
    seconds, why = {}, []
    for exchange, parts in traffic.items():
        unknown = sorted({part.collective for part in parts} - rates.keys())
        if jax.process_count() > 1:
            why.append(f"{exchange}: not measured between processes")
        elif unknown:
            why.append(f"{exchange}: {', '.join(unknown)} not measured on {device.name}")
        elif not compat.is_static([part.bytes for part in parts]):
            why.append(f"{exchange}: sizes are symbolic")
        else:
            pairs = [(rates[part.collective], part.bytes) for part in parts]
            seconds[exchange] = math.fsum(rate.latency + received / rate.bandwidth for rate, received in pairs)
            why.append(f"{exchange}: {1e3 * seconds[exchange]:.3g} ms")
    chosen = min(seconds, key=seconds.__getitem__) if DEFAULT in seconds else DEFAULT
    return Choice(chosen, f"{chosen} of: " + "; ".join(why))
