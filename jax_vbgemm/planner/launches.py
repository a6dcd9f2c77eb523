"""Which launched kernel computes which blocks: a launch takes a contiguous range of blocks, all of one kernel."""

from typing import NamedTuple

import numpy as np

from jax_vbgemm.planner.catalogue import Catalogue
from jax_vbgemm.planner.runs import Ints, Runs, offsets

MAX_LAUNCHES = 3  # a call


class Launch(NamedTuple):
    """A kernel and the contiguous range of blocks that one launch of it computes."""

    kernel: str
    first_block: int
    num_blocks: int


def launch_form(
    catalogue: Catalogue, runs: Runs, block_first: Ints | None
) -> tuple[Runs, Ints | None, tuple[Launch, ...]]:
    """`runs` and `block_first` with the blocks of each kernel together, in the order they had, and the launches."""
    run_kernel = catalogue.columns.kernel[runs.strategy]
    grouped = runs.take(np.argsort(run_kernel, kind="stable"))
    if block_first is None:
        block_counts = np.bincount(run_kernel, runs.count)
    else:
        block_kernel = np.repeat(run_kernel, runs.count)[block_first[:-1]]
        block_counts = np.bincount(block_kernel)
        block_first = offsets(np.diff(block_first)[np.argsort(block_kernel, kind="stable")])
    counts = block_counts.astype(np.int64)
    launches = (
        Launch(catalogue.kernels[kernel], int(first), int(count))
        for kernel, (first, count) in enumerate(zip(offsets(counts)[:-1], counts, strict=True))
        if count
    )
    return grouped, block_first, tuple(launches)


def check_launches(catalogue: Catalogue, runs: Runs, block_first: Ints | None) -> None:
    """Raises ValueError unless at most three kernels are needed and each block is not empty and all of one kernel."""
    kernel = catalogue.columns.kernel[runs.strategy]
    needed = np.unique(kernel)
    if len(needed) > MAX_LAUNCHES:
        names = ", ".join(catalogue.kernels[index] for index in needed)
        raise ValueError(f"plan: it needs the kernels {names}; a call launches at most {MAX_LAUNCHES}")
    if block_first is None:
        return
    if block_first[0] != 0 or block_first[-1] != runs.num_tiles or (np.diff(block_first) < 1).any():
        raise ValueError("plan: block_first must rise from 0 to the number of tiles, by at least one a block")
    if len(block_first) == 1:
        return
    kernel_of_tile = np.repeat(kernel, runs.count)
    lowest = np.minimum.reduceat(kernel_of_tile, block_first[:-1])
    highest = np.maximum.reduceat(kernel_of_tile, block_first[:-1])
    for block in np.flatnonzero(lowest != highest):
        names = " and ".join(catalogue.kernels[index] for index in (lowest[block], highest[block]))
        raise ValueError(f"plan: blocks[{block}] mixes tiles of the kernels {names}")
