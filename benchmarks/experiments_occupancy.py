"""The section of docs/experiments.md on occupancy (Zhang et al. 2025, Fig. 6), and on one kernel for a whole batch."""

from collections.abc import Sequence

import experiments_batches
from experiments_batches import Later
from experiments_tsm2 import NOT_YET
from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.papers.coordinated import BY_128, BY_256
from jax_vbgemm._src.planner.papers.load_balanced import CLASSES, TENSOR_CLASSES, table_3
from jax_vbgemm._src.planner.tables.catalogue import TileKey
from profile_occupancy import Profiled
from report import table


def section(later: Later) -> list[str]:
    devices = ("a800", "mi210", "h100")
    rows: dict[tuple[str, ...], list[str]] = {}  # of equal figures: the tiles that have them
    for kind, order in (("float32", CLASSES), ("bfloat16", TENSOR_CLASSES)):
        for key in order:
            cells = []
            for spec in map(device_spec, devices):
                tiles = {tile.key: tile for tile in catalogue_for(kind, spec)}
                cells.append(f"{tile_occupancy(tiles[key], spec).fraction:.0%}" if key in tiles else "-")
            rows.setdefault((kind, *cells), []).append(f"{key[0]}/{key[1]}")
    w_dl = ", ".join(f"{moved:g}" for _, moved in table_3(catalogue_for("float32", device_spec("h100"))).values())
    return [
        "## Kernel occupancy (Zhang 2025, Fig. 6) and work per thread (Table 3)",
        "",
        "The fraction of a multiprocessor's warps that can be active by Eq. 5-9, from the compiler's figures for "
        "registers and shared memory:",
        "",
        *table(("", "tiles", *devices), [(kind, ", ".join(tiles), *cells) for (kind, *cells), tiles in rows.items()]),
        "",
        *profiled(later.occupancy),
        "",
        "17 kernels of 2026-11-22 were measured on an H100 with Nsight Compute on `pow2_mn512_k512_b256` "
        "([C8](design/cost-model.md#c8); the profiler's files were not kept). The equations give the profiler's "
        "theoretical occupancy in all 17 (12.5 to 50%), and 92-100% of it was achieved. In Fig. 6 the proposed method "
        "has the highest occupancy. Ours have few threads with many registers each.",
        "",
        f"W_DL of Table 3 for our tiles, with the paper's Tk = 16: {w_dl} (the paper: 6, 10, 16, 14, 24). "
        "`Plan.work_per_thread` has W_DL for the K steps of our kernels.",
        "",
        *_one_kernel(later),
    ]


def profiled(rows: Sequence[Profiled]) -> list[str]:
    workloads = list(dict.fromkeys(row.workload for row in rows))
    body = []
    for peer in dict.fromkeys(row.peer for row in rows):
        cells = []
        for workload in workloads:
            mine = [row for row in rows if (row.workload, row.peer) == (workload, peer)]
            us = sum(row.us for row in mine)
            theoretical, achieved = (
                sum(row.us * getattr(row, name) for row in mine) / us if us else 0.0
                for name in ("theoretical", "achieved")
            )
            cells.append(f"{theoretical:.0%}, {achieved:.0%}" if mine else NOT_YET)
        body.append((peer, *cells))
    return [
        "By Nsight Compute on an H200 (`benchmarks/profile_occupancy.py`): the fraction of warps that can be active in "
        "a method's kernels and the fraction that is, both weighted by the kernels' times. cuBLAS computes one product "
        "after another, as in the paper; MAGMA's and CUTLASS's kernels and the authors' own have not been profiled:",
        "",
        *table(("", *(workloads or ["all batches"])), body or [("cuBLAS and ours", NOT_YET)]),
    ]


def _one_kernel(later: Later) -> list[str]:
    device = device_spec("h100")
    tiles = {tile.key: tile for tile in catalogue_for("float32", device)}
    rows = []
    for title, keys in (("Li, 256 threads", BY_256), ("Li, 128 threads", BY_128), ("Zhang", CLASSES)):
        occupancy = {key: tile_occupancy(tiles[key], device) for key in keys}
        by_kernel: dict[str, list[TileKey]] = {}
        for key in keys:
            by_kernel.setdefault(tiles[key].kernel, []).append(key)
        own = "; ".join(
            f"{', '.join(name for name, _ in held)}: {occupancy[held[0]].fraction:.0%}" for held in by_kernel.values()
        )
        least = min(each.fraction for each in occupancy.values())
        rows.append((title, str(len(by_kernel)), own, f"{least:.0%}"))
    return [
        "### One kernel for a batch (Li 2019, section 6; Zhang 2025, section 4)",
        "",
        "The papers launch one kernel for a batch: Li's holds all strategies, and Zhang's has 256 threads of which the "
        "surplus ones leave. Our plans launch a kernel for each class of threads and registers, and a block whose "
        "tiles are of several kernels becomes a block of each. That is not an option of the planners: a kernel has the "
        "registers and the shared memory of its largest tile, so that in one kernel all tiles have the occupancy of "
        "that tile at most. On an H100, in float32:",
        "",
        *table(("", "kernels", "occupancy in these kernels", "in one kernel, at most"), rows),
        "",
        f"A further kernel of a call takes {1e6 * device.launch_seconds:.1f} us on an H100, as kernels of one call "
        "overlap ([L2](design/latency.md#l2)).",
        "",
        *experiments_batches.one_kernel(later),
    ]
