"""The predicted time of a ragged product, to compare it with other ways to compute the same."""

from __future__ import annotations

import math

from jax_vbgemm._src.native.arithmetic import ARITHMETICS, stored_bytes
from jax_vbgemm._src.planner import DeviceSpec
from jax_vbgemm._src.planner.single_dots import dots_of
from jax_vbgemm._src.ragged import plan
from jax_vbgemm._src.ragged.primitive import SCALED

_ROWS = 128  # of a tile of the pipelined kernel (kRows in csrc/gpu/sm90/pipeline.h)
_MIXED_TILE = 32, 128  # rows of lhs and of weights (csrc/gpu/sm90/source_groups.h)
_RESULT_BYTES = 2  # results of bfloat16 or float16


def predicted_seconds(kind: str, device: DeviceSpec, product: plan.Product) -> float | None:
    """Seconds of rows times 8-bit matrices, or times weights of 8 or 4 bits, by a device's pipelined kernel, in groups
    of `product.rows`; None where it was not measured.

    A wave of tiles takes the same time whether it fills the device or not, and K counts in whole steps.
    """
    rules, rate = device.ragged_rules, device.ragged_rate(kind)
    if rules is None or (rate is None and not product.weights):
        return None
    if product.weights:
        rows, columns = _MIXED_TILE
        step, bytes_of_rhs = rules.mixed_step, stored_bytes(product.weights)
    else:
        assert rate is not None
        rows, columns = _ROWS, plan.COLUMNS[plan.tile_shape(kind, device, product)]
        step, bytes_of_rhs = 2.0 * device.units * rows * columns * SCALED / rate, ARITHMETICS[kind].bytes
    tiles = product.groups * math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
    steps = math.ceil(tiles / device.units) * math.ceil(product.k / SCALED)
    moved = float(product.rows) * (product.k * ARITHMETICS[kind].bytes + product.columns * _RESULT_BYTES)
    moved = product.groups * (moved + float(product.k) * product.columns * bytes_of_rhs)
    return rules.product_seconds + max(steps * step, moved / dots_of(device).bandwidth)
