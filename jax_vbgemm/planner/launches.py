"""Which launched kernel computes which blocks: a launch takes a contiguous range of blocks, all of one kernel.

A kernel holds its own tiles and the lighter ones of its thread count, so a block may mix tiles of one thread count: the
heaviest of them decides its kernel.
"""

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


def block_kernels(catalogue: Catalogue, runs: Runs, block_first: Ints) -> Ints:
    """The kernel of each block, as an index into `catalogue.kernels`, which lists heavier ones later."""
    tile_kernel = np.repeat(catalogue.columns.kernel[runs.strategy], runs.count)
    return np.maximum.reduceat(tile_kernel, block_first[:-1]) if len(tile_kernel) else tile_kernel


def launch_form(
    catalogue: Catalogue, runs: Runs, block_first: Ints | None
) -> tuple[Runs, Ints | None, tuple[Launch, ...]]:
    """`runs` and `block_first` with the blocks of each kernel together, in the order they had, and the launches."""
    if block_first is None:
        kernel = catalogue.columns.kernel[runs.strategy]
        blocks = np.bincount(kernel, runs.count)
        runs = runs.take(np.argsort(kernel, kind="stable"))
    else:
        kernel = block_kernels(catalogue, runs, block_first)
        blocks = np.bincount(kernel)
        if len(np.unique(kernel)) > 1:  # its tiles move with a block
            lengths = np.diff(block_first)
            runs = runs.expand(catalogue).take(np.argsort(np.repeat(kernel, lengths), kind="stable"))
            block_first = offsets(lengths[np.argsort(kernel, kind="stable")])
    counts = blocks.astype(np.int64)
    launches = (
        Launch(catalogue.kernels[index], int(first), int(count))
        for index, (first, count) in enumerate(zip(offsets(counts)[:-1], counts, strict=True))
        if count
    )
    return runs, block_first, tuple(launches)


def check_launches(catalogue: Catalogue, runs: Runs, block_first: Ints | None) -> None:
    """Raises ValueError unless each block has tiles, all of one thread count, and at most three kernels are needed."""
    if block_first is not None:
        if block_first[0] != 0 or block_first[-1] != runs.num_tiles or (np.diff(block_first) < 1).any():
            raise ValueError("plan: block_first must rise from 0 to the number of tiles, by at least one a block")
        threads = np.repeat(catalogue.columns.threads[runs.strategy], runs.count)
        fewest, most = (reduce.reduceat(threads, block_first[:-1]) if len(threads) else threads
                        for reduce in (np.minimum, np.maximum))  # fmt: skip
        for block in np.flatnonzero(fewest != most):
            raise ValueError(f"plan: blocks[{block}] mixes tiles of {fewest[block]} and {most[block]} threads")
    _, _, launches = launch_form(catalogue, runs, block_first)
    if len(launches) > MAX_LAUNCHES:
        names = ", ".join(launch.kernel for launch in launches)
        raise ValueError(f"plan: it needs the kernels {names}; a call launches at most {MAX_LAUNCHES}")
