"""Folding symmetric results: of two tiles that are mirror images of each other, one is computed and stored twice."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.tables.catalogue import Catalogue, TileShape
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, ceil_div, offsets, saturating_count, tile_counts
from jax_vbgemm._src.problem import Problem, ProblemSizes

# Upper bounds for a problem that is folded: each of its rows (or columns) of tiles becomes two runs, which must fit the
# descriptors.
MOST_TILES = 2**16
MOST_ROWS = 2**13


def stores_mirrored(device: DeviceSpec, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which tiles, by row of the compiled table, have kernels that can also store a tile transposed."""
    able = np.zeros(len(catalogue.columns.m), bool)
    able[[tile.index for tile in catalogue if tile.stores_mirrored]] = device.platform == "cuda"
    return able


def fold(runs: Runs, problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> Runs:
    """`runs` without the tiles strictly below the diagonal of a symmetric result, and with the tiles strictly above it
    marked as mirrored; all other tiles and the order stay.

    This is done for problems of at most MOST_TILES tiles in MOST_ROWS rows that are covered by one tile shape, if one
    side of it divides the other and its kernel stores mirrored tiles: the mirror image of each tile below the diagonal
    then consists of tiles above it. Other problems stay unchanged, and so do problems that are already folded.
    """
    sizes = ProblemSizes.of(problems)
    if device.platform != "cuda" or not sizes.symmetric.any():
        return runs
    folds = _foldable(runs, sizes, device, catalogue)[runs.problem]
    if not folds.any():
        return runs
    mine, others = np.flatnonzero(folds), np.flatnonzero(~folds)
    upper, origin = _upper(runs.take(mine), catalogue)
    place = np.concatenate((others, mine[origin]))
    return Runs.joined([runs.take(others), upper]).take(np.argsort(place, kind="stable"))


def tiles_computed(sizes: ProblemSizes, tile: TileShape, device: DeviceSpec) -> Ints:
    """The number of tiles of each problem that remain after `fold`, if `tile` covers the problem."""
    whole = tile_counts(sizes, tile.m, tile.n)
    short, long = sorted((tile.m, tile.n))
    if not tile.stores_mirrored or device.platform != "cuda" or long % short or not sizes.symmetric.any():
        return whole
    rows, ratio = ceil_div(sizes.m, tile.m), long // short
    if tile.m >= tile.n:
        below = rows * (rows - 1) // 2 * ratio
    else:
        squares, rest = np.divmod(rows, ratio)
        below = squares * (squares - 1) // 2 * ratio + squares * rest
    folded = sizes.symmetric & (whole <= MOST_TILES) & (rows * sizes.batch <= MOST_ROWS)
    return np.where(folded, whole - below * sizes.batch, whole)


def _foldable(runs: Runs, sizes: ProblemSizes, device: DeviceSpec, catalogue: Catalogue) -> NDArray[np.bool_]:
    """Which problems are folded."""
    problem, tile_id = runs.problem, runs.tile_id
    m, n = catalogue.columns.m[tile_id], catalogue.columns.n[tile_id]
    edge, batch = sizes.m[problem], sizes.batch[problem]
    problem_tile = np.full(len(sizes.m), -1)
    problem_tile[problem] = tile_id
    fits = (
        stores_mirrored(device, catalogue)[tile_id]
        & (problem_tile[problem] == tile_id)
        & (np.gcd(m, n) == np.minimum(m, n))
        & (runs.row % m == 0) & (runs.col % n == 0)
        & (edge > np.maximum(m, n))  # otherwise no tile lies below the diagonal
        & (ceil_div(edge, m) * batch <= MOST_ROWS)
        & (saturating_count(ceil_div(edge, m), ceil_div(edge, n), batch) <= MOST_TILES)
        & (runs.mirrored == 0)
    )  # fmt: skip
    foldable = sizes.symmetric.copy()
    foldable[problem[~fits]] = False
    return foldable


def _upper(runs: Runs, catalogue: Catalogue) -> tuple[Runs, Ints]:
    """The tiles of `runs` that are not below the diagonal, as two runs for each row of tiles, on the diagonal and above
    it; and the run from which each comes. Of pipelined tiles that are wider than tall, whose neighbours in a column
    share copies (bands.py), there are two runs for each column.
    """
    m, n = catalogue.columns.m.astype(np.int64), catalogue.columns.n.astype(np.int64)
    by_column = (catalogue.is_pipelined & (m < n))[runs.tile_id]
    lines = runs.tiles_batch * np.where(by_column, runs.tiles_x, runs.tiles_y)
    run = np.repeat(np.arange(len(runs)), lines)
    local = np.arange(len(run)) - offsets(lines)[run]
    each, by_column = runs.take(run), by_column[run]
    m, n = m[each.tile_id], n[each.tile_id]
    each_lines, length = np.where(by_column, (each.tiles_x, each.tiles_y), (each.tiles_y, each.tiles_x))
    across = by_column.astype(np.int64)
    row = each.row + local % each_lines * m * (1 - across)
    col = each.col + local % each_lines * n * across
    # A row begins with tiles below the diagonal, and a column ends with them.
    on: Ints = np.clip(np.where(by_column, (col - row) // m, (row - col) // n), 0, length)
    after: Ints = np.clip(np.where(by_column, ceil_div(col + n - row, m), ceil_div(row + m - col, n)), on, length)
    begin: Ints = np.stack((on, np.where(by_column, 0, after)), axis=1).ravel()
    end: Ints = np.stack((after, np.where(by_column, on, length)), axis=1).ravel()
    kept = np.flatnonzero(begin < end)
    line = np.repeat(np.arange(len(each)), 2)[kept]
    ones, count, across = np.ones_like(kept), (end - begin)[kept], across[line]
    found = replace(
        each.take(line),
        row=row[line] + begin[kept] * m[line] * across,
        col=col[line] + begin[kept] * n[line] * (1 - across),
        batch=(each.batch + local // each_lines)[line],
        tiles_y=np.where(across, count, ones),
        tiles_x=np.where(across, ones, count),
        tiles_batch=ones,
        mirrored=kept % 2,
    )
    return found, run[line]
