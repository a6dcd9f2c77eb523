"""plan_problems: from a planner's name, options object or any callable to a checked, cached Plan."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

from jax_vbgemm.planner.auto import Auto
from jax_vbgemm.planner.catalogue import Catalogue, catalogue_for
from jax_vbgemm.planner.coordinated import Coordinated
from jax_vbgemm.planner.device import DeviceSpec
from jax_vbgemm.planner.load_balanced import LoadBalanced
from jax_vbgemm.planner.plan import Plan
from jax_vbgemm.planner.sort_split import SortSplit
from jax_vbgemm.planner.uniform import Uniform
from jax_vbgemm.problem import Problem, problems_of

Planner = Callable[[Sequence[Problem], DeviceSpec, Catalogue], Plan]

PLANNERS: Mapping[str, Planner] = {
    "auto": Auto(),
    "uniform": Uniform(),
    "coordinated": Coordinated(),
    "sort_split": SortSplit(),
    "load_balanced": LoadBalanced(),
}
OWN_PLANNERS = tuple(type(planner) for planner in PLANNERS.values())


def resolve_planner(planner: str | Planner) -> Planner:
    """The planner of that name, or the callable itself; ValueError for an unknown name, else TypeError."""
    if isinstance(planner, str):
        if planner not in PLANNERS:
            raise ValueError(f"planner: unknown name {planner!r}; known are {', '.join(PLANNERS)}, or any callable")
        return PLANNERS[planner]
    if not callable(planner) or not isinstance(planner, Hashable):
        raise TypeError(
            f"planner: expected a name or a hashable callable (problems, device, catalogue) -> Plan, got {planner!r}"
        )
    return planner


def plan_problems(
    problems: Sequence[Problem | Sequence[int]], kind: str, device: DeviceSpec, planner: str | Planner = "auto"
) -> Plan:
    """The plan of `planner` for `problems` in a kind of arithmetic on `device`, cached by all four.

    `planner`: a name of PLANNERS, an object with options (Coordinated(theta=512)), or any hashable callable (problems,
    device, catalogue) -> Plan, whose plan is validated. Raises TypeError or ValueError for an illegal size, an unknown
    dtype or planner, and a plan that isn't one for these problems.
    """
    return _plan(problems_of(problems), kind, device, resolve_planner(planner))


@lru_cache(maxsize=256)
def _plan(problems: tuple[Problem, ...], kind: str, device: DeviceSpec, planner: Planner) -> Plan:
    catalogue = catalogue_for(kind, device)
    plan = planner(problems, device, catalogue)
    if isinstance(planner, OWN_PLANNERS):
        return plan  # the tests show that these cover each element once
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: planner {planner!r} returned {type(plan).__name__}, not a Plan")
    if (plan.problems, plan.device, plan.catalogue) != (problems, device, catalogue):
        raise ValueError(
            f"plan: planner {planner!r} returned a plan for other problems or another device than it was given"
        )
    plan.validate()
    return plan
