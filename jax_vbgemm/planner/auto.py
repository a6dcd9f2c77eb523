"""`auto`: our own planner and those of the papers; the plan with the smallest predicted makespan is taken."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax_vbgemm.planner.catalogue import WHOLE_ROWS, Catalogue
from jax_vbgemm.planner.coordinated import Coordinated
from jax_vbgemm.planner.cost_model import least_seconds
from jax_vbgemm.planner.device import DeviceSpec
from jax_vbgemm.planner.load_balanced import LoadBalanced
from jax_vbgemm.planner.makespan import Makespan
from jax_vbgemm.planner.plan import Plan
from jax_vbgemm.planner.sort_split import SortSplit
from jax_vbgemm.planner.uniform import Uniform
from jax_vbgemm.problem import Problem, Sizes

PAPERS = (Coordinated(), SortSplit(), LoadBalanced())


@dataclass(frozen=True)
class Auto:
    """Never slower than the papers' planners, by the cost model; the plan's notes say what each would take.

    Where no plan of the papers' tiles can be as fast as ours, theirs are not made.
    """

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        # A core computes an edge tile only as far as it reaches, so that one tile for all wastes nothing there.
        ours: Uniform | Makespan = Uniform() if device.kind == "cpu" else Makespan()
        drafts = [ours.draft(problems, device, catalogue)]
        rest = ""
        least = _least_of_papers(problems, device, catalogue) if device.kind == "gpu" else 0.0
        if least > drafts[0].seconds:
            rest = f"; the papers' planners no less than {least * 1e6:.2f} us"
        else:
            drafts += [planner.draft(problems, device, catalogue) for planner in PAPERS]
        best = min(drafts, key=lambda draft: draft.seconds)
        predictions = ", ".join(f"{draft.planner} {draft.seconds * 1e6:.2f} us" for draft in drafts)
        return best.build("auto", f"took {best.planner}; predicted: {predictions}{rest}")


def _least_of_papers(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> float:
    """Seconds that no plan of tiles like the papers' is predicted to stay below."""
    tiles = [tile for tile in catalogue if not tile.tensor and tile.kernel != WHOLE_ROWS]
    return least_seconds(Sizes.of(problems), {"papers": tiles}, catalogue, device)["papers"]
