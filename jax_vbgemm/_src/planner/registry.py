"""The registry: the only list of the package's planners, beside `auto`, which compares them.

PLANNERS, `auto`, `autotune` and its file, the command line, the documents and the tests all read this list. A planner
is a file in papers/ and an entry here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jax_vbgemm._src.planner.papers.coordinated import HEURISTICS, Coordinated, has_few_tiles
from jax_vbgemm._src.planner.papers.load_balanced import LoadBalanced
from jax_vbgemm._src.planner.papers.paper_planner import PaperPlanner
from jax_vbgemm._src.planner.papers.sort_split import SortSplit
from jax_vbgemm._src.planner.papers.tall_skinny import TallSkinny
from jax_vbgemm._src.planner.papers.uniform import Uniform
from jax_vbgemm._src.planner.plan.draft import DraftPlanner
from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.problem import Problem


@dataclass(frozen=True)
class Registered:
    """A planner that a user may name.

    name: the name by which users and plans refer to the planner. planner: the object that the name stands for. origin:
    the planner's source, for the documents. compared: the version that `auto` compares with its own search; None if
    `auto` does not consider the planner. variants: the versions that `autotune` measures instead of `planner`, by their
    names in its file, for problems where `has_variants` is true. tuned: whether `autotune` measures the planner.
    examples: versions with other options, for the tests.
    """

    name: str
    planner: DraftPlanner
    origin: str
    compared: PaperPlanner | None = None
    variants: Mapping[str, DraftPlanner] | None = None
    has_variants: Callable[[Sequence[Problem], DeviceSpec, Catalogue], bool] | None = None
    tuned: bool = True
    examples: tuple[DraftPlanner, ...] = ()

    @property
    def by_file_name(self) -> dict[str, DraftPlanner]:
        """All versions that the file of tuned plans may name."""
        return {self.name: self.planner, **(self.variants or {})}

    def candidates(
        self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue
    ) -> Mapping[str, DraftPlanner]:
        """The versions that `autotune` measures for these problems, by their names in its file."""
        if not self.tuned:
            return {}
        if self.variants and (self.has_variants is None or self.has_variants(problems, device, catalogue)):
            return self.variants
        return {self.name: self.planner}


REGISTERED = (
    Registered(
        "uniform", Uniform(), "one tile for all problems, what a library with a fixed tile does",
        tuned=False,  # `autotune` chooses the tiles itself
        examples=(Uniform("huge"), Uniform(("small", 128))),
    ),
    Registered(
        "coordinated", Coordinated(), "Li et al., PPoPP 2019",
        # With ordinary tiles, here and below: on tensor cores `makespan` tries every shape of the papers.
        compared=Coordinated(tensor=False),
        # Both heuristics are measured and the faster one is kept, as the paper does for fixed shapes.
        variants={f"coordinated {batching}": Coordinated(batching=batching) for batching in HEURISTICS},
        has_variants=has_few_tiles,
        examples=(
            Coordinated(tlp_threshold=2000, theta=300, batching="threshold"),
            Coordinated(tlp_threshold=2000, batching="binary"),
        ),
    ),
    Registered(
        "sort_split", SortSplit(), "Wang et al., J. Supercomput. 78, 2022",
        compared=SortSplit(tensor=False), examples=(SortSplit(target_blocks=40),),
    ),
    Registered(
        "load_balanced", LoadBalanced(), "Zhang et al., J. Syst. Archit. 160, 2025",
        compared=LoadBalanced(tensor=False), examples=(LoadBalanced(tlp_threshold=0),),
    ),
    Registered("tall_skinny", TallSkinny(), "Rivera et al., ISM2"),
)  # fmt: skip
