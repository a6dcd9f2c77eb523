"""Builds the descriptor arrays that kernels read from a Plan and the operands' addresses (see csrc/descriptor.h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm import _core
from jax_vbgemm._src.epilogue import Epilogue, Scalar, activation_number
from jax_vbgemm._src.matmul.addresses import Address, Place
from jax_vbgemm._src.matmul.aligned_tiles import kernel_of_launch
from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.native.records import (
    EPILOGUE,
    KEEP_ACCUMULATORS,
    PROBLEM,
    READY_TILE,
    RUN,
    SPLIT_TILE,
    STORE_TO_WORKSPACE,
)
from jax_vbgemm._src.planner import Catalogue, Plan
from jax_vbgemm._src.planner.tables.catalogue import PIPELINED
from jax_vbgemm._src.planner.tiles.descriptor_size import MAX_BYTES, ready_bytes
from jax_vbgemm._src.planner.tiles.launches import Launch
from jax_vbgemm._src.planner.tiles.pieces import Pieces, count_pieces, cut, of_sums, sums_of
from jax_vbgemm._src.planner.tiles.runs import Ints, Runs
from jax_vbgemm._src.planner.tiles.split_k import KSlices, slices_of

KERNELS = tuple(_core.kernels())
"""The names of the GPU kernels; a launch refers to a kernel by its index here."""

KINDS = tuple(ARITHMETICS)
"""The names of the arithmetics (how products are formed); a call refers to one by its index here."""


class Descriptors(NamedTuple):
    """The static data of one custom call: the constant that the device reads, and the attributes that the host
    reads."""

    words: NDArray[np.int32]  # the constant, whose parts csrc/descriptor.h lists
    problems: NDArray[np.int64]  # a copy of the problem table for the handler's checks
    epilogues: NDArray[np.int64]  # a copy of the epilogue table; empty if there are no epilogues
    launches: NDArray[np.int32]
    num_runs: int  # 0 if there are ready tiles instead of runs
    num_tiles: int
    num_blocks: int
    num_splits: int  # tiles whose K is split
    num_sums: int  # accumulators that hold the partial sums of split tiles


def workspace_bytes(platform: str, num_buffers: int, descriptors: Descriptors, dtype: Any) -> int:
    """The workspace of a call whose results are summed in `dtype`."""
    sums = descriptors.num_sums * int(np.dtype(dtype).itemsize)
    if platform == "cpu":
        return sums
    pipelined = any(KERNELS[kernel] in PIPELINED for kernel in descriptors.launches[::3])
    size: int = _core.gpu_workspace_bytes(platform == "rocm", num_buffers, sums, pipelined)
    return size


def problem_table(addresses: Sequence[Address], buffers: Sequence[tuple[int, int, int]]) -> NDArray[np.void]:
    """The PROBLEM rows; `buffers` holds the indices of A, B and C among the call's operands and results."""
    rows = [
        (x.m, x.n, x.k, x.batch, x.inner_batch, 0, (a, 0, *x.a), (b, 0, *x.b), (c, 0, *x.c))
        for x, (a, b, c) in zip(addresses, buffers, strict=True)
    ]
    return np.array(rows, PROBLEM)


def epilogue_table(epilogues: Sequence[Epilogue], addresses: Sequence[Address]) -> NDArray[np.void]:
    """The EPILOGUE rows: one for each problem, or none at all; the operands of epilogues are indices of buffers."""

    def scalar(value: Scalar) -> tuple[float, float, int, int, int]:
        if isinstance(value, tuple):
            return 0.0, 0.0, value[0], 0, value[1]
        return float(np.real(value)), float(np.imag(value)), -1, 0, 0

    def addend(buffer: int | None, place: Place | None) -> tuple[Any, ...]:
        return (-1, 0, 0, 0, 0, (0, 0)) if buffer is None or place is None else (buffer, 0, *place)

    rows = [
        (scalar(e.alpha), scalar(e.beta), addend(e.source, x.source), addend(e.bias, x.bias),
         activation_number(e.activation), 0)
        for e, x in zip(epilogues, addresses, strict=True)
    ] if epilogues else []  # fmt: skip
    return np.array(rows, EPILOGUE)


def _run_table(runs: Runs) -> NDArray[np.void]:
    """The RUN rows of a plan."""
    rows = np.zeros(len(runs), RUN)
    for field in ("problem", "tile_id", "row", "col", "batch", "k_begin", "k_end", "tiles_y", "tiles_x", "mirrored"):
        rows[field] = getattr(runs, field)
    rows["first_tile"] = runs.first_tile[:-1]
    return rows


def _ready_tiles(tiles: Runs, table: NDArray[np.void], catalogue: Catalogue) -> NDArray[np.void]:
    """The READY_TILE rows of runs that have one tile each."""
    problems, shape = table[tiles.problem], catalogue.columns
    outer, inner = np.divmod(tiles.batch, problems["inner_batch"])
    rows = np.zeros(len(tiles), READY_TILE)
    for field in ("tile_id", "problem", "batch", "row", "col"):
        rows[field] = getattr(tiles, field)
    rows["rows"] = np.minimum(problems["m"] - tiles.row, shape.m[tiles.tile_id])
    rows["cols"] = np.minimum(problems["n"] - tiles.col, shape.n[tiles.tile_id])
    rows["depth"] = tiles.k_end - tiles.k_begin
    for name, row, col in (
        ("a", tiles.row, tiles.k_begin),
        ("b", tiles.k_begin, tiles.col),
        ("c", tiles.row, tiles.col),
    ):
        x, part = problems[name], rows[name]
        batches = outer * x["batch_stride"][:, 0] + inner * x["batch_stride"][:, 1]
        part["offset"] = x["offset"] + batches + row * x["row_stride"] + col * x["col_stride"]
        for field in ("row_stride", "col_stride", "buffer"):
            part[field] = x[field]
    rows["c"]["mirrored"] = tiles.mirrored
    return rows


def _split_k(rows: NDArray[np.void], slices: KSlices, catalogue: Catalogue) -> NDArray[np.void]:
    """The SPLIT_TILE rows of the tiles that compute a K slice.

    Changes their READY_TILE rows: they store partial sums into the workspace, and no mirror image.
    """
    shape, tile_id = catalogue.columns, rows["tile_id"]
    first = slices.first_tiles
    splits = np.zeros(len(first), SPLIT_TILE)
    for field in ("tile_id", "rows", "cols", "depth", "problem", "batch", "row", "col", "c"):
        splits[field] = rows[field][first]
    splits["first"], splits["slices"] = slices.sums[first], slices.number[first]
    splits["pitch"], splits["slice_stride"] = shape.n[tile_id[first]], (shape.m * shape.n)[tile_id[first]]
    split = slices.number > 1
    to_workspace = {
        "offset": slices.sums, "row_stride": shape.n[tile_id], "col_stride": 1, "buffer": STORE_TO_WORKSPACE,
        "mirrored": 0,
    }  # fmt: skip
    for field, values in to_workspace.items():
        rows["c"][field] = np.where(split, values, rows["c"][field])
    return splits


def pack(
    plan: Plan,
    table: NDArray[np.void],
    epilogues: NDArray[np.void] | None = None,
    owner: Ints | None = None,
    terms: Ints | None = None,
) -> Descriptors:
    """The descriptor arrays of a plan over the problems of `table`, with one epilogue for each row of it or none.

    Each tile gets a record of its own (READY_TILE) where K is split or products are summed. On a GPU each tile gets one
    wherever the records stay under MAX_BYTES, so that a thread block starts after reading a single record. Otherwise
    regular regions of tiles stay runs (RUN), in which kernels look up their tiles.

    `owner`: for each row of the table, the index of the plan's problem whose sum the product belongs to, in ascending
    order. The K of a problem is the total K of its products. None: row i is problem i.
    `terms`: on a GPU, for each problem of the plan, how many successive matrices of its batch are the products of one
    sum, instead of parts of one long K. None: 1 everywhere.
    """
    runs, block_first, launches = plan.launch_form()
    owner = np.arange(len(table)) if owner is None else owner
    sums = len(owner) > len(plan.problems)
    depth = sums_of(owner, table["k"], len(plan.problems)) if sums else table["k"]
    split = np.flatnonzero((runs.k_begin != 0) | (runs.k_end != depth[runs.problem]))
    other_bytes = table.nbytes + (0 if epilogues is None else epilogues.nbytes)
    small = (
        other_bytes + ready_bytes(plan.num_tiles, num_blocks=0 if block_first is None else len(block_first))
        <= MAX_BYTES
    )
    ready = len(split) > 0 or sums or (small and plan.device.device_type == "gpu")
    single = runs.expand(plan.catalogue) if ready else runs
    products, slices, continued = single, None, np.zeros(0, bool)
    if sums:
        if terms is not None:
            single = of_sums(single, terms, np.array([problem.k for problem in plan.problems]))
        pieces = cut(single, owner, table["k"], len(plan.problems))
        products = pieces.products
        chained = plan.device.device_type == "cpu"
        if chained:  # a CPU core keeps its accumulators from one product of a sum to the next
            slices, continued = slices_of(single, plan.catalogue).of_pieces(pieces), pieces.continued
        else:  # the products of a tile are K slices of it, whose partial sums are added
            slices = slices_of(pieces.tiles, plan.catalogue)
        block_first, launches = _blocks_of_pieces(pieces, block_first, launches, chained=chained)
    elif len(split):
        slices = slices_of(single, plan.catalogue)
    tiles = _ready_tiles(products, table, plan.catalogue) if ready else _run_table(runs)
    splits, num_sums = np.zeros(0, SPLIT_TILE), 0
    if slices is not None:
        splits, num_sums = _split_k(tiles, slices, plan.catalogue), slices.num_sums
    if len(continued):
        tiles["c"]["buffer"][continued] = KEEP_ACCUMULATORS
    finishing = np.zeros(0, EPILOGUE) if epilogues is None else epilogues
    tables = [table.view(np.int32), finishing.view(np.int32)]
    parts = [tiles.view(np.int32), *tables] if ready else [*tables, tiles.view(np.int32)]
    parts.append(splits.view(np.int32))
    num_tiles = len(tiles) if ready else plan.num_tiles
    num_blocks = num_tiles if block_first is None else len(block_first) - 1
    if block_first is not None and num_blocks < num_tiles:
        parts.append(block_first.astype(np.int32))
    # On the CPU there are no launches: the thread pool walks over all blocks.
    launches = tuple(launch for launch in launches if launch.kernel in KERNELS)
    if ready and block_first is None and epilogues is None and plan.device.platform == "cuda":
        launches = tuple(x._replace(kernel=kernel_of_launch(x, tiles, plan.catalogue)) for x in launches)
    kernels = [(KERNELS.index(launch.kernel), *launch[1:]) for launch in launches]
    return Descriptors(
        words=np.concatenate(parts),
        problems=table.view(np.int64),
        epilogues=finishing.view(np.int64),
        launches=np.array(kernels, np.int32).reshape(-1),
        num_runs=0 if ready else len(runs),
        num_tiles=num_tiles,
        num_blocks=num_blocks,
        num_splits=len(splits),
        num_sums=num_sums,
    )


def _blocks_of_pieces(
    pieces: Pieces, block_first: Ints | None, launches: tuple[Launch, ...], *, chained: bool
) -> tuple[Ints | None, tuple[Launch, ...]]:
    """Blocks and launches in terms of the pieces into which tiles were cut. If a block held one tile, it holds one
    piece, or with `chained` all pieces of its tile.
    """
    if block_first is not None:
        return pieces.first[block_first], launches
    if chained:
        return pieces.first, launches
    first = pieces.first.tolist()
    ranges = [(first[x.first_block], first[x.first_block + x.num_blocks]) for x in launches]
    return None, tuple(
        Launch(launch.kernel, begin, end - begin) for launch, (begin, end) in zip(launches, ranges, strict=True)
    )


def sums_fit(plan: Plan, owner: Ints, depth: Ints) -> bool:
    """Whether the plan's tiles can have one record each, as sums of products need; the arguments are those of
    `pack`."""
    pieces = count_pieces(plan.runs, owner, depth, len(plan.problems))
    return ready_bytes(pieces, plan.num_tiles, plan.num_tiles) <= MAX_BYTES
