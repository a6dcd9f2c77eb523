"""`auto`: plan with every planner and take the plan with the smallest predicted makespan."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax_vbgemm.planner.catalogue import Catalogue
from jax_vbgemm.planner.coordinated import Coordinated
from jax_vbgemm.planner.device import DeviceSpec
from jax_vbgemm.planner.load_balanced import LoadBalanced
from jax_vbgemm.planner.plan import Plan
from jax_vbgemm.planner.sort_split import SortSplit
from jax_vbgemm.planner.uniform import Uniform
from jax_vbgemm.problem import Problem

# Uniform tries every tile, on the CPU its own too.
CANDIDATES = (Uniform(), Coordinated(), SortSplit(), LoadBalanced())


@dataclass(frozen=True)
class Auto:
    """Never slower than the papers' planners, by the cost model; the plan's notes say what each would take."""

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        plans = [planner(problems, device, catalogue) for planner in CANDIDATES]
        best = min(plans, key=lambda plan: plan.predicted_seconds)
        predictions = ", ".join(f"{plan.planner} {plan.predicted_seconds * 1e6:.2f} us" for plan in plans)
        return replace(best, planner="auto", notes=(*best.notes, f"took {best.planner}; predicted: {predictions}"))
