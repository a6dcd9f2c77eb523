"""`auto`: our own planner and those of the papers; the plan with the smallest predicted makespan is taken."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax_vbgemm._src.planner.cores import Cores
from jax_vbgemm._src.planner.model.cost_model import least_of_whole_problems
from jax_vbgemm._src.planner.model.tile_families import STREAMING, worth_trying
from jax_vbgemm._src.planner.plan.plan import Plan
from jax_vbgemm._src.planner.registry import REGISTERED
from jax_vbgemm._src.planner.search.makespan import Makespan
from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.problem import Problem, Sizes

PAPERS = tuple(registered.compared for registered in REGISTERED if registered.compared is not None)


@dataclass(frozen=True)
class Auto:
    """Never slower than PAPERS, by the cost model; the plan's notes say what each would take. `tall_skinny`, whose own
    model chooses its tiles, is no candidate.

    Those whose plans cannot be as fast as ours, whatever they choose, make none. Nor do any where nothing is worth
    trying but tiles that stream: by what was measured, not by costs.
    """

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        # A core computes an edge tile only as far as it reaches, so that one tile for all wastes nothing there.
        ours: Cores | Makespan = Cores() if device.kind == "cpu" else Makespan()
        drafts = [ours.draft(problems, device, catalogue)]
        rest = ""
        papers = PAPERS
        least = dict.fromkeys((planner.name for planner in PAPERS), 0.0)
        sizes = Sizes.of(problems)
        if device.kind == "gpu" and {tile.kernel for tile in worth_trying(catalogue, sizes)} <= set(STREAMING):
            papers = ()
        elif device.kind == "gpu":
            sets = {planner.name: [catalogue.resolve(tiles)[0] for tiles in planner.tile_sets] for planner in PAPERS}
            least = least_of_whole_problems(sizes, sets, catalogue, device)
        for planner in papers:
            if least[planner.name] > drafts[0].seconds:
                rest += f"; {planner.name} no less than {least[planner.name] * 1e6:.2f} us"
            else:
                drafts.append(planner.draft(problems, device, catalogue))
        best = min(drafts, key=lambda draft: draft.seconds)
        predictions = ", ".join(f"{draft.planner} {draft.seconds * 1e6:.2f} us" for draft in drafts)
        return best.build("auto", f"took {best.planner}; predicted: {predictions}{rest}")
