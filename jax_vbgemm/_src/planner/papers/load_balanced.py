"""`load_balanced`: Zhang et al., "A load-balanced acceleration method for small and irregular batch matrix
multiplication on GPU", J. Syst. Archit. 160 (2025).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jax_vbgemm._src.planner.model.occupancy import active_waves
from jax_vbgemm._src.planner.papers.options import check_choice, check_number
from jax_vbgemm._src.planner.plan.draft import Draft, DraftPlanner
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints, offsets, tile_counts
from jax_vbgemm._src.problem import Problem, Sizes

CLASSES = (("small", 128), ("small-medium", 128), ("medium", 128), ("medium-large", 256), ("large", 256))  # Table 3


@dataclass(frozen=True)
class LoadBalanced(DraftPlanner):
    """Tiles with about equal work a thread; large ones are demoted until enough waves can be active (Algorithm 1).

    `tlp_threshold`: active threads that fill the device; default: the device table's. `active_waves`: {tile name:
    waves of that tile that the whole device runs at once}, in place of WF times the units of Eq. 5-9; tiles left out
    keep the device's own figure. One tile a block; `Plan.tlp` is TLP_new (Eq. 4).
    """

    name: ClassVar[str] = "load_balanced"
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (CLASSES,)

    tlp_threshold: float | None = None
    active_waves: Mapping[str, float] | tuple[tuple[str, float], ...] | None = None

    def __post_init__(self) -> None:
        check_number("LoadBalanced", "tlp_threshold", self.tlp_threshold)
        if not isinstance(self.active_waves, Mapping | tuple | None):
            raise TypeError(f"LoadBalanced: active_waves = {self.active_waves!r} must map classes to numbers")
        waves = dict(self.active_waves or {})
        for name, count in waves.items():
            check_choice("LoadBalanced", "active_waves", name, tuple(name for name, _ in CLASSES))
            check_number("LoadBalanced", f"active_waves[{name!r}]", count)
        object.__setattr__(self, "active_waves", tuple(sorted(waves.items())))  # hashable

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        threshold = device.load_balanced_threshold if self.tlp_threshold is None else self.tlp_threshold
        tiles, replaced = catalogue.resolve(CLASSES)
        sizes = Sizes.of(problems)
        given = dict(self.active_waves or ())
        most = np.array(
            [
                given.get(name, active_waves(tile, device) * device.units)
                for (name, _), tile in zip(CLASSES, tiles, strict=True)
            ]
        )
        waves_per_block = np.array([device.waves_of(tile.threads) for tile in tiles])
        blocks = np.array([tile_counts(sizes, tile.m, tile.n) for tile in tiles])

        def active(index: int, class_blocks: Ints) -> Ints:
            """Waves of a class that can be active, for each of some numbers of blocks."""
            waves: Ints = np.minimum(class_blocks * waves_per_block[index], most[index])
            return waves

        tile_class = _initial_classes(sizes, tiles)
        now = _blocks_of_classes(blocks, tile_class)
        for demoted in range(len(tiles) - 1, 0, -1):
            below = demoted - 1
            members = np.flatnonzero(tile_class == demoted)  # those demoted into the class before among them
            # Eq. 4 with none, one, two, ... of the members demoted; the other classes stay as they are.
            others = sum(active(index, now[index]) for index in range(len(tiles)) if index not in (demoted, below))
            here = active(demoted, now[demoted] - offsets(blocks[demoted, members]))
            there = active(below, now[below] + offsets(blocks[below, members]))
            reached = np.flatnonzero(device.wave_size * (others + here + there) >= threshold)
            tile_class[members[: reached[0]] if len(reached) else members] -= 1
            now = _blocks_of_classes(blocks, tile_class)
            if len(reached):
                break
        tlp = device.wave_size * sum(active(index, now[index]) for index in range(len(tiles)))
        return Draft.whole_problems(
            problems,
            device,
            catalogue,
            planner=self.name,
            strategy=np.array([tile.index for tile in tiles])[tile_class],
            tlp=int(tlp),
            replaced=replaced,
        )


def _initial_classes(sizes: Sizes, tiles: tuple[TileShape, ...]) -> Ints:
    """The largest class that fits and divides (Eq. 10, without K), else the largest that fits, else small."""
    fitting = np.zeros(len(sizes.m), np.int64)
    dividing = np.full(len(sizes.m), -1)
    for index, tile in enumerate(tiles):
        fits = (tile.m <= sizes.m) & (tile.n <= sizes.n)
        fitting[fits] = index
        dividing[fits & (sizes.m % tile.m == 0) & (sizes.n % tile.n == 0)] = index
    return np.where(dividing >= 0, dividing, fitting)


def _blocks_of_classes(blocks: Ints, tile_class: Ints) -> Ints:
    """Blocks of each class, where blocks[c, i] are those of problem i in class c."""
    own = blocks[tile_class, np.arange(len(tile_class))]
    counts: Ints = np.bincount(tile_class, own, minlength=len(blocks)).astype(np.int64)  # exact far beyond any plan
    return counts
