"""The plots of a report: fraction of the limit by batch size, and speedup over each peer."""

from pathlib import Path
from statistics import geometric_mean
from typing import Any

from figures import GRIDS, PRECISIONS, Results, gains, shares

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


def _title(precision: str) -> str:
    """The title, on two lines where one is too long for an axis."""
    return PRECISIONS[precision].replace(" without", "\nwithout").replace(" as ", "\nas ")


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
                axis.set_title(_title(precision))
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
        axis.set_title(_title(precision))
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
