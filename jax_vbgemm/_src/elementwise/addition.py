"""add_scaled: alpha x + beta y for many arrays of different sizes, on a GPU in one launch."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad

from jax_vbgemm._src.elementwise import array_kernels
from jax_vbgemm._src.epilogue import scaled
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.util import compat

Known = tuple[float, ...]
"""One number for each member, known at trace time. For traced numbers a parameter is None, and an operand holds
them."""


_ROUNDINGS = {("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float16")}
"""The dtypes of operands and results that differ and for which there is a kernel."""


def add_scaled(
    xs: Sequence[Any], ys: Sequence[Any], alpha: Any = 1, beta: Any = 1, *, in_place: bool = True, dtype: Any = None
) -> list[jax.Array]:
    """[alpha_i x_i + beta_i y_i], computed in the operands' accumulator dtype and rounded once.

    Args:
      xs, ys: arrays of any rank; x_i and y_i have one shape. Their floating or complex dtypes promote as in jnp.
      alpha, beta: a real number, or a 1-D array with one entry for each member; known or traced. If beta is 0, y is
        not read, so that NaN in y does not reach the result.
      in_place: whether a kernel writes sums into the memory of the ys. XLA then copies each y that is needed later:
        pass False if they are. Sums of another dtype have memory of their own.
      dtype: of the results; None: that of the operands.

    Raises:
      ValueError: lengths or shapes differ. TypeError: a dtype is neither floating nor complex, a scale is not real.
    """
    xs, ys = [jnp.asarray(x) for x in xs], [jnp.asarray(y) for y in ys]
    if len(xs) != len(ys):
        raise ValueError(f"add_scaled: there are {len(xs)} xs but {len(ys)} ys")
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x.shape != y.shape:
            raise ValueError(f"add_scaled: xs[{index}] is {x.shape} but ys[{index}] is {y.shape}: they must be equal")
        for name, array in (("xs", x), ("ys", y)):
            if not jnp.issubdtype(array.dtype, jnp.inexact):
                raise TypeError(f"add_scaled: {name}[{index}] is {array.dtype}: it must be floating or complex")
    alpha, beta = _scale("alpha", alpha, len(xs)), _scale("beta", beta, len(xs))

    results: list[Any] = [None] * len(xs)
    members_by_dtype: dict[Any, list[int]] = {}
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        by_xla = x.dtype != y.dtype or x.size == 0 or compat.explicit_axes(x) or compat.explicit_axes(y)
        if by_xla:
            results[index] = _sum(_entry(alpha, index), x, _entry(beta, index), y, dtype)
        else:
            members_by_dtype.setdefault(x.dtype, []).append(index)
    for operand_dtype, members in members_by_dtype.items():
        scales = [_entries(scale, members) for scale in (alpha, beta)]
        traced = [scale.astype(accumulator(operand_dtype)) for scale in scales if not isinstance(scale, tuple)]
        known = [scale if isinstance(scale, tuple) else None for scale in scales]
        summands = [*(xs[i] for i in members), *(ys[i] for i in members)]
        result_dtype = jnp.dtype(operand_dtype if dtype is None else dtype)
        reused = in_place and result_dtype == operand_dtype
        once = array_kernels.read_once(summands)[len(members) :] if reused else (False,) * len(members)
        sums = add_scaled_p.bind(*traced, *summands, alpha=known[0], beta=known[1], in_place=once, dtype=result_dtype)
        for index, total in zip(members, sums, strict=True):
            results[index] = total
    return results


def negated(xs: Sequence[jax.Array]) -> list[jax.Array]:
    """[-x_i] for floating or complex arrays; one launch, in derivatives too."""
    return add_scaled(xs, xs, -1, 0, in_place=False)


def _scale(name: str, value: Any, count: int) -> Known | jax.Array:
    """The scales: numbers if they are known at trace time, otherwise an array of rank 0 or 1."""
    if isinstance(value, numbers.Real):
        return (float(value),) * count
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
    if not (jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)):
        raise TypeError(f"add_scaled: {name} is {value.dtype}: it must be real")
    if value.shape not in ((), (count,)):
        raise ValueError(
            f"add_scaled: {name} has shape {value.shape}, but there are {count} members: one entry for each"
        )
    if isinstance(value, jax.Array):
        return value
    return tuple(np.broadcast_to(value, count).astype(np.float64).tolist())


def _entry(scale: Known | jax.Array, index: int) -> Any:
    return scale if isinstance(scale, jax.Array) and scale.ndim == 0 else scale[index]


def _entries(scale: Known | jax.Array, members: Sequence[int]) -> Known | jax.Array:
    if isinstance(scale, tuple):
        return tuple(scale[index] for index in members)
    return scale if scale.ndim == 0 or len(members) == len(scale) else scale[np.array(members)]


def _sum(alpha: Any, x: jax.Array, beta: Any, y: jax.Array, dtype: Any) -> jax.Array:
    """alpha x + beta y in `dtype` (None: the dtype of x and y): the reference semantics."""
    operand_dtype = jnp.result_type(x, y)
    wide = accumulator(operand_dtype)
    x, y = x.astype(wide), y.astype(wide)
    alpha, beta = (scale.astype(wide) if isinstance(scale, jax.Array) else scale for scale in (alpha, beta))
    total = x if _is(alpha, 1) else alpha * x
    if not _is(beta, 0):
        total += y if _is(beta, 1) else beta * y if isinstance(beta, float) else scaled(beta, y)
    return total.astype(dtype or operand_dtype)


def _is(scale: Any, number: int) -> bool:
    return isinstance(scale, float) and scale == number


add_scaled_p = jex_core.Primitive("add_scaled")


def _parts(operands: Sequence[Any], alpha: Known | None, beta: Known | None) -> tuple[Any, Any, list[Any], list[Any]]:
    """The alphas, betas, xs and ys from the primitive's operands and parameters."""
    rest = list(operands)
    scales = [rest.pop(0) if known is None else known for known in (alpha, beta)]
    count = len(rest) // 2
    return scales[0], scales[1], rest[:count], rest[count:]


@add_scaled_p.def_abstract_eval
def _abstract_eval(
    *operands: Any, alpha: Known | None, beta: Known | None, in_place: Sequence[bool], dtype: Any
) -> list[Any]:
    _, _, xs, ys = _parts(operands, alpha, beta)
    scales = list(operands[: len(operands) - 2 * len(xs)])
    # Inside shard_map a sum varies over the axes of all its operands; the expression for derivatives casts its operands
    # itself.
    return [compat.shaped_array(x.shape, dtype, [x, y, *scales]) for x, y in zip(xs, ys, strict=True)]


def _xla_form(
    *operands: jax.Array, alpha: Known | None, beta: Known | None, in_place: Sequence[bool], dtype: Any
) -> list[jax.Array]:
    alphas, betas, xs, ys = _parts(operands, alpha, beta)
    pairs = enumerate(zip(xs, ys, strict=True))
    return [_sum(_entry(alphas, index), x, _entry(betas, index), y, dtype) for index, (x, y) in pairs]


def _are_multiples(alpha: Known | None, beta: Known | None) -> bool:
    """Whether each result is its x times a static number. Such a map is linear, and it is its own derivative and its
    own transpose."""
    return alpha is not None and beta is not None and not any(beta)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    count = len(primals) // 2
    if not _are_multiples(params["alpha"], params["beta"]):
        return array_kernels.jvp(_xla_form, primals, tangents, **params)
    moving = [index for index in range(count) if not isinstance(tangents[index], ad.Zero)]
    alpha = _entries(params["alpha"], moving)
    multiples = iter(_multiples([tangents[index] for index in moving], alpha, params["dtype"]))
    results = add_scaled_p.bind(*primals, **params)
    zeros = (ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results)
    return results, [next(multiples) if index in moving else zero for index, zero in enumerate(zeros)]


def _multiples(xs: Sequence[jax.Array], alpha: Any, dtype: Any) -> list[jax.Array]:
    if not xs:
        return []
    params = {"alpha": tuple(alpha), "beta": (0.0,) * len(xs), "in_place": (False,) * len(xs)}
    result: list[jax.Array] = add_scaled_p.bind(*xs, *xs, **params, dtype=dtype)
    return result


def _transpose(cotangents: Sequence[Any], *operands: Any, **params: Any) -> list[Any]:
    if _are_multiples(params["alpha"], params["beta"]):
        moving = [index for index, value in enumerate(cotangents) if not isinstance(value, ad.Zero)]
        dtype = next(x.aval.dtype for x in operands if ad.is_undefined_primal(x))
        alpha = _entries(params["alpha"], moving)
        multiples = iter(_multiples([cotangents[index] for index in moving], alpha, dtype))
        scaled_xs = [next(multiples) if index in moving else None for index in range(len(cotangents))]
        all_cotangents = [*scaled_xs, *(None for _ in scaled_xs)]
        return [
            x if ad.is_undefined_primal(operand) else None for x, operand in zip(all_cotangents, operands, strict=True)
        ]
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    form = array_kernels.form_of(_xla_form, operands, linear, params)
    avals = [operand.aval for operand, yes in zip(operands, linear, strict=True) if yes]
    transposed = iter(jax.linear_transpose(form, *avals)([ad.instantiate_zeros(value) for value in cotangents]))
    return [next(transposed) if yes else None for yes in linear]


def _kernel_form(
    *operands: jax.Array, alpha: Known | None, beta: Known | None, in_place: Sequence[bool], dtype: Any
) -> list[jax.Array]:
    alphas, betas, xs, ys = _parts(operands, alpha, beta)
    if xs[0].dtype != dtype and (xs[0].dtype.name, dtype.name) not in _ROUNDINGS:
        return _xla_form(*operands, alpha=alpha, beta=beta, in_place=in_place, dtype=dtype)
    wide, count = accumulator(xs[0].dtype), len(xs)
    scales = [np.array(x, wide) if isinstance(x, tuple) else jnp.broadcast_to(x, (count,)) for x in (alphas, betas)]
    # One array, which XLA computes in one kernel.
    stacked_scales = np.concatenate(scales) if alpha is not None and beta is not None else jnp.concatenate(scales)
    return list(
        jax.ffi.ffi_call(
            backends.ADD_TARGET_NAME,
            [jax.ShapeDtypeStruct(x.shape, dtype) for x in xs],
            input_output_aliases={1 + count + index: index for index, yes in enumerate(in_place) if yes},
        )(stacked_scales, *xs, *ys)
    )


array_kernels.define(add_scaled_p, _xla_form, _kernel_form)
ad.primitive_jvps[add_scaled_p] = _jvp
ad.primitive_transposes[add_scaled_p] = _transpose
