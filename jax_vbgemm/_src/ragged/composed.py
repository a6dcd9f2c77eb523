"""Parts of a product that XLA computes before or after it, for derivatives and for kernels without these parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import Epilogue, activated
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.ragged.primitive import SCALED, Ragged, bind
from jax_vbgemm._src.ragged.reference import finish, mapped, rows_with_weights
from jax_vbgemm._src.ragged.select_rows import masked_selection, select_rows
from jax_vbgemm._src.scaled.scaled import spread

Product = Callable[[Sequence[jax.Array], Ragged], jax.Array]
"""Computes the product that remains: by default binds the primitive."""


def gathered(*operands: jax.Array, ragged: Ragged, product: Product = bind) -> jax.Array:
    """The product of rows that are copied before it."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    index, slots = extras.pop("gather"), extras.pop("slots", None)
    known = None
    if ragged.undefined_rest:  # the gradient of lhs is undefined in the same rows
        known = rows_with_weights(group_sizes, extras.get("group_offset"), index.shape[-1], ragged.groups)
    rows = selected_rows(lhs, index, slots, known)
    if "lhs_scale" in extras:
        extras["lhs_scale"] = selected_rows(extras["lhs_scale"], index, slots, known)
    return product([rows, rhs, group_sizes, *extras.values()], remaining("gather", ragged))


def selected_rows(
    lhs: jax.Array, gather: jax.Array, slots: jax.Array | None = None, known: jax.Array | None = None
) -> jax.Array:
    """The rows that `gather` names, with batch dimensions, which broadcast. known: which rows are needed; the others
    become zeros, and their cotangents are not read."""
    parts = {"lhs": (lhs, 2), "gather": (gather, 1), "slots": (slots, 2), "known": (known, 1)}
    given = {name: (x, rank) for name, (x, rank) in parts.items() if x is not None}
    depth = max(x.ndim - rank for x, rank in given.values())

    def form(*operands: jax.Array) -> jax.Array:
        return _selected_rows(**dict(zip(given, operands, strict=True)))

    for _ in range(depth):
        form = mapped(form)
    aligned = (x.reshape((*(1,) * (depth + rank - x.ndim), *x.shape)) for x, rank in given.values())
    return form(*aligned)


def _selected_rows(
    lhs: jax.Array, gather: jax.Array, slots: jax.Array | None = None, known: jax.Array | None = None
) -> jax.Array:
    if slots is None:
        if known is None:
            return lhs.at[gather].get(mode="clip")
        return lhs.at[jnp.where(known, gather, lhs.shape[0])].get(mode="fill", fill_value=0)
    if known is None:
        return select_rows(lhs, gather[:, None], slots)
    return select_rows(lhs, *masked_selection(gather, slots, known, lhs.shape[0]), fills=True)


def accumulated(*operands: jax.Array, ragged: Ragged, product: Product = bind) -> jax.Array:
    """The accumulator plus the contraction, which is rounded first."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    total = extras.pop("accumulator")
    sums = product([lhs, rhs, group_sizes, *extras.values()], remaining("accumulator", ragged))
    sums, total = jnp.broadcast_arrays(sums, total)
    return sums + total


def gated(*operands: jax.Array, ragged: Ragged, product: Product = bind) -> jax.Array:
    """row_scale activation(gate) up, where one product computes (gate, up); both are rounded to the result's dtype."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    scale = extras.pop("row_scale", None)
    both = product([lhs, rhs, group_sizes, *extras.values()], remaining("gates", ragged))
    value = activated(both.astype(accumulator(ragged.out_dtype)), ragged.epilogue.activation, halves=True)
    if scale is None:
        return value.astype(ragged.out_dtype)  # rows without weights are zero, as their `up` is zero
    return _scaled(value, scale, lhs, group_sizes, extras, ragged)


def widened(*operands: jax.Array, ragged: Ragged, product: Product = bind) -> jax.Array:
    """The product of the factors times their scales, in float32, or of a mixed product in lhs's dtype."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    blocks = {"lhs": (1, SCALED), "rhs": (1, SCALED, SCALED)}
    if ragged.contraction:
        blocks = {"lhs": (SCALED, SCALED), "rhs": (SCALED, SCALED)}
    elif "rhs_scale" in extras and extras["rhs_scale"].shape[-2] == rhs.shape[-2]:
        blocks["rhs"] = (1, 1, SCALED)
    dtype = lhs.dtype if ragged.is_mixed else np.float32

    def factor(x: jax.Array, name: str) -> jax.Array:
        scale = extras.pop(f"{name}_scale", None)
        wide = x.astype(np.float32)
        block = (1,) * (x.ndim - len(blocks[name])) + blocks[name]
        return (wide if scale is None else wide * spread(scale, x.shape, block)).astype(dtype)

    lhs, rhs = factor(lhs, "lhs"), factor(rhs, "rhs")
    if ragged.contraction:
        lhs, rhs = lhs.mT, rhs.mT
        group_sizes = rounded_up(group_sizes, lhs.shape[-2])
    rest = remaining("scales", ragged)
    if "bias" in extras:
        extras["bias"] = extras["bias"].astype(rest.out_dtype)
    return product([lhs, rhs, group_sizes, *extras.values()], rest).astype(ragged.out_dtype)


def rounded_up(group_sizes: jax.Array, m: int) -> jax.Array:
    """Sizes as a contraction with scales counts them: within [0, m], rounded up to multiples of SCALED."""
    return -(-jnp.clip(group_sizes, 0, m) // SCALED) * SCALED


def halved(*operands: jax.Array, ragged: Ragged, product: Product = bind) -> jax.Array:
    """A product of which an operand comes in two halves (`Ragged.halves`): two products, one for each half. In a
    contraction, whose operand is one half of an array, the product of a copy of this half."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    rest = remaining("halves", ragged)
    if ragged.contraction:
        side, which = ragged.halves.split("_")
        lhs, rhs = (_half(x, which) if side == name else x for name, x in (("lhs", lhs), ("rhs", rhs)))
        return product([lhs, rhs, group_sizes, *extras.values()], rest)
    weights = {"first": rhs, "second": extras.pop("second")}
    halves_columns = ragged.halves == "columns"

    def part(which: str) -> jax.Array:
        own = dict(extras)
        if halves_columns and "bias" in own:
            own["bias"] = _half(own["bias"], which)
        rows = lhs if halves_columns else _half(lhs, which)
        return product([rows, weights[which], group_sizes, *own.values()], rest)

    first, second = part("first"), part("second")
    return (
        jnp.concatenate(jnp.broadcast_arrays(first, second), axis=-1)
        if halves_columns
        else (first + second).astype(ragged.out_dtype)
    )


def _half(x: jax.Array, which: str) -> jax.Array:
    middle = x.shape[-1] // 2
    return x[..., :middle] if which == "first" else x[..., middle:]


def scaled(*operands: jax.Array, ragged: Ragged, product: Product = bind) -> jax.Array:
    """row_scale activation(product + bias); the product's kernel computes all but the scale, without rounding."""
    lhs, rhs, group_sizes, extras = ragged.split(operands)
    scale = extras.pop("row_scale")
    rest = remaining("row_scale", ragged)
    if "bias" in extras:
        extras["bias"] = extras["bias"].astype(rest.out_dtype)
    value = product([lhs, rhs, group_sizes, *extras.values()], rest)
    return _scaled(value, scale, lhs, group_sizes, extras, ragged)


FORMS: dict[str, Callable[..., jax.Array]] = {
    "accumulator": accumulated,
    "gather": gathered,
    "scales": widened,
    "gates": gated,
    "halves": halved,
    "row_scale": scaled,
}
"""The forms in which XLA computes one part of a product, in the order in which XLA takes them over."""


def remaining(part: str, ragged: Ragged) -> Ragged:
    """The product that remains where XLA computes a part of `FORMS`."""
    match part:
        case "gather":
            return ragged.without("gather", "slots")
        case "gates":
            return ragged._replace(epilogue=ragged.epilogue._replace(activation=None, gated=False, row_scale=None))
        case "scales":
            wide = ragged.without("lhs_scale", "rhs_scale")
            if not ragged.is_mixed:
                wide = wide._replace(out_dtype=np.dtype(np.float32))
            return wide._replace(transpose_rhs=False) if ragged.contraction else wide
        case "halves":
            # The two parts of a sum are added before rounding.
            dtype = accumulator(ragged.out_dtype) if ragged.halves == "k" else ragged.out_dtype
            return ragged.without("second")._replace(halves="none", out_dtype=dtype)
        case "row_scale":
            epilogue = ragged.epilogue._replace(row_scale=None)
            return ragged._replace(epilogue=epilogue, out_dtype=accumulator(ragged.out_dtype))
    return ragged.without(part)


def _scaled(
    value: jax.Array,
    scale: jax.Array,
    lhs: jax.Array,
    group_sizes: jax.Array,
    extras: dict[str, jax.Array],
    ragged: Ragged,
) -> jax.Array:
    known = rows_with_weights(group_sizes, extras.get("group_offset"), lhs.shape[-2], ragged.groups)
    scale, known = (jnp.broadcast_to(x, value.shape[:-1]) for x in (scale, known))
    return finish(value, Epilogue(row_scale="row_scale"), {"row_scale": scale}, known, ragged.out_dtype)
