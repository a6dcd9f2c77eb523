"""Contractions of block-sparse tensors, dicts of blocks by sector or arrays of symmray, as one operation each."""

from jax_vbgemm._src.blocksparse.api import einsum, tensordot
from jax_vbgemm._src.blocksparse.block_array import BlockArray, pack

__all__ = ["BlockArray", "einsum", "pack", "tensordot"]
