"""Maps whose rows select their weights by index (atoms by species): rows are sorted by weights, and each path is one
ragged product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.irreps.features import Features
from jax_vbgemm._src.irreps.paths import Path
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.ragged.api import ragged_dot
from jax_vbgemm._src.ragged.segments import segment_of
from jax_vbgemm._src.util.arguments import as_array


class WeightChoice(NamedTuple):
    """The choice of weights for each row."""

    taken: jax.Array  # for each row, the index of its weights; an index beyond the last weights means none
    counts: jax.Array  # for each index of weights, the number of its rows
    order: jax.Array | None  # the permutation that sorts rows by weights; None: they are sorted already


def chosen(name: str, indices: Any, counts: Any, groups: int, leading: Shape) -> tuple[WeightChoice, Shape]:
    """The choice, and the leading axes to which rows have to be broadcast."""
    if indices is not None and counts is not None:
        raise ValueError(f"{name}: give either indices (the weights of each row) or counts (the rows of each weights)")
    argument, value = ("counts", counts) if indices is None else ("indices", indices)
    array = as_array(name, argument, value)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name}: {argument} is {array.dtype}{array.shape}: it must be integers")
    if indices is None:
        if array.shape != (groups,) or len(leading) != 1:
            raise ValueError(
                f"{name}: counts is {array.shape} and x's leading axes are {leading}: there must be a count for "
                f"each of {groups} weights, and one leading axis"
            )
        ends = jnp.cumsum(jnp.maximum(array, 0))
        taken = segment_of(jnp.arange(leading[0], dtype=ends.dtype), ends)
        return WeightChoice(taken, array, None), leading
    try:
        rows = jnp.broadcast_shapes(array.shape, leading)
    except ValueError:
        raise ValueError(f"{name}: indices are {array.shape}, which must broadcast with x's {leading}") from None
    array = jnp.broadcast_to(array, rows).reshape(math.prod(rows))
    taken = jnp.clip(jnp.where(array < 0, array + array.dtype.type(groups), array), 0, groups - 1)
    return WeightChoice(taken, jnp.bincount(taken, length=groups), jnp.argsort(taken)), rows


def indexed_products(
    x: Features, y: Features, paths: Sequence[Path], weights: Sequence[jax.Array], choice: WeightChoice, **options: Any
) -> Features:
    """y with its values replaced by the products of all paths; weights are (groups, mul_in, mul_out)."""
    order = choice.order
    if order is not None:
        x = x.map(lambda array: array.at[order].get(mode="promise_in_bounds", unique_indices=True))
    matrices = [view.dense() for view in x.matrices()]
    sums: list[Any] = [None] * len(y.irreps)
    for path, weight in zip(paths, weights, strict=True):
        if path.i_in is None:
            of_path = weight.at[choice.taken].get(mode="fill", fill_value=0)
            of_path = of_path if order is None else of_path.at[order].get(mode="promise_in_bounds", unique_indices=True)
        else:
            sizes = choice.counts * choice.counts.dtype.type(x.irreps[path.i_in].irrep_dim)
            of_path = ragged_dot(matrices[path.i_in], weight * weight.dtype.type(path.scale), sizes, **options)
        sums[path.i_out] = of_path if sums[path.i_out] is None else sums[path.i_out] + of_path
    rows = math.prod(x.leading)
    chunks = []
    for of, total in zip(y.irreps, sums, strict=True):
        if total is None:
            total = jnp.zeros((rows * of.irrep_dim, of.mul), y.arrays[0].dtype)
        total = total.reshape(rows, of.irrep_dim, of.mul)
        chunks.append(total.swapaxes(1, 2) if y.layout == "mul_ir" else total)
    y = y.of_chunks(chunks)
    if order is None:
        return y
    back = jnp.argsort(order)
    return y.map(lambda array: array.at[back].get(mode="promise_in_bounds", unique_indices=True))
