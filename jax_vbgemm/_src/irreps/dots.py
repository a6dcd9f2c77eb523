"""The map as XLA's dots, one for each path, which XLA fuses with the surrounding operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jax_vbgemm._src.irreps.features import Features
from jax_vbgemm._src.irreps.paths import Path
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import dense

_EQUATIONS = {"mul_ir": "rui,uv->rvi", "ir_mul": "riu,uv->riv"}
_BIAS = {"mul_ir": (None, slice(None), None), "ir_mul": (None, None, slice(None))}


def dots(x: Features, y: Features, paths: Sequence[Path], weights: Sequence[Any], precision: Any) -> Features:
    """The map of x in the structure of y, whose chunks are zeros and stay so without a path; sums are rounded once."""
    inputs, results = x.chunks(), y.chunks()
    sums: dict[int, Any] = {}
    for path, weight in zip(paths, weights, strict=True):
        dtype = results[path.i_out].dtype
        if path.i_in is None:
            term = dense(weight)[_BIAS[y.layout]].astype(accumulator(dtype))
        else:
            equation, wide = _EQUATIONS[x.layout], accumulator(dtype)
            factors = inputs[path.i_in], dense(weight)
            term = path.scale * jnp.einsum(equation, *factors, precision=precision, preferred_element_type=wide)
        sums[path.i_out] = sums[path.i_out] + term if path.i_out in sums else term
    for index, total in sums.items():
        results[index] = jnp.broadcast_to(total.astype(results[index].dtype), results[index].shape)
    return y.of_chunks(results)
