"""Bands: an order of pipelined tiles in which blocks that run at the same time share operands in the L2 cache."""

import numpy as np

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tiles.runs import Runs, ceil_div

BAND = 16
"""Rows of tiles in a band. Bands of 8 and 32 rows of tiles were not faster on an H100 (docs/design/ragged.md)."""


def in_bands(runs: Runs, catalogue: Catalogue) -> Runs:
    """The same tiles, with each run of pipelined tiles as bands: BAND rows of tiles, ordered by column. Each column of
    a band is a run."""
    cut = catalogue.is_pipelined[runs.tile_id] & (runs.tiles_y * runs.tiles_x > 1)
    if not cut.any():
        return runs
    bands, columns = np.where(cut, ceil_div(runs.tiles_y, BAND), 1), np.where(cut, runs.tiles_x, 1)
    batches = np.where(cut, runs.tiles_batch, 1)
    count = bands * columns * batches
    run = np.repeat(np.arange(len(runs)), count)
    index = np.arange(len(run)) - (np.cumsum(count) - count)[run]
    parts, cut = runs.take(run), cut[run]
    index, column = index // columns[run], index % columns[run]
    batch, band = index // bands[run], index % bands[run]
    ones = np.ones_like(run)
    tile_m, tile_n = catalogue.columns.m.astype(np.int64), catalogue.columns.n.astype(np.int64)
    return Runs(
        problem=parts.problem,
        tile_id=parts.tile_id,
        row=parts.row + band * BAND * tile_m[parts.tile_id],
        col=parts.col + column * tile_n[parts.tile_id],
        batch=parts.batch + batch,
        k_begin=parts.k_begin,
        k_end=parts.k_end,
        tiles_y=np.where(cut, np.minimum(parts.tiles_y - band * BAND, BAND), parts.tiles_y),
        tiles_x=np.where(cut, ones, parts.tiles_x),
        tiles_batch=np.where(cut, ones, parts.tiles_batch),
        mirrored=parts.mirrored,
    )
