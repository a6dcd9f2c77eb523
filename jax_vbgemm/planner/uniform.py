"""`uniform`: one tile for every problem, what a library with a fixed tile does."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jax_vbgemm.planner.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm.planner.cost_model import predict
from jax_vbgemm.planner.device import DeviceSpec
from jax_vbgemm.planner.draft import Draft
from jax_vbgemm.planner.plan import MAX_TILES, Plan
from jax_vbgemm.planner.runs import Runs
from jax_vbgemm.planner.symmetric import fold
from jax_vbgemm.planner.tile_families import worth_trying
from jax_vbgemm.problem import Problem, Sizes


@dataclass(frozen=True)
class Uniform:
    """`tile`: a name, (name, threads), or None for the tile with the smallest predicted makespan, the first of equals.

    A name alone means the version with the most threads. One tile a block. Raises ValueError, listing the tiles there
    are, for one that isn't built for the dtype.
    """

    tile: str | TileKey | None = None

    def __post_init__(self) -> None:
        match self.tile:
            case None | str():
                pass
            case (str(name), int(threads)):
                object.__setattr__(self, "tile", (name, threads))
            case _:
                raise TypeError(f"Uniform: tile = {self.tile!r} must be a name or a pair (name, threads)")

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        return self.draft(problems, device, catalogue).build()

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        match self.tile:
            case None:
                tile = _fastest(problems, device, catalogue)
            case str(name):
                tile = catalogue.find(name)
            case (name, threads):
                tile = catalogue.find(name, threads)
        strategy = np.full(len(problems), tile.index)
        return Draft.whole_problems(problems, device, catalogue, planner="uniform", strategy=strategy)


def _fastest(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> TileShape:
    if len(catalogue) == 0:
        raise ValueError(f"Uniform: no tile is built for {catalogue.kind} on {device.name}")
    sizes = Sizes.of(problems)
    natural = np.arange(len(problems))

    def makespan(tile: TileShape) -> tuple[bool, float]:
        runs = Runs.whole_problems(sizes, np.full(len(problems), tile.index), catalogue, natural)
        runs = fold(runs, problems, device, catalogue)
        return runs.num_tiles > MAX_TILES, predict(sizes, runs, None, catalogue, device).seconds

    return min(worth_trying(catalogue, sizes), key=makespan)
