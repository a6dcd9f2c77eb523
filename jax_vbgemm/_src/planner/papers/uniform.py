"""`uniform`: one tile shape for all problems, as in a library with a fixed tile."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jax_vbgemm._src.planner.model.tile_families import worth_trying
from jax_vbgemm._src.planner.plan.draft import Draft, DraftPlanner
from jax_vbgemm._src.planner.plan.plan import MAX_TILES
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.problem import Problem, ProblemSizes


@dataclass(frozen=True)
class Uniform(DraftPlanner):
    """The planner "uniform": one tile shape for all problems, as in a library with a fixed tile.

    Each block has one tile.

    Args:
      tile: a name, a pair (name, threads), or None for the tile with the smallest predicted makespan, the first of
        equals. A name alone means the version with the most threads.

    Raises:
      TypeError: `tile` is neither a name nor a pair.
      ValueError: when a plan is made, if the tile isn't built for the dtype; the message lists the known tiles.
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

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        match self.tile:
            case None:
                return _fastest(problems, device, catalogue)
            case str(name):
                return _cover_by(_found(catalogue, name), problems, device, catalogue)
            case (name, threads):
                return _cover_by(_found(catalogue, name, threads), problems, device, catalogue)


def _found(catalogue: Catalogue, name: str, threads: int | None = None) -> TileShape:
    try:
        return catalogue.find(name, threads)
    except ValueError as error:
        raise ValueError(f"Uniform: tile = {name if threads is None else (name, threads)!r}: {error}") from None


def _cover_by(tile: TileShape, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
    tile_id = np.full(len(problems), tile.index)
    return Draft.whole_problems(problems, device, catalogue, planner="uniform", tile_id=tile_id)


def _fastest(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
    if len(catalogue) == 0:
        raise ValueError(f"Uniform: no tile is built for {catalogue.kind} on {device.name}")
    tiles = worth_trying(catalogue, ProblemSizes.of(problems))
    drafts = (_cover_by(tile, problems, device, catalogue) for tile in tiles)
    return min(drafts, key=lambda draft: (draft.runs.num_tiles > MAX_TILES, draft.seconds))
