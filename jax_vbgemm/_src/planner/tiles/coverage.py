"""Checks that tiles cover each element of each C exactly once for each k in [0, K)."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs, ceil_div
from jax_vbgemm._src.problem import Problem, ProblemSizes

_AXES = ("batch", "row", "col", "k")


def check_coverage(problems: Sequence[Problem], catalogue: Catalogue, runs: Runs) -> None:
    """Raises ValueError for the first tile that lies outside its problem, else for the first element not covered
    exactly once.

    If K = 0, the C of a problem must be covered once by tiles with the empty range k_begin = k_end = 0. A problem
    with M, N or batch = 0 has no tiles. Tiles must begin inside of C and may reach beyond its last row and column,
    where they are masked. A mirrored tile covers its mirror image too; only symmetric problems may have such tiles.
    """
    sizes = ProblemSizes.of(problems)
    _check_range("names problem", runs.problem, runs.problem, len(problems))
    _check_range("has tile row", runs.problem, runs.tile_id, len(catalogue.columns.m))
    _check_boxes(sizes, catalogue, runs)
    asymmetric = runs.problem[(runs.mirrored != 0) & ~sizes.symmetric[runs.problem]]
    if len(asymmetric):
        raise ValueError(f"plan: a tile of problems[{asymmetric[0]}] is mirrored, but the problem is not symmetric")
    regular = _covered_by_one_run(sizes, catalogue, runs)
    unchecked = np.flatnonzero(~regular & (sizes.m > 0) & (sizes.n > 0) & (sizes.batch > 0))
    if len(unchecked) == 0:
        return
    by_problem = np.argsort(runs.problem, kind="stable")
    bounds = np.searchsorted(runs.problem[by_problem], [unchecked, unchecked + 1])
    for index, begin, end in zip(unchecked, *bounds, strict=True):
        _check_problem(int(index), problems[index], catalogue, runs.take(by_problem[begin:end]))


def _check_range(what: str, problem: Ints, values: Ints, size: int) -> None:
    bad = np.flatnonzero((values < 0) | (values >= size))
    if len(bad):
        raise ValueError(f"plan: a tile of problems[{problem[bad[0]]}] {what} {values[bad[0]]}, but there are {size}")


def _check_boxes(sizes: ProblemSizes, catalogue: Catalogue, runs: Runs) -> None:
    """Raises unless the first and the last tile of each run begin inside their problem."""
    tile = catalogue.columns
    last_row = runs.row + (runs.tiles_y - 1) * tile.m[runs.tile_id]
    last_col = runs.col + (runs.tiles_x - 1) * tile.n[runs.tile_id]
    last_batch = runs.batch + runs.tiles_batch - 1
    for axis, first, last, size in (
        ("row", runs.row, last_row, sizes.m[runs.problem]),
        ("col", runs.col, last_col, sizes.n[runs.problem]),
        ("batch", runs.batch, last_batch, sizes.batch[runs.problem]),
    ):
        bad = np.flatnonzero((first < 0) | (last >= size))
        if len(bad):
            run = bad[0]
            begin = first[run] if first[run] < 0 else last[run]
            raise ValueError(
                f"plan: a tile of problems[{runs.problem[run]}] begins at {axis} {begin}, outside [0, {size[run]})"
            )
    k = sizes.k[runs.problem]
    empty_range = (runs.k_begin == runs.k_end) & (k > 0)
    bad = np.flatnonzero((runs.k_begin < 0) | (runs.k_begin > runs.k_end) | (runs.k_end > k) | empty_range)
    if len(bad):
        run = bad[0]
        span = f"[{runs.k_begin[run]}, {runs.k_end[run]})"
        raise ValueError(
            f"plan: a tile of problems[{runs.problem[run]}] has the k range {span}, which is not in [0, {k[run]})"
        )


def _covered_by_one_run(sizes: ProblemSizes, catalogue: Catalogue, runs: Runs) -> NDArray[np.bool_]:
    """Which problems are covered by a single run, the usual case, which is cheap to check."""
    tile = catalogue.columns
    problem = runs.problem
    whole = (
        (runs.row == 0) & (runs.col == 0) & (runs.batch == 0) & (runs.k_begin == 0) & (runs.k_end == sizes.k[problem])
        & (runs.tiles_y == ceil_div(sizes.m[problem], tile.m[runs.tile_id]))
        & (runs.tiles_x == ceil_div(sizes.n[problem], tile.n[runs.tile_id]))
        & (runs.tiles_batch == sizes.batch[problem])
        & (runs.mirrored == 0)
    )  # fmt: skip
    covered = np.zeros(len(sizes.m), bool)
    covered[problem[whole]] = True
    covered &= np.bincount(problem, minlength=len(sizes.m)) == 1
    return covered


def _check_problem(index: int, problem: Problem, catalogue: Catalogue, runs: Runs) -> None:
    """Counts how often each element is covered, on coordinates compressed to the begins and ends of boxes."""
    tile = catalogue.columns
    depth = max(problem.k, 1)  # with K = 0, C has to be covered as with K = 1
    ends = runs.row + runs.tiles_y * tile.m[runs.tile_id], runs.col + runs.tiles_x * tile.n[runs.tile_id]
    boxes = [
        (runs.batch, runs.batch + runs.tiles_batch, problem.batch),
        (runs.row, np.minimum(ends[0], problem.m), problem.m),
        (runs.col, np.minimum(ends[1], problem.n), problem.n),
        (runs.k_begin, runs.k_end if problem.k else np.ones_like(runs.k_end), depth),
    ]
    mirrored = np.flatnonzero(runs.mirrored)
    images = [boxes[axis] for axis in (0, 2, 1, 3)]  # the mirror image has rows and columns exchanged
    boxes = [
        (np.append(begin, other_begin[mirrored]), np.append(end, other_end[mirrored]), size)
        for (begin, end, size), (other_begin, other_end, _) in zip(boxes, images, strict=True)
    ]
    edges = [np.unique(np.concatenate((begin, end, [0, size]))) for begin, end, size in boxes]
    corners = [
        (np.searchsorted(edge, begin), np.searchsorted(edge, end))
        for edge, (begin, end, _) in zip(edges, boxes, strict=True)
    ]
    # A box adds +-1 at its sixteen corners; sums along the four axes then give each cell's number of covers.
    cover = np.zeros([len(edge) for edge in edges], np.int32)
    for far in itertools.product((0, 1), repeat=4):
        np.add.at(cover, tuple(corner[side] for corner, side in zip(corners, far, strict=True)), (-1) ** sum(far))
    for axis in range(4):
        np.cumsum(cover, axis=axis, out=cover)
    wrong = np.argwhere(cover[:-1, :-1, :-1, :-1] != 1)
    if len(wrong):
        cell = tuple(wrong[0])
        place = ", ".join(f"{axis} {edge[at]}" for axis, edge, at in zip(_AXES, edges, cell, strict=True))
        times = int(cover[cell])
        raise ValueError(
            f"plan: problems[{index}] at {place} is " + ("not covered" if times == 0 else f"covered {times} times")
        )
