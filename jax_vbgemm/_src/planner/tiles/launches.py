"""Launches: a launch computes a contiguous range of blocks with one kernel."""

from typing import NamedTuple

import numpy as np

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, offsets

MAX_LAUNCHES = 4  # launches per call: as many as the ordinary tiles with 128 threads have kernels
MAX_SEARCHED = 3  # launches per plan in a search


class Launch(NamedTuple):
    """A kernel and the contiguous range of blocks that one launch of it computes."""

    kernel: str
    first_block: int
    num_blocks: int


def launch_form(
    catalogue: Catalogue, runs: Runs, block_first: Ints | None
) -> tuple[Runs, Ints | None, tuple[Launch, ...]]:
    """`runs` and `block_first` with the blocks of each kernel together, in their order so far, and the launches.

    A block whose tiles belong to several kernels becomes one block of each kernel.
    """
    run_kernel = catalogue.columns.kernel[runs.tile_id]
    if block_first is None:
        blocks = np.bincount(run_kernel, runs.count)
        runs = runs.take(np.argsort(run_kernel, kind="stable"))
    elif len(np.unique(run_kernel)) < 2:
        blocks = np.bincount(run_kernel[:1]) * (len(block_first) - 1)
    else:
        runs = runs.expand(catalogue)
        kernel = catalogue.columns.kernel[runs.tile_id]
        block = np.repeat(np.arange(len(block_first) - 1), np.diff(block_first))
        order = np.argsort(kernel, kind="stable")
        runs, kernel, block = runs.take(order), kernel[order], block[order]
        begins = np.flatnonzero(np.append(True, (np.diff(kernel) != 0) | (np.diff(block) != 0)))
        block_first = np.append(begins, len(block))
        blocks = np.bincount(kernel[begins])
    counts = blocks.astype(np.int64)
    launches = (
        Launch(catalogue.kernels[index], int(first), int(count))
        for index, (first, count) in enumerate(zip(offsets(counts)[:-1], counts, strict=True))
        if count
    )
    return runs, block_first, tuple(launches)


def check_launches(catalogue: Catalogue, runs: Runs, block_first: Ints | None) -> None:
    """Raises ValueError unless each block has tiles and at most three kernels are needed."""
    if block_first is not None and (
        block_first[0] != 0 or block_first[-1] != runs.num_tiles or (np.diff(block_first) < 1).any()
    ):
        raise ValueError("plan: block_first must rise from 0 to the number of tiles, by at least one a block")
    _, _, launches = launch_form(catalogue, runs, block_first)
    if len(launches) > MAX_LAUNCHES:
        names = ", ".join(launch.kernel for launch in launches)
        raise ValueError(f"plan: it needs the kernels {names}; a call launches at most {MAX_LAUNCHES}")
