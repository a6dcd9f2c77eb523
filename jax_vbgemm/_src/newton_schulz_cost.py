"""Predictions of Newton-Schulz steps by the cost model: which matrices leave the batch, and the time of each matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src import backends, compat
from jax_vbgemm._src.matmul.api import AnyPlanner
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.planner import device_spec, resolve_planner
from jax_vbgemm._src.planner.single_dots import split
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem

Rounds = tuple[tuple[Problem, ...], ...]


def members_alone(
    xs: Sequence[jax.Array], precision: Any, planner: AnyPlanner, implementation: str | None
) -> Sequence[bool]:
    """For which matrices (of one dtype) XLA's single dots are predicted to be faster; no device is touched."""
    if implementation is not None:
        return [False] * len(xs)
    device = backends.traced_target()
    if not _has_kernels(xs, device):
        return [True] * len(xs)
    return split(_rounds(xs), xs[0].dtype.name, _name(precision), device, resolve_planner(planner)).alone


def matrix_seconds(xs: Sequence[jax.Array], precision: Any, planner: AnyPlanner) -> list[float]:
    """Predicted seconds of a step for one matrix of each array, of any dtype.

    They are equal in all processes of a program, as all must divide the work in the same way: they do not depend on the
    number of CPU cores that this process may use.
    """
    device = backends.traced_target()
    if device.platform == "cpu":
        device = device.with_units(device_spec("cpu").units)
    seconds = [0.0] * len(xs)
    for dtype in dict.fromkeys(x.dtype for x in xs):
        indices = [index for index, x in enumerate(xs) if x.dtype == dtype and x.size]
        members = [xs[index] for index in indices]
        if members and _has_kernels(members, device):
            found: Sequence[float] = split(
                _rounds(members), dtype.name, _name(precision), device, resolve_planner(planner)
            ).members
        else:  # a dtype without kernels, which XLA multiplies at a rate that no table has
            rate = dict(device.peak_rates)["float32"]
            products = zip(*_rounds(members), strict=True)
            found = [sum(2.0 * p.m * p.n * p.k * p.batch for p in of_x) / rate for of_x in products]
        for index, value in zip(indices, found, strict=True):
            seconds[index] = value / math.prod(xs[index].shape[:-2])
    return seconds


def _has_kernels(xs: Sequence[jax.Array], device: Any) -> bool:
    if not all(compat.is_static(x.shape) for x in xs):  # symbolic sizes of jax.export, for which no plan can be made
        return False
    backend = backends.BACKENDS[device.platform]
    absent = backend.module is None and backends.named_target() is None
    return not (absent or xs[0].dtype.name not in backend.dtypes or any(max(x.shape) > LARGEST_SIZE for x in xs))


def _rounds(xs: Sequence[jax.Array]) -> Rounds:
    """The three products of a step, for each matrix."""
    rounds: list[list[Problem]] = [[], [], []]
    for x in xs:
        symmetric = not jnp.iscomplexobj(x)  # X X^H is Hermitian
        (m, n), batch = sorted(x.shape[-2:]), int(np.prod(x.shape[:-2]))
        rounds[0].append(Problem(m, m, n, batch, symmetric=symmetric))
        rounds[1].append(Problem(m, m, m, batch, symmetric=symmetric))
        rounds[2].append(Problem(m, n, m, batch))
    return tuple(map(tuple, rounds))


def _name(precision: Any) -> str:
    return precision_name(canonical_precision(precision))
