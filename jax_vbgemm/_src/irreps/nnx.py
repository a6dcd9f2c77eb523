"""The linear layers of cuequivariance_jax.nnx as one operation each."""

from __future__ import annotations

from typing import Any

import cuequivariance_jax as cuex
import jax
import jax.numpy as jnp

from jax_vbgemm._src.irreps.linear_map import LinearMap


class IrrepsLinear(cuex.nnx.IrrepsLinear):  # type: ignore[misc]
    """`cuequivariance_jax.nnx.IrrepsLinear`, with its options, parameters and results, as one operation.

    Examples:
      >>> import cuequivariance as cue
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.irreps.nnx import IrrepsLinear
      >>> irreps_in, irreps_out = cue.Irreps("O3", "8x0e + 4x1o"), cue.Irreps("O3", "16x0e + 16x1o")
      >>> layer = IrrepsLinear(irreps_in, irreps_out, rngs=nnx.Rngs(0))
      >>> x = {ir: jnp.ones((5, mul, ir.dim)) for mul, ir in irreps_in}
      >>> {str(ir): y.shape for ir, y in layer(x).items()}
      {'0e': (5, 16, 1), '1o': (5, 16, 3)}
    """

    def __call__(self, x: dict[Any, jax.Array]) -> dict[Any, jax.Array]:
        """The map of arrays (..., mul, 2l + 1) by irrep."""
        cuex.ir_dict.assert_mul_ir_dict(self.irreps_in, x)
        # cuequivariance's layers have regrouped irreps, so that there is one path for each irrep that both sides have,
        # and the path's fan-in is the irrep's mul.
        linear = LinearMap(self.irreps_in, self.irreps_out)
        weights = [self.w[linear.irreps_out[path.i_out].name][...] for path in linear.paths]
        if self.scale != 1:
            weights = [weight * weight.dtype.type(self.scale) for weight in weights]
        results = linear(weights, [x[ir] for _, ir in self.irreps_in], precision=self.precision)
        return {ir: result for (_, ir), result in zip(self.irreps_out, results, strict=True)}


class IrrepsIndexedLinear(cuex.nnx.IrrepsIndexedLinear):  # type: ignore[misc]
    """`cuequivariance_jax.nnx.IrrepsIndexedLinear`, with its options, parameters and results, on every platform.

    Examples:
      >>> import cuequivariance as cue
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jax_vbgemm.irreps.nnx import IrrepsIndexedLinear
      >>> irreps = cue.Irreps("O3", "8x0e + 4x1o")
      >>> layer = IrrepsIndexedLinear(irreps, irreps, num_indices=2, rngs=nnx.Rngs(0))
      >>> x = {ir: jnp.ones((5, mul, ir.dim)) for mul, ir in irreps}
      >>> {str(ir): y.shape for ir, y in layer(x, jnp.array([3, 2])).items()}
      {'0e': (5, 8, 1), '1o': (5, 4, 3)}
    """

    def __init__(self, irreps_in: Any, irreps_out: Any, num_indices: int, scale: float = 1.0, **options: Any) -> None:
        super().__init__(irreps_in, irreps_out, num_indices, scale, **options)
        self.scale = scale

    def __call__(self, x: dict[Any, jax.Array], num_index_counts: jax.Array) -> dict[Any, jax.Array]:
        """The map of arrays (rows, mul, 2l + 1) by irrep; the first num_index_counts[0] rows take the first weights."""
        cuex.ir_dict.assert_mul_ir_dict(self.irreps_in, x)
        weights = self.w[...]
        weights = weights * (self.scale / jnp.sqrt(jnp.asarray(self.num_indices, weights.dtype)))
        linear = LinearMap(self.irreps_in, self.irreps_out)
        parts = [x[ir].astype(weights.dtype) for _, ir in self.irreps_in]
        results = linear(weights, parts, counts=num_index_counts)
        return {ir: result for (_, ir), result in zip(self.irreps_out, results, strict=True)}
