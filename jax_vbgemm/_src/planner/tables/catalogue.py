"""The catalogue: the tiles of the compiled table that are built for an arithmetic and run on a device."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm import _core
from jax_vbgemm._src.native.arithmetic import ARITHMETICS, DTYPES, OPERANDS, arithmetic_of
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.planner.tables.rules import Rules

ELEMENT_BYTES: Mapping[str, int] = {dtype: DTYPES[dtype].bytes for dtype in OPERANDS}

# The arithmetic of ordinary tiles for tf32 and tf32x3 is float32; for others it is the arithmetic itself.
PLAIN_KIND: Mapping[str, str] = {
    name: next(plain.name for plain in ARITHMETICS.values() if plain[1:] == one[1:])
    for name, one in ARITHMETICS.items()
}


def _kernels_of(partition: str) -> tuple[str, ...]:
    """The launched kernels whose tiles are divided in this way: ThreadPartition in csrc/catalogue.h."""
    kernels = {tile.kernel for tile in COMPILED_TILES if tile.partition == partition}
    return tuple(kernel for kernel in _core.kernels() if kernel in kernels)


WHOLE_ROWS = _kernels_of("rows")
(SHARED_DEPTH,) = _kernels_of("sliced_k")
DOT_PRODUCTS = _kernels_of("warp_sliced_k")
PIPELINED = _kernels_of("warpgroup_rows")  # one for each architecture that has them

TileKey = tuple[str, int]  # (name, threads): several tiles may have one name, but not with the same threads


@dataclass(frozen=True)
class TileShape:
    """A tile: `m` x `n` elements of C by `threads` threads, in steps of `k`.

    `index` is its row of the compiled table. `kernel` names the launched kernel that contains it and determines its
    `registers` (per thread), `shared_bytes` (per block) and `scalar_registers` (per wave, AMD only); they are 0 on the
    CPU.
    """

    index: int
    name: str
    m: int
    n: int
    k: int
    threads: int
    kernel: str
    registers: int = 0
    shared_bytes: int = 0
    tensor: bool = False  # on tensor cores
    scalar_registers: int = 0

    @property
    def key(self) -> TileKey:
        return self.name, self.threads

    @property
    def stores_mirrored(self) -> bool:
        """Whether on NVIDIA GPUs the tile can also store its result transposed, as the mirror image."""
        return COMPILED_TILES[self.index].stores_mirrored

    @property
    def is_far_longer(self) -> bool:
        """Whether one side is at least four times the other."""
        return COMPILED_TILES[self.index].is_far_longer


class Replacement(NamedTuple):
    """A tile that a planner asked for and that isn't built, and the tile used instead."""

    asked: TileKey
    taken: TileKey


@dataclass(frozen=True)
class TileColumns:
    """The tiles of a catalogue as arrays indexed by row of the compiled table; rows of other tiles hold zeros."""

    m: NDArray[np.int64]
    n: NDArray[np.int64]
    k: NDArray[np.int64]
    threads: NDArray[np.int64]
    kernel: NDArray[np.int64]  # index into Catalogue.kernels
    tensor: NDArray[np.int64]  # 1 on tensor cores


@dataclass(frozen=True)
class Catalogue:
    """The tiles built for `kind` on one device, in the order of the compiled table, and that whole table's hash.

    `rules`: the device's measured rules, which say for which problems some tiles are the fastest; None without them.
    """

    kind: str
    tiles: tuple[TileShape, ...]
    hash: int
    rules: Rules | None = None

    def __hash__(self) -> int:
        # the number of tiles suffices for the hash; equality compares every tile
        return hash((self.kind, self.hash, len(self.tiles)))

    @property
    def dtype(self) -> str:
        """The dtype of the operands, or of the left one where they differ."""
        return ARITHMETICS[self.kind].lhs

    @property
    def element_bytes(self) -> int:
        return ARITHMETICS[self.kind].bytes

    @cached_property
    def is_pipelined(self) -> NDArray[np.bool_]:
        """Which tiles of `columns` are pipelined."""
        found = np.zeros(len(self.columns.m), bool)
        found[[tile.index for tile in self.tiles if tile.kernel in PIPELINED]] = True
        return found

    @property
    def on_tensor_cores(self) -> bool:
        """Whether products of this arithmetic belong on tensor cores: TF32 exists nowhere else, and 8-bit and 16-bit
        types are much slower elsewhere. (float64 has tensor cores too, but ordinary units are as exact.)
        """
        needs_tensor = self.kind != PLAIN_KIND[self.kind] or self.element_bytes <= 2
        return needs_tensor and any(tile.tensor for tile in self.tiles)

    def __iter__(self) -> Iterator[TileShape]:
        return iter(self.tiles)

    def __len__(self) -> int:
        return len(self.tiles)

    def find(self, name: str, threads: int | None = None) -> TileShape:
        """The tile of that name; without `threads`, its version with the most threads.

        Raises ValueError, listing the known tiles, if there is none.
        """
        found = [tile for tile in self.tiles if tile.name == name and threads in (None, tile.threads)]
        if not found:
            asked = repr(name) if threads is None else repr((name, threads))
            there = ", ".join(f"{tile.name}/{tile.threads}" for tile in self.tiles)
            raise ValueError(f"there is no tile {asked} for {self.kind}; there are {there or 'none'}")
        return max(found, key=lambda tile: tile.threads)

    def resolve(self, order: Sequence[TileKey]) -> tuple[tuple[TileShape, ...], tuple[Replacement, ...]]:
        """The tiles named by `order`, smallest first, and the replacements for missing ones.

        A missing tile is replaced by the next smaller one of `order`, or by the next larger one where none is smaller.
        Raises ValueError if none of the tiles is built.
        """
        built = {tile.key: tile for tile in self.tiles}
        available = [built[key] for key in order if key in built]
        if not available:
            asked = ", ".join(f"{name}/{threads}" for name, threads in order)
            raise ValueError(f"none of the tiles {asked} is built for {self.kind}")
        tiles: list[TileShape] = []
        for key in order:
            tiles.append(built.get(key, tiles[-1] if tiles else available[0]))
        replaced = (Replacement(key, tile.key) for key, tile in zip(order, tiles, strict=True) if key != tile.key)
        return tuple(tiles), tuple(replaced)

    @cached_property
    def by_index(self) -> Mapping[int, TileShape]:
        """The catalogue's tiles by their row of the compiled table."""
        return {tile.index: tile for tile in self.tiles}

    @cached_property
    def kernels(self) -> tuple[str, ...]:
        """The launched kernels of the catalogue's tiles, in order of first appearance."""
        return tuple(dict.fromkeys(tile.kernel for tile in self.tiles))

    def only(self, wanted: Callable[[TileShape], bool]) -> "Catalogue":
        """The catalogue with the wanted tiles only; the whole catalogue where no tile is wanted."""
        tiles = tuple(tile for tile in self.tiles if wanted(tile))
        return replace(self, tiles=tiles) if tiles else self

    def tiles_of(self, kernel: str) -> list[TileShape]:
        return [tile for tile in self.tiles if tile.kernel == kernel]

    def any_tile_of(self, kernel: str) -> TileShape:
        """Any tile of that kernel, as it has the kernel's registers and shared memory."""
        return next(tile for tile in self.tiles if tile.kernel == kernel)

    @cached_property
    def columns(self) -> TileColumns:
        size = max((tile.index for tile in self.tiles), default=-1) + 1
        table = np.zeros((6, size), np.int64)
        for tile in self.tiles:
            table[:, tile.index] = tile.m, tile.n, tile.k, tile.threads, self.kernels.index(tile.kernel), tile.tensor
        return TileColumns(*table)


def kind_of(dtype: str, precision: str, device: DeviceSpec, rhs: str | None = None) -> str:
    """The arithmetic of products of `dtype` at `precision` ("default", "high" or "highest") on `device`.

    rhs: the right operand's dtype, where it differs. On a device with TF32 tensor cores, float32 is multiplied as one
    tf32 product at "default" and as three at "high". Raises ValueError for two dtypes for which there is no arithmetic.
    """
    if rhs is not None and rhs != dtype:
        mixed = arithmetic_of(dtype, rhs)
        if mixed is None:
            raise ValueError(f"dtype: there is no arithmetic of {dtype} and {rhs}")
        return mixed.name
    kind = {"default": "tf32", "high": "tf32x3"}.get(precision, dtype) if dtype == "float32" else dtype
    return kind if device.has_tensor(kind) else dtype


@lru_cache(maxsize=256)
def catalogue_for(kind: str, device: DeviceSpec) -> Catalogue:
    """The catalogue of a kind of arithmetic (a dtype, "tf32" or "tf32x3") on `device`.

    A GPU has the tiles that are built for the arithmetic and that fit the GPU; tf32 and tf32x3 have the tiles of
    float32 too. The CPU kernel walks tiles of any shape in any dtype, so that the CPU has its own tiles and those of
    the papers' planners. It lacks the row, column and deep tiles, which differ from other tiles only by how a GPU
    computes them.
    """
    if kind not in ARITHMETICS:
        raise ValueError(f"dtype: unknown name {kind!r}; known are {', '.join(ELEMENT_BYTES)}")
    tiles = []
    for index, row in enumerate(COMPILED_TILES):
        tile = TileShape(index, *row[:5], row.kernel, tensor=row.tensor)
        arithmetic = kind if row.tensor else PLAIN_KIND[kind]
        if device.device_type == "cpu":
            if not row.tensor and row.partition == "tile":
                tiles.append(replace(tile, kernel="cpu"))
        elif arithmetic in row.k_steps[device.platform] and (not row.tensor or device.has_tensor(kind)):
            resources = _kernel_resources(device, row.kernel, arithmetic)
            if resources is None:
                continue
            registers, shared_bytes, scalars = resources
            tile = replace(tile, registers=registers, shared_bytes=shared_bytes, scalar_registers=scalars)
            if shared_bytes <= device.shared_block_bytes:
                tiles.append(tile)
    return Catalogue(kind, tuple(tiles), _core.catalogue_hash(), device.rules)


class Resources(NamedTuple):
    """The resources of a launched kernel: registers per thread, shared bytes per block, scalar registers per wave."""

    registers: int
    shared_bytes: int
    scalar_registers: int = 0


def _kernel_resources(device: DeviceSpec, kernel: str, kind: str) -> Resources | None:
    """A launched kernel's resources in the compiler's report; None if the kernel is not compiled for the device."""
    rows = {row[2]: figures for row, figures in _resource_table().items() if row[:2] == (device.resources, kernel)}
    if not rows and any(row[1] == kernel for row in _resource_table()):
        return None
    if not rows:
        raise ValueError(
            f"the resource tables have no row for kernel {kernel!r} on {device.resources!r} ({device.name})"
        )
    if kind in rows:
        return rows[kind]
    # An arithmetic without a row uses that of one with the same element size, or the next larger, or else the largest.
    size, sizes = ARITHMETICS[kind].bytes, {row: ARITHMETICS[row].bytes for row in rows}
    return rows[min(rows, key=lambda row: (sizes[row] < size, abs(sizes[row] - size)))]


@lru_cache(maxsize=1)
def _resource_table() -> dict[tuple[str, str, str], Resources]:
    """(arch, kernel, dtype) -> resources: nvcc's report (resources.csv) and clang's (resources_amd.csv)."""
    folder = Path(__file__).parent
    table = {}
    with (folder / "resources.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            figures = Resources(int(row["registers"]), int(row["shared_bytes"]))
            table[row["arch"], row["kernel"], row["dtype"]] = figures
    with (folder / "resources_amd.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            vector, accumulation = int(row["vgprs"]), int(row["agprs"])
            # The MI100 has separate register files for vector and accumulation registers. Later chips have one file, in
            # which accumulation registers begin at a multiple of 4.
            two_files = row["arch"] == "gfx908"
            registers = max(vector, accumulation) if two_files else -(-vector // 4) * 4 + accumulation
            figures = Resources(registers, int(row["shared_bytes"]), int(row["sgprs"]))
            table[row["arch"], row["kernel"], row["dtype"]] = figures
    return table
