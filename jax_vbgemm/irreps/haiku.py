"""The linear layer of `e3nn_jax.haiku`, as one operation. Needs e3nn-jax and dm-haiku."""

from jax_vbgemm._src.irreps.haiku import Linear

__all__ = ["Linear"]
