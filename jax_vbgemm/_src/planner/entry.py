"""plan_problems: makes a checked, cached Plan by a planner's name, an object with options, or any callable."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from jax_vbgemm._src.planner.auto import Auto
from jax_vbgemm._src.planner.cores import Cores
from jax_vbgemm._src.planner.papers.uniform import Uniform
from jax_vbgemm._src.planner.plan.plan import Plan
from jax_vbgemm._src.planner.registry import REGISTERED
from jax_vbgemm._src.planner.search.makespan import Makespan
from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileKey, catalogue_for
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tuned import VARIABLE, cache_file, winner_of
from jax_vbgemm._src.problem import Problem, problems_of
from jax_vbgemm._src.util.shown import shown

Planner = Callable[[Sequence[Problem], DeviceSpec, Catalogue], Plan]

PLANNERS: Mapping[str, Planner] = {"auto": Auto(), **{each.name: each.planner for each in REGISTERED}}

# Planners whose plans are not validated in every program, because the tests validate them (tests/conftest.py).
TRUSTED = frozenset({Makespan, *map(type, PLANNERS.values())})


def resolve_planner(planner: str | Planner) -> Planner:
    """The planner of that name, or the callable itself; ValueError for an unknown name, TypeError for any other
    value."""
    if isinstance(planner, str):
        if planner not in PLANNERS:
            raise ValueError(f"planner: unknown name {planner!r}; known are {', '.join(PLANNERS)}, or any callable")
        return PLANNERS[planner]
    if isinstance(planner, type):
        raise TypeError(f"planner: {planner.__name__} is a class: give an object of it, {planner.__name__}()")
    if not callable(planner) or not isinstance(planner, Hashable):
        raise TypeError(
            "planner: expected a name or a hashable callable (problems, device, catalogue) -> Plan, "
            f"but it is {shown(planner)}"
        )
    return planner


def plan_problems(
    problems: Sequence[Problem | Sequence[int]],
    kind: str,
    device: DeviceSpec,
    planner: str | Planner = "auto",
    *,
    tuned: bool = True,
) -> Plan:
    """The plan of `planner` for `problems` in the arithmetic `kind` on `device`; cached by these four arguments.

    `planner`: a name of PLANNERS, an object with options (Coordinated(theta=512)), or any hashable callable (problems,
    device, catalogue) -> Plan, whose plan is validated. "auto" takes the planner that `autotune` measured to be the
    fastest for these problems, if its file (planner/tuned.py) has one and `tuned` is True, else the planner whose plan
    has the smallest predicted time. Raises TypeError or ValueError for an illegal size, an unknown dtype or planner,
    and a plan that is invalid for these problems.
    """
    problems, planner = problems_of(problems), resolve_planner(planner)
    follow = tuned and type(planner) is Auto
    winner = winner_of(problems, device, catalogue_for(kind, device)) if follow else None
    return _plan(problems, kind, device, planner, winner)


def planner_called(name: str) -> Planner:
    """The planner for a name in the file of tuned plans: "sort_split", "coordinated binary", "uniform huge/256",
    "cores", "makespan", "makespan only t128_medium", "makespan without huge/256".
    """

    def tile(text: str) -> TileKey:
        shape, _, threads = text.rpartition("/")
        return shape, int(threads)

    match name.split(" "):
        case ["cores"]:
            return Cores()
        case ["makespan"]:
            return Makespan()
        case ["makespan", "only", kernel]:
            return Makespan(kernel=kernel)
        case ["makespan", "without", text]:
            return Makespan(without=tile(text))
        case ["uniform", text]:
            return Uniform(tile(text))
    known = {key: planner for each in REGISTERED for key, planner in each.by_file_name.items()}
    return known.get(name) or resolve_planner(name)


@lru_cache(maxsize=256)
def _plan(problems: tuple[Problem, ...], kind: str, device: DeviceSpec, planner: Planner, winner: str | None) -> Plan:
    catalogue = catalogue_for(kind, device)
    if winner is not None:
        try:
            plan = planner_called(winner)(problems, device, catalogue)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{VARIABLE}: {cache_file()} names the planner {winner!r}: {error}") from None
        return replace(plan, planner="auto", notes=(*plan.notes, f"took {winner}, measured by autotune"))
    plan = planner(problems, device, catalogue)
    if type(planner) in TRUSTED:  # a subclass may do anything
        return plan
    if not isinstance(plan, Plan):
        raise TypeError(f"plan: planner {planner!r} returned {type(plan).__name__}, not a Plan")
    if (plan.problems, plan.device, plan.catalogue) != (problems, device, catalogue):
        raise ValueError(
            f"plan: planner {planner!r} returned a plan for other problems or another device than it was given"
        )
    plan.validate()
    return plan
