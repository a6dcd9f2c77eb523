"""The plan of a ragged product on a GPU: its kernel and its tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from jax_vbgemm import _core
from jax_vbgemm._src.native.arithmetic import ARITHMETICS, DTYPES
from jax_vbgemm._src.planner import DeviceSpec
from jax_vbgemm._src.planner.papers.uniform import Uniform
from jax_vbgemm._src.planner.tables.catalogue import PIPELINED, catalogue_for
from jax_vbgemm._src.planner.tables.rules import RaggedRules
from jax_vbgemm._src.problem import Problem


class PipelinedShape(NamedTuple):
    """A tile shape of the pipelined kernel: the columns of its tiles, and how many thread blocks share copies."""

    name: str
    columns: int
    cluster: int


_SHAPES = [PipelinedShape(*shape) for shape in _core.ragged_shapes()]
SHAPES = tuple(shape.name for shape in _SHAPES)
"""The tile shapes of the pipelined kernel; a call refers to a shape by its position here (RaggedShape in
csrc/ragged.h)."""

_LINE_BYTES = 16  # TMA copies lines that begin at multiples of 16 bytes

COLUMNS = {shape.name: shape.columns for shape in _SHAPES}


class Product(NamedTuple):
    """What a plan depends on.

    rows: of a typical group. columns: of a matrix of rhs, which is `gated` where the result has half as many.
    weights: the dtype of rhs where it is narrower than lhs.
    """

    contraction: bool
    transpose_rhs: bool
    gated: bool
    m: int
    k: int
    columns: int
    groups: int
    total_groups: int
    rows: int
    weights: str | None = None


class RaggedPlan(NamedTuple):
    """RaggedPlan in csrc/ragged.h, the bytes of the workspace, whether the kernel is to read rows by index, and why the
    pipelined kernel cannot compute the product."""

    shape: str
    counted: bool
    tile: int
    workspace: int
    gathers: bool = False
    why: str | None = None

    @classmethod
    def of(cls, shape: str, counted: bool, tile: int, product: Product) -> RaggedPlan:
        workspace = _core.RAGGED_COUNTER_BYTES if counted else 0
        if tile >= 0:
            workspace = max(workspace, _tile_list(product, tile)[1])
        return cls(shape, counted, tile, workspace)

    @property
    def only_pipelined(self) -> bool:
        """Whether the product is certain to run on the pipelined kernel, which alone supports row scales and gates."""
        return self.tile < 0

    @property
    def words(self) -> list[int]:
        return [SHAPES.index(self.shape), int(self.counted), self.tile]

    def attributes(self) -> dict[str, Any]:
        """The plan's attributes of a call."""
        shape, counted, tile = self.words
        return {"shape": np.int64(shape), "counted": np.bool_(counted), "tile": np.int64(tile)}


NONE = RaggedPlan(SHAPES[0], counted=False, tile=-1, workspace=0)
"""The plan of a call for the CPU."""


def why_not_pipelined(kind: str, device: DeviceSpec, product: Product) -> str | None:
    """The reason why a device's pipelined kernel cannot compute a product; None if it can."""
    if not has_pipeline(kind, device, product):
        return f"{device.name} has no pipelined kernel of this arithmetic and layout"
    n = product.columns // 2 if product.gated else product.columns
    line: int = _core.ragged_line_elements(list(ARITHMETICS).index(kind))
    along_k = product.contraction and product.transpose_rhs
    if product.weights:
        line_of_weights = _LINE_BYTES * (2 if product.weights == "int4" else 1)
        if product.k % line_of_weights:
            return f"the lines of {product.weights} weights are no multiples of {line_of_weights} elements"
        rules = device.ragged_rules
        if rules is None or product.rows > rules.mixed_rows:
            return "a typical group has so many rows that weights are widened before the product"
    if product.k % line or n % line or (along_k and product.m % line):
        return f"the lines of operands and results are no multiples of {line} elements"
    return None


def has_pipeline(
    kind: str, device: DeviceSpec, product: Product, *, gathers: bool = False, shape: str = "wide"
) -> bool:
    """Whether a device has a pipelined kernel of an arithmetic, of a product's layout and of a tile shape."""
    rhs = product.weights or ARITHMETICS[kind].rhs
    compiled = _core.has_ragged_pipeline(
        list(ARITHMETICS).index(kind), list(DTYPES).index(rhs), product.contraction, product.transpose_rhs, gathers,
        SHAPES.index(shape),
    )  # fmt: skip
    # Only csrc/gpu/sm90 has them; a device that runs its kernel for batches runs these too.
    return compiled and "m384_pipelined" in catalogue_for("bfloat16", device).kernels


def plan(kind: str, device: DeviceSpec, product: Product, *, certain: bool) -> RaggedPlan | None:
    """The plan for an arithmetic on a device; None if the product has too many tiles. certain: the program will run
    on such a device. Otherwise a product for the pipelined kernel gets a tile of the catalogue as well."""
    why = why_not_pipelined(kind, device, product)
    rules = device.ragged_rules
    shape, counted = "none", False
    if why is None:
        shape, counted = tile_shape(kind, device, product), takes_from_counter(rules, product)
    tile = -1
    if why is not None or not certain:
        found = catalogue_tile(kind, device, product)
        if found is None:
            return None
        tile = found
    few_columns = rules is None or product.columns <= rules.gathered_columns
    gathers = certain and few_columns and why is None and has_pipeline(kind, device, product, gathers=True, shape=shape)
    return RaggedPlan.of(shape, counted, tile, product)._replace(gathers=gathers, why=why)


def tile_shape(kind: str, device: DeviceSpec, product: Product) -> str:
    """The fastest shape by a device's rules; without rules, the narrowest one that holds all columns, without clusters.

    In clusters of two thread blocks these share the copies of what two neighbouring tiles have in common: the columns
    of rhs, or the rows of lhs.
    """
    if product.weights:
        return "wide"
    rules = device.ragged_rules
    few_rows, paired_k = (0, None) if rules is None else (rules.few_rows, rules.paired_k)
    if product.columns <= COLUMNS["narrow"] or (not product.contraction and product.rows < few_rows):
        return "narrow"
    pairs = product.columns > COLUMNS["wide"] and paired_k is not None and product.k >= paired_k
    return "wide_pair" if pairs and has_pipeline(kind, device, product, shape="wide_pair") else "wide"


def takes_from_counter(rules: RaggedRules | None, product: Product) -> bool:
    """Whether thread blocks take tiles from a counter, so that the call needs a workspace."""
    return rules is not None and 2.0 * product.m * product.k * product.columns > rules.counted_flop


@lru_cache(maxsize=256)
def catalogue_tile(kind: str, device: DeviceSpec, product: Product) -> int | None:
    """The tile of the catalogue with the smallest predicted time for groups around the typical size, among tiles whose
    list does not get too long; None if there is none."""
    groups = min(product.groups, product.total_groups)
    # Groups differ in size, so that their last tiles are half full on average.
    each = [min(max(1, product.rows * half // 2), product.m) for half in (1, 2, 3)]
    problems = tuple(_problem(product, rows, -(-groups // 3)) for rows in each)
    catalogue = catalogue_for(kind, device)
    tiles = [tile for tile in catalogue if tile.kernel not in PIPELINED and is_short(product, tile.index)]
    if not tiles:
        return None
    catalogue = catalogue.only(lambda tile: tile in tiles)
    if device.calibration is None and catalogue.on_tensor_cores:
        catalogue = catalogue.only(lambda tile: tile.tensor)  # as in the papers' planners, because nothing was measured
    return int(Uniform().draft(problems, device, catalogue).tile_id[0])


def is_short(product: Product, tile: int) -> bool:
    most: int = _core.RAGGED_MOST_TILES
    return _tile_list(product, tile)[0] <= most


def _tile_list(product: Product, tile: int) -> tuple[int, int]:
    """The length of the list of tiles that the device writes, and its size in bytes."""
    length, size = _core.ragged_list(
        product.m, product.k, product.columns, product.groups, product.total_groups, product.contraction, tile
    )
    return length, size


def _problem(product: Product, rows: int, batch: int) -> Problem:
    if product.contraction:
        return Problem(product.k, product.columns, rows, batch, transpose_a=True)
    return Problem(rows, product.columns, product.k, batch, transpose_b=product.transpose_rhs)
