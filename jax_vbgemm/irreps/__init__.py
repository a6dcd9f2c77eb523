"""Equivariant linear maps between irreps, as one operation each: the linear layers of e3nn-jax and cuequivariance-jax.

`LinearMap` needs neither of them. Layers with their parameters are in `jax_vbgemm.irreps.flax`,
`jax_vbgemm.irreps.haiku` and `jax_vbgemm.irreps.equinox` (e3nn-jax), and in `jax_vbgemm.irreps.nnx`
(cuequivariance-jax), to be imported by name.
"""

from jax_vbgemm._src.irreps.linear_map import LinearMap

__all__ = ["LinearMap"]
