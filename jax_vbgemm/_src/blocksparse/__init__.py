"""Tensors whose blocks have charges: a contraction of two is one sum of products, on top of `batched_matmul_sum`.

blocks.py       an operand's blocks, checked
axes.py         which axes are contracted
contraction.py  pairs of blocks to terms, blocks to matrices, and the one call
symmray.py      arrays of symmray: signs of fermions, and what the result is beside its blocks
api.py          `tensordot`
"""
