"""python -m jax_vbgemm profile: measures on this machine's GPU what Rivera et al. profile offline for TSM2 and ISM2.

The latencies of section 3.6.2 are measured with a single block. It has t1 threads with t3 loads each in flight, so that
by the model its time grows by latency / t3 with each K element. The latency is that of the memory while A comes from
memory. While A stays in the caches, it is that of multiply-adds (an upper bound, as it includes the cache). t1 and tcf
are those of the fastest row tiles (sections 3.6.3 and 5.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from jax_vbgemm._src.planner import DeviceSpec, TallSkinny, TileShape, catalogue_for, kind_of
from jax_vbgemm._src.planner.model.tile_families import ROWS
from jax_vbgemm._src.planner.papers.tall_skinny import kernel_of
from jax_vbgemm._src.planner.tables.catalogue import TileKey
from jax_vbgemm._src.problem import Problem

# (problems, dtype, precision, tiles) -> seconds of a call with each tile
Measure = Callable[[tuple[Problem, ...], str, str, Sequence[TileKey]], Sequence[float]]

SINGLE_TILE = "skinny-128x8"  # a tile that is built for every real dtype
IN_MEMORY = (1 << 18, 1 << 19)  # K of one block: even 128 rows of bfloat16 are then larger than the last-level cache
IN_CACHE = (1 << 11, 1 << 12)
ROWS_OF_A = (10**5, 10**6)
SMALL = ((8, 8), (16, 8), (8, 16), (16, 16))  # K and columns: section 6


@dataclass(frozen=True)
class Profile:
    """The seconds from a load to its use and from a multiply-add to its use, the fastest tile for each (m, k, n), and
    the tcf that is fastest over all of these.
    """

    memory_latency: float
    product_latency: float
    fastest: Mapping[tuple[int, int, int], TileShape]
    tcf: int

    def planner(self) -> TallSkinny:
        """A planner with the measured latencies, and without tcf, which the model chooses by the number of rows."""
        return TallSkinny(memory_latency=self.memory_latency, product_latency=self.product_latency)

    def __str__(self) -> str:
        lines = [
            f"memory latency {1e9 * self.memory_latency:.0f} ns, product latency {1e9 * self.product_latency:.1f} ns",
            *(
                f"m {m}, k {k}, n {n}: {tile.name}, t1 {tile.threads}, tcf {tile.m // tile.threads}"
                for (m, k, n), tile in self.fastest.items()
            ),
            f"of all these tcf {self.tcf} is the fastest; to plan with what was measured: planner="
            f"TallSkinny(memory_latency={self.memory_latency:.3g}, product_latency={self.product_latency:.3g})",
        ]
        return "\n".join(lines)


def profile(device: DeviceSpec, dtype: str, precision: str, measure: Measure, say: Callable[[str], Any]) -> Profile:
    """The latencies, t1 and tcf of `device`, on which `measure` runs.

    Raises ValueError if the device has no row tile for the dtype.
    """
    catalogue = catalogue_for(kind_of(dtype, precision, device), device)
    tiles = list(ROWS.tiles_of(catalogue))
    if not tiles:
        raise ValueError(f"profile: no row tiles are built for {catalogue.kind} on {device.name}")
    single_tile = catalogue.find(SINGLE_TILE)

    def latency(what: str, depths: tuple[int, int]) -> float:
        say(f"{what}: one block of {SINGLE_TILE}, K of {depths[0]} and {depths[1]}")
        first, second = (
            measure((Problem(single_tile.m, single_tile.n, depth),), dtype, precision, [single_tile.key])[0]
            for depth in depths
        )
        loads = kernel_of(single_tile, single_tile.n, single_tile.m, depths[0], device, catalogue).t3
        return max(loads * (second - first) / (depths[1] - depths[0]), 0.0)

    memory, product = latency("memory", IN_MEMORY), latency("products", IN_CACHE)
    fastest, by_tcf = {}, _Times()
    for m in ROWS_OF_A:
        for k, n in SMALL:
            wide = _narrowest(tiles, n)
            say(f"m {m}, k {k}, n {n}: {', '.join(tile.name for tile in wide)}")
            seconds = list(measure((Problem(m, n, k),), dtype, precision, [tile.key for tile in wide]))
            fastest[m, k, n] = wide[seconds.index(min(seconds))]
            by_tcf.add(wide, seconds)
    return Profile(memory, product, fastest, by_tcf.best())


def _narrowest(tiles: Iterable[TileShape], n: int) -> list[TileShape]:
    """The row tiles that read A once and compute the fewest columns outside of C."""
    holding = [tile for tile in tiles if tile.n >= n]
    width = min(tile.n for tile in holding)
    return [tile for tile in holding if tile.n == width]


class _Times:
    """For each tcf (rows of C that a thread computes in turn; TSM2X's t_cf), its time on each problem as a multiple of
    the fastest tcf's time."""

    def __init__(self) -> None:
        self._slower: dict[int, list[float]] = {}
        self._problems = 0

    def add(self, tiles: Sequence[TileShape], seconds: Sequence[float]) -> None:
        self._problems += 1
        ratio_by_tcf: dict[int, float] = {}
        for tile, value in zip(tiles, seconds, strict=True):
            tcf = tile.m // tile.threads
            ratio_by_tcf[tcf] = min(value, ratio_by_tcf.get(tcf, value))
        for tcf, value in ratio_by_tcf.items():
            self._slower.setdefault(tcf, []).append(value / min(seconds))

    def best(self) -> int:
        """The best tcf among those that were measured on every problem."""
        whole = {tcf: slower for tcf, slower in self._slower.items() if len(slower) == self._problems}
        return min(whole or self._slower, key=lambda tcf: geometric_mean(self._slower[tcf]))
