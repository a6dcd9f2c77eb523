"""docs/benchmarks.md and its plots, from the CSV files of the kernel alone: no figure on that page is typed by hand.

  report.py                                 the page of benchmarks/results/h100_kernel.csv
  report.py --ours new.csv --page new.md    the page of another file; sources.csv beside it says where it was measured

Needs matplotlib (extra `dev`).
"""

import csv
import math
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean, median
from typing import Annotated, Any

import typer

from workloads import Row

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"

COMMAND = "python benchmarks/report.py"
OURS, LOOP = "vbgemm_auto", "cuBLAS loop"
FAMILIES = ("any", "pow2", "inception", "moe")
GRIDS = ("any", "pow2")
PRECISIONS = {
    "fp64": "float64",
    "fp32": "float32 without tensor cores",
    "3xtf32": "float32 as three TF32",
    "tf32": "TF32",
    "bf16": "bfloat16",
}

# What the peers' names begin with. Of a peer's configurations the fastest of each workload counts.
PEERS = {
    "cublas_loop": LOOP,
    "torch_mm_loop": "torch.mm loop",
    "cublas_8streams": "cuBLAS, 8 streams",
    "cublas_grouped": "cuBLAS grouped",
    "magma_vbatched": "MAGMA vbatched",
    "torch_padded_bmm_withpad": "torch.bmm, padding",
    "torch_padded_bmm": "torch.bmm, padded before",
    "torch_grouped_mm": "torch._grouped_mm",
    "triton_grouped": "Triton grouped",
    "cutlass": "CUTLASS grouped",
    "li19": "Li 2019",
    "zhang25": "Zhang 2025, mended",  # what was released computes some results wrong, which don't count
}

Case = tuple[str, str]  # (workload, precision)
Times = Mapping[Case, float]  # microseconds


@dataclass(frozen=True)
class Best:
    """The fastest correct peer of a workload, and the least that any kernel takes (benchmarks/results/peers)."""

    us: float
    peer: str
    limit: float

    @classmethod
    def read(cls, file: Path) -> dict[Case, "Best"]:
        with file.open(newline="") as lines:
            return {
                (row["workload"], row["precision"]): cls(
                    float(row["best_graph_us"]), row["best_peer"], float(row["limit_us"])
                )
                for row in csv.DictReader(lines)
            }


def family_of(workload: str) -> str:
    return workload.split("_")[0]


def batch_of(workload: str) -> int | None:
    """64 of "any_mn128_k128_b64"; None of a workload that is a whole file."""
    found = re.search(r"_b(\d+)$", workload)
    return int(found[1]) if found else None


def title_of(peer: str) -> str:
    """The name a peer is shown by: of the longest beginning in PEERS, else its own."""
    starts = [start for start in PEERS if peer.startswith(start)]
    return PEERS[max(starts, key=len)] if starts else peer


def cold(rows: Iterable[Row]) -> list[Row]:
    """The rows that the page is about: right results, operands from memory, graph replay."""
    kept = (row for row in rows if row.cache == "cold" and row.nbad == 0 and row.group in FAMILIES)
    return [row for row in kept if row.graph_us > 0]


def fastest(rows: Iterable[Row]) -> dict[Case, float]:
    times: dict[Case, float] = {}
    for row in rows:
        case = row.workload, row.precision
        times[case] = min(row.graph_us, times.get(case, math.inf))
    return times


def by_title(rows: Iterable[Row]) -> dict[str, dict[Case, float]]:
    """Each peer's times, by the name that is shown, in the order of PEERS."""
    of: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        of[title_of(row.peer)].append(row)
    order = list(PEERS.values())
    titles = sorted(of, key=lambda title: order.index(title) if title in order else len(order))
    return {title: fastest(of[title]) for title in titles}


def gains(ours: Times, theirs: Times) -> dict[tuple[str, str], list[float]]:
    """By (family, precision): how many times as fast we are on each workload that both did."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (workload, precision), us in ours.items():
        if (workload, precision) in theirs:
            found[family_of(workload), precision].append(theirs[workload, precision] / us)
    return dict(found)


def shares(times: Times, best: Mapping[Case, Best]) -> dict[tuple[str, str, int | None], float]:
    """Geometric mean of limit / time by (family, precision, batch)."""
    found: dict[tuple[str, str, int | None], list[float]] = defaultdict(list)
    for (workload, precision), us in times.items():
        if (workload, precision) in best:
            key = family_of(workload), precision, batch_of(workload)
            found[key].append(best[workload, precision].limit / us)
    return {key: geometric_mean(values) for key, values in found.items()}


@dataclass(frozen=True)
class Results:
    """All that the page is made of."""

    ours: Times
    peers: Mapping[str, Times]  # by title; those measured beside us in place of those of the peers' file
    best: Mapping[Case, Best]
    machines: Mapping[str, float]  # cuBLAS loop: time in the peers' file over time beside us, by precision
    sources: Sequence[Mapping[str, str]]

    @cached_property
    def precisions(self) -> list[str]:
        here = {precision for _, precision in self.ours}
        return [precision for precision in PRECISIONS if precision in here]

    @cached_property
    def best_times(self) -> Times:
        """The best peer's, on our workloads."""
        return {case: self.best[case].us for case in self.ours if case in self.best}

    @classmethod
    def read(cls, ours: Path, peers: Path, best: Path, sources: Path) -> "Results":
        rows = list(Row.read(ours))
        wrong = [f"{row.workload} {row.precision}" for row in rows if row.peer == OURS and row.nbad]
        if wrong:
            raise ValueError(f"{ours}: wrong results of {OURS} on {', '.join(wrong)}")
        runs: dict[Case, list[float]] = defaultdict(list)
        for row in cold(rows):
            if row.peer == OURS:
                runs[row.workload, row.precision].append(row.graph_us)
        if not runs:
            raise ValueError(f"{ours} has no row of {OURS} with cache = cold")
        beside = by_title(row for row in cold(rows) if not row.peer.startswith("vbgemm"))
        theirs = by_title(cold(Row.read(peers)))
        machines: dict[str, list[float]] = defaultdict(list)
        for case, us in beside.get(LOOP, {}).items():
            if case in theirs.get(LOOP, {}):
                machines[case[1]].append(theirs[LOOP][case] / us)
        return cls(
            {case: median(values) for case, values in runs.items()},
            {title: {**theirs.get(title, {}), **beside.get(title, {})} for title in {**theirs, **beside}},
            Best.read(best),
            {precision: geometric_mean(ratios) for precision, ratios in machines.items()},
            [source_of(file, sources) for file in (ours, peers, best)],
        )


def source_of(file: Path, sources: Path) -> dict[str, str]:
    """The line of sources.csv about a file; ValueError where it has none."""
    with sources.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if (sources.parent / row["file"]).resolve() == file.resolve():
                return row
    raise ValueError(f"{sources} has no line for {file}: add one with device, date and what it holds")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]


def mean(values: Sequence[float] | None, text: str = "{:.2f}x") -> str:
    return text.format(geometric_mean(values)) if values else ""


def page(results: Results, plots: str, command: str) -> str:
    """The text; `plots` is the folder of the plots as the page links it."""
    ours, best = results.ours, results.best
    families = [family for family in FAMILIES if any(family_of(workload) == family for workload, _ in ours)]
    lines = [
        "# Benchmarks: the kernel alone",
        "",
        f"<!-- Written by `{command}`: change that script, not this page. -->",
        "",
        *_introduction(results, command),
        "",
        "## Summary",
        "",
        "Geometric means: how many times as fast as the peer, and the share of the limit that is reached. `best peer` "
        "is an oracle: for each workload the fastest of all peers and configurations, chosen afterwards.",
        "",
        *_summary(results, families),
        "",
        "## Share of the limit by batch size",
        "",
        f"![share of the limit by batch size]({plots}/limit.svg)",
        "",
        *_share_table(results),
        "",
        "## Speed-up over each peer, at the same precision",
        "",
        f"![speed-up over each peer]({plots}/peers.svg)",
        "",
        "Over the workloads that both did, whose number stands in brackets: above 1, jax_vbgemm is faster. Of a peer "
        "with several tiles or versions the fastest of each workload counts. Wrong results count for nobody.",
        "",
    ]  # fmt: skip
    for precision in results.precisions:
        lines += [f"### {PRECISIONS[precision]}", "", *_peer_table(results, precision, families), ""]
    lines += [
        "## Single workloads",
        "",
        "`any_mn128_k256_b64`: 64 products, M and N up to 128, K up to 256, of any size (`pow2`: powers of two).",
        "",
    ]
    for precision in results.precisions:
        cases = sorted(
            (case for case in ours if case[1] == precision and case in best),
            key=lambda case: best[case].us / ours[case],
        )
        lines += [
            f"### {PRECISIONS[precision]}: the five worst and the five best of {len(cases)}", "",
            *table(
                ("workload", "jax_vbgemm", "best peer", "", "speed-up", "share of the limit"),
                [
                    (case[0], f"{ours[case]:.1f} us", f"{best[case].us:.1f} us", best[case].peer,
                     f"{best[case].us / ours[case]:.2f}x", f"{best[case].limit / ours[case]:.0%}")
                    for case in (cases if len(cases) <= 10 else cases[:5] + cases[-5:])
                ],
            ), "",
        ]  # fmt: skip
    return "\n".join((*lines[:-1], ""))


def _introduction(results: Results, command: str) -> list[str]:
    peak = max(results.machines.values(), key=lambda ratio: abs(math.log(ratio)), default=1.0)
    lines = [
        "One batched operation by CUDA-graph replay, operands from memory, every result checked against float64; the "
        "protocol, and what the limit of a workload is, are in "
        "[benchmarks/results/peers](../benchmarks/results/peers/README.md). Inside JAX: "
        "[benchmarks/NOTES.md](../benchmarks/NOTES.md), [flax.md](flax.md), [optax.md](optax.md).",
        "",
        *table(
            ("CSV", "device", "date", "what"),
            [
                (f"benchmarks/results/{row['file']}", row["device"], row["date"], row["about"])
                for row in results.sources
            ],
        ),
    ]
    if results.machines:
        ratios = ", ".join(f"{precision} {ratio:.3f}" for precision, ratio in results.machines.items())
        lines += [
            "",
            "The cuBLAS loop was measured beside us; other peers come from their own file. Do both machines agree? "
            f"Time of the cuBLAS loop in the peers' file over its time beside us, geometric means: {ratios}"
            + (". They do, within 5%." if abs(peak - 1) < 0.05 else f": they differ by up to {abs(peak - 1):.0%}."),
        ]
    return [*lines, "", f"This page is written by `{command}`."]


def _summary(results: Results, families: Sequence[str]) -> list[str]:
    over_loop = gains(results.ours, results.peers.get(LOOP, {}))
    over_best = gains(results.ours, results.best_times)
    limit_gains = {case: results.best[case].limit for case in results.ours if case in results.best}
    of_limit = gains(results.ours, limit_gains)

    def cells(found: Mapping[tuple[str, str], list[float]], precision: str, text: str) -> str:
        return " / ".join(mean(found.get((family, precision)), text) or "-" for family in families)

    rows = []
    for precision in results.precisions:
        wins = [gain > 1 for family in families for gain in over_best.get((family, precision), [])]
        rows.append(
            (
                PRECISIONS[precision],
                cells(over_loop, precision, "{:.1f}x"),
                cells(over_best, precision, "{:.2f}x"),
                f"{sum(wins)} of {len(wins)}",
                cells(of_limit, precision, "{:.0%}"),
            )
        )
    names = " / ".join(families)
    head = ("", f"cuBLAS loop: {names}", "best peer", "faster than the best peer", "share of the limit")
    return table(head, rows)


def _share_table(results: Results) -> list[str]:
    mine, theirs = shares(results.ours, results.best), shares(results.best_times, results.best)
    batches = sorted({batch for family, _, batch in mine if family in GRIDS and batch is not None})

    def cell(precision: str, family: str, batch: int) -> str:
        key = family, precision, batch
        return f"{mine[key]:.0%} ({theirs[key]:.0%})" if key in mine and key in theirs else ""

    return [
        "Geometric means; the best peer's in brackets.",
        "",
        *table(
            ("", *(f"{family}, batch {batch}" for family in GRIDS for batch in batches)),
            [
                (PRECISIONS[precision], *(cell(precision, family, batch) for family in GRIDS for batch in batches))
                for precision in results.precisions
            ],
        ),
    ]


def _peer_table(results: Results, precision: str, families: Sequence[str]) -> list[str]:
    def cell(values: list[float] | None) -> str:
        return f"{mean(values)} ({len(values)})" if values else ""

    rows = []
    for title, times in results.peers.items():
        found = gains(results.ours, times)
        if any((family, precision) in found for family in families):
            rows.append((title, *(cell(found.get((family, precision))) for family in families)))
    return table(("", *families), rows)


# Seen well on white and on dark: each has a contrast of 3 and more to both (tests/benchmarks).
TEXT = "#767c85"
COLOURS = {"ours": "#2b7fd9", "peer": "#cf6a1f"}
FAMILY_STYLE = {
    "any": ("o", "#2b7fd9"),
    "pow2": ("s", "#cf6a1f"),
    "inception": ("^", "#2f9156"),
    "moe": ("D", "#a364cf"),
}
STYLE: dict[str, Any] = {
    "font.size": 8, "font.family": "DejaVu Sans", "svg.fonttype": "none", "svg.hashsalt": "jax_vbgemm",
    "text.color": TEXT, "axes.labelcolor": TEXT, "axes.titlecolor": TEXT, "axes.edgecolor": TEXT, "grid.color": TEXT,
    "xtick.color": TEXT, "ytick.color": TEXT,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 8, "grid.alpha": 0.25,
    "grid.linewidth": 0.6, "legend.frameon": False, "axes.facecolor": "none", "figure.constrained_layout.use": True,
}  # fmt: skip


def draw(results: Results, folder: Path) -> list[Path]:
    """Writes the plots; they are the same bytes for the same figures and matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with plt.rc_context(STYLE):
        for name, drawing in (("limit", _draw_limit), ("peers", _draw_peers)):
            figure = drawing(results, plt)
            files.append(folder / f"{name}.svg")
            figure.savefig(files[-1], transparent=True, metadata={"Date": None, "Creator": None})
            plt.close(figure)
    return files


def _draw_limit(results: Results, plt: Any) -> Any:
    mine, theirs = shares(results.ours, results.best), shares(results.best_times, results.best)
    batches = sorted({batch for family, _, batch in mine if family in GRIDS and batch is not None})
    figure, axes = plt.subplots(
        len(GRIDS), len(results.precisions), figsize=(9.5, 3.8), sharex=True, sharey=True, squeeze=False
    )
    for row, family in zip(axes, GRIDS, strict=True):
        for axis, precision in zip(row, results.precisions, strict=True):
            for name, found, marker in (("ours", mine, "o"), ("peer", theirs, "s")):
                at = [batch for batch in batches if (family, precision, batch) in found]
                values = [100 * found[family, precision, batch] for batch in at]
                label = "jax_vbgemm" if name == "ours" else "best peer of each workload"
                places = [batches.index(batch) for batch in at]
                axis.plot(places, values, color=COLOURS[name], marker=marker, markersize=4, label=label)
            axis.set_xticks(range(len(batches)), batches)
            axis.grid(axis="y")
            if family == GRIDS[0]:
                axis.set_title(PRECISIONS[precision].replace(" without", "\nwithout").replace(" as ", "\nas "))
            else:
                axis.set_xlabel("products in the batch")
        row[0].set_ylabel(f"{family}: % of the limit")
    highest = max(found[key] for found in (mine, theirs) for key in found if key[0] in GRIDS)
    axes[0][0].set_ylim(0, 105 * highest)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def _draw_peers(results: Results, plt: Any) -> Any:
    from matplotlib.ticker import NullFormatter, NullLocator

    found = {title: gains(results.ours, times) for title, times in results.peers.items()}
    found = {title: gain for title, gain in found.items() if gain}
    titles = list(found)
    figure, axes = plt.subplots(1, len(results.precisions), figsize=(9.5, 4.4), sharex=True, sharey=True, squeeze=False)
    for axis, precision in zip(axes[0], results.precisions, strict=True):
        for apart, (family, (marker, colour)) in zip((-0.24, -0.08, 0.08, 0.24), FAMILY_STYLE.items(), strict=True):
            places = [place for place, title in enumerate(titles) if (family, precision) in found[title]]
            values = [geometric_mean(found[titles[place]][family, precision]) for place in places]
            axis.plot(
                values,
                [place + apart for place in places],
                marker,
                color=colour,
                markersize=4,
                label=family,
                linestyle="",
            )
        axis.axvline(1, color=TEXT, linewidth=1)
        axis.set_xscale("log", base=2)
        axis.grid(axis="both")
        axis.set_title(PRECISIONS[precision].replace(" without", "\nwithout").replace(" as ", "\nas "))
    every = [geometric_mean(values) for gain in found.values() for values in gain.values()]
    low, high = min(0.5, *every) / 1.5, max(2.0, *every) * 1.5
    axes[0][0].set_xlim(low, high)
    ticks = [4.0**power for power in range(-5, 10) if low <= 4.0**power <= high]
    axes[0][0].set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes[0][0].xaxis.set_minor_locator(NullLocator())
    axes[0][0].xaxis.set_minor_formatter(NullFormatter())
    axes[0][0].set_yticks(range(len(titles)), titles)
    axes[0][0].invert_yaxis()
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    figure.supxlabel("times as fast as the peer (geometric mean)", fontsize=8)
    return figure


def main(
    ours: Annotated[Path, typer.Option(help="rows of vbgemm_auto, perhaps of peers beside it")] = RESULTS
    / "h100_kernel.csv",
    peers: Annotated[Path, typer.Option(help="rows of the peers")] = RESULTS / "peers" / "h100.csv",
    best: Annotated[Path, typer.Option(help="best peer and limit of each workload")] = RESULTS
    / "peers"
    / "h100_best.csv",
    sources: Annotated[Path, typer.Option(help="where each file was measured")] = RESULTS / "sources.csv",
    page_file: Annotated[Path, typer.Option("--page", help="to write; plots go into a folder of its name")] = ROOT
    / "docs"
    / "benchmarks.md",
) -> None:
    """Writes the page and its plots."""
    results = Results.read(ours, peers, best, sources)
    text = page(results, page_file.stem, " ".join((COMMAND, *sys.argv[1:])))
    page_file.write_text(text)
    for file in (page_file, *draw(results, page_file.with_suffix(""))):
        print(f"{os.path.relpath(file)}: {file.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    typer.run(main)
