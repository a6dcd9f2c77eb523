"""Flax NNX layers of different sizes as one operation, with the parameters of the layers they replace."""

from jax_vbgemm._src.flax.nnx import BatchedLinear, BranchedConv1x1, MultiLoRA, batched_linear
from jax_vbgemm._src.flax.nnx_groups import HeteroLinear, MixtureOfExperts

__all__ = ["BatchedLinear", "BranchedConv1x1", "HeteroLinear", "MixtureOfExperts", "MultiLoRA", "batched_linear"]
