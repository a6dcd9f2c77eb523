"""Flax Linen layers of different sizes as one operation, with the parameters of the layers they replace."""

from jax_vbgemm._src.flax.linen import BatchedLinear, BranchedConv1x1, MultiLoRA, batched_linear
from jax_vbgemm._src.flax.linen_groups import HeteroLinear, MixtureOfExperts

__all__ = ["BatchedLinear", "BranchedConv1x1", "HeteroLinear", "MixtureOfExperts", "MultiLoRA", "batched_linear"]
