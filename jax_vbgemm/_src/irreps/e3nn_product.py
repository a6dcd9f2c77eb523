"""e3nn_jax.tensor_product with weights, as one `TensorProduct`."""

from __future__ import annotations

import functools
from typing import Any

import e3nn_jax as e3nn
import numpy as np

from jax_vbgemm._src.irreps.e3nn import as_floats
from jax_vbgemm._src.irreps.tensor_product import TensorProduct

NAME = "tensor_product"
_NORMALIZATIONS = ("component", "norm", "none")


def tensor_product(
    x: Any, y: Any, weights: Any = None, *, filter_ir_out: Any = None, irrep_normalization: str | None = None
) -> Any:
    """`e3nn_jax.tensor_product(x, y, ...) * weights`, with one weight for each channel of the result.

    For features of edges, spherical harmonics and the weights of a radial network, as in NequIP and its successors:
    e3nn multiplies x, y and Clebsch-Gordan coefficients path by path, and channels by weights as a tensor product with
    scalars. Here it is one `jax_vbgemm.irreps.TensorProduct`.

    Args:
      x: an IrrepsArray (..., irreps).
      y: an IrrepsArray, whose irreps have one channel each: `e3nn_jax.spherical_harmonics`. The leading axes broadcast.
      weights: (..., number of irreps of the result); None: no weights.
      filter_ir_out: the irreps to keep of the result; None: all.
      irrep_normalization: "component", "norm" or "none"; None: e3nn's default (`e3nn_jax.config`).

    Returns:
      An IrrepsArray with the irreps that e3nn's function returns, sorted and regrouped.

    Raises:
      ValueError: an irrep of y has several channels, irrep_normalization is unknown, weights have another last axis, or
        leading axes do not broadcast.

    Examples:
      >>> import e3nn_jax as e3nn
      >>> import jax
      >>> from jax_vbgemm.irreps.e3nn import tensor_product
      >>> x = e3nn.normal("8x0e + 4x1o", jax.random.key(0), (5,))
      >>> y = e3nn.spherical_harmonics("0e + 1o", e3nn.normal("1o", jax.random.key(1), (5,)), normalize=True)
      >>> product = tensor_product(x, y, jax.random.normal(jax.random.key(2), (5, 24)), filter_ir_out="0e + 1o")
      >>> product.irreps
      12x0e+12x1o
    """
    x, y = as_floats(x).regroup(), as_floats(y).regroup()
    normalization = e3nn.config("irrep_normalization") if irrep_normalization is None else irrep_normalization
    if normalization not in _NORMALIZATIONS:
        known = ", ".join(_NORMALIZATIONS)
        raise ValueError(f"{NAME}: irrep_normalization must be one of {known}, not {normalization!r}")
    if any(mul != 1 for mul, _ in y.irreps):
        raise ValueError(f"{NAME}: y has the irreps {y.irreps}: each of them must have one channel")
    kept = e3nn.Irreps(filter_ir_out) if isinstance(filter_ir_out, str) else filter_ir_out
    kept = [kept] if isinstance(kept, e3nn.Irrep) else kept
    kept = None if kept is None else tuple(e3nn.Irrep(ir) for ir in kept)
    irreps_out, product = _product(x.irreps, y.irreps, kept, normalization)
    return e3nn.IrrepsArray(irreps_out, product(x.array, y.array, weights))


@functools.lru_cache(maxsize=64)
def _product(irreps_1: Any, irreps_2: Any, kept: Any, normalization: str) -> tuple[Any, TensorProduct]:
    """The irreps of the result, and the product with a path for each of them before they are regrouped."""
    found = [
        (mul, ir, i_1, i_2)
        for i_1, (mul, ir_1) in enumerate(irreps_1)
        for i_2, (_, ir_2) in enumerate(irreps_2)
        for ir in ir_1 * ir_2
        if kept is None or ir in kept
    ]
    found = [found[i] for i in e3nn.Irreps([each[:2] for each in found]).sort().inv]
    paths = [
        (i_1, i_2, _coefficients(irreps_1[i_1].ir, irreps_2[i_2].ir, ir, normalization)) for _, ir, i_1, i_2 in found
    ]
    return e3nn.Irreps([each[:2] for each in found]).regroup(), TensorProduct(irreps_1, irreps_2, paths)


def _coefficients(ir_1: Any, ir_2: Any, ir: Any, normalization: str) -> np.ndarray[Any, Any]:
    scale = {"component": ir.dim, "norm": ir_1.dim * ir_2.dim, "none": 1}[normalization]
    return np.asarray(scale**0.5 * e3nn.clebsch_gordan(ir_1.l, ir_2.l, ir.l))
