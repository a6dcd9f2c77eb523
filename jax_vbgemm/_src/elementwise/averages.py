"""averages: two averages of many arrays of different sizes and the second's sums of squares, on a GPU in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from jax_vbgemm._src.elementwise import array_kernels
from jax_vbgemm._src.elementwise.square_sums import chunks_of, real_accumulator, square_sums
from jax_vbgemm._src.epilogue import scaled
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.util import compat


def averages(
    xs: Sequence[Any], ys: Sequence[Any], alpha: Any, beta: Any, gamma: Any, delta: Any
) -> tuple[list[jax.Array], list[jax.Array], jax.Array]:
    """The averages a_i = alpha x_i + beta y_i, the lookahead values gamma x_i + delta a_i, and their sums of squares.

    If gamma is 0, x_i is not part of the lookahead value, so an infinite x_i makes it infinite instead of NaN. Each
    array is computed in the accumulator's dtype and rounded once; the sums are those of `square_sums`. A kernel writes
    the averages into the memory of the ys; XLA copies each y that is needed later.

    Args:
      xs, ys: at least one array each, of any rank and of one floating or complex dtype; x_i and y_i have one shape.
      alpha, beta, gamma, delta: real numbers, known or traced, for all arrays.

    Returns:
      The averages, the lookahead values, and the sums, (len(xs),), in the real dtype of the accumulator.

    Raises:
      ValueError: there are no arrays, or dtypes or the shapes of a pair differ.
    """
    xs, ys = [jnp.asarray(x) for x in xs], [jnp.asarray(y) for y in ys]
    if not xs or len(xs) != len(ys):
        raise ValueError(f"averages: there are {len(xs)} xs and {len(ys)} ys")
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x.shape != y.shape or not x.dtype == y.dtype == xs[0].dtype:
            what = f"xs[{index}] is {x.dtype}{x.shape} and ys[{index}] is {y.dtype}{y.shape}"
            raise ValueError(f"averages: {what}, but xs[0] is {xs[0].dtype}: dtypes and shapes of a pair must be equal")
    scales = jnp.stack([jnp.asarray(scale, real_accumulator(xs[0].dtype)) for scale in (alpha, beta, gamma, delta)])
    if any(compat.explicit_axes(x) for x in (*xs, *ys)):
        results = _xla_form(scales, *xs, *ys, in_place=())
    else:
        in_place = array_kernels.read_once([*xs, *ys])[len(xs) :]
        results = averages_p.bind(scales, *xs, *ys, in_place=in_place)
    return results[: len(xs)], results[len(xs) : -1], results[-1]


averages_p = jex_core.Primitive("averages")


@averages_p.def_abstract_eval
def _abstract_eval(scales: Any, *arrays: Any, in_place: Sequence[bool]) -> list[Any]:
    count = len(arrays) // 2
    pairs = list(zip(arrays[:count], arrays[count:], strict=True))
    results = [compat.shaped_array(x.shape, x.dtype, [x, y, scales]) for x, y in pairs]
    return [*results, *results, compat.shaped_array((count,), scales.dtype, [*arrays, scales])]


def _xla_form(scales: jax.Array, *arrays: jax.Array, in_place: Sequence[bool]) -> list[jax.Array]:
    del in_place
    alpha, beta, gamma, delta = scales
    count, dtype = len(arrays) // 2, arrays[0].dtype
    wide = accumulator(dtype)
    alpha, beta, gamma, delta = (scale.astype(wide) for scale in (alpha, beta, gamma, delta))
    found: list[jax.Array] = []
    ahead: list[jax.Array] = []
    for x, y in zip(arrays[:count], arrays[count:], strict=True):
        found.append((alpha * x.astype(wide) + beta * y.astype(wide)).astype(dtype))
        ahead.append((scaled(gamma, x.astype(wide)) + delta * found[-1].astype(wide)).astype(dtype))
    return [*found, *ahead, square_sums(ahead)]


def _kernel_form(scales: jax.Array, *arrays: jax.Array, in_place: Sequence[bool]) -> list[jax.Array]:
    count = len(arrays) // 2
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays[:count]]
    sums, partials = (jax.ShapeDtypeStruct((size,), scales.dtype) for size in (count, chunks_of(arrays[:count])))
    call = jax.ffi.ffi_call(
        backends.AVERAGES_TARGET_NAME,
        [*like, *like, sums, partials],
        input_output_aliases={1 + count + index: index for index, yes in enumerate(in_place) if yes},
    )
    return list(call(scales, *arrays))[:-1]


array_kernels.define(averages_p, _xla_form, _kernel_form)
