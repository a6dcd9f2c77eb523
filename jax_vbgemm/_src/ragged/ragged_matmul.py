"""ragged_matmul: rows times matrices of different shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul.options import check_options, checked_implementation, result_dtype
from jax_vbgemm._src.matmul.packed import unpacked
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.view import dense, is_view
from jax_vbgemm._src.ragged.api import sizes_argument
from jax_vbgemm._src.ragged.flat_rows import stacked, to_flat_rows, to_padded_rows, whole_rows
from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array, refuse_explicit_axes
from jax_vbgemm._src.util.integers import is_integer


def ragged_matmul(
    x: Any,
    Bs: Any,
    group_sizes: Any,
    *,
    rows: Any = None,
    transpose_b: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    implementation: str | None = None,
) -> jax.Array:
    """Multiplies each row by the matrix of its group, where the groups' matrices have different shapes.

    Group i has the matrix Bs[i] (k_i, n_i) and the next group_sizes[i] rows, of length k_i in x and n_i in the result.
    Rows of equal length are a two-dimensional array. Rows of different lengths are flat rows: one after another
    without gaps in a one-dimensional array. So x is

        (m, k)   where all k_i are k; or
        (size,)  flat: the rows of group 0, each of k_0 elements, then those of group 1, and so on;

    and the result is (m, n) where all n_i are n. Otherwise it is flat rows in an array of rows * max(n_i) elements,
    with zeros after the last row. The program computes from the sizes where each group begins; the host never reads
    them.

    The matrices are padded to one shape and stacked in each call, and the product is a `ragged_dot`. If they don't
    change, pad and stack them once and call that.

    Adapters of different ranks, one for each group of tokens, are two calls, with flat rows in between:

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> tokens, d = 5, 4
    >>> down = [jnp.ones((d, 1)), jnp.ones((d, 3))]  # ranks 1 and 3
    >>> up = [jnp.ones((1, d)), jnp.ones((3, d))]
    >>> sizes = jnp.array([2, 3])
    >>> hidden = vb.ragged_matmul(jnp.ones((tokens, d)), down, sizes)
    >>> hidden  # 2 rows of 1 number, 3 rows of 3, and the rest of 5 rows of 3
    Array([4., 4., 4., 4., 4., 4., 4., 4., 4., 4., 4., 0., 0., 0., 0.],      dtype=float32)
    >>> vb.ragged_matmul(hidden, up, sizes, rows=tokens)[:, 0]
    Array([ 4.,  4., 12., 12., 12.], dtype=float32)

    Args:
      x: (m, k), or (size,) of flat rows.
      Bs: pytree of matrices, usually a list: (k_i, n_i), or (n_i, k_i) where `transpose_b`. Dtypes promote as in
        jnp.matmul. The leaves in order belong to the groups. A `View` or a `RaggedArray` is copied.
      group_sizes: (len(Bs),) integers of any value. A negative size counts as 0. Rows beyond `rows`, and rows that do
        not lie in x completely, are left out; the result has zeros in their place. NaN in one group's rows or matrix
        does not reach the results of other groups.
      rows: a static upper bound of the rows of all groups together; required where x is flat, by default m otherwise.
        Under jax.export it may be symbolic, as sizes of x may.
      precision, preferred_element_type, implementation: as for `ragged_dot`.

    Returns:
      (m, n), or (rows * max(n_i),) of flat rows.

    Raises:
      ValueError: shapes don't fit, dtypes differ under strict promotion, or an option is unknown; the message names the
        argument and both shapes.
      TypeError: a leaf is not an array, sizes are not integers, a flag is not a bool.
      NotImplementedError: implementation="kernel" if there is no kernel.
    """
    name = "ragged_matmul"
    if not isinstance(transpose_b, bool | np.bool_):
        raise TypeError(f"{name}: transpose_b must be a bool, not {transpose_b!r}")
    Bs = jax.tree.map(dense, unpacked(Bs), is_leaf=is_view)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(Bs)]
    matrices = {f"Bs{path}": b for path, b in zip(paths, jax.tree.leaves(Bs), strict=True)}
    matrices = {where: as_array(name, where, b) for where, b in matrices.items()}
    if not matrices:
        raise ValueError(f"{name}: Bs has no matrices")
    x, group_sizes = as_array(name, "x", x), sizes_argument(name, group_sizes)
    for where, b in matrices.items():
        if b.ndim != 2:
            raise ValueError(f"{name}: {where} is {b.shape}: it must be a matrix")
    operands = {"x": x, "group_sizes": group_sizes, **matrices}
    refuse_explicit_axes(name, operands.values(), list(operands).__getitem__)
    if group_sizes.shape != (len(matrices),):
        raise ValueError(
            f"{name}: there are {len(matrices)} Bs but group_sizes is {group_sizes.shape}: one size for each of them"
        )
    precision = canonical_precision(precision)
    check_options(name, precision, preferred_element_type)
    try:
        dtype = jnp.result_type(x, *matrices.values())
        out_dtype = result_dtype(dtype, dtype, precision, preferred_element_type)
    except (ValueError, TypeError) as error:
        found = ", ".join(dict.fromkeys(str(b.dtype) for b in matrices.values()))
        raise type(error)(f"{name}: x is {x.dtype} but Bs are {found}: {error}") from None

    shapes = tuple(b.shape[::-1] if transpose_b else b.shape for b in matrices.values())
    ks, ns = ([shape[axis] for shape in shapes] for axis in (0, 1))
    for where, shape in zip(matrices, shapes, strict=True):
        if not compat.is_static(shape):
            raise NotImplementedError(f"{name}: {where} is {matrices[where].shape}: its sizes must not be symbolic")
    if x.ndim == 2:
        for where, k in zip(matrices, ks, strict=True):
            if k != x.shape[1]:
                stored = ", transposed" if transpose_b else ""
                raise ValueError(
                    f"{name}: x is {x.shape} but {where} is {matrices[where].shape}{stored}: inner dimensions "
                    f"{x.shape[1]} and {k} must match (rows of different length are given as one flat x)"
                )
        rows = x.shape[0] if rows is None else rows
    elif x.ndim != 1:
        raise ValueError(f"{name}: x is {x.shape}: it must be (m, k), or (size,) of flat rows")
    elif rows is None:
        raise ValueError(f"{name}: x is flat, {x.shape}: rows must be given, an upper bound of the rows of all groups")
    if not compat.is_symbolic(rows) and (not is_integer(rows) or rows < 0):
        raise ValueError(f"{name}: rows is {rows!r}: it must be a non-negative integer")
    rows = rows if compat.is_symbolic(rows) else int(rows)
    values = [x.astype(dtype), group_sizes, *(b.astype(dtype) for b in matrices.values())]
    product = Ragged(
        np.dtype(out_dtype), len(matrices), transpose_rhs=bool(transpose_b), precision=precision,
        implementation=checked_implementation(name, implementation),
    )  # fmt: skip
    return _multiplied(values, product, np.array(ks, np.int32), np.array(ns, np.int32), rows)


def _multiplied(operands: list[jax.Array], product: Ragged, ks: np.ndarray, ns: np.ndarray, rows: Any) -> jax.Array:
    """The result for rows whose lengths are `ks` in x and `ns` in the result."""
    x, group_sizes, *matrices = operands
    widest = int(ns.max())
    size = rows * widest
    is_flat = np.ptp(ns) > 0
    if any(compat.is_static((length,)) and length == 0 for length in (size, x.size)) or not (ks * ns).any():
        zeros = jnp.zeros((size,) if is_flat else (rows, widest), product.out_dtype)
        return compat.unite_varying([zeros, *operands])[0]
    x = x.reshape(-1)
    # Rows that do not lie completely in x are removed before anything is multiplied: zeros in its place would still be
    # multiplied by the matrix of its group, which may hold NaN.
    sizes = whole_rows(group_sizes, ks, x.size, rows)
    y = bind([to_padded_rows(x, sizes, ks, rows), stacked(matrices), sizes], product)
    return to_flat_rows(y, sizes, ns, size) if is_flat else y
