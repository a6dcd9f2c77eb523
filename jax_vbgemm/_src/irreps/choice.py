"""Whether a map is one call or dots of XLA, by the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jax_vbgemm._src.irreps.features import Features
from jax_vbgemm._src.irreps.paths import Path
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import Auto, resolve_planner
from jax_vbgemm._src.planner.single_dots import Member, worthwhile
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem
from jax_vbgemm._src.util import compat

_CLEAR = 1.0


def left_to_xla(
    x: Features, paths: Sequence[Path], dtype: Any, *, precision: Any, planner: Any, implementation: str | None
) -> bool:
    device, precision = backends.traced_target(), canonical_precision(precision)
    if implementation is not None or resolve_planner(planner) != Auto() or device.platform == "cpu":
        return False
    rows = x.arrays[0].shape[0] if x.arrays else 0
    if not compat.is_static((rows,)) or rows == 0 or dtype.name not in backends.BACKENDS[device.platform].dtypes:
        return False
    if isinstance(precision, jax.lax.DotAlgorithmPreset | jax.lax.DotAlgorithm):
        return False
    dots: dict[int, list[Problem]] = {}
    for path in paths:
        if path.i_in is not None and 0 not in path.shape:
            of = x.irreps[path.i_in]
            dots.setdefault(path.i_out, []).append(Problem(rows * of.irrep_dim, path.shape[1], path.shape[0]))
    members = tuple(
        Member(Problem(each[0].m, each[0].n, sum(dot.k for dot in each)), tuple(each), 1 + 2 * len(each))
        for each in dots.values()
    )
    if not members or max(max(x.problem.m, x.problem.n, x.problem.k) for x in members) > LARGEST_SIZE:
        return False
    best = worthwhile(members, dtype.name, precision_name(precision), device, planner)
    return best.dots_seconds < _CLEAR * best.batched_seconds
