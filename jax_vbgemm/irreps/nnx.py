"""The linear layers of `cuequivariance_jax.nnx`, as one operation. Needs cuequivariance-jax and flax."""

from jax_vbgemm._src.irreps.nnx import IrrepsIndexedLinear, IrrepsLinear

__all__ = ["IrrepsIndexedLinear", "IrrepsLinear"]
