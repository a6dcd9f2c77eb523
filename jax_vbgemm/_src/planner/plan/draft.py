"""Draft: a planner's decision, whose predicted time is compared with that of other drafts before a plan is built."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jax_vbgemm._src.planner.model.cost_model import Prediction, predict
from jax_vbgemm._src.planner.plan.plan import Plan
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, Replacement
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.bands import in_bands
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs
from jax_vbgemm._src.planner.tiles.symmetric import fold
from jax_vbgemm._src.problem import Problem, ProblemSizes


@dataclass(frozen=True, eq=False)
class Draft:
    """A planner's decision. Of several drafts only the best one becomes a `Plan`.

    `runs`, `order`, `tlp`, `replaced` and `notes` are as in `Plan`; `tlp` None means the threads of all tiles.
    `tile_id` is the tile of each problem as a row of the compiled table, -1 if a problem mixes tiles. `block_first`
    cuts the tiles of `runs` into blocks, after bringing them into `tile_order` if that is given. Without both,
    symmetric problems are folded (planner/tiles/symmetric.py), and pipelined tiles are brought into bands
    (planner/tiles/bands.py).
    """

    problems: Sequence[Problem]
    device: DeviceSpec
    catalogue: Catalogue
    planner: str
    runs: Runs
    tile_id: Ints
    order: Ints
    block_first: Ints | None = None
    tile_order: Ints | None = None
    tlp: int | None = None
    replaced: tuple[Replacement, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.block_first is None and self.tile_order is None:
            runs = fold(self.runs, self.problems, self.device, self.catalogue)
            object.__setattr__(self, "runs", in_bands(runs, self.catalogue))

    @classmethod
    def whole_problems(
        cls,
        problems: Sequence[Problem],
        device: DeviceSpec,
        catalogue: Catalogue,
        *,
        planner: str,
        tile_id: Ints,
        order: Ints | None = None,
        tlp: int | None = None,
        replaced: tuple[Replacement, ...] = (),
    ) -> "Draft":
        """Problem i covered by tile `tile_id[i]`, one tile in each block; problems in `order`, by default their own
        order."""
        order = np.arange(len(problems)) if order is None else order
        runs = Runs.whole_problems(ProblemSizes.of(problems), tile_id, catalogue, order)
        return cls(problems, device, catalogue, planner, runs, tile_id, order, tlp=tlp, replaced=replaced)

    @cached_property
    def prediction(self) -> Prediction:
        sizes = ProblemSizes.of(self.problems)
        return predict(sizes, self.runs, self.block_first, self.catalogue, self.device, self.tile_order)

    @property
    def seconds(self) -> float:
        """The cost model's makespan."""
        return self.prediction.seconds

    def build(self, planner: str | None = None, *notes: str) -> Plan:
        """The plan; `planner` replaces the planner's name, and `notes` follow the draft's notes."""
        runs = self.runs
        if self.tile_order is not None:
            runs = runs.expand(self.catalogue).take(self.tile_order)
        keys = {index: tile.key for index, tile in self.catalogue.by_index.items()}
        plan = Plan.of_runs(
            self.problems,
            self.device,
            self.catalogue,
            planner=planner or self.planner,
            runs=runs,
            block_first=self.block_first,
            choices=tuple(map(keys.get, self.tile_id.tolist())),
            order=self.order.tolist(),
            tlp=self.tlp,
            replaced=self.replaced,
            notes=(*self.notes, *notes),
        )
        if "prediction" in self.__dict__:
            plan.__dict__["prediction"] = self.prediction  # the plan has the same cached property
        return plan


class DraftPlanner(ABC):
    """A planner whose plans can be compared before one of them is built."""

    @abstractmethod
    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft: ...

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        return self.draft(problems, device, catalogue).build()


def joined(problems: Sequence[Problem], parts: Sequence[tuple[Ints, Draft]]) -> Draft:
    """The draft that runs `parts` one after another. A part consists of problem indices and a draft for these problems.

    Notes and replacements that occur in several parts are kept once.
    """
    tile_id = np.empty(len(problems), np.int64)
    for members, part in parts:
        tile_id[members] = part.tile_id
    return replace(
        parts[0][1],
        problems=problems,
        runs=Runs.joined([replace(part.runs, problem=members[part.runs.problem]) for members, part in parts]),
        tile_id=tile_id,
        order=np.concatenate([members[part.order] for members, part in parts]),
        replaced=tuple(dict.fromkeys(itertools.chain.from_iterable(part.replaced for _, part in parts))),
        notes=tuple(dict.fromkeys(itertools.chain.from_iterable(part.notes for _, part in parts))),
    )
