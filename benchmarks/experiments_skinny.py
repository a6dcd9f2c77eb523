"""The section of docs/experiments.md on TSM2 and ISM2, tall and skinny products."""

from experiments_data import Data, times
from jax_vbgemm._src.planner import catalogue_for
from jax_vbgemm._src.planner.model.occupancy import kernel_occupancy, kernel_step, tile_occupancy
from jax_vbgemm._src.planner.tables.catalogue import DOT_PRODUCTS
from report import table
from workloads import problems_named


def _with_the_worst(speedups: list[float]) -> str:
    if not speedups:
        return "-"
    slower = sum(speedup < 1 for speedup in speedups)
    return f"{times(speedups)}, worst {min(speedups):.2f}x" + (f", {slower} slower" if slower else "")


def _released(data: Data) -> str:
    """How many of the peers' cases cuBLAS wins against the authors' released kernels."""
    faster = [peer for name, peer in data.skinny_peers.items() if name.startswith("cuBLAS")]
    released = [peer for name, peer in data.skinny_peers.items() if not name.startswith("cuBLAS")]
    pairs = [(r[case], f[case]) for r in released for f in faster for case in r if case in f]
    if not pairs:
        return "The released kernels were not timed."
    slower = sum(theirs > cublas for theirs, cublas in pairs)
    return f"On an H100 the released kernels are slower than cuBLAS in {slower} of {len(pairs)} cases."


def _prefetch_of_dots(data: Data) -> str:
    """Why dot products do not load the next elements of A while they multiply: what is in flight without that, what
    would be, and how fast A is read."""
    device, size = data.device, 4
    dots = [tile for tile in catalogue_for("float32", device) if tile.kernel in DOT_PRODUCTS]
    tile = max(dots, key=lambda tile: tile.n)
    step = kernel_step(tile, device, "float32")
    blocks, block_bytes = tile_occupancy(tile, device).blocks, tile.m * step * size
    in_flight = block_bytes * blocks * device.units
    products = 2 * tile.m * tile.n * step / (device.peak_rate("float32") / device.units)
    registers = tile.registers + block_bytes // size // tile.threads
    deeper = kernel_occupancy(
        device, threads=tile.threads, registers=registers, shared_bytes=tile.shared_bytes
    ).blocks  # fmt: skip
    rates = []
    for name, row in data.table("skinny").items():
        (problem,) = problems_named(name)
        if name.startswith("tsm2") and problem.n <= tile.n:
            moved = size * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n)
            rates.append(1e-6 * moved / row["tall_skinny"])
    reading = (
        f" `tall_skinny` moves {min(rates):.2f}-{max(rates):.2f} TB/s with up to {tile.n} columns." if rates else ""
    )
    return (
        "Dot products do not prefetch A (V3). That has not been tried, because by these counts it gains little: a "
        f"thread block loads A's {block_bytes >> 10} KB of a step as soon as it has multiplied the previous ones, and "
        f"{blocks} blocks share a multiprocessor ({tile.registers} registers a thread). So {1e-6 * in_flight:.1f} MB "
        f"are in flight on an H100, which take {1e6 * in_flight / device.bandwidth:.1f} us at "
        f"{1e-12 * device.bandwidth:.1f} TB/s, a copy's rate. The products of a step, with which prefetch would "
        f"overlap, take {1e6 * products:.2f} us with {tile.n} columns, while the other block's elements are on their "
        f"way. The next step's elements would take {registers - tile.registers} more registers, which leave {deeper} "
        f"block a multiprocessor and as many bytes in flight.{reading}"
    )


def section(data: Data) -> list[str]:
    rows: dict[tuple[str, ...], list[str]] = {}  # of equal figures: the planners that have them
    for precision in ("fp32", "fp64", "tf32"):
        mine = data.table("skinny", precision=precision)
        for family in ("ism2", "tsm2"):
            for planner in ("tall_skinny", "auto", "whole rows", "dot products", "far longer tiles"):
                found = [
                    [
                        peer[name, precision] / row[planner]
                        for name, row in mine.items()
                        if name.startswith(family) and planner in row and (name, precision) in peer
                    ]
                    for peer in data.skinny_peers.values()
                ]
                if any(found):
                    figures = (f"{family}, {precision}", *map(_with_the_worst, found))
                    rows.setdefault(figures, []).append(planner)
    return [
        "## TSM2 and ISM2 (Rivera et al.): speedups over cuBLAS (Fig. 4 and 9)",
        "",
        f"The paper's speedups are [below](#the-papers-own-kernels-rivera-et-al-fig-4-14). {_released(data)} "
        "Our kernels share B through shared memory and differ in how they read A: `whole rows` gives each thread "
        "whole rows of C (the paper's outer product; the tile of two rows a thread), `dot products` has warps along K "
        "(inner products, which row-major storage makes fast), and `far longer tiles` are ordinary tiles of an "
        "elongated shape. Row tiles with a small K and ordinary tiles load the next part while they multiply; row "
        "tiles with a deep K and a row-major A prefetch neither A nor B, and dot products prefetch B alone. K is not "
        "split in these three, as in the paper. Of the kernels that the device's measured rules leave, `tall_skinny` "
        "takes the one that the paper's model prefers, and splits K where necessary. A is row-major here; the "
        "paper's is column-major, as in the next section. The table shows the speedup over cuBLAS (row- or "
        "column-major, whichever is faster) and over TSM2X, the worst case, and the number of workloads on which the "
        "row's planner is slower. In TF32 only the planners' plans were measured, and TSM2X has no such kernel:",
        "",
        *table(
            ("products", "kernels", *(f"over {peer}" for peer in data.skinny_peers)),
            [(products, ", ".join(planners), *cells) for (products, *cells), planners in rows.items()],
        ),
        "",
        _prefetch_of_dots(data),
        "",
        "![Tall and skinny products](experiments/skinny.svg)",
        "",
        "Tests check the t2_threshold of the K40c, M40 and P100 (section 4: 40, 6, 50) and the parameters that "
        "follow from the model (`tests/planner/test_tall_skinny_paper.py`). The P100's t2 = 4 for 16 columns does"
        " not follow from the model. Nor do the paper's tcf: for a V100 it profiles 1, 1, 2 and 8 (float32) "
        "for 10^4 to "
        "10^7 rows, and the model agrees at 10^4 only; at 10^7 the profiled tcf is within 3% of the model's best time. "
        "`python -m jax_vbgemm profile` measures tcf on the device at hand.",
    ]
