"""The records of csrc/descriptor.h as NumPy dtypes, and special values of their fields, from the compiled module."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_vbgemm import _core

_LAYOUTS: dict[str, tuple[int, list[tuple[str, str, int, int]]]] = _core.layouts()


def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of a record; a field that is a record has the dtype of that record."""
    size, fields = _LAYOUTS[name]
    formats = []
    for _, type_, count, _ in fields:
        one = _dtype(type_) if type_ in _LAYOUTS else np.dtype(type_)
        formats.append(one if count == 1 else np.dtype((one, count)))
    names, offsets = [field[0] for field in fields], [field[3] for field in fields]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


PROBLEM: np.dtype[Any] = _dtype("Problem")
EPILOGUE: np.dtype[Any] = _dtype("Epilogue")
RUN: np.dtype[Any] = _dtype("TileRun")
READY_TILE: np.dtype[Any] = _dtype("ReadyTile")
SPLIT_TILE: np.dtype[Any] = _dtype("SplitTile")

STORE_TO_WORKSPACE: int = _core.STORE_TO_WORKSPACE
"""As a tile's C buffer: the tile is a K slice, whose partial sums go to the workspace."""

KEEP_ACCUMULATORS: int = _core.KEEP_ACCUMULATORS
"""As a tile's C buffer: nothing is stored, and the block's next tile goes on with the same accumulators (CPU)."""
