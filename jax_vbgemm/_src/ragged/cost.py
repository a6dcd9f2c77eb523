"""The predicted time of a ragged product, to compare it with other ways to compute the same."""

from __future__ import annotations

import math

from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.planner import DeviceSpec
from jax_vbgemm._src.planner.single_dots import dots_of
from jax_vbgemm._src.ragged import plan
from jax_vbgemm._src.ragged.primitive import SCALED

_ROWS = 128  # of a tile of the pipelined kernel (kRows in csrc/gpu/sm90/pipeline.h)
_RESULT_BYTES = 2


def predicted_seconds(kind: str, device: DeviceSpec, product: plan.Product) -> float | None:
    """Seconds of rows times 8-bit matrices by a device's pipelined kernel, in groups of `product.rows`; None where it
    was not measured.

    A wave of tiles takes the same time whether it fills the device or not, and K counts in whole steps.
    """
    rules, rate = device.ragged_rules, device.ragged_rate(kind)
    if rules is None or rate is None:
        return None
    columns = plan.COLUMNS[plan.tile_shape(kind, device, product)]
    tiles = product.groups * math.ceil(product.rows / _ROWS) * math.ceil(product.columns / columns)
    depth = math.ceil(product.k / SCALED) * SCALED
    products = math.ceil(tiles / device.units) * device.units * _ROWS * columns * float(depth)
    rows = float(product.groups) * product.rows
    moved = rows * product.k + float(product.groups) * product.k * product.columns
    moved = moved * ARITHMETICS[kind].bytes + rows * product.columns * _RESULT_BYTES
    return rules.product_seconds + max(2 * products / rate, moved / dots_of(device).bandwidth)
