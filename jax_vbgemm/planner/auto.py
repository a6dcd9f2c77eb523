"""`auto`: our own planner and those of the papers; the plan with the smallest predicted makespan is taken."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax_vbgemm.planner.catalogue import Catalogue
from jax_vbgemm.planner.coordinated import Coordinated
from jax_vbgemm.planner.device import DeviceSpec
from jax_vbgemm.planner.load_balanced import LoadBalanced
from jax_vbgemm.planner.makespan import Makespan
from jax_vbgemm.planner.plan import Plan
from jax_vbgemm.planner.sort_split import SortSplit
from jax_vbgemm.planner.uniform import Uniform
from jax_vbgemm.problem import Problem

PAPERS = (Coordinated(), SortSplit(), LoadBalanced())


@dataclass(frozen=True)
class Auto:
    """Never slower than the papers' planners, by the cost model; the plan's notes say what each would take."""

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        # A core computes an edge tile only as far as it reaches, so that one tile for all wastes nothing there.
        ours: Uniform | Makespan = Uniform() if device.kind == "cpu" else Makespan()
        drafts = [planner.draft(problems, device, catalogue) for planner in (ours, *PAPERS)]
        best = min(drafts, key=lambda draft: draft.seconds)
        predictions = ", ".join(f"{draft.planner} {draft.seconds * 1e6:.2f} us" for draft in drafts)
        return best.build("auto", f"took {best.planner}; predicted: {predictions}")
