"""Flax NNX layers of different sizes as one operation, with the parameters of the layers they replace."""

from jax_vbgemm._src.flax.nnx import BatchedLinear as BatchedLinear
from jax_vbgemm._src.flax.nnx import BranchedConv1x1 as BranchedConv1x1
from jax_vbgemm._src.flax.nnx import MultiLoRA as MultiLoRA
from jax_vbgemm._src.flax.nnx import batched_linear as batched_linear
