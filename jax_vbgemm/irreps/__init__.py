"""Equivariant maps as one operation each: the linear layers and channelwise tensor products of e3nn-jax and
cuequivariance-jax, and the symmetric contraction of MACE.

`LinearMap`, `TensorProduct` and `SymmetricContraction` need neither of them. Layers with their parameters are in
`jax_vbgemm.irreps.flax`, `jax_vbgemm.irreps.haiku` and `jax_vbgemm.irreps.equinox` (e3nn-jax), and in
`jax_vbgemm.irreps.nnx` (cuequivariance-jax), and e3nn-jax's tensor product is in `jax_vbgemm.irreps.e3nn`, to be
imported by name.
"""

from jax_vbgemm._src.irreps.linear_map import LinearMap
from jax_vbgemm._src.irreps.symmetric_contraction import SymmetricContraction
from jax_vbgemm._src.irreps.tensor_product import TensorProduct

__all__ = ["LinearMap", "SymmetricContraction", "TensorProduct"]
