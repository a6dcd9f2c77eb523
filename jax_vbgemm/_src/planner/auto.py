"""`auto`: compares the package's own search with the papers' planners and takes the smallest predicted makespan."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax_vbgemm._src.planner.cores import Cores, mostly_write
from jax_vbgemm._src.planner.model.cost_model import least_of_whole_problems
from jax_vbgemm._src.planner.model.tile_families import STREAMING, worth_trying
from jax_vbgemm._src.planner.plan.plan import Plan
from jax_vbgemm._src.planner.registry import REGISTERED
from jax_vbgemm._src.planner.search.makespan import Makespan
from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.problem import Problem, ProblemSizes

PAPERS = tuple(registered.compared for registered in REGISTERED if registered.compared is not None)


@dataclass(frozen=True)
class Auto:
    """Never slower than the planners in PAPERS by the cost model; the plan's notes give each planner's predicted time.
    `tall_skinny` is not compared, because its own model chooses its tiles.

    A paper's planner is skipped where a lower bound of its time exceeds the predicted time of the package's search. All
    papers' planners are skipped where only streaming tiles (tile_families.STREAMING) are worth trying, and on a CPU
    where only tiles with long rows are: those are preferred because of measurements that the cost model does not show.
    """

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        # A core computes only the part of an edge tile that lies in C, so one tile shape for all problems wastes
        # nothing.
        ours: Cores | Makespan = Cores() if device.device_type == "cpu" else Makespan()
        drafts = [ours.draft(problems, device, catalogue)]
        rest = ""
        papers = PAPERS
        least = dict.fromkeys((planner.name for planner in PAPERS), 0.0)
        sizes = ProblemSizes.of(problems)
        on_gpu = device.device_type == "gpu"
        streams = on_gpu and {tile.kernel for tile in worth_trying(catalogue, sizes)} <= set(STREAMING)
        if streams or mostly_write(sizes, device):
            papers = ()
        elif on_gpu:
            sets = {
                planner.name: [catalogue.resolve(tiles)[0] for tiles in planner.ordinary_sets(catalogue)]
                for planner in PAPERS
            }
            least = least_of_whole_problems(sizes, sets, catalogue, device)
        for planner in papers:
            if least[planner.name] > drafts[0].seconds:
                rest += f"; {planner.name} no less than {least[planner.name] * 1e6:.2f} us"
            else:
                drafts.append(planner.draft(problems, device, catalogue))
        best = min(drafts, key=lambda draft: draft.seconds)
        predictions = ", ".join(f"{draft.planner} {draft.seconds * 1e6:.2f} us" for draft in drafts)
        return best.build("auto", f"took {best.planner}; predicted: {predictions}{rest}")
