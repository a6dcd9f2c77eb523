"""Compares the papers' planners on this package's kernels, measures the cost of planning, and searches for the best
thresholds of a device.

\b
  planners.py cases planners.case                         on any machine; writes planners.plans.csv beside it
  gpu_driver --cases planners.case --csv planners.csv     on the GPU
  planners.py report planners.plans.csv planners.csv      every planner against every other, beside the papers' claims
  planners.py thresholds planners.plans.csv planners.csv  values for [papers] of a device.toml
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from candidates import Candidate, Measured, Table, Writer, list_of, ratios, tabulate
from figures import by_title, cold
from jax_vbgemm import Coordinated, LoadBalanced, SortSplit, Uniform
from jax_vbgemm._src.planner import PLANNERS, DeviceSpec, Planner, catalogue_for, device_spec
from jax_vbgemm._src.problem import Problem
from options import Device, Precision, commands
from workloads import Row, expand, problems_named, read_csv

app = commands(__doc__)
console = Console()

PEERS = Path(__file__).parent / "results" / "peers" / "h100.csv"

OLD_TLP = "load_balanced, old TLP"  # Zhang's Eq. 3 instead of Eq. 4
COMPARED: Mapping[str, Planner] = {**PLANNERS, OLD_TLP: LoadBalanced(bound="none")}

# Workloads on which thresholds are tried: each size of problem, range of K and batch in both families.
SAMPLE = tuple(
    f"{family}_{rest}"
    for family in ("any", "pow2")
    for rest in (
        "mn128_k128_b64", "mn128_k1024_b16", "mn256_k256_b64", "mn256_k512_b256", "mn512_k128_b16", "mn512_k512_b64",
    )
)  # fmt: skip

# Thresholds that are threads, as fractions of the threads that the device holds; theta and blocks per unit are
# absolute.
SHARES = (0.0625, 0.125, 0.25, 0.4, 0.75, 1.0, 1.5, 2.0, 3.0, 6.0)
THETAS = (64, 256, 1024)
SPLIT_FACTORS = (1, 2, 4, 6, 8, 12, 16, 24, 32)

# The huge product of Li's section 4.2.3 gets fewer rows: tiles of 256 threads in 12 columns, and these rows of them.
CURVE_TILES = ("small", "medium", "large", "huge")
CURVE_COLUMNS, CURVE_ROWS, CURVE_K = 12, (3, 4, 6, 8, 11, 16, 22, 31, 44, 62, 88, 124, 176), 512

CLEAR = 1.5  # a product's rate must fall by this factor to count as breaking off
WORTH = 1.01  # a smaller gain on workloads held out is no reason to change the device table

COMPARE, CURVE = "compare", "curve"
TLP, THETA, BALANCED, OLD, SPLIT = "tlp_threshold", "theta", "load_balanced_threshold", "old TLP", "split_factor"


def thresholds_of(device: DeviceSpec) -> list[int]:
    """The device's own thresholds, and a grid around them."""
    whole = device.units * device.max_threads
    own = {device.tlp_threshold, device.load_balanced_threshold}
    grid = [round(share * whole) for share in SHARES]
    return sorted(own | {value for value in grid if all(abs(math.log(value / x)) > 0.01 for x in own)})


def options(device: DeviceSpec) -> dict[str, dict[str, Planner]]:
    """For each threshold (or pair of thresholds), planners by the tried value: "108134", or "108134, 256" for two."""
    thresholds = thresholds_of(device)
    found: dict[str, dict[str, Planner]] = {
        TLP: {f"{tlp}, {theta}": Coordinated(tlp, theta) for tlp in thresholds for theta in THETAS},
        BALANCED: {str(tlp): LoadBalanced(tlp) for tlp in thresholds},
        OLD: {str(tlp): LoadBalanced(tlp, bound="none") for tlp in thresholds},
        SPLIT: {str(factor): SortSplit(factor * device.units) for factor in SPLIT_FACTORS},
    }
    return found


def default_of(part: str, device: DeviceSpec) -> str:
    """The value that the device table has."""
    return {
        TLP: f"{device.tlp_threshold}, {device.theta}",
        BALANCED: str(device.load_balanced_threshold),
        OLD: str(device.load_balanced_threshold),
        SPLIT: str(device.split_factor),
    }[part]


def curve_problem(tile: tuple[int, int], rows: int) -> Problem:
    """The product that `rows` times CURVE_COLUMNS tiles cover exactly."""
    return Problem(tile[0] * rows, tile[1] * CURVE_COLUMNS, CURVE_K)


@app.command()
def cases(
    output: Path,
    device_name: Device = "h100",
    precision: Precision = "fp32",
) -> None:
    """Writes the plans for gpu_driver, and the list of them."""
    with Writer(output, device_name, repeats=5) as writer:
        add(writer, precision, device_spec(device_name), console)
    console.print(f"{output}: {writer.cases} cases, {output.stat().st_size / 1e6:.1f} MB; {list_of(output)}")


def add(writer: Writer, precision: str, device: DeviceSpec, console: Console) -> None:
    """The plans that compare planners, try thresholds, and shrink a huge product."""
    for name in track(expand(["grids"]), "planners", console=console):
        writer.add(COMPARE, name, problems_named(name), precision, COMPARED)
    for name in track(SAMPLE, "thresholds", console=console):
        for part, planners in options(device).items():
            writer.add(part, name, problems_named(name), precision, planners)
    for name in CURVE_TILES:
        tile = catalogue_for("float32", device).find(name, 256)
        for rows in CURVE_ROWS:
            problem = curve_problem((tile.m, tile.n), rows)
            workload = f"{CURVE}_{name}_{CURVE_COLUMNS * rows}"
            writer.add(CURVE, workload, [problem], precision, {name: Uniform((name, 256))})


def _speedup(values: Sequence[float]) -> str:
    return f"{geometric_mean(values):.3f}x" if values else "-"


def pairs(table: Table, planners: Sequence[str], title: str) -> Grid:
    """A grid of speedups of the row's planner over the column's planner."""
    grid = Grid(title=title)
    for column in ("as fast as", *planners):
        grid.add_column(column, justify="right")
    for planner in planners:
        cells = ["" if other == planner else _speedup(ratios(table, planner, other)) for other in planners]
        grid.add_row(planner, *cells)
    return grid


def batches_of(candidates: Sequence[Candidate]) -> list[int]:
    return sorted({int(candidate.workload.rpartition("_b")[2]) for candidate in candidates})


@app.command()
def report(
    plans: Annotated[Path, typer.Argument(help="the list that `cases` wrote")],
    measured: Annotated[list[Path], typer.Argument(help="the driver's CSV files")],
    peers: Annotated[Path, typer.Option(help="CSV of MAGMA, cuBLAS and CUTLASS on the same workloads")] = PEERS,
    device_name: Device = "h100",
) -> None:
    """Prints every planner against every other, beside the papers' claims, and what planning costs."""
    times, every = Measured(measured), list(read_csv(Candidate, plans))
    compared = [candidate for candidate in every if candidate.part == COMPARE]
    table, names = tabulate(compared, times), list(COMPARED)
    console.print(f"{sum(map(len, table.values()))} of {len(compared)} plans of {len(table)} workloads were measured")
    for family in ("any", "pow2", ""):
        part = {name: row for name, row in table.items() if name.startswith(family)}
        console.print(pairs(part, names, f"{family or 'both'}: {len(part)} workloads, geometric means"))
    console.print(_claims(every, table, times, peers, device_spec(device_name)))
    console.print(_planning(compared, times))


def _claims(every: Sequence[Candidate], table: Table, times: Measured, peers: Path, device: DeviceSpec) -> Grid:
    """The papers' figures, and those of this package with the device table's thresholds and with the best tried
    ones."""
    best: dict[str, dict[str, float]] = {}
    for part in (TLP, BALANCED, OLD, SPLIT):
        tried = by_value([candidate for candidate in every if candidate.part == part], times)
        if tried:
            best[part] = tried[search(tried, default_of(part, device)).best]
    for_peers = by_title(cold(read_csv(Row, peers)))
    precision = every[0].precision if every else ""

    def over_peer(planner: str, title: str) -> str:
        found = [
            for_peers[title][name, precision] / row[planner]
            for name, row in table.items()
            if planner in row and (name, precision) in for_peers.get(title, {})
        ]
        return f"{_speedup(found)} ({len(found)})"

    def tuned(part: str, other: str) -> str:
        if part not in best or other not in best:
            return "-"
        common = best[part].keys() & best[other].keys()
        return f"{_speedup([best[other][name] / best[part][name] for name in common])} ({len(common)})"

    def ours(planner: str, other: str, batches: range | None = None) -> str:
        names = [name for name in table if batches is None or int(name.rpartition("_b")[2]) in batches]
        values = ratios(table, planner, other, names)
        return f"{_speedup(values)} ({len(values)})"

    plan_of = {(c.workload, c.planner): c.plan for c in every if c.part == COMPARE}
    workloads = {name for name, _ in plan_of}
    differ = sum(plan_of[name, "load_balanced"] != plan_of[name, OLD_TLP] for name in workloads)
    small, large = range(0, 17), range(32, 10**9)
    grid = Grid(title="the papers' claims (in brackets: workloads)")
    for column in ("", "paper", "here, device table's thresholds", "here, best thresholds on the sample"):
        grid.add_column(column, justify="left" if not column else "right")
    for row in (
        ("load_balanced over coordinated", "1.94x (A800)", ours("load_balanced", "coordinated"), tuned(BALANCED, TLP)),
        ("load_balanced over sort_split", "1.88x (MI210)", ours("load_balanced", "sort_split"), tuned(BALANCED, SPLIT)),
        ("new TLP over old", "1.085x (A800)", ours("load_balanced", OLD_TLP), tuned(BALANCED, OLD)),
        ("  batch <= 16", "1.04x", ours("load_balanced", OLD_TLP, small), ""),
        ("  batch >= 32", "1.11x", ours("load_balanced", OLD_TLP, large), ""),
        (f"  (their plans differ on {differ} of {len(workloads)} workloads)", "", "", ""),
        ("coordinated over MAGMA", "1.40x (V100)", over_peer("coordinated", "MAGMA vbatched"), ""),
        ("load_balanced over MAGMA", "3.63x (A800)", over_peer("load_balanced", "MAGMA vbatched"), ""),
        ("load_balanced over a cuBLAS loop", "7.18x (A800)", over_peer("load_balanced", "cuBLAS loop"), ""),
        ("load_balanced over CUTLASS", "4.64x (A800)", over_peer("load_balanced", "CUTLASS grouped"), ""),
        ("auto over MAGMA", "", over_peer("auto", "MAGMA vbatched"), ""),
    ):
        grid.add_row(*row)
    return grid


def _planning(compared: Sequence[Candidate], times: Measured) -> Grid:
    """The cost of planning. This package plans once, when a program is lowered; the papers' code plans in every
    call."""
    batches = batches_of(compared)
    grid = Grid(
        title="planning: milliseconds (best of 5, one core of the machine that wrote the cases), in times of a call's "
        "kernel, and calls until it is 1% of theirs. Zhang: 6% of a call at batch 8, below 1% at 1024, in every call; "
        "ours is paid once a compiled program"
    )
    for column in ("planner", *(f"batch {batch}" for batch in batches)):
        grid.add_column(column, justify="right")
    for planner in COMPARED:
        cells = []
        for batch in batches:
            mine = [c for c in compared if c.planner == planner and c.workload.endswith(f"_b{batch}")]
            shares = [c.planning_us / us for c in mine if (us := times.us(c)) is not None]
            took = fmean(c.planning_us for c in mine) / 1e3
            share = geometric_mean(shares) if shares else math.nan
            cells.append(f"{took:.2f} ms, {share:.0f}x, {100 * share:.0f}" if shares else f"{took:.2f} ms")
        grid.add_row(planner, *cells)
    return grid


# Thresholds


@dataclass(frozen=True)
class Search:
    """The value with the shortest times, and its `gain` over that of the device table. `held_out` is the gain on each
    workload if the value is chosen by the other workloads only.
    """

    best: str
    gain: float
    held_out: float
    relative: Mapping[str, float]  # by value: geometric mean of the default's time over this one's
    workloads: int


def by_value(candidates: Sequence[Candidate], times: Measured) -> dict[str, dict[str, float]]:
    """Value -> workload -> microseconds, on the workloads where every value was measured."""
    table = tabulate(candidates, times)
    values = list(dict.fromkeys(candidate.planner for candidate in candidates))
    whole = [name for name, row in table.items() if len(row) == len(values)]
    return {value: {name: table[name][value] for name in whole} for value in values} if whole else {}


def search(tried: Mapping[str, Mapping[str, float]], default: str) -> Search:
    """The best of the tried values; of equals the default, or else the middle one."""
    names = list(tried[default])
    logs = {value: {name: math.log(tried[default][name] / row[name]) for name in names} for value, row in tried.items()}

    def best_on(some: Sequence[str]) -> str:
        means = {value: fmean(row[name] for name in some) for value, row in logs.items()}
        top = [value for value, gain in means.items() if gain >= max(means.values()) - 1e-4]
        return default if default in top else top[len(top) // 2]

    best = best_on(names)
    held_out = [logs[best_on([other for other in names if other != name] or names)][name] for name in names]
    relative = {value: math.exp(fmean(row.values())) for value, row in logs.items()}
    return Search(best, relative[best], math.exp(fmean(held_out)), relative, len(names))


@dataclass(frozen=True)
class BreakOff:
    """The TLP at which performance breaks off: it is constant above `tlp`, and falls by a factor of `drop` from there
    to the smallest TLP. `rms` is the root mean square of the residuals of the logarithms.
    """

    tlp: float
    drop: float
    rms: float


def break_off(points: Sequence[tuple[float, float]]) -> BreakOff:
    """The break-off of the (TLP, rate) points of one shrinking product: Li 2019, section 4.2.3, step 4.

    The last wave of blocks is never full, so that the rate goes up and down: what counts at a TLP is the best rate up
    to it. A level and a straight line below it are fitted to the logarithms, the corner at any of a fine grid.
    """
    ordered = sorted(points)
    if len(ordered) < 4:
        raise ValueError(f"a break-off needs at least four points, there are {len(ordered)}")
    x = [math.log(tlp) for tlp, _ in ordered]
    y: list[float] = []
    for _, rate in ordered:
        y.append(max(math.log(rate), y[-1] if y else -math.inf))
    fits = []
    for step in range(1, 400):
        corner = x[0] + (x[-1] - x[0]) * step / 400
        below = [min(value - corner, 0.0) for value in x]  # y = level + slope * below
        mean_x, mean_y = fmean(below), fmean(y)
        spread = fmean((b - mean_x) ** 2 for b in below)
        slope = fmean((b - mean_x) * (v - mean_y) for b, v in zip(below, y, strict=True)) / spread
        level = mean_y - slope * mean_x
        error = fmean((level + slope * b - v) ** 2 for b, v in zip(below, y, strict=True))
        fits.append((error, corner, slope))
    error, corner, slope = min(fits)
    return BreakOff(math.exp(corner), math.exp(slope * (corner - x[0])), math.sqrt(error))


@app.command()
def thresholds(
    plans: Annotated[Path, typer.Argument(help="the list that `cases` wrote")],
    measured: Annotated[list[Path], typer.Argument(help="the driver's CSV files")],
    device_name: Device = "h100",
) -> None:
    """Prints where performance breaks off, the gain of each tried threshold, and the values for the device table."""
    device, times, every = device_spec(device_name), Measured(measured), list(read_csv(Candidate, plans))
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for candidate in every:
        us = times.us(candidate)
        if candidate.part == CURVE and us is not None:
            curves[candidate.planner].append((candidate.tlp, times.gflop[candidate.workload] / us))
    corner = _curves(curves)
    advice = []
    if corner is not None:
        advice.append(f"  tlp_threshold={corner}  # where performance breaks off: Li 2019, section 4.2.3")
    for part in (TLP, BALANCED, OLD, SPLIT):
        tried = by_value([candidate for candidate in every if candidate.part == part], times)
        if tried:
            found = search(tried, default_of(part, device))
            _print_tried(part, found, default_of(part, device))
            if part != OLD:
                advice.append(_advice(part, found, default_of(part, device)))
    console.print("to enter into [papers] of the device.toml:", *advice, sep="\n", highlight=False)


def _advice(part: str, found: Search, default: str) -> str:
    values = list(found.relative)
    if found.held_out < WORTH:
        return f"  keep {part}={default}: a choice by trial gains {found.held_out:.3f}x on workloads held out"
    names = (TLP, THETA) if part == TLP else (part,)
    text = ", ".join(f"{name}={value}" for name, value in zip(names, found.best.split(", "), strict=True))
    text += f"  # by trial: {found.gain:.3f}x on {found.workloads} workloads, {found.held_out:.3f}x held out"
    edge = {values[0].split(", ")[0], values[-1].split(", ")[0]}
    return f"  {text}" + ("; at the edge of what was tried" if found.best.split(", ")[0] in edge else "")


def _curves(curves: Mapping[str, list[tuple[float, float]]]) -> int | None:
    """Prints TFLOP/s by TLP for each tile; the geometric mean of the break-offs, rounded to 1024 threads."""
    corners = {tile: break_off(points) for tile, points in curves.items() if len(points) >= 4}
    if not corners:
        return None
    console.print("TFLOP/s of one product that is covered by so many threads of 256-thread tiles")
    grid = Grid()
    for column in ("TLP", *corners):
        grid.add_column(column, justify="right")
    for tlp in sorted({tlp for points in curves.values() for tlp, _ in points}, reverse=True):
        grid.add_row(f"{tlp:.0f}", *(f"{dict(curves[tile]).get(tlp, math.nan):.2f}" for tile in corners))
    grid.add_row("breaks off at", *(f"{corner.tlp:.0f}" for corner in corners.values()))
    grid.add_row("falls by", *(f"{corner.drop:.1f}x" for corner in corners.values()))
    grid.add_row("rms of the fit", *(f"{corner.rms:.2f}" for corner in corners.values()))
    console.print(grid)
    clear = [corner.tlp for corner in corners.values() if corner.drop >= CLEAR]
    return round(geometric_mean(clear) / 1024) * 1024 if clear else None


def _print_tried(part: str, search: Search, default: str) -> None:
    """Prints a line for each value; where two thresholds were tried together, a column for each second value."""
    console.print(f"{part}: times as fast as with {default}, geometric means of {search.workloads} workloads")
    grid = Grid()
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for value, gain in search.relative.items():
        first, _, second = value.partition(", ")
        cells[first][second] = f"{gain:.3f}" + (" *" if value == search.best else "  ")
    columns = list(next(iter(cells.values())))
    for column in ("", *(f"{THETA} {second}" if second else "" for second in columns)):
        grid.add_column(column, justify="right")
    for first, row in cells.items():
        grid.add_row(first, *row.values())
    console.print(grid)


if __name__ == "__main__":
    app()
