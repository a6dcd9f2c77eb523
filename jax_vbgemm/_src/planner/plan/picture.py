"""The picture of a plan: a timeline of blocks on multiprocessors, as predicted by the cost model."""

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.model.tile_time import tile_seconds
from jax_vbgemm._src.problem import ProblemSizes

if TYPE_CHECKING:
    from jax_vbgemm._src.planner.plan.plan import Plan

_MOST_BLOCKS = 20_000  # boxes per picture; more could not be distinguished
_COLOURS = ("#2b7fd9", "#cf6a1f", "#2f9156", "#a364cf", "#c23b50", "#7a8b1e", "#1f8f9c", "#8a6a4f")
_PADDING = "#b9bec6"


@dataclass(frozen=True)
class ScheduledBlocks:
    """The blocks of a plan in the order in which they begin; times in microseconds.

    unit: the multiprocessor or core; lane, lanes: the place among the blocks that share the unit at a time, and how
    many these are; begin, length: its time; useful: the fraction of its multiply-adds that the problems have; tile_id:
    the tile shape of its first tile.
    """

    unit: NDArray[np.int64]
    lane: NDArray[np.int64]
    lanes: NDArray[np.int64]
    begin: NDArray[np.float64]
    length: NDArray[np.float64]
    useful: NDArray[np.float64]
    tile_id: NDArray[np.int64]


def schedule(plan: "Plan") -> ScheduledBlocks:
    """Each free slot takes the next block, kernel by kernel, as the cost model assumes."""
    runs, block_first, launches = plan.launch_form()
    tiles = runs.expand(plan.catalogue)
    first = np.arange(runs.num_tiles + 1) if block_first is None else np.asarray(block_first)
    sizes, columns = ProblemSizes.of(plan.problems), plan.catalogue.columns
    m, n = columns.m[tiles.tile_id], columns.n[tiles.tile_id]
    inside = np.minimum(m, sizes.m[tiles.problem] - tiles.row) * np.minimum(n, sizes.n[tiles.problem] - tiles.col)
    depth = tiles.k_end - tiles.k_begin
    found: list[tuple[int, int, int, float, float, float, int]] = []
    start = 0.0
    for launch in launches:
        blocks = range(launch.first_block, launch.first_block + launch.num_blocks)
        resident = 1
        if plan.device.device_type == "gpu":
            shape = plan.catalogue.by_index[int(tiles.tile_id[first[blocks.start]])]
            resident = max(tile_occupancy(shape, plan.device).blocks, 1)
        lanes = max(1, min(resident, math.ceil(len(blocks) / plan.device.units)))
        seconds = 1e6 * tile_seconds(sizes, tiles, plan.catalogue, plan.device, lanes)
        fixed = 0.0 if plan.device.device_type == "cpu" else 1e6 * plan.device.block_latency
        free = [(start, slot) for slot in range(plan.device.units * lanes)]
        end = start
        for block in blocks:
            part = slice(int(first[block]), int(first[block + 1]))
            length = float(seconds[part].sum()) + fixed
            computed = float((m[part] * n[part] * depth[part]).sum())
            useful = float((inside[part] * depth[part]).sum()) / computed if computed else 1.0
            begin, slot = free[0]
            heapq.heapreplace(free, (begin + length, slot))
            lane, unit = divmod(slot, plan.device.units)
            found.append((unit, lane, lanes, begin, length, useful, int(tiles.tile_id[part.start])))
            end = max(end, begin + length)
        start = end
    arrays = [np.array(column) for column in zip(*found, strict=True)] or [np.zeros(0, np.int64)] * 7
    return ScheduledBlocks(*arrays)


def draw(plan: "Plan", file: Any = None) -> Any:
    """`Plan.plot`."""
    try:
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError(f"Plan.plot needs matplotlib: pip install matplotlib ({error})") from None
    if file is None:
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=(9, 4.5), layout="constrained")
    else:
        figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    drawn = schedule(plan)
    kept = slice(0, _MOST_BLOCKS)
    low = drawn.unit[kept] + drawn.lane[kept] / drawn.lanes[kept]
    high = low + 0.92 / drawn.lanes[kept]
    begin, length = drawn.begin[kept], drawn.length[kept]

    def boxes(left: Any, right: Any) -> Any:
        return np.stack(
            [np.stack([x, y], -1) for x, y in ((left, low), (right, low), (right, high), (left, high))], axis=1
        )

    used = plan.tiles_used
    colour = {tile.index: _COLOURS[number % len(_COLOURS)] for number, tile in enumerate(used)}
    middle = begin + length * drawn.useful[kept]
    rows = plan.device.units * int(drawn.lanes.max(initial=1))
    edge: dict[str, Any] = {"linewidths": 0.3 if rows < 200 and len(low) < 2000 else 0, "edgecolors": "white"}
    tile_colours = [colour[index] for index in drawn.tile_id[kept].tolist()]
    axes.add_collection(PolyCollection(boxes(begin, middle), facecolors=tile_colours, **edge))
    axes.add_collection(PolyCollection(boxes(middle, begin + length), facecolors=_PADDING, **edge))
    gpu = plan.device.device_type == "gpu"
    axes.set_xlim(0, 1.02 * max(float((drawn.begin + drawn.length).max(initial=0.0)), 1e-3))
    axes.set_ylim(plan.device.units, 0)
    axes.set_xlabel("us, by the cost model, without launches, memory traffic and the addition of partial sums")
    axes.set_ylabel("multiprocessor" if gpu else "core")
    more = "" if plan.num_blocks <= _MOST_BLOCKS else f" (the first {_MOST_BLOCKS} are drawn)"
    axes.set_title(
        f"{plan.planner} for {plan.device.name}, {plan.kind}: {len(plan.problems)} problems, {plan.num_tiles} tiles, "
        f"{plan.num_blocks} blocks{more}\npredicted {plan.predicted_seconds * 1e6:.1f} us, {plan.waves:.2f} waves, "
        f"padding waste {plan.padding_waste:.2f}x, balance {plan.balance:.2f}",
        fontsize=9, loc="left",
    )  # fmt: skip
    labels = [Patch(color=colour[tile.index], label=f"{tile.name}/{tile.threads}") for tile in used]
    labels.append(Patch(color=_PADDING, label="padding: computed, but outside of results"))
    figure.legend(handles=labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    if file is not None:
        figure.savefig(file, dpi=150)
    return figure
