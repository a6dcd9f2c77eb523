"""Equivariant maps. Linear: all paths between irreps are one sum of products, on top of `batched_matmul_sum`.
Channelwise tensor products: one primitive for all paths.

irreps.py      parses irreps into one tuple
paths.py       the paths from input to output irreps, the shapes of weights, and normalisation
linear_map.py  `LinearMap`: features and weights as views, and the one call
choice.py      whether XLA's dots are faster than the call; dots.py  the map as dots
indexed.py     rows that choose their weights (by chemical species): products over groups of rows
channelwise.py, tensor_product.py  the primitive, and `TensorProduct`; e3nn_product.py  that of e3nn-jax
e3nn.py        the common part of e3nn-jax's Linear for Flax and Haiku
flax.py, haiku.py, nnx.py   the layers of e3nn-jax and cuequivariance-jax; imported by their public modules alone
"""
