"""Contractions of block-sparse tensors, whose blocks have charges, as one call of `batched_matmul_sum`.

blocks.py           checks the blocks of an operand
block_array.py      `BlockArray`, whose blocks are windows of one buffer, and `pack`
rearrangement.py    copies the windows of a buffer into those of another one
axes.py, einsum.py  the contracted axes, as `tensordot` and as an equation of labels names them
contraction.py      turns pairs of blocks into terms and blocks into matrices, and makes the call
choice.py           leaves products to XLA or to symmray where that is predicted to be faster
signs.py            negates as few blocks as fermions need
symmray.py          arrays of symmray: fermionic signs, and the result's attributes beside its blocks
api.py              `tensordot` and `einsum`
"""
