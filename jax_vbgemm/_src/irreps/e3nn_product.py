"""e3nn_jax.tensor_product with weights for each channel of the result, as one sum for all paths."""

from __future__ import annotations

import functools
from typing import Any

import e3nn_jax as e3nn
import jax
import numpy as np

from jax_vbgemm._src.irreps.tensor_product import TensorProduct

NAME = "tensor_product"


def tensor_product(
    x: Any, y: Any, weights: Any = None, *, filter_ir_out: Any = None, irrep_normalization: str | None = None
) -> Any:
    x, y = e3nn.as_irreps_array(x).regroup(), e3nn.as_irreps_array(y).regroup()
    normalization = e3nn.config("irrep_normalization") if irrep_normalization is None else irrep_normalization
    keep = None if filter_ir_out is None else tuple(e3nn.Irrep(ir) for ir in filter_ir_out)
    irreps_out, product = _product(x.irreps, y.irreps, keep, normalization)
    return e3nn.IrrepsArray(irreps_out, product(x.array, y.array, weights))


@functools.lru_cache(maxsize=64)
def _product(irreps_1: Any, irreps_2: Any, keep: Any, normalization: str) -> tuple[Any, TensorProduct]:
    found = [
        (mul, ir, i_1, i_2)
        for i_1, (mul, ir_1) in enumerate(irreps_1)
        for i_2, (_, ir_2) in enumerate(irreps_2)
        for ir in ir_1 * ir_2
        if keep is None or ir in keep
    ]
    found = [found[i] for i in e3nn.Irreps([each[:2] for each in found]).sort().inv]
    paths = []
    with jax.ensure_compile_time_eval():
        for _, ir, i_1, i_2 in found:
            (_, ir_1), (_, ir_2) = irreps_1[i_1], irreps_2[i_2]
            cg = np.asarray(e3nn.clebsch_gordan(ir_1.l, ir_2.l, ir.l), np.float64)
            scale = {"component": ir.dim, "norm": ir_1.dim * ir_2.dim, "none": 1}[normalization] ** 0.5
            paths.append((i_1, i_2, scale * cg))
    return e3nn.Irreps([each[:2] for each in found]).regroup(), TensorProduct(irreps_1, irreps_2, paths)
