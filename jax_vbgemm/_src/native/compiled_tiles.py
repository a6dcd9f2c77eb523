"""The tiles that csrc/tiles.def declares, read from the compiled module."""

from collections.abc import Mapping
from typing import NamedTuple

from jax_vbgemm import _core


class CompiledTile(NamedTuple):
    """A tile shape, and the GPU builds that contain it.

    k_steps: for each GPU platform ("cuda", "rocm"), the arithmetics for which its build has code for the tile, each
    with the K step of its kernel in elements.
    """

    name: str
    m: int
    n: int
    k: int
    threads: int  # in a thread block; 1 for a CPU tile
    kinds: tuple[str, ...]  # the arithmetics that the catalogue lists
    kernel: str  # the kernel that holds the tile; "cpu" for a CPU tile
    tensor: bool  # on tensor cores, or on AMD's matrix cores
    partition: str  # how the tile is divided among threads: ThreadPartition in csrc/catalogue.h
    stores_mirrored: bool  # on NVIDIA GPUs it can also store the transpose of its result
    is_far_longer: bool  # one side is at least four times the other
    k_steps: Mapping[str, Mapping[str, int]]

    @property
    def is_gpu(self) -> bool:
        return self.threads > 1


COMPILED_TILES: tuple[CompiledTile, ...] = tuple(CompiledTile(*row) for row in _core.tiles())
"""The catalogue's lines, in order; a call refers to a tile by its position here."""
