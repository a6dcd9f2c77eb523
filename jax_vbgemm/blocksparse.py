"""Contractions of block-sparse tensors, dicts of blocks by sector or arrays of symmray, as one operation each."""

from jax_vbgemm._src.blocksparse.api import tensordot

__all__ = ["tensordot"]
