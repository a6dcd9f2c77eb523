"""Flax Linen layers of different sizes as one operation, with the parameters of the layers they replace."""

from jax_vbgemm._src.flax.linen import BatchedLinear as BatchedLinear
from jax_vbgemm._src.flax.linen import BranchedConv1x1 as BranchedConv1x1
from jax_vbgemm._src.flax.linen import MultiLoRA as MultiLoRA
from jax_vbgemm._src.flax.linen import batched_linear as batched_linear
