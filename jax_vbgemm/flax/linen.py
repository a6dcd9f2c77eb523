"""Flax Linen layers of different sizes as one operation, with the parameters of the layers they replace."""

from jax_vbgemm._src.flax.linen import BatchedLinear, BranchedConv1x1, MultiLoRA, batched_linear

__all__ = ["BatchedLinear", "BranchedConv1x1", "MultiLoRA", "batched_linear"]
