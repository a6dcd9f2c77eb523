"""Contractions of block-sparse tensors, whose blocks have charges, as one call of `batched_matmul_sum`.

blocks.py       checks the blocks of an operand
block_array.py  `BlockArray`, whose blocks are windows of one buffer, and `pack`
axes.py         the contracted axes
contraction.py  turns pairs of blocks into terms and blocks into matrices, and makes the call
choice.py       leaves products to XLA or to symmray where that is predicted to be faster
signs.py        negates as few blocks as fermions need
symmray.py      arrays of symmray: fermionic signs, and the result's attributes beside its blocks
einsum.py       equations of labels
api.py          `tensordot` and `einsum`
"""
