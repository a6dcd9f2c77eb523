"""The coefficients of tiles that were measured on a device, as the cost model reads them (model/calibration.py fits
and writes them)."""

import csv
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.native.arithmetic import FLOAT8
from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tables.device_table import calibration_files

CALIBRATED = tuple(
    f"{what}{rows}_ns" for rows in ("", "_unaligned") for what in ("block", "step", "shared_block", "shared_step")
)
_NEVER_MEASURED = 1.0  # seconds of a block and of a step, for tiles that were not measured
# Arithmetics whose kernels are equally fast share a calibration; those of 8-bit floats differ only in how they are
# widened.
_CALIBRATED_AS = {"float16": "bfloat16"} | dict.fromkeys(FLOAT8, "float8_e4m3fn")


@lru_cache(maxsize=8)
def calibration_table(device: str) -> Mapping[tuple[str, str, int], tuple[float, ...]]:
    """A device's calibration: (kind, tile, threads) -> `CALIBRATED` in seconds."""
    table: dict[tuple[str, str, int], tuple[float, ...]] = {}
    for path in calibration_files(device):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                key = row["kind"], row["tile"], int(row["threads"])
                table[key] = tuple(1e-9 * float(row[name]) for name in CALIBRATED)
    return table


@lru_cache(maxsize=64)
def tile_coefficients(device: str | None, catalogue: Catalogue) -> NDArray[np.float64] | None:
    """The device's (fixed, step, shared fixed, shared step) seconds of aligned and of other problems, by row of the
    catalogue; None if no tile is calibrated.

    If some tiles are calibrated, a tile without coefficients counts as slow, so that no plan prefers it.
    """
    table = np.zeros((4, 2, len(catalogue.columns.m)))
    if device is None:
        return None
    measured, found = calibration_table(device), False
    for tile in catalogue:
        kind = catalogue.kind if tile.tensor else catalogue.dtype
        row = measured.get((_CALIBRATED_AS.get(kind, kind), *tile.key))
        found = found or row is not None
        table[:, :, tile.index] = _NEVER_MEASURED if row is None else np.reshape(row, (2, 4)).T
    return table if found else None
