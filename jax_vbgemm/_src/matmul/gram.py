"""Symmetric products X X^T and X^T X of many matrices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_vbgemm._src.matmul.call import bind, with_windows
from jax_vbgemm._src.matmul.epilogues import with_epilogues
from jax_vbgemm._src.matmul.factors import paired, products
from jax_vbgemm._src.matmul.scaled_products import has_scaled
from jax_vbgemm._src.planner import Planner
from jax_vbgemm._src.util.arguments import as_array, shown

NAME = "batched_gram"


def batched_gram(
    Xs: Any,
    *,
    transpose: Any = False,
    alpha: Any = 1,
    beta: Any = 0,
    Cs: Any = None,
    into: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: str | Planner = "auto",
    implementation: str | None = None,
) -> Any:
    """alpha X X^T + beta C for many matrices X, or alpha X^T X + beta C; kernels may compute half of each result.

    Complex matrices are not conjugated. Differentiable in everything.

    Args:
      Xs: pytree of arrays, usually a list; leaf i is (..., m_i, k_i).
      transpose: X^T X in place of X X^T; a bool or a prefix pytree of bools.
      alpha, beta, Cs: as for `batched_gemm`; the caller guarantees that each matrix of Cs is symmetric.
      into: as for `batched_matmul`.
      precision, preferred_element_type, planner, implementation: as for `batched_matmul`.

    Returns:
      A pytree with the structure of Xs; leaf i is (..., m_i, m_i), or (..., k_i, k_i) where it is transposed.

    Raises:
      ValueError, TypeError: as `batched_gemm`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> [G.tolist() for G in vb.batched_gram([jnp.ones((2, 3)), jnp.ones((1, 4))])]
      [[[3.0, 3.0], [3.0, 3.0]], [[4.0]]]
    """
    if has_scaled(Xs):
        raise TypeError(f"{NAME}: Xs has a Scaled: batched_matmul and batched_gemm take Scaled factors")
    Xs = jax.tree.map_with_path(lambda path, x: as_array(NAME, "Xs" + jax.tree_util.keystr(path), x), Xs)
    for flag in jax.tree.leaves(transpose):
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{NAME}: transpose must hold Python bools, not {shown(flag)}")
    others = jax.tree.map(lambda flag: not flag, transpose)
    call = products(
        NAME,
        *paired(NAME, Xs, Xs, arguments=("Xs", "Xs")),
        transpose_a=transpose,
        transpose_b=others,
        symmetric=True,
        precision=precision,
        preferred=preferred_element_type,
    )
    call = with_epilogues(call, Cs, alpha, beta, None, None)
    return bind(with_windows(call, into), planner, implementation)
