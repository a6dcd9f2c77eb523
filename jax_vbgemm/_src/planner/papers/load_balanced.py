"""`load_balanced`: Zhang et al., "A load-balanced acceleration method for small and irregular batch matrix
multiplication on GPU", J. Syst. Archit. 160 (2025).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from jax_vbgemm._src.planner.model.occupancy import active_waves, work_per_thread
from jax_vbgemm._src.planner.model.tile_time import Floats
from jax_vbgemm._src.planner.papers.options import check_choice, check_number
from jax_vbgemm._src.planner.papers.paper_planner import PaperPlanner
from jax_vbgemm._src.planner.plan.draft import Draft
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints, tile_counts
from jax_vbgemm._src.problem import Problem, ProblemSizes

CLASSES = (("small", 128), ("small-medium", 128), ("medium", 128), ("medium-large", 256), ("large", 256))  # Table 3

# The same shapes on tensor cores, without 16 x 16, which is not built.
TENSOR_CLASSES = (("mma-16x32", 128), ("mma-32x32", 128), ("mma-32x64", 128), ("mma-64x64", 128))

TABLE_3_STEP = 16  # Tk of all tiles of Table 3; the compiled kernels have other K steps (Plan.work_per_thread)

Bound = Literal["problem", "class", "device", "none"]
Demotion = Literal["class", "batch"]
Unreached = Literal["highest", "smallest"]
Undivided = Literal["fits", "small"]

_SAME = 1 - 1e-9  # relative tolerance: TLPs that differ by less are equal up to rounding


@dataclass(frozen=True)
class LoadBalanced(PaperPlanner):
    """The planner "load_balanced", of Zhang et al., "A load-balanced acceleration method for small and irregular batch
    matrix multiplication on GPU", J. Syst. Archit. 160 (2025).

    Tiles have about equal work for each thread. Problems with large tiles are demoted to smaller tiles until enough
    warps can be active (Algorithm 1). Each block has one tile. As in the paper, a "wave" is a warp (on AMD a
    wavefront), a "class" is a tile shape with its kernel, and a "unit" is a multiprocessor. `Plan.tlp` is TLP_new
    (Eq. 4).

    Unknown values and negative numbers raise ValueError; an option that must be a number and is not raises TypeError.

    `tlp_threshold`: the number of active threads that fills the device; None: the device table's.

    `active_waves`: a mapping from tile names to the number of waves of that tile that the whole device runs at once. It
    replaces the product of WF and the number of units (Eq. 5-9); tiles that it leaves out keep the device's own figure.

    `bound`: which waves the function phi of Eq. 4 bounds. The bound of a class is WF times the units: the waves of the
    class that the device runs at once.

    - "class" (default): the waves of all problems of a class together. WF (Eq. 9) belongs to a kernel, and a class is a
      kernel.
    - "problem": the waves of each problem, as the sum over i in Eq. 4 is printed. Small problems rarely reach the
      bound.
    - "device": the waves of the whole batch, as phi(total_workgroup) in Algorithm 1, lines 6 and 21. Classes share the
      device, each block taking its part of a unit. A threshold above every class's bound is then never reached
      (`unreached`), and where all classes have the same WF, as in float32 on an H100, a lower threshold is not
      affected.
    - "none": no waves. That is Eq. 3, the TLP that section 5.5 compares with and that the authors' released code
      counts.

    All four make the same plans where the threshold is below every class's bound; that of the device table is above.

    `demotion`: which problems are demoted while TLP_new is below the threshold. (Algorithm 1 prints >= in its `while`;
    by the paper's prose and the released code the loop ends when the threshold is reached.)

    - "class" (default): one problem after another in the order of the batch, first those of the largest class, then
      those of the next class including the ones just demoted into it. TLP_new is compared before each demotion, as in
      the released code and in section 4.2.2 ("some larger GEMMs are cut"), so that no problem is demoted needlessly.
    - "batch": all problems by one class, as in each pass of Algorithm 1 (lines 9-20). TLP_new is compared after the
      pass.

    `unreached`: which tiles are used where TLP_new stays below the threshold even with the smallest tiles. (Algorithm 1
    would not end.) That is common where a device holds few threads of a kernel, as on tensor cores, since the bound of
    one class is below the threshold.

    - "highest" (default): of all assignments from the initial one on, the first with the highest TLP_new, which is the
      paper's "evaluation criterion to measure the effectiveness of the tiling scheme" (section 4.2.2). Smaller tiles
      cost "intra-tile parallelism" and are for units that would be idle, so that a demotion which does not raise
      TLP_new has no use.
    - "smallest": the smallest tile for all problems, where the passes end. On tensor cores of an H100 large batches
      then take two to four times as long (predicted).

    `undivided`: the initial tile of a problem whose M and N no tile divides, which Eq. 10 leaves open.

    - "fits" (default): the largest tile that is not larger than the result, whose last row and column of tiles are
      partly empty.
    - "small": the smallest tile.

    `divides_k`: whether a tile has to divide K too, by the step Tk = 16 of Table 3, as Eq. 10 is printed. False
    (default): the kernels compute a partial last step, so that K does not matter.

    `tensor`: whether plans use tensor-core tiles of the paper's shapes. None (default): for float32 at JAX's default
    precision and for 16-bit floats, but not for float32 at "highest" and for float64.
    """

    name: ClassVar[str] = "load_balanced"
    tile_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (CLASSES,)
    tensor_sets: ClassVar[tuple[tuple[TileKey, ...], ...]] = (TENSOR_CLASSES,)

    tlp_threshold: float | None = None
    active_waves: Mapping[str, float] | tuple[tuple[str, float], ...] | None = None
    bound: Bound = "class"
    demotion: Demotion = "class"
    unreached: Unreached = "highest"
    tensor: bool | None = None
    undivided: Undivided = "fits"
    divides_k: bool = False

    def __post_init__(self) -> None:
        check_number("LoadBalanced", "tlp_threshold", self.tlp_threshold)
        check_choice("LoadBalanced", "bound", self.bound, ("problem", "class", "device", "none"))
        check_choice("LoadBalanced", "demotion", self.demotion, ("class", "batch"))
        check_choice("LoadBalanced", "unreached", self.unreached, ("highest", "smallest"))
        check_choice("LoadBalanced", "undivided", self.undivided, ("fits", "small"))
        check_choice("LoadBalanced", "divides_k", self.divides_k, (True, False))
        check_choice("LoadBalanced", "tensor", self.tensor, (None, True, False))
        waves = _as_mapping(self.active_waves)
        known = dict.fromkeys(name for name, _ in (*CLASSES, *TENSOR_CLASSES))
        for name, count in waves.items():
            check_choice("LoadBalanced", "active_waves", name, tuple(known))
            if count is None:
                raise TypeError(f"LoadBalanced: active_waves[{name!r}] = None must be a number")
            check_number("LoadBalanced", f"active_waves[{name!r}]", count)
        object.__setattr__(self, "active_waves", tuple(sorted(waves.items())))  # hashable

    def draft(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Draft:
        threshold = device.load_balanced_threshold if self.tlp_threshold is None else self.tlp_threshold
        (order,) = self.sets_for(catalogue)
        tiles, replaced = catalogue.resolve(order)
        sizes = ProblemSizes.of(problems)
        given = dict(self.active_waves or ())
        most = np.array(
            [
                given.get(name, active_waves(tile, device) * device.units)
                for (name, _), tile in zip(order, tiles, strict=True)
            ],
            np.float64,
        )
        blocks = np.array([tile_counts(sizes, tile.m, tile.n) for tile in tiles])
        waves = blocks * np.array([[device.waves_of(tile.threads)] for tile in tiles])
        if self.bound == "problem":
            waves = np.minimum(waves, most[:, None])
        tile_class = self._initial_classes(sizes, tiles)
        active = partial(_active, most=most, bound=self.bound)
        passes = _Passes(waves, active, threshold / device.wave_size, self.unreached)
        tile_class = passes.by_class(tile_class) if self.demotion == "class" else passes.by_batch(tile_class)
        return Draft.whole_problems(
            problems,
            device,
            catalogue,
            planner=self.name,
            tile_id=np.array([tile.index for tile in tiles])[tile_class],
            tlp=int(device.wave_size * active(_class_waves(waves, tile_class))),
            replaced=replaced,
        )

    def _initial_classes(self, sizes: ProblemSizes, tiles: tuple[TileShape, ...]) -> Ints:
        """The largest class that fits and divides (Eq. 10); where none divides, `undivided`."""
        fitting = np.zeros(len(sizes.m), np.int64)
        dividing = np.full(len(sizes.m), -1)
        whole_k = sizes.k % TABLE_3_STEP == 0 if self.divides_k else np.ones(len(sizes.m), bool)
        for index, tile in enumerate(tiles):
            fits = (tile.m <= sizes.m) & (tile.n <= sizes.n)
            fitting[fits] = index
            dividing[fits & (sizes.m % tile.m == 0) & (sizes.n % tile.n == 0) & whole_k] = index
        return np.where(dividing >= 0, dividing, fitting if self.undivided == "fits" else 0)


def _as_mapping(active_waves: object) -> dict[str, float]:
    """The option as a dict; it may be a tuple of pairs as well, or None."""
    try:
        if isinstance(active_waves, Mapping | tuple | None):
            return dict(active_waves or {})
    except (TypeError, ValueError):
        pass  # a tuple, but not of pairs
    raise TypeError(f"LoadBalanced: active_waves = {active_waves!r} must map classes to numbers")


def table_3(catalogue: Catalogue) -> dict[TileKey, tuple[float, float]]:
    """The paper's Table 3: (W_CP, W_DL) of each class, by (name, threads), with the paper's Tk."""
    tiles, _ = catalogue.resolve(CLASSES)
    return {tile.key: work_per_thread(tile.m, tile.n, TABLE_3_STEP, tile.threads) for tile in tiles}


def _active(waves: Floats, *, most: Floats, bound: Bound) -> Floats:
    """The sum of phi (Eq. 4): how many of the waves can be active at once. Each row is a class and each column a plan.

    `most`: the waves of each class that the device runs at once if it runs no other class.
    """
    limit = most.reshape(-1, *[1] * (waves.ndim - 1))
    if bound == "class":
        waves = np.minimum(waves, limit)
    total: Floats = waves.sum(axis=0, dtype=np.float64)
    if bound == "device":
        with np.errstate(divide="ignore"):  # a class that cannot run counts as if it took the whole device
            share = np.divide(waves, limit, out=np.zeros(waves.shape), where=waves > 0).sum(axis=0)
        total = total / np.maximum(share, 1.0)
    return total


@dataclass(frozen=True)
class _Passes:
    """Algorithm 1 after the choice of initial tiles: demotes problems until `enough` waves are active.

    `unreached` says which assignment is the answer where that many never are.
    """

    waves: Floats
    active: Callable[[Floats], Floats]
    enough: float
    unreached: Unreached

    def by_class(self, tile_class: Ints) -> Ints:
        """Demotes problems one by one, of the largest class first, until the TLP is high enough."""
        most, best = -1.0, tile_class
        for demoted in range(len(self.waves) - 1, 0, -1):
            below = demoted - 1
            members = np.flatnonzero(tile_class == demoted)  # including those demoted into the class before
            # Waves after demoting none, one, two, ... of the members; the other classes stay unchanged.
            now = np.repeat(_class_waves(self.waves, tile_class)[:, None], len(members) + 1, axis=1)
            now[demoted, 1:] -= np.cumsum(self.waves[demoted, members])
            now[below, 1:] += np.cumsum(self.waves[below, members])
            tlp = self.active(now)
            reached = np.flatnonzero(tlp >= self.enough)
            if len(reached):
                return _demoted(tile_class, members[: reached[0]])
            highest = int(np.argmax(tlp > tlp.max() * _SAME))
            if tlp[highest] * _SAME > most:
                most, best = tlp[highest], _demoted(tile_class, members[:highest])
            tile_class = _demoted(tile_class, members)
        return tile_class if self.unreached == "smallest" else best

    def by_batch(self, tile_class: Ints) -> Ints:
        """Demotes every problem by one class in each pass."""
        most, best = -1.0, tile_class
        while (tlp := float(self.active(_class_waves(self.waves, tile_class)))) < self.enough:
            if tlp * _SAME > most:
                most, best = tlp, tile_class
            if not tile_class.any():
                return tile_class if self.unreached == "smallest" else best
            tile_class = np.maximum(tile_class - 1, 0)
        return tile_class


def _demoted(tile_class: Ints, members: Ints) -> Ints:
    tile_class = tile_class.copy()
    tile_class[members] -= 1
    return tile_class


def _class_waves(waves: Floats, tile_class: Ints) -> Floats:
    """Waves of each class, where waves[c, i] are those of problem i in class c. Whole numbers, exact up to 2**53."""
    own = waves[tile_class, np.arange(len(tile_class))]
    # bincount of an empty array gives integers
    return np.bincount(tile_class, own, minlength=len(waves)).astype(np.float64)
