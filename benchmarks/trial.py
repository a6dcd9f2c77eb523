"""Compares `auto` with the best plan that a large random and systematic search finds by measurement.

\b
  trial.py cases trial.case                              on any machine; writes trial.plans.csv beside it
  gpu_driver --cases trial.case --csv trial.csv          on the GPU
  trial.py finals trial.plans.csv finals.case trial.csv  auto and the fastest others of each workload again
  gpu_driver --cases finals.case --csv finals.csv        on the GPU
  trial.py report trial.plans.csv trial.csv --finals finals.csv

The tried plans are: one tile shape for all problems, for each tile of the arithmetic; the papers' planners with several
thresholds; `auto`'s search with the tiles of one kernel only, or without one of the tiles in its plan; `auto`'s plan in
other orders; and random plans by a perturbed cost model. Plans with a predicted time of more than 2.5 times `auto`'s
are left out. The fastest of many plans owes part of its lead to noise, so that finals decide: new timings, without the
ones that chose the finalists.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from candidates import Candidate, Measured, Writer, list_of
from jax_vbgemm import Coordinated, LoadBalanced, Plan, SortSplit, Uniform
from jax_vbgemm._src.planner import (
    PLANNERS,
    Catalogue,
    DeviceSpec,
    Planner,
    TileShape,
    catalogue_for,
    device_spec,
    kind_of,
)
from jax_vbgemm._src.planner.model.cost_model import block_seconds
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.search.makespan import narrower_searches
from jax_vbgemm._src.planner.tiles.runs import tile_counts
from jax_vbgemm._src.problem import Problem, ProblemSizes
from options import Device, Precisions, commands
from workloads import PRECISIONS, problems_named, read_csv

app = commands(__doc__)
console = Console()

# Small, middle and large products, short and long K, few and many products, in both families.
SAMPLE = (
    *(
        f"{family}_{rest}"
        for family in ("any", "pow2")
        for rest in (
            "mn128_k128_b16", "mn128_k512_b64", "mn128_k1024_b256", "mn256_k128_b64", "mn256_k256_b16",
            "mn256_k1024_b64", "mn512_k128_b256", "mn512_k256_b64", "mn512_k1024_b16",
        )
    ),
    "inception_1", "inception_8",
)  # fmt: skip
HOPELESS = 2.5  # a plan is left out where it is predicted to take so many times as long as auto's
FINALISTS, ROUNDS = 2, 3
CLOSE = 1.05


@dataclass(frozen=True)
class Reordered:
    """`auto`'s plan with its blocks in reverse order, or problem by problem."""

    way: str

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        plan = PLANNERS["auto"](problems, device, catalogue)
        if plan.block_first is not None:
            return plan
        runs = plan.runs
        order = np.arange(len(runs))[::-1] if self.way == "reversed" else np.argsort(runs.problem, kind="stable")
        return replace(plan, runs=runs.take(order))


@dataclass(frozen=True)
class Randomised:
    """One tile for each problem, all of one kernel, as cheap as possible by randomly perturbed times: by a quarter for
    each tile and a tenth for each problem. The longest block has a random upper bound; the longest blocks come first.
    """

    seed: int

    def __call__(self, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Plan:
        rng, sizes = np.random.default_rng(self.seed), ProblemSizes.of(problems)
        by_kernel: dict[str, list[TileShape]] = defaultdict(list)
        for tile in catalogue:
            by_kernel[tile.kernel].append(tile)
        best = {name: _cheapest(sizes, tiles, device, catalogue) for name, tiles in by_kernel.items()}
        kernels = [name for name in by_kernel if best[name] <= 1.5 * min(best.values())]
        tiles = by_kernel[kernels[rng.integers(len(kernels))]]
        count = np.array([tile_counts(sizes, tile.m, tile.n) for tile in tiles])
        seconds = _seconds(sizes, tiles, device, catalogue)
        seconds *= np.exp(0.25 * rng.standard_normal((len(tiles), 1)) + 0.1 * rng.standard_normal(seconds.shape))
        low, high = max(float(seconds.min(axis=0).max()), 1e-9), max(float(seconds.max()), 1e-9)
        limit = math.exp(rng.uniform(math.log(low), math.log(high))) * (1 + 1e-9)
        choice = np.where(seconds <= limit, seconds * count, np.inf).argmin(axis=0)
        order = np.argsort(-seconds[choice, np.arange(len(choice))], kind="stable")
        chosen = [tiles[index] for index in choice.tolist()]
        return Plan.from_choices(
            problems, device, catalogue, planner="random", tiles=chosen, order=[int(index) for index in order]
        )


def _seconds(sizes: ProblemSizes, tiles: Sequence[TileShape], device: DeviceSpec, catalogue: Catalogue) -> np.ndarray:
    """By tile and problem, the seconds of a block while its unit is full."""
    resident = max(tile_occupancy(tiles[0], device).blocks, 1)
    return block_seconds(sizes, tiles, catalogue, device, resident)


def _cheapest(sizes: ProblemSizes, tiles: Sequence[TileShape], device: DeviceSpec, catalogue: Catalogue) -> float:
    """The seconds of the least work with which these tiles cover the batch."""
    count = np.array([tile_counts(sizes, tile.m, tile.n) for tile in tiles])
    resident = max(tile_occupancy(tiles[0], device).blocks, 1)
    return float((_seconds(sizes, tiles, device, catalogue) * count).min(axis=0).sum()) / resident


def planners(problems: Sequence[Problem], kind: str, device: DeviceSpec, randoms: int) -> dict[str, Planner]:
    """All planners that are tried on a workload, `auto` first."""
    catalogue, auto = catalogue_for(kind, device), PLANNERS["auto"]
    plan = auto(problems, device, catalogue)
    found: dict[str, Planner] = {"auto": auto}
    found |= {f"uniform {tile.name}/{tile.threads}": Uniform(tile.key) for tile in catalogue}
    whole = device.units * device.max_threads
    found |= {f"coordinated {share}": Coordinated(share * whole) for share in (0.4, 3.0)}
    found |= {f"load_balanced {share}": LoadBalanced(share * whole) for share in (0.125, 0.75, 1.5)}
    found |= {f"sort_split {factor}": SortSplit(factor * device.units) for factor in (1, 4, 16)}
    found |= narrower_searches(plan.runs, catalogue, catalogue.kernels)
    found |= {f"auto {way}": Reordered(way) for way in ("reversed", "in order")}
    return found | {f"random {seed}": Randomised(seed) for seed in range(randoms)}


Chosen = Mapping[tuple[str, str], Collection[str]]  # names of plans by workload and precision


def _write(
    output: Path, device_name: str, randoms: int, work: Sequence[tuple[str, str]], only: Chosen | None, rounds: int
) -> None:
    device = device_spec(device_name)
    with Writer(output, device_name) as writer:
        for name, precision in track(work, "workloads", console=console):
            problems = problems_named(name)
            tried = planners(problems, kind_of(*PRECISIONS[precision], device), device, randoms)
            plans = None if only is None else only[name, precision]
            writer.add("trial", name, problems, precision, tried, plans, rounds, HOPELESS)
    console.print(f"{output}: {writer.cases} cases, {output.stat().st_size / 1e6:.1f} MB; {list_of(output)}")


Randoms = Annotated[int, typer.Option("--random", help="random plans a workload; the same for cases and finals")]
Plans = Annotated[Path, typer.Argument(help="the list that `cases` wrote")]


@app.command()
def cases(
    output: Path,
    precision: Precisions = ["fp32", "tf32", "bf16"],
    randoms: Randoms = 8,
    device_name: Device = "h100",
) -> None:
    """Writes the plans for gpu_driver, and the list of them."""
    work = [(name, which) for which in precision for name in SAMPLE]
    _write(output, device_name, randoms, work, None, 1)


@app.command()
def finals(
    plans: Plans,
    output: Path,
    measured: Annotated[list[Path], typer.Argument(help="the driver's CSV files")],
    randoms: Randoms = 8,
    device_name: Device = "h100",
) -> None:
    """Writes auto's plan and the fastest other plans of each workload, for several rounds of timings."""
    tried = by_workload(read_csv(Candidate, plans), Measured(measured))
    only = {
        key: {trial.auto.plan, *(candidate.plan for candidate, _ in trial.others[:FINALISTS])}
        for key, trial in tried.items()
    }
    _write(output, device_name, randoms, list(only), only, ROUNDS)


@dataclass(frozen=True)
class Trial:
    """auto's plan of a workload and its time, and the other plans and times, the fastest first."""

    auto: Candidate
    auto_us: float
    others: Sequence[tuple[Candidate, float]]

    @property
    def best(self) -> tuple[Candidate, float]:
        """The fastest plan; auto's own where no other is faster."""
        first = self.others[:1] or [(self.auto, self.auto_us)]
        return first[0] if first[0][1] < self.auto_us else (self.auto, self.auto_us)

    @property
    def ratio(self) -> float:
        """auto's time divided by that of the best plan, at least 1."""
        return self.auto_us / self.best[1]


def by_workload(candidates: Iterable[Candidate], measured: Measured) -> dict[tuple[str, str], Trial]:
    """By workload and precision; those where auto's plan wasn't measured are left out."""
    groups: dict[tuple[str, str], dict[str, tuple[Candidate, float]]] = defaultdict(dict)
    autos: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates:
        key, us = (candidate.workload, candidate.precision), measured.us(candidate)
        if candidate.planner == "auto":
            autos[key] = candidate
        if us is not None:
            groups[key].setdefault(candidate.plan, (candidate, us))  # the first that made the plan
    found = {}
    for key, auto in autos.items():
        if auto.plan in groups[key]:
            others = [entry for plan, entry in groups[key].items() if plan != auto.plan]
            found[key] = Trial(auto, groups[key][auto.plan][1], sorted(others, key=lambda entry: entry[1]))
    return found


@dataclass(frozen=True)
class Verdict:
    """auto's time divided by that of the best plan: in the first timings, for their winner timed again, and in the
    finals."""

    first: float
    again: float | None = None
    final: float | None = None


def judge(first: Trial, again: Trial | None) -> Verdict:
    if again is None:
        return Verdict(first.ratio)
    plans = {candidate.plan: us for candidate, us in ((again.auto, again.auto_us), *again.others)}
    winner = plans.get(first.best[0].plan)
    return Verdict(first.ratio, None if winner is None else again.auto_us / winner, again.ratio)


@app.command()
def report(
    plans: Plans,
    measured: Annotated[list[Path], typer.Argument(help="the driver's CSV files")],
    final: Annotated[list[Path] | None, typer.Option("--finals", help="the driver's CSV of the finals")] = None,
) -> None:
    """Prints auto's time divided by the best one's for each workload, and geometric means."""
    candidates = list(read_csv(Candidate, plans))
    tried = by_workload(candidates, Measured(measured))
    again = by_workload(candidates, Measured(final)) if final else {}
    verdicts = {key: judge(trial, again.get(key)) for key, trial in tried.items()}
    grid = Grid(title="auto's time over the fastest plan's")
    for column in ("workload", "precision", "plans", "auto us", "best us", "first", "finals", "the best is by"):
        grid.add_column(column, justify="left" if column in ("workload", "the best is by") else "right")
    for (name, precision), trial in tried.items():
        shown = again.get((name, precision), trial)
        verdict = verdicts[name, precision]
        grid.add_row(
            name, precision, str(1 + len(trial.others)), f"{shown.auto_us:.2f}", f"{shown.best[1]:.2f}",
            f"{verdict.first:.3f}", "" if verdict.final is None else f"{verdict.final:.3f}", shown.best[0].planner,
        )  # fmt: skip
    console.print(grid)
    console.print(_summary(verdicts, again or tried))


def _summary(verdicts: Mapping[tuple[str, str], Verdict], decided: Mapping[tuple[str, str], Trial]) -> Grid:
    grid = Grid(title=f"geometric means (worst; workloads within {CLOSE - 1:.0%})")
    for column in ("precision", "workloads", "first timings", "their winner timed again", "best of the finals"):
        grid.add_column(column, justify="right")
    grid.add_column("the best is by")

    def cell(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        if not known:
            return ""
        return f"{geometric_mean(known):.3f} ({max(known):.2f}; {sum(x <= CLOSE for x in known)} of {len(known)})"

    for precision in dict.fromkeys(precision for _, precision in verdicts):
        mine = [verdict for (_, which), verdict in verdicts.items() if which == precision]
        winners: dict[str, int] = defaultdict(int)
        for (_, which), trial in decided.items():
            if which == precision:
                winners[trial.best[0].planner.split()[0]] += 1
        grid.add_row(
            precision, str(len(mine)), cell([v.first for v in mine]), cell([v.again for v in mine]),
            cell([v.final for v in mine]),
            ", ".join(f"{name} {count}" for name, count in sorted(winners.items(), key=lambda item: -item[1])),
        )  # fmt: skip
    return grid


if __name__ == "__main__":
    app()
