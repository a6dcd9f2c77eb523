"""Chooses what multiplies products of which factors are `Scaled`, and says why.

    narrow   a kernel of `ragged_dot`, for groups of constant size, reads 8 or 4 bits and applies the scales
    sums     the kernel of all products multiplies 8-bit numbers, and XLA the sums by scales that hold for all of K
    wide     factors times their scales are factors like all others

Products that are not narrow are one call, together with those of factors without scales. A narrow product is a call of
its own, which takes some microseconds however small it is, but multiplies at a multiple of the rate: where both are
possible, the predicted times decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_vbgemm._src.matmul.factors import Flags
from jax_vbgemm._src.matmul.precision import accumulation_of_float8, precision_name
from jax_vbgemm._src.matmul.primitive import TermSizes
from jax_vbgemm._src.matmul.view import dense
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.arithmetic import arithmetic_of, stored_bytes
from jax_vbgemm._src.planner import DeviceSpec, Planner, kind_of
from jax_vbgemm._src.planner.single_dots import dots_of, fastest_split
from jax_vbgemm._src.problem import Problem
from jax_vbgemm._src.ragged import plan
from jax_vbgemm._src.ragged.choice import FactorDtypes, kind_on
from jax_vbgemm._src.ragged.cost import predicted_seconds
from jax_vbgemm._src.ragged.scaled_factors import is_mixed, is_narrow
from jax_vbgemm._src.scaled.scaled import Scaled, spread
from jax_vbgemm._src.util import compat

LONGEST_INT8 = 2**17 - 1
"""The largest K of which int32 holds any sum of products of int8: 2^17 products of -128 by itself are 2^31."""


class Choice(NamedTuple):
    """What multiplies two factors of which one or both are Scaled ("narrow", "sums" or "wide"), and why."""

    how: str
    why: str


class Product(NamedTuple):
    """Two factors of which one or both are Scaled. preferred: the dtype that the caller asks for, or None."""

    lhs: Any
    rhs: Any
    flags: Flags
    sizes: TermSizes
    preferred: Any

    @property
    def are_scaled(self) -> bool:
        """Whether both factors are."""
        return is_scaled(self.lhs) and is_scaled(self.rhs)

    @property
    def wide(self) -> Any:
        """The dtype to which factors are widened where no kernel reads them as they are."""
        if self.are_scaled:
            return np.dtype(np.float32)
        return np.dtype(self.lhs.dtype if is_scaled(self.rhs) else self.rhs.dtype)

    @property
    def has_constant_scales(self) -> bool:
        """Whether the scales of both factors hold for all of K."""
        of_lhs, of_rhs = -2 if self.flags.transpose_a else -1, -1 if self.flags.transpose_b else -2
        return bool(self.lhs.scales.shape[of_lhs] == self.rhs.scales.shape[of_rhs] == 1)


def is_scaled(x: Any) -> bool:
    return isinstance(x, Scaled)


class _Implementations(NamedTuple):
    """How a product can be computed. batch: together with the call's other products; ragged: alone, by a kernel of
    `ragged_dot`, or None if that has no kernel for it."""

    batch: Choice
    ragged: plan.Product | None


def choose(
    products: Sequence[Product], precision: Any, implementation: str | None, planner: str | Planner = "auto"
) -> list[Choice]:
    """What multiplies each of the products of a call."""
    device = backends.traced_target()
    ways = [_implementations(product, precision, implementation, device) for product in products]
    found = [way.batch for way in ways]
    alone: dict[int, float] = {}  # predicted seconds
    for index, (product, (batch, ragged)) in enumerate(zip(products, ways, strict=True)):
        if ragged is None:
            continue
        kind = kind_on(device.platform, _dtypes(product), precision)
        seconds = predicted_seconds(kind, device, ragged)
        # A single product of weights alone was measured to be faster by itself, whatever the prediction.
        if seconds is not None and (product.are_scaled or len(products) > 1):
            alone[index] = seconds
        elif batch.how == "wide" or len(products) == 1:
            found[index] = Choice("narrow", batch.why)
        else:
            found[index] = batch._replace(why=f"{batch.why}, and all products are one call")
    by_kind: dict[str, list[int]] = {}
    for index in alone:
        by_kind.setdefault(_kind_in_batch(products[index], found[index], precision, device), []).append(index)
    for kind, indices in by_kind.items():
        split = fastest_split(
            (tuple(_problem(products[i]) for i in indices),),
            [alone[i] for i in indices],
            _seconds_beside([products[i] for i in indices], [found[i] for i in indices], device),
            0.0,
            kind,
            device,
            planner,
        )
        for i, leaves in zip(indices, split.alone, strict=True):
            how, what = ("narrow", "a kernel of its own") if leaves else (found[i].how, "the call")
            found[i] = Choice(how, f"{found[i].why}, and {what} is faster by prediction")
    return found


def _implementations(
    product: Product, precision: Any, implementation: str | None, device: DeviceSpec
) -> _Implementations:
    lhs, rhs, _, sizes, _ = product
    if not compat.is_static((*sizes.result, sizes.k)) or 0 in (*sizes.result, sizes.k):
        return _Implementations(Choice("wide", "a size is 0 or symbolic"), None)
    if not product.are_scaled:
        batch = Choice("wide", "one factor has no scales")
    elif arithmetic_of(lhs.dtype.name, rhs.dtype.name) is None:
        return _Implementations(Choice("wide", f"no kernel multiplies {lhs.dtype} by {rhs.dtype}"), None)
    elif not product.has_constant_scales:
        batch = Choice("wide", "scales change along K")
    elif lhs.dtype == np.int8 and sizes.k > LONGEST_INT8:
        batch = Choice("wide", f"int32 does not hold all sums of {sizes.k} products of int8")
    else:
        batch = Choice("sums", "scales hold for all of K")
    ragged = _ragged(product, precision, implementation, device)
    if isinstance(ragged, str):
        return _Implementations(batch._replace(why=f"{batch.why}, and {ragged}"), None)
    return _Implementations(batch, ragged)


def _dtypes(product: Product) -> FactorDtypes:
    return FactorDtypes(product.lhs.dtype, product.rhs.dtype)


def _ragged(product: Product, precision: Any, implementation: str | None, device: DeviceSpec) -> plan.Product | str:
    """The product as one of `ragged_dot`, a kernel of which multiplies its factors as they are on a device; or why none
    does."""
    lhs, rhs, flags, sizes, preferred = product
    if implementation == "xla":
        return "the caller wants XLA's products"
    if flags.transpose_a or not flags.transpose_b or not is_scaled(rhs):
        return "kernels of 8 bits read lhs (m, k), and rhs, which is Scaled, (n, k) with transpose_b"
    batch = rhs.shape[:-2]
    if math.prod(batch) != 1 and not batch == lhs.shape[:-2] == sizes.batch:
        return f"lhs {lhs.shape} has no rows of its own for each matrix of rhs {rhs.shape}"
    groups, rows = math.prod(batch), math.prod(sizes.batch) * sizes.m
    flat_lhs, flat_rhs = jax.eval_shape(flat, lhs, rhs)
    weights = None if product.are_scaled else rhs.dtype.name
    if not (is_mixed(lhs.dtype, flat_rhs, preferred) if weights else is_narrow(flat_lhs, flat_rhs, True)):
        return "no kernel of 8 bits has these dtypes and blocks"
    ragged = plan.Product(
        contraction=False, transpose_rhs=True, gated=False, m=rows, k=sizes.k, columns=sizes.n, groups=groups,
        total_groups=groups, rows=rows // groups, weights=weights,
    )  # fmt: skip
    kind = kind_on(device.platform, _dtypes(product), precision)
    return plan.why_not_pipelined(kind, device, ragged) or ragged


def _problem(product: Product) -> Problem:
    sizes, flags = product.sizes, product.flags
    batch = math.prod(sizes.batch)
    return Problem(sizes.m, sizes.n, sizes.k, batch, transpose_a=flags.transpose_a, transpose_b=flags.transpose_b)


def _kind_in_batch(product: Product, choice: Choice, precision: Any, device: DeviceSpec) -> str:
    """The arithmetic of a product as a part of the call."""
    name = precision_name(accumulation_of_float8(precision)[0])
    lhs, rhs = _dtypes(product) if choice.how == "sums" else (product.wide,) * 2
    return kind_of(lhs.name, name, device, rhs.name)


def _seconds_beside(products: Sequence[Product], choices: Sequence[Choice], device: DeviceSpec) -> list[float]:
    """Seconds of XLA's passes over the factors and the result of each product that is a part of the call."""
    bandwidth = dots_of(device).bandwidth
    widened: set[int] = set()

    def pass_over(shape: Sequence[int], bytes_read: float, bytes_written: int) -> float:
        return device.launch_seconds + float(math.prod(shape)) * (bytes_read + bytes_written) / bandwidth

    def seconds(product: Product, choice: Choice) -> float:
        total = 0.0
        if product.are_scaled:  # of sums in float32 or int32
            result = 2 if product.preferred is None else np.dtype(product.preferred).itemsize
            total += pass_over(product.sizes.result, 4, result)
        for x in (product.lhs, product.rhs):
            if choice.how == "wide" and is_scaled(x) and id(x) not in widened:
                widened.add(id(x))
                total += pass_over(x.shape, stored_bytes(x.dtype.name), product.wide.itemsize)
        return total

    return [seconds(product, choice) for product, choice in zip(products, choices, strict=True)]


def flat(lhs: Any, rhs: Scaled) -> tuple[Any, Scaled]:
    """Factors for `ragged_dot`: the rows of lhs with scales of single rows, and the matrices of rhs, whose scales are
    of single columns where they hold for all of K, as it knows few other blocks."""
    if is_scaled(lhs):
        lhs = _of_lines(lhs)
        scales = lhs.scales.reshape(-1, lhs.scales.shape[-1])
        lhs = Scaled(dense(lhs.values).reshape(-1, lhs.shape[-1]), scales, lhs.block[-2:])
    else:
        lhs = dense(lhs).reshape(-1, lhs.shape[-1])
    rhs = _of_lines(rhs) if rhs.scales.shape[-1] == 1 else rhs
    *leading, rows, columns = rhs.sizes
    scales = spread(rhs.scales, (*rhs.shape[:-2], *rhs.scales.shape[-2:]), (*leading, 1, 1))
    values = dense(rhs.values).reshape(-1, *rhs.shape[-2:])
    return lhs, Scaled(values, scales.reshape(-1, *scales.shape[-2:]), (rows, columns))


def _of_lines(x: Scaled) -> Scaled:
    """x with scales of single rows, in as many blocks of columns as before."""
    *leading, rows, columns = x.sizes
    scales = spread(x.scales, (*x.shape[:-1], x.scales.shape[-1]), (*leading, rows, 1))
    return Scaled(x.values, scales, (*(1,) * (x.ndim - 1), columns))
