"""`TensorProduct`: a channelwise tensor product of arrays, with a weight for each channel of the result."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.irreps.channelwise import Channels, channelwise, sizes_of
from jax_vbgemm._src.irreps.irreps import Irreps, dim, parsed, shown, starts
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array

NAME = "TensorProduct"


class TensorProduct:
    """The tensor product of each channel of x with y, weighted: the convolution of e3nn ("uvu") and of MACE on edges.

    Path p takes the irreps x_1 (mul, d_1) of x and y_2 (d_2,) of y to mul channels of the result, each with a weight:

      result_p[u, k] = weights_p[u] * sum over i, j of coefficients_p[i, j, k] x_1[u, i] y_2[j]

    Libraries multiply x, y and the coefficients, and the result by the weights, in products of their own. Here the
    coefficients meet y first, as they are the same for all channels, and the rest is one pass over x, its gradients one
    pass for each argument. XLA computes it, and fuses it with the rows that are gathered before it and scattered after
    it. Differentiable to any order in x, y and weights, in both modes, and supports vmap.

    Args:
      irreps_1: of x: "128x0e + 128x1o", pairs (mul, irrep), or the Irreps of e3nn or cuequivariance.
      irreps_2: of y, each with one channel: spherical harmonics.
      paths: a triple (index in irreps_1, index in irreps_2, coefficients) for each irrep of the result, in its order.
        Coefficients are Clebsch-Gordan coefficients (d_1, d_2, d_out), with the path's normalization.
        `jax_vbgemm.irreps.e3nn.tensor_product` has those of e3nn, and a path of cuequivariance's
        `descriptors.channelwise_tensor_product` holds its `coefficients`.

    Attributes:
      dim_1, dim_2, num_weights, dim_out: the sizes of the last axis of x, y, weights and the result.

    Raises:
      ValueError: an irrep cannot be read, one of irreps_2 has several channels, or a path is out of range or has
        coefficients of another shape than its irreps; the message names the irrep or the path.
      TypeError: irreps are neither a string nor pairs, paths are not triples, or coefficients are complex.

    Examples:
      The product of scalars and vectors with a vector, to vectors and scalars:

      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from jax_vbgemm.irreps import TensorProduct
      >>> product = TensorProduct("8x0e + 4x1o", "1o", [(0, 0, np.eye(3)[None]), (1, 0, np.eye(3)[:, :, None])])
      >>> product.num_weights, product.dim_out
      (12, 28)
      >>> product(jnp.ones((5, 20)), jnp.ones((5, 3)), jnp.ones((5, 12)))[0, 23:]
      Array([1., 3., 3., 3., 3.], dtype=float32)
    """

    def __init__(self, irreps_1: Any, irreps_2: Any, paths: Iterable[tuple[int, int, Any]]) -> None:
        self.irreps_1, self.irreps_2 = parsed(f"{NAME}: irreps_1", irreps_1), parsed(f"{NAME}: irreps_2", irreps_2)
        for index, of in enumerate(self.irreps_2):
            if of.mul != 1:
                raise ValueError(f"{NAME}: irreps_2[{index}] is {of}: irreps of y must have one channel each")
        starts_1, starts_2 = starts(self.irreps_1), starts(self.irreps_2)
        if not isinstance(paths, Iterable):
            raise TypeError(
                f"{NAME}: paths must be triples, (index in irreps_1, index in irreps_2, coefficients), not {paths!r}"
            )
        channels, blocks = [], [np.zeros((dim(self.irreps_2), 0))]
        for number, path in enumerate(paths):
            i_1, i_2, values = _checked_path(number, path, self.irreps_1, self.irreps_2)
            first, (d_1, d_2, d_out) = self.irreps_1[i_1], values.shape
            block = np.zeros((dim(self.irreps_2), d_1 * d_out))
            block[starts_2[i_2] : starts_2[i_2] + d_2] = values.transpose(1, 0, 2).reshape(d_2, d_1 * d_out)
            if first.mul:
                channels.append(Channels(starts_1[i_1], first.mul, d_1, d_out))
                blocks.append(block)
        self._channels = tuple(channels)
        self._coefficients = np.concatenate(blocks, axis=1)  # (dim_2, entries of all paths' matrices)
        sizes = sizes_of(channels, dim(self.irreps_1))
        self.dim_1, self.dim_2, self.num_weights, self.dim_out = sizes.x, dim(self.irreps_2), sizes.w, sizes.out

    def __repr__(self) -> str:
        return f"{NAME}({shown(self.irreps_1)} times {shown(self.irreps_2)}, {len(self._channels)} paths)"

    def __call__(self, x: Any, y: Any, weights: Any = None) -> jax.Array:
        """The product of each row.

        Args:
          x: (..., dim_1), each irrep as (mul, d), as in e3nn.
          y: (..., dim_2).
          weights: (..., num_weights), one for each channel of each path; None: no weights.

        The leading axes broadcast against each other. Products and sums are float32 or wider, with one intermediate
        rounding to the arguments' dtype: of the sums over j of coefficients times y. In gradients by y, the sum over
        channels is a dot, of JAX's default precision.

        Returns:
          (..., dim_out), in the dtype to which the arguments promote: the results of all paths in order, each as
          (mul, d_out).

        On a mesh with explicit axes, the first of the leading axes may be sharded, and the result is sharded alike.

        Raises:
          ValueError: an argument has another last axis, leading axes do not broadcast, or an argument is sharded over
            explicit mesh axes otherwise than along the first leading axis, or otherwise than another argument.
          TypeError: an argument is not an array, or none is floating-point or complex.
        """
        given = {"x": x, "y": y} | ({} if weights is None else {"weights": weights})
        arrays = {name: as_array(NAME, name, value) for name, value in given.items()}
        for name, width in (("x", self.dim_1), ("y", self.dim_2), ("weights", self.num_weights)):
            if name in arrays and arrays[name].shape[-1:] != (width,):
                raise ValueError(f"{NAME}: {name} is {arrays[name].shape}: its last axis must be {width}")
        try:
            leading = jnp.broadcast_shapes(*(array.shape[:-1] for array in arrays.values()))
        except ValueError:
            found = ", ".join(f"{name} {array.shape[:-1]}" for name, array in arrays.items())
            raise ValueError(f"{NAME}: the leading axes must broadcast: {found}") from None
        dtype = jnp.result_type(*arrays.values())
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(f"{NAME}: x, y and weights are {dtype}: one of them must be floating-point or complex")
        arrays.setdefault("weights", jnp.ones(self.num_weights, dtype))
        arrays = {
            name: jnp.broadcast_to(array.astype(dtype), (*leading, array.shape[-1])) for name, array in arrays.items()
        }
        rows = math.prod(leading)
        x, y, w = (array.reshape(rows, array.shape[-1]) for array in _divided_alike(arrays))
        wide = accumulator(dtype)
        m = jnp.matmul(y.astype(wide), jnp.asarray(self._coefficients, wide), precision=jax.lax.Precision.HIGHEST)
        return channelwise("out", (x, m.astype(dtype), w), self._channels, self.dim_1).reshape(*leading, self.dim_out)


def _divided_alike(arrays: dict[str, jax.Array]) -> list[jax.Array]:
    """The arrays, of equal leading axes, with one sharding over explicit mesh axes: that of those that have any."""
    sharded = {name: array for name, array in arrays.items() if compat.explicit_axes(array)}
    specs = {name: jax.typeof(array).sharding.spec for name, array in sharded.items()}
    for name, spec in specs.items():
        if sharded[name].ndim == 1 or any(entry is not None for entry in spec[1:]):
            raise ValueError(
                f"{NAME}: {name} is sharded as {spec} over explicit mesh axes: only the first leading axis may be; "
                "use jax.sharding.reshard, or jax.shard_map"
            )
    if len(set(specs.values())) > 1:
        found = ", ".join(f"{name} {spec}" for name, spec in specs.items())
        raise ValueError(f"{NAME}: arguments are sharded over different explicit mesh axes: {found}")
    like = next(iter(sharded.values()), None)
    return [array if like is None else compat.placed_as(array, like) for array in arrays.values()]


def _checked_path(number: int, path: Any, irreps_1: Irreps, irreps_2: Irreps) -> tuple[int, int, np.ndarray[Any, Any]]:
    """The indices and coefficients of a path."""
    try:
        i_1, i_2, coefficients = path
        i_1, i_2 = operator.index(i_1), operator.index(i_2)
        values = coefficients if np.iscomplexobj(coefficients) else np.asarray(coefficients, np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"{NAME}: paths[{number}] must be (index in irreps_1, index in irreps_2, coefficients)"
        ) from None
    if np.iscomplexobj(values):
        raise TypeError(f"{NAME}: paths[{number}] has complex coefficients: they must be real")
    for side, index, irreps in (("irreps_1", i_1, irreps_1), ("irreps_2", i_2, irreps_2)):
        if not 0 <= index < len(irreps):
            raise ValueError(f"{NAME}: paths[{number}] takes {side}[{index}], but {side} has {len(irreps)} entries")
    first, second = irreps_1[i_1], irreps_2[i_2]
    if values.ndim != 3 or values.shape[:2] != (first.irrep_dim, second.irrep_dim) or not values.size:
        raise ValueError(
            f"{NAME}: paths[{number}], from {first} and {second}, has coefficients {values.shape}: they must be "
            f"({first.irrep_dim}, {second.irrep_dim}, components of the result)"
        )
    return i_1, i_2, values
