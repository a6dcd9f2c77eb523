"""Decides by the cost model whether a map is one call or XLA's dots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from jax_vbgemm._src.irreps.features import Features
from jax_vbgemm._src.irreps.paths import Path
from jax_vbgemm._src.matmul.precision import precision_name
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import Auto, resolve_planner
from jax_vbgemm._src.planner.single_dots import Member, calls_of, dots_of, worthwhile
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem
from jax_vbgemm._src.util import compat


def left_to_xla(
    x: Features, paths: Sequence[Path], dtype: Any, *, precision: Any, planner: Any, implementation: str | None
) -> bool:
    """Whether the map of x is left to XLA's dots, which are predicted to take less time than a call. They are more
    launches than a call, but XLA transposes features for them, and fuses them with the surrounding operations.

    False if the caller asks for a way, where the cost model does not know the products, and on a CPU. There XLA
    transposes features for its dots, which the model does not count: calls are 1.0 to 2.4 times as fast. The precision
    is a canonical one.
    """
    device = backends.traced_target()
    if implementation is not None or resolve_planner(planner) != Auto() or device.platform == "cpu":
        return False
    rows = x.arrays[0].shape[0] if x.arrays else 0
    if not compat.is_static((rows,)) or dtype.name not in backends.BACKENDS[device.platform].dtypes:
        return False
    # XLA's HIGH is a single product of TF32 on a GPU, that of kernels is as accurate as float32.
    has_algorithm = isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm)
    if has_algorithm or precision_name(precision) == "high":
        return False
    largest = rows * max((of.irrep_dim for of in x.irreps), default=0)
    if largest > LARGEST_SIZE or not (members := _members(x, paths, rows)):
        return False
    best = worthwhile(members, dtype.name, precision_name(precision), device, planner)
    apart = _strided_components(x, paths, rows) if x.layout == "mul_ir" else []
    moved = dtype.itemsize * sum(apart)
    copies = len(apart) * calls_of(device).copy + 2 * moved / dots_of(device).bandwidth  # read and written
    return bool(best.dots_seconds + copies < best.batched_seconds + moved / _SINGLE_NUMBERS)


_SINGLE_NUMBERS = 1e12
"""Byte/s at which a call takes longer where the channels of an irrep are apart: a map of 704 columns took 155 us of
16,384 rows in mul_ir and 80 us in ir_mul (H200, float32 as TF32)."""


def _strided_components(x: Features, paths: Sequence[Path], rows: int) -> list[int]:
    """The number of elements of each irrep, of features and of results, whose channels are not contiguous in "mul_ir".
    XLA's dots need a transposed copy of it."""
    elements = {}
    for path in paths:
        if path.i_in is not None and (components := x.irreps[path.i_in].irrep_dim) > 1:
            elements["in", path.i_in] = rows * path.shape[0] * components
            elements["out", path.i_out] = rows * path.shape[1] * components
    return list(elements.values())


def _members(x: Features, paths: Sequence[Path], rows: int) -> tuple[Member, ...]:
    """The results of the map as members of one call; those without elements are left out."""
    dots: dict[int, list[Problem]] = {}
    for path in paths:
        if path.i_in is not None and path.size * rows:
            k, n = path.shape
            dots.setdefault(path.i_out, []).append(Problem(rows * x.irreps[path.i_in].irrep_dim, n, k))
    return tuple(
        Member(replace(each[0], k=sum(dot.k for dot in each)), tuple(each), arrays=1 + 2 * len(each))
        for each in dots.values()
    )
