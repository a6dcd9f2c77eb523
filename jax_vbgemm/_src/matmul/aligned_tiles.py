"""Which launches need nothing but 16-byte vectors, and so may take the kernels of csrc/gpu/tensor/aligned_tile.h."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm import _core
from jax_vbgemm._src.planner import Catalogue
from jax_vbgemm._src.planner.tiles.launches import Launch

ALIGNED_KERNELS: dict[int, str] = {row: kernel for kernel, row in _core.aligned_kernels()}
"""The aligned kernel of a tile, by the tile's row of the compiled table."""

_KINDS = ("bfloat16", "float16", "tf32")  # for which they are compiled


def kernel_of_launch(launch: Launch, tiles: NDArray[np.void], catalogue: Catalogue) -> str:
    """The launch's own kernel, or the aligned kernel of its tiles (READY_TILE rows, one a block, without epilogues) if
    these are of one shape and each has all matrices in rows of whole 16-byte vectors."""
    mine = tiles[launch.first_block : launch.first_block + launch.num_blocks]
    kernel = ALIGNED_KERNELS.get(int(mine["tile_id"][0])) if len(mine) and catalogue.kind in _KINDS else None
    if kernel is None or (mine["tile_id"] != mine["tile_id"][0]).any() or (mine["depth"] == 0).any():
        return launch.kernel
    items = _core.VECTOR_LOAD_BYTES // catalogue.element_bytes
    lengths = {"a": mine["depth"], "b": mine["cols"], "c": mine["cols"]}
    return kernel if all(_in_vectors(mine[name], length, items) for name, length in lengths.items()) else launch.kernel


def _in_vectors(part: NDArray[np.void], length: NDArray[Any], items: int) -> bool:
    """Whether parts of matrices lie in the call's buffers in rows that begin and end at multiples of `items`."""
    beginnings = part["offset"] % items == 0
    rows = (part["row_stride"] % items == 0) & (part["col_stride"] == 1) & (length % items == 0)
    return bool((beginnings & rows & (part["buffer"] >= 0) & (part["mirrored"] == 0)).all())
