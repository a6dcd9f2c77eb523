"""Equivariant linear maps: all paths between irreps are one sum of products, on top of `batched_matmul_sum`.

irreps.py      what the user wrote as irreps, as one tuple
paths.py       which irrep goes to which, the shapes of weights, and normalisation
linear_map.py  `LinearMap`: features and weights as windows, and the one call
indexed.py     weights that each row chooses (chemical species): products over groups of rows
e3nn.py        what a Linear of e3nn-jax does around its map, for Flax and Haiku
flax.py, haiku.py, nnx.py   the layers of e3nn-jax and cuequivariance-jax; imported by their public modules alone
"""
