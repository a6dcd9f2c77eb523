"""docs/experiments.md: what the papers report beside what our kernels do, a section an experiment."""

from pathlib import Path

import experiments_batches
import experiments_figures
import experiments_li
import experiments_occupancy
import experiments_plots
import experiments_skinny
import experiments_threads
import experiments_tsm2
import experiments_zhang
from experiments_batches import Later
from experiments_data import Data

COMMAND = "python benchmarks/experiments.py page"
_PREDICTED = (
    "**Our times on this page are the cost model's predictions**: these plans have not been timed since the "
    "readings below became options. The peers' times are measured. `benchmarks/experiments.sh` measures every "
    "plan; this page then shows the measured times."
)
# Shown while the measured plans lack the reading "load_balanced, smallest tiles": they are older than this option.
_FORMER_DEFAULT = (
    'Figures of `load_balanced` were measured with `unreached="smallest"`, its former default. Where the threshold is '
    "out of reach, today's default does not make all tiles the smallest: [R6](design/papers.md#r6) says how many of "
    "the plans below differ."
)


def page(data: Data, later: Later) -> str:
    state = _PREDICTED
    if data.measured:
        state = (
            f"Times are measured on an H100 or H200 ({data.device.units} multiprocessors), by CUDA-graph replay with "
            "operands from memory; `benchmarks/results/sources.csv` says where and when. Kernels and plans are those "
            "of that day: the page does not compare them with today's plans of `auto`."
        )
    if data.measured and all(candidate.planner != "load_balanced, smallest tiles" for candidate in data.every):
        state += f"\n\n{_FORMER_DEFAULT}"
    sections = (
        experiments_li.tiling_and_batching(data, later), experiments_li.networks(data, later),
        experiments_zhang.comparison(data, later), experiments_zhang.other_readings(data),
        experiments_occupancy.section(later), experiments_zhang.planning(data, later),
        experiments_threads.section(data, later.threads), experiments_skinny.section(data),
        experiments_batches.columns(later), experiments_tsm2.section(later.tsm2), experiments_figures.section(),
    )  # fmt: skip
    lines = [
        "# The papers' experiments",
        "",
        f"<!-- Written by `{COMMAND}`: change that script, not this page. -->",
        "",
        "This page is for readers of the four papers behind the [planners](guides/planners.md), and for those who "
        "choose among the planners. It repeats the papers' experiments with our kernels on an H100, and where a "
        "section says so on an H200, and shows the papers' results beside ours. The papers are Li et al. 2019 "
        "(`coordinated`), Wang et al. 2022 (`sort_split`), Zhang et al. 2025 (`load_balanced`) and Rivera et al. "
        "(`tall_skinny`). `uniform` is one tile shape for all problems, and `auto` is this package's default. "
        "Products are float32 without tensor cores unless said otherwise. Speed-ups are geometric means, with the "
        "number of workloads in brackets.",
        "",
        state,
    ]
    for section in sections:
        lines += ["", *section]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def write(data: Data, later: Later, output: Path) -> list[Path]:
    """The page, and the plots in a folder of its name."""
    output.write_text(page(data, later))
    return [output, *experiments_plots.draw(data, output.with_suffix(""))]
