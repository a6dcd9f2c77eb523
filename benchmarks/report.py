"""docs/benchmarks.md, its plots and the tables of docs/speed.md, from the CSV files of the kernel alone: no figure
there is typed by hand.

  report.py                                 the page and docs/speed.md's tables, of benchmarks/results/h100_*.csv
  report.py --ours new.csv --page new.md    the page of another file; sources.csv beside it says where it was measured

Needs matplotlib (extra `dev`).
"""

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import typer

from figures import FAMILIES, GRIDS, LOOP, OURS, PRECISIONS, Results, family_of, gains, shares
from plots import draw
from workloads import Row, read_csv

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"

PAGE = ROOT / "docs" / "benchmarks.md"
SPEED = ROOT / "docs" / "speed.md"

COMMAND = "python benchmarks/report.py"

# Tall and skinny workloads by what their names begin with.
SKINNY = {
    "ism2_m1000000_": "1,000,000 rows, K and columns 8 or 16",
    "ism2_m100000_": "100,000 rows, K and columns 8 or 16",
    "ism2_m10000_": "10,000 rows, K and columns 8 or 16",
    "tsm2_s10240_": "10240 x 10240 times 2 to 16 columns",
    "tsm2_s20480_": "20480 x 20480 times 2 to 16 columns",
}


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]


def mean(values: Sequence[float] | None, text: str = "{:.2f}x") -> str:
    return text.format(geometric_mean(values)) if values else ""


def families_of(results: Results) -> list[str]:
    return [family for family in FAMILIES if any(family_of(workload) == family for workload, _ in results.ours)]


def page(results: Results, plots: str, command: str) -> str:
    """The text of the page; `plots` is the folder of the plots in its links."""
    ours, best = results.ours, results.best
    families = families_of(results)
    lines = [
        "# Benchmarks: the kernel alone",
        "",
        f"<!-- Written by `{command}`: change that script, not this page. -->",
        "",
        *_introduction(results),
        "",
        "## Summary",
        "",
        "All figures are geometric means: the speedup over a loop of cuBLAS calls and over the best peer, and the "
        "share of the limit. The four families of workloads are described on the page [speed](speed.md). The best "
        "peer is chosen afterwards: for each workload it is the fastest of all peers and configurations at that "
        "precision. Peers whose operands were padded before the measurement do not count.",
        "",
        *table(*_summary(results, families)),
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
        "Geometric means over the workloads that both computed, and in brackets the number of these workloads. Above "
        "1, jax_vbgemm is faster. Of a peer with several tiles or versions, the fastest counts for each workload. Runs "
        "with wrong results do not count.",
        "",
        *_peer_table(results, families),
        "",
        "## Single workloads: the five worst at each precision",
        "",
        "The name `any_mn128_k256_b64` means 64 products of any size, with M and N up to 128 and K up to 256; in "
        "`pow2` all sizes are powers of two. `moe_e8_k1024_t4096` means 8 experts, K = 1024 and 4096 tokens.",
        "",
        *table(
            ("", "workload", "jax_vbgemm", "best peer", "", "speed-up", "share of the limit"),
            [
                (PRECISIONS[precision], case[0], f"{ours[case]:.1f} us", f"{best[case].us:.1f} us", best[case].peer,
                 f"{best[case].us / ours[case]:.2f}x", f"{best[case].limit / ours[case]:.0%}")
                for precision in results.precisions
                for case in sorted(
                    (case for case in ours if case[1] == precision and case in best),
                    key=lambda case: best[case].us / ours[case],
                )[:5]
            ],
        ),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _introduction(results: Results) -> list[str]:
    peak = max(results.machines.values(), key=lambda ratio: abs(math.log(ratio)), default=1.0)
    lines = [
        "This page compares the GPU kernels with those of other libraries (peers), without JAX around them. It is for "
        "readers who want all figures behind the summary on the page [speed](speed.md). Figures inside JAX are on that "
        "page, and in [measurements](design/jax.md), [Flax](guides/flax.md) and [optax](guides/optax.md).",
        "",
        "Each figure is one batched operation, timed by CUDA-graph replay with operands from memory. Every result was "
        "checked against float64. The limit of a workload is the least time that the device could take: 0.8 us for a "
        "launch, and the time of the bytes at 3.0 TB/s or of the arithmetic at the rate of a large product, whichever "
        "is longer. `share of the limit` is the limit divided by the measured time. "
        "`benchmarks/results/peers/README.md` describes the protocol and gives the rates.",
        "",
        "The figures come from these files:",
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
            "The figures of the cuBLAS loop are in our file; those of other peers are in a separate file, measured on "
            "another day. Both files have the cuBLAS loop, which compares the machines: its time in the peers' file "
            f"over its time in ours (geometric means) is {ratios}"
            + (
                ". The machines agree within 5%."
                if abs(peak - 1) < 0.05
                else f": the machines differ by up to {abs(peak - 1):.0%}."
            ),
        ]
    return lines


def speed(text: str, results: Results, skinny: Path) -> str:
    """docs/speed.md with the tables between its comments replaced."""
    head, rows = _summary(results, families_of(results))
    for name, lines in (
        ("speed", table(head[:3], [row[:3] for row in rows])),
        ("skinny", _skinny_table(results, skinny)),
    ):
        begin, end = f"<!-- {name}: by {COMMAND} -->\n", f"<!-- end of {name} -->"
        start, stop = text.index(begin) + len(begin), text.index(end)
        text = "\n".join((text[:start], *lines, "", text[stop:]))
    return text


def _skinny_table(results: Results, skinny: Path) -> list[str]:
    """Slowest and fastest against the best peer, by shape and precision."""
    gain = {
        (row.workload, row.precision): results.best[row.workload, row.precision].us / row.graph_us
        for row in read_csv(Row, skinny)
        if row.peer == OURS
    }
    precisions = [name for name in PRECISIONS if any(precision == name for _, precision in gain)]
    rows = []
    for start, title in SKINNY.items():
        found = [[x for (name, which), x in gain.items() if name.startswith(start) and which == p] for p in precisions]
        rows.append((title, *(f"{min(values):.2f}-{max(values):.2f}x" for values in found)))
    return table(("", *(PRECISIONS[precision] for precision in precisions)), rows)


def _summary(results: Results, families: Sequence[str]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """The heading and the rows of the summary."""
    over_loop = gains(results.ours, results.peers.get(LOOP, {}))
    over_best = gains(results.ours, results.best_times)
    limit_gains = {case: results.best[case].limit for case in results.ours if case in results.best}
    of_limit = gains(results.ours, limit_gains)

    def cells(found: Mapping[tuple[str, str], list[float]], precision: str, text: str) -> str:
        return " / ".join(mean(found.get((family, precision)), text) or "-" for family in families)

    rows: list[Sequence[str]] = []
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
    return head, rows


def _share_table(results: Results) -> list[str]:
    mine, theirs = shares(results.ours, results.best), shares(results.best_times, results.best)
    batches = sorted({batch for family, _, batch in mine if family in GRIDS and batch is not None})

    def cell(precision: str, family: str, batch: int) -> str:
        key = family, precision, batch
        return f"{mine[key]:.0%} ({theirs[key]:.0%})" if key in mine and key in theirs else ""

    return [
        "Geometric means, with the best peer's in brackets.",
        "",
        *table(
            ("", *(f"{family}, batch {batch}" for family in GRIDS for batch in batches)),
            [
                (PRECISIONS[precision], *(cell(precision, family, batch) for family in GRIDS for batch in batches))
                for precision in results.precisions
            ],
        ),
    ]


def _peer_table(results: Results, families: Sequence[str]) -> list[str]:
    def cell(values: list[float] | None) -> str:
        return f"{mean(values)} ({len(values)})" if values else ""

    rows = []
    for precision in results.precisions:
        for title, times in results.peers.items():
            found = gains(results.ours, times)
            if any((family, precision) in found for family in families):
                cells = (cell(found.get((family, precision))) for family in families)
                rows.append((PRECISIONS[precision], title, *cells))
    return table(("", "peer", *families), rows)


def main(
    ours: Annotated[Path, typer.Option(help="rows of vbgemm_auto, perhaps of peers beside it")] = RESULTS
    / "h100_kernel.csv",
    peers: Annotated[Path, typer.Option(help="rows of the peers")] = RESULTS / "peers" / "h100.csv",
    best: Annotated[Path, typer.Option(help="best peer and limit of each workload")] = RESULTS
    / "peers"
    / "h100_best.csv",
    sources: Annotated[Path, typer.Option(help="where each file was measured")] = RESULTS / "sources.csv",
    page_file: Annotated[Path, typer.Option("--page", help="to write; plots go into a folder of its name")] = PAGE,
) -> None:
    """Writes the page and its plots, and docs/speed.md's tables where it is the committed page."""
    results = Results.read(ours, peers, best, sources)
    text = page(results, page_file.stem, " ".join((COMMAND, *sys.argv[1:])))
    page_file.write_text(text)
    if page_file == PAGE:
        SPEED.write_text(speed(SPEED.read_text(), results, RESULTS / "h100_skinny.csv"))
    for file in (page_file, *draw(results, page_file.with_suffix(""))):
        print(f"{os.path.relpath(file)}: {file.stat().st_size / 1e3:.0f} KB")


if __name__ == "__main__":
    typer.run(main)
