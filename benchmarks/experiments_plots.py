"""The plots of docs/experiments.md."""

from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from figures import batch_of
from plots import STYLE

if TYPE_CHECKING:
    from experiments_data import Data

COLOURS = {
    "auto": "#2b7fd9",
    "uniform": "#767c85",
    "coordinated": "#cf6a1f",
    "sort_split": "#2f9156",
    "load_balanced": "#a364cf",
}


def draw(data: "Data", folder: Path) -> list[Path]:
    """Writes the plots; they are the same bytes for the same figures and matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    drawings = {"planners": _planners, "latency": _latency, "threads": _threads, "skinny": _skinny}
    with plt.rc_context(STYLE):
        for name, drawing in drawings.items():
            figure = drawing(data, plt)
            files.append(folder / f"{name}.svg")
            figure.savefig(files[-1], transparent=True, metadata={"Date": None, "Creator": None})
            plt.close(figure)
    return files


def _planners(data: "Data", plt: Any) -> Any:
    grids = data.table("compare")
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.4), sharey=True)
    for axis, family in zip(axes, ("any", "pow2"), strict=True):
        mine = {name: row for name, row in grids.items() if name.startswith(family)}
        batches = sorted({batch_of(name) or 0 for name in mine})
        for planner, colour in COLOURS.items():
            points = []
            for batch in batches:
                some = {name: row for name, row in mine.items() if batch_of(name) == batch}
                found = data.over_peer(some, planner, "MAGMA vbatched")
                points.append(geometric_mean(found) if found else float("nan"))
            axis.plot([str(batch) for batch in batches], points, marker="o", color=colour, label=planner)
        axis.set_title(family)
        axis.set_xlabel("batch")
        axis.grid(True, axis="y")
    axes[0].set_ylabel("times as fast as MAGMA")
    axes[0].legend(fontsize=7)
    return figure


def _latency(data: "Data", plt: Any) -> Any:
    took = data.table("batches")
    sizes = sorted(batch_of(name) or 0 for name in took)
    figure, axis = plt.subplots(figsize=(4.5, 2.6))
    for planner, colour in COLOURS.items():
        axis.loglog(sizes, [took[f"range_b{size}"][planner] for size in sizes], marker="o", color=colour, label=planner)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set_xlabel("batch, sizes in [16, 256]")
    axis.set_ylabel("microseconds a call")
    axis.grid(True)
    axis.legend(fontsize=7)
    return figure


def _threads(data: "Data", plt: Any) -> Any:
    (row,) = data.table("threads").values()
    shapes = list(dict.fromkeys(name.rpartition("/")[0] for name in row))
    figure, axis = plt.subplots(figsize=(5.5, 2.4))
    for offset, (threads, colour) in enumerate(((128, "#2b7fd9"), (256, "#cf6a1f"))):
        rates = [
            2e-6 * 64 * 512**3 / row[f"{shape}/{threads}"] if f"{shape}/{threads}" in row else 0.0 for shape in shapes
        ]
        places = [index + 0.4 * offset - 0.2 for index in range(len(shapes))]
        axis.bar(places, rates, 0.38, color=colour, label=f"{threads} threads")
    axis.set_xticks(range(len(shapes)), [shape.replace("-", "-\n") for shape in shapes])
    axis.set_ylabel("TFLOP/s")
    axis.legend(fontsize=7)
    return figure


def _skinny(data: "Data", plt: Any) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), sharey=True)
    cublas = data.skinny_peers["cuBLAS"]
    for axis, precision in zip(axes, ("fp32", "fp64"), strict=True):
        mine = data.table("skinny", precision=precision)
        names = [name for name in sorted(mine) if (name, precision) in cublas]
        for planner, marker, colour in (("tall_skinny", "o", "#2b7fd9"), ("auto", "x", "#cf6a1f")):
            axis.plot(
                [cublas[name, precision] / mine[name][planner] for name in names], range(len(names)),
                marker, color=colour, label=planner,
            )  # fmt: skip
        axis.axvline(1, color="#767c85", linewidth=0.8)
        axis.set_yticks(range(len(names)), names, fontsize=6)
        axis.set_title(precision)
        axis.set_xlabel("times as fast as cuBLAS")
        axis.grid(True, axis="x")
    axes[1].legend(fontsize=7)
    return figure
