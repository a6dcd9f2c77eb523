"""The H100's table and plot of docs/guides/ragged_dot.md, from the CSV files: no figure there is typed by hand.

python benchmarks/ragged_report.py
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plots import STYLE
from ragged_cases import CASES, DIRECTIONS

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "guides" / "ragged_dot.md"
PLOT = PAGE.parent / "ragged_dot" / "rates.svg"
COMMAND = "python benchmarks/ragged_report.py"
MARKS = f"<!-- h100: by {COMMAND} -->\n", "<!-- end of h100 -->"

# (label, name in the file, colour), fastest first.
PEERS = (
    ("cuBLAS, one dense product", "cublas_dense", "#767c85"),
    ("jax_vbgemm", "vbgemm", "#2b7fd9"),
    ("torch grouped_mm", "torch_grouped_mm", "#cf6a1f"),
    ("tokamax", "tokamax", "#2f9156"),
    ("jax.lax.ragged_dot", "lax.ragged_dot", "#a364cf"),
)

Times = Mapping[tuple[str, str, str], float]
"""Microseconds by peer, workload and direction."""


def read() -> dict[tuple[str, str, str], float]:
    """Times of this package, torch and cuBLAS from one run; of tokamax (the faster of its two kernels) and lax from the
    peers' file."""
    times: dict[tuple[str, str, str], float] = {}
    with (RESULTS / "h100_ragged.csv").open() as file:
        for row in csv.DictReader(file):
            workload, _, direction = row["workload"].rpartition("_")
            times[row["peer"], workload, direction] = float(row["graph_us"])
    with (RESULTS / "peers" / "h100_moe.csv").open() as file:
        for row in csv.DictReader(file):
            if row["peer"].startswith(("tokamax", "lax")):
                key = (
                    row["peer"].split("_")[0] if row["peer"].startswith("tokamax") else row["peer"],
                    row["workload"],
                    row["what"],
                )
                times[key] = min(float(row["us"]), times.get(key, float("inf")))
    return times


def table(times: Times) -> str:
    """Microseconds, and in brackets the time divided by that of this package."""

    def cell(peer: str, workload: str, direction: str) -> str:
        found, ours = times.get((peer, workload, direction)), times["vbgemm", workload, direction]
        if found is None or (peer == "cublas_dense" and is_bound_by_memory(workload)):
            return "-"
        return f"{found:.0f}" if peer == "vbgemm" else f"{found:.0f} ({found / ours:.2f})"

    peers = [*PEERS[1:], PEERS[0]]
    lines = [["rows, groups, K, N", "", *(label for label, _, _ in peers)], ["---"] * (len(peers) + 2)]
    for workload, (rows, groups, k, n) in CASES.items():
        if groups > 1:
            for direction in DIRECTIONS:
                name = f"{rows}, {groups}, {k}, {n}" if direction == DIRECTIONS[0] else ""
                lines.append([name, direction, *(cell(peer, workload, direction) for _, peer, _ in peers)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def is_bound_by_memory(workload: str) -> bool:
    """Whether reading the groups' matrices takes most of the time; the dense product does not read them."""
    rows, groups, *_ = CASES[workload]
    return rows < 64 * groups


def draw(times: Times, file: Path) -> None:
    """Draws TFLOP/s of the forward product, with a group of bars for each shape."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shapes = [name for name, case in CASES.items() if case[1] > 1 and not is_bound_by_memory(name)]
    file.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(8.5, 3.2))
        for place, (label, peer, colour) in enumerate(PEERS):
            rates = [rate(times.get((peer, shape, "fwd")), CASES[shape]) for shape in shapes]
            at = [x + (place - (len(PEERS) - 1) / 2) * 0.17 for x in range(len(shapes))]
            axis.bar(at, rates, 0.16, label=label, color=colour)
        axis.set_xticks(range(len(shapes)), ["{} rows, {} groups,\n{} x {}".format(*CASES[shape]) for shape in shapes])
        axis.set_ylabel("TFLOP/s, forward")
        axis.grid(axis="y")
        axis.legend(ncols=len(PEERS), loc="lower center", bbox_to_anchor=(0.5, 1))
        figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def rate(microseconds: float | None, case: Sequence[int]) -> float:
    rows, _, k, n = case
    return 0.0 if microseconds is None else 2.0 * rows * k * n / microseconds / 1e6


def page(text: str, times: Times) -> str:
    """The page's text with the table in its place."""
    begin, end = MARKS
    head, rest = text.split(begin)
    return f"{head}{begin}\n{table(times)}\n{end}{rest.split(end)[1]}"


def main() -> None:
    times: Any = read()
    PAGE.write_text(page(PAGE.read_text(), times))
    draw(times, PLOT)
    print(f"{PAGE}\n{PLOT}")


if __name__ == "__main__":
    main()
