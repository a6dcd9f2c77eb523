"""Derivatives and vmap of ragged products.

The product is bilinear, and the derivatives of its two forms are products of both forms (see the package), so that
every rule binds the primitive again. Group sizes and offsets are integers and have no derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.transpose import sum_broadcast
from jax_vbgemm._src.ragged import composed
from jax_vbgemm._src.ragged.primitive import Ragged, bind, ragged_dot_p
from jax_vbgemm._src.ragged.reference import finish, rows_with_weights
from jax_vbgemm._src.util import compat


def _is_nonzero(tangent: Any) -> bool:
    return tangent is not None and not isinstance(tangent, ad.Zero)


def _sum(parts: Sequence[Any], like: jax.Array) -> Any:
    """The sum of the parts that are not None; a symbolic zero of `like`'s type if there are none."""
    if not parts:
        return ad.Zero(jax.typeof(like).to_tangent_aval())
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, ragged: Ragged) -> tuple[Any, Any]:
    if "gather" in ragged.extras:  # the gradient of the weights needs the rows themselves
        return _jvp_of(composed.gathered, primals, tangents, ragged)
    if ragged.contraction and ragged.halves != "none":  # the operand's cotangent has both halves
        return _jvp_of(composed.halved, primals, tangents, ragged)
    if ragged.has_scales:
        return _jvp_of(composed.widened, primals, tangents, ragged)
    epilogue = ragged.epilogue
    if epilogue.gated:  # a derivative needs both halves of the sums, which the kernel of a gated product does not store
        return _jvp_of(composed.gated, primals, tangents, ragged)
    lhs, rhs, group_sizes, extras = ragged.split(primals)
    d_lhs, d_rhs, _, d_extras = ragged.split(tangents)
    # The tangents of the sums, and therefore the cotangents in a gradient, have the result's dtype: products of 16-bit
    # operands have products of 16-bit operands as gradients.
    plain, kept = ragged.without_epilogue(ragged.out_dtype, extras)
    parts = []
    if _is_nonzero(d_lhs):
        parts.append(bind([d_lhs, rhs, group_sizes, *kept], plain))
    d_weights = {"rhs": d_rhs, "second": d_extras.get("second")}
    if any(map(_is_nonzero, d_weights.values())):
        weights = {"rhs": rhs, **dict(zip(plain.extras, kept, strict=True))}
        for name, tangent in d_weights.items():
            if name in weights:
                weights[name] = tangent if _is_nonzero(tangent) else jnp.zeros_like(weights[name])
        half, *others = weights.values()
        parts.append(bind([lhs, half, group_sizes, *others], plain))
    if not ragged.has_epilogue:
        value = bind(primals, ragged)
        if _is_nonzero(d_extras.get("accumulator")):
            parts.append(jnp.broadcast_to(d_extras["accumulator"], value.shape))
        return value, _sum(parts, value)

    if _is_nonzero(d_extras.get("bias")):
        parts.append(bias_of_rows(d_extras["bias"], lhs, group_sizes, extras, plain))
    scale, d_scale = extras.get("row_scale"), d_extras.get("row_scale")
    # The derivative can be computed from the result, without the sum before the epilogue, where the epilogue is linear
    # in the sum or is relu without a scale. A scaled result does not tell where relu has a slope: it may have been
    # rounded to 0, in float16 above all, or be 0 times infinity.
    after_bias = epilogue._replace(bias=None)
    if not _is_nonzero(d_scale) and (epilogue.activation is None or (epilogue.activation == "relu" and scale is None)):
        value = bind(primals, ragged)
        if not parts:
            return value, _sum(parts, value)
        tangent = _sum(parts, value)
        if scale is not None:
            # The tangent of a row without weights is 0 even if its row_scale holds NaN.
            known = known_rows(group_sizes, extras, lhs, ragged)
            tangent = finish(tangent.astype(scale.dtype), after_bias, extras, known, ragged.out_dtype)
        if epilogue.activation == "relu":
            tangent = jnp.where(value > 0, tangent, jnp.zeros((), tangent.dtype))
        return value, tangent

    wide = accumulator(ragged.out_dtype)
    unfinished, with_bias = plain._replace(out_dtype=wide), list(kept)
    if "bias" in extras:
        unfinished = unfinished._replace(epilogue=Epilogue(bias="bias"))
        with_bias = [extras["bias"].astype(wide), *kept]
    total = bind([lhs, rhs, group_sizes, *with_bias], unfinished)
    known = known_rows(group_sizes, extras, lhs, ragged)
    moving: dict[str, tuple[Any, Any]] = {}
    if parts:
        moving["total"] = total, _sum(parts, total).astype(wide)
    if _is_nonzero(d_scale):
        moving["row_scale"] = scale, d_scale

    def finished(moved: dict[str, Any]) -> jax.Array:
        return finish(moved.get("total", total), after_bias, {**extras, **moved}, known, ragged.out_dtype)

    if not moving:
        value = finished({})
        return value, _sum([], value)
    value, tangent = jax.jvp(
        finished,
        [{name: primal for name, (primal, _) in moving.items()}],
        [{name: tangent for name, (_, tangent) in moving.items()}],
    )
    return value, tangent


def _jvp_of(
    form: Callable[..., jax.Array], primals: Sequence[Any], tangents: Sequence[Any], ragged: Ragged
) -> tuple[Any, Any]:
    """The derivative of another form of the same product; the product itself where nothing moves."""
    moving = [index for index, tangent in enumerate(tangents) if _is_nonzero(tangent)]

    def with_moving(*values: Any) -> jax.Array:
        operands = list(primals)
        for index, value in zip(moving, values, strict=True):
            operands[index] = value
        return form(*operands, ragged=ragged)

    if not moving:
        value = bind(primals, ragged)
        return value, _sum([], value)
    value, tangent = jax.jvp(with_moving, [primals[i] for i in moving], [tangents[i] for i in moving])
    return value, tangent


def known_rows(group_sizes: jax.Array, extras: dict[str, Any], lhs: jax.Array, ragged: Ragged) -> jax.Array:
    return rows_with_weights(group_sizes, extras.get("group_offset"), lhs.shape[-2], ragged.groups)


def bias_of_rows(
    bias: jax.Array, lhs: jax.Array, group_sizes: jax.Array, extras: dict[str, jax.Array], plain: Ragged
) -> jax.Array:
    """The bias of each row, as a ragged product with a column of ones: its transpose sums the rows of each group."""
    ones = jnp.ones((lhs.shape[-2], 1), bias.dtype)
    ragged = plain.without("second")._replace(transpose_rhs=False, halves="none")
    return bind([ones, jnp.expand_dims(bias, -2), group_sizes, *(extras[name] for name in ragged.extras)], ragged)


def in_one_dtype(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both operands of a product in the wider one's dtype."""
    dtype = max(x.dtype, y.dtype, key=lambda dtype: dtype.itemsize)
    return x if x.dtype == dtype else x.astype(dtype), y if y.dtype == dtype else y.astype(dtype)


def gradient_of_rhs(lhs: jax.Array, cotangent: jax.Array, ragged: Ragged) -> tuple[tuple[jax.Array, jax.Array], Ragged]:
    """The factors and the form of the contraction that is the gradient of the weights of ragged rows."""
    factors = (cotangent, lhs) if ragged.transpose_rhs else (lhs, cotangent)
    return factors, ragged._replace(contraction=True, transpose_rhs=False, undefined_rest=False)


def _transpose(cotangent: Any, *operands: Any, ragged: Ragged) -> list[Any]:
    _, _, group_sizes, extras = ragged.split(operands)
    results: list[Any] = [None] * len(operands)
    if isinstance(cotangent, ad.Zero):
        for index, operand in enumerate(operands):
            if ad.is_undefined_primal(operand):
                results[index] = ad.Zero(operand.aval.to_ct_aval())
        return results
    halves_of_contraction = ragged.contraction and ragged.halves != "none"
    if ragged.has_epilogue or halves_of_contraction or not {"gather", "accumulator"}.isdisjoint(ragged.extras):
        return _transpose_by_tangent(cotangent, operands, ragged)
    linear = [index for index, operand in enumerate(operands) if ad.is_undefined_primal(operand)]
    if any(ragged.names[index] in ("lhs_scale", "rhs_scale") for index in linear):
        return _transpose_by_tangent(cotangent, operands, ragged)
    if 0 in linear and len(linear) > 1:
        raise NotImplementedError("jax_vbgemm: a product of two linear values cannot be transposed")
    for index in linear:
        aval = operands[index].aval
        factors, form = _derived(cotangent, operands, index, ragged)
        dtype = factors[0].dtype
        others = extras | ({"second": extras["second"].astype(dtype)} if "second" in form.extras else {})
        values = [*factors, group_sizes, *(others[name] for name in form.extras)]
        # The primitive rounds to the primal's dtype unless the cotangent is to be summed over broadcast batch
        # dimensions: it then stays in the accumulator's dtype until it is summed.
        leading = [x.shape[: x.ndim - rank] for x, rank in zip(values, form.core_ranks(), strict=True)]
        batch = jnp.broadcast_shapes(*leading) if any(leading) else ()
        summed = (*batch, *aval.shape[-ragged.core_ranks()[index] :]) != aval.shape
        out_dtype = accumulator(dtype) if summed or aval.dtype not in (dtype, accumulator(dtype)) else aval.dtype
        value = bind(values, form._replace(out_dtype=out_dtype))
        results[index] = sum_broadcast(value, aval.shape).astype(aval.dtype)
    return results


def _derived(
    cotangent: jax.Array, operands: Sequence[Any], index: int, ragged: Ragged
) -> tuple[tuple[jax.Array, jax.Array], Ragged]:
    """The factors of the product that is the cotangent of an operand (lhs, rhs or second), and its form."""
    if index == 0:
        ct, rhs = in_one_dtype(cotangent, operands[1])
        if ragged.contraction:
            return (rhs, ct), ragged._replace(contraction=False, transpose_rhs=True)
        halves = {"columns": "k", "k": "columns"}.get(ragged.halves, "none")
        return (ct, rhs), ragged._replace(transpose_rhs=not ragged.transpose_rhs, halves=halves)
    ct, lhs = in_one_dtype(cotangent, operands[0])
    if ragged.contraction:
        return (lhs, ct), ragged._replace(contraction=False, transpose_rhs=False)
    factors, form = gradient_of_rhs(lhs, ct, ragged)
    if ragged.halves == "none":
        return factors, form
    side = "rhs" if (ragged.halves == "columns") != ragged.transpose_rhs else "lhs"
    return factors, form.without("second")._replace(halves=f"{side}_{'first' if index == 1 else 'second'}")


def _transpose_by_tangent(cotangent: jax.Array, operands: Sequence[Any], ragged: Ragged) -> list[Any]:
    """For jax.linear_transpose of a product with an epilogue, gathered rows or an accumulator, or in its scales;
    derivatives never have any of these."""
    linear = [ad.is_undefined_primal(operand) for operand in operands]
    if ragged.epilogue.activation is not None or sum(linear) != 1:
        what = "its activation" if ragged.epilogue.activation else "more than one operand"
        raise NotImplementedError(f"jax_vbgemm: ragged_dot is not linear in {what}: it cannot be transposed")
    index = linear.index(True)
    aval = operands[index].aval

    def tangent(moving: jax.Array) -> jax.Array:
        # With the linear operand set to 0, the result is the constant part, which the transpose omits.
        zero = [jnp.zeros(aval.shape, aval.dtype) if yes else x for x, yes in zip(operands, linear, strict=True)]
        tangents = [moving if yes else None for yes in linear]
        result: jax.Array = _jvp(zero, tangents, ragged=ragged)[1]
        return result

    (value,) = jax.linear_transpose(tangent, aval)(cotangent)
    return [value if yes else None for yes in linear]


def mapped_first(operands: Sequence[Any], dims: Sequence[Any], ranks: Sequence[int]) -> list[jax.Array]:
    """The operands with their mapped axis, if any, as the first batch dimension; `ranks`: the ranks without batch."""
    mapped = [dim is not None for dim in dims]
    batch_rank = max(x.ndim - yes - rank for x, yes, rank in zip(operands, mapped, ranks, strict=True))
    values = []
    for x, dim, rank in zip(operands, dims, ranks, strict=True):
        if dim is not None:
            x = jnp.moveaxis(compat.replicated(x), dim, 0)
            x = jnp.expand_dims(x, tuple(range(1, 1 + batch_rank - (x.ndim - 1 - rank))))
        values.append(x)
    return values


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, ragged: Ragged) -> tuple[jax.Array, int]:
    return bind(mapped_first(operands, dims, ragged.core_ranks()), ragged), 0


ad.primitive_jvps[ragged_dot_p] = _jvp
ad.primitive_transposes[ragged_dot_p] = _transpose
batching.primitive_batchers[ragged_dot_p] = _batch
