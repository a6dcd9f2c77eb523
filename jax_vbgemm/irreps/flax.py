"""The linear layer of `e3nn_jax.flax`, as one operation. Needs e3nn-jax and flax."""

from jax_vbgemm._src.irreps.flax import Linear

__all__ = ["Linear"]
