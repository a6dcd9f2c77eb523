"""Contractions of block-sparse tensors, whose blocks have charges, as one call of `batched_matmul_sum`.

blocks.py       checks the blocks of an operand
axes.py         the contracted axes
contraction.py  turns pairs of blocks into terms and blocks into matrices, and makes the call
symmray.py      arrays of symmray: fermionic signs, and the result's attributes beside its blocks
api.py          `tensordot`
"""
