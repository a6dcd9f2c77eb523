"""Predictions of Newton-Schulz steps by the cost model: which matrices leave the batch, which are iterated by their
Gram matrices, and the time of each matrix."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.api import AnyPlanner
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import device_spec, resolve_planner
from jax_vbgemm._src.planner.single_dots import dots_of, split
from jax_vbgemm._src.problem import LARGEST_SIZE, Problem
from jax_vbgemm._src.util import compat

# Not measured: Gram matrices add rounding errors, and predictions for small batches are no more accurate than this.
_GRAM_GAIN = 0.9

# The gain that justifies Gram matrices for all matrices as one batch; otherwise square matrices keep their usual
# rounding.
_ONE_BATCH_GAIN = 0.97

Shaped = jax.Array | jax.ShapeDtypeStruct | View
Rounds = tuple[tuple[Problem, ...], ...]


def segments(steps: int, first: int = 2) -> list[int]:
    """The numbers of consecutive steps that use only the Gram matrix: `first`, then up to 3.

    Each segment computes the Gram matrix anew. Rounding makes its smallest eigenvalues negative, and each step
    amplifies them, the first two the most: two steps of Polar Express make about -1 of -1e-3. The authors restart
    after the second of five steps.
    """
    rest = max(steps - first, 0)
    parts = -(-rest // 3)
    later = [rest // parts + (part < rest % parts) for part in range(parts)]
    return [min(steps, first), *later] if steps else []


def members_alone(
    xs: Sequence[Shaped],
    precision: Any,
    planner: AnyPlanner,
    implementation: str | None,
    dtype: Any,
    gram_steps: int | None = None,
) -> Sequence[bool]:
    """For which matrices XLA's single dots are predicted to be faster; no device is touched.

    dtype: that of all iterates. gram_steps: the number of steps by Gram matrices; None: steps by X.
    """
    if implementation is not None:
        return [False] * len(xs)
    device = backends.traced_target()
    if not _has_kernels(xs, dtype, device):
        return [True] * len(xs)
    rounds = _rounds(xs, dtype) if gram_steps is None else _gram_rounds(xs, dtype, gram_steps)
    return split(rounds, dtype.name, _name(precision), device, resolve_planner(planner)).alone


def members_by_gram(
    xs: Sequence[Shaped],
    steps: int,
    precision: Any,
    planner: AnyPlanner,
    implementation: str | None,
    dtype: Any,
) -> Sequence[bool]:
    """For which matrices the iteration by Gram matrices is predicted to be faster; no device is touched.

    Only those for which it has less arithmetic, whose larger size is about 1.5 times the smaller one, or more; or all
    matrices, where one batch is clearly faster than two. If nothing can be predicted, the arithmetic decides.
    """
    if steps < 2 or not all(compat.is_static(x.shape) for x in xs):
        return [False] * len(xs)
    device = backends.traced_target()
    by_member = [zip(*of(xs, dtype), strict=True) for of in (_rounds, functools.partial(_gram_rounds, steps=steps))]
    saves = [_flops(gram) < steps * _flops(ordinary) for ordinary, gram in zip(*by_member, strict=True)]
    if implementation == "xla" or not any(saves) or not _has_kernels(xs, dtype, device):
        return saves

    def seconds(indices: Sequence[int], of: Callable[[Sequence[Shaped]], Rounds]) -> tuple[float, ...]:
        members = [xs[i] for i in indices]
        return split(of(members), dtype.name, _name(precision), device, resolve_planner(planner)).members

    def by_x(members: Sequence[Shaped]) -> Rounds:
        return _rounds(members, dtype)

    def by_gram(members: Sequence[Shaped]) -> Rounds:
        return _gram_rounds(members, dtype, steps)

    all_indices = list(range(len(xs)))
    by_itself = [seconds(all_indices, of) for of in (by_x, by_gram)]
    # Adding the identity is a pass over a Gram matrix in each segment, and for large ones a launch.
    known, small = dots_of(device), 0 if device.rules is None else device.rules.small_array
    count = sum(length > 1 for length in segments(steps))

    def identity(x: Shaped) -> float:
        elements: int = min(x.shape[-2:]) ** 2 * _batch(x)
        launch = device.launch_seconds if elements > small else 0.0
        return count * (launch + 3.0 * elements * int(dtype.itemsize) / known.bandwidth)

    added = [identity(x) for x in xs]
    faster = [gram + more < steps * ordinary for ordinary, gram, more in zip(*by_itself, added, strict=True)]

    def total(chosen: Sequence[bool]) -> float:
        members = [i for i in all_indices if chosen[i]]
        others = [i for i in all_indices if not chosen[i]]
        found = 0.0
        if members:
            found += sum(seconds(members, by_gram)) + sum(added[i] for i in members)
        if others:
            found += steps * sum(seconds(others, by_x))
        return found

    # Two batches have more launches than one, and may fill the device less well.
    none, every = [False] * len(xs), [True] * len(xs)
    best = min([all(both) for both in zip(saves, faster, strict=True)], saves, key=total)
    if total(every) < _ONE_BATCH_GAIN * total(best):
        best = every
    return best if total(best) < _GRAM_GAIN * total(none) else none


def matrix_seconds(xs: Sequence[Shaped], precision: Any, planner: AnyPlanner, dtype: Any = None) -> list[float]:
    """Predicted seconds of a step for one matrix of each array. dtype: of the iterates; None: the arrays' dtypes.

    They are equal in all processes of a program, as all must divide the work in the same way: they do not depend on the
    number of CPU cores that this process may use.
    """
    device = backends.traced_target()
    if device.platform == "cpu":
        device = device.with_units(device_spec("cpu").units)
    seconds = [0.0] * len(xs)
    for x_dtype in dict.fromkeys(x.dtype for x in xs):
        iterated = dtype or x_dtype
        indices = [index for index, x in enumerate(xs) if x.dtype == x_dtype and x.size]
        members = [xs[index] for index in indices]
        if members and _has_kernels(members, iterated, device):
            found: Sequence[float] = split(
                _rounds(members, iterated), iterated.name, _name(precision), device, resolve_planner(planner)
            ).members
        else:  # a dtype without kernels, for which no table has XLA's rate
            rate = dict(device.peak_rates)["float32"]
            found = [_flops(products) / rate for products in zip(*_rounds(members, iterated), strict=True)]
        for index, value in zip(indices, found, strict=True):
            seconds[index] = value / math.prod(xs[index].shape[:-2])
    return seconds


def least_saved_seconds() -> float:
    """The predicted time over all steps that dividing replicated matrices among devices must save; 0 for a device on
    which it was not measured."""
    rules = backends.traced_target().mesh_rules
    return 0.0 if rules is None else rules.least_saved


def _has_kernels(xs: Sequence[Shaped], dtype: Any, device: Any) -> bool:
    if not all(compat.is_static(x.shape) for x in xs):  # symbolic sizes of jax.export, for which no plan can be made
        return False
    backend = backends.BACKENDS[device.platform]
    absent = backend.module is None and backends.named_target() is None
    return not (absent or dtype.name not in backend.dtypes or any(max(x.shape) > LARGEST_SIZE for x in xs))


def _rounds(xs: Sequence[Shaped], dtype: Any) -> Rounds:
    """The three products of a step, for each matrix."""
    symmetric = not jnp.issubdtype(dtype, jnp.complexfloating)  # X X^H is Hermitian

    def of(x: Shaped) -> tuple[Problem, ...]:
        (m, n), batch = sorted(x.shape[-2:]), _batch(x)
        square = [Problem(m, m, k, batch, symmetric=symmetric) for k in (n, m)]
        return (*square, Problem(m, n, m, batch))

    return tuple(zip(*map(of, xs), strict=True)) or ((), (), ())


def _gram_rounds(xs: Sequence[Shaped], dtype: Any, steps: int) -> Rounds:
    """The products of all steps by Gram matrices, for each matrix."""
    symmetric = not jnp.issubdtype(dtype, jnp.complexfloating)

    def of(x: Shaped) -> tuple[Problem, ...]:
        (m, n), batch = sorted(x.shape[-2:]), _batch(x)

        def square(k: int, count: int = 1) -> Problem:
            return Problem(m, m, k, count * batch, symmetric=symmetric)

        found = []
        for length in segments(steps):
            found.append(square(n))
            for index in range(length):
                found.append(square(m))
                if length > 1:  # the product of the segment, and the next Gram matrix in two products
                    is_first, is_last = index == 0, index == length - 1
                    found.append(square(m, 1 if is_first or is_last else 2))
                    found += [] if is_last else [square(m)]
            found.append(Problem(m, n, m, batch))
        return tuple(found)

    return tuple(zip(*map(of, xs), strict=True))


def _flops(products: Sequence[Problem]) -> float:
    return sum(2.0 * p.m * p.n * p.k * p.batch for p in products)


def _batch(x: Shaped) -> int:
    return math.prod(x.shape[:-2])


def _name(precision: Any) -> str:
    return precision_name(canonical_precision(precision))
