"""Products over rows in groups whose sizes are data: `ragged_dot` and what belongs to it.

One primitive, `ragged_dot_p` (primitive.py), says everything in two forms that are each other's derivatives. With L
(m, k) rows in groups and one matrix W[w] a group,

    ragged rows         C = L op(W)   C[i] = L[i] op(W[group of i])          (m, n)
    ragged contraction  W = L^T C     W[w] = sum over rows i of w of L[i]^T C[i]   (g, k, n)

hence, writing R for the first and K for the second (transposes are flags, or operands that change places),

    C = R(L, W):   dL = R(dC, W^T)        dW = K(L, dC), or K(dC, L) where W is stored transposed
    D = K(L, C):   dL = R(C, dD^T)        dC = R(L, dD)

and vmap is a leading dimension of the operands that are mapped: batch dimensions broadcast, as in jnp.matmul, so that
any subset of operands, the group sizes among them, may be mapped, and nothing is copied for those that are not. A
custom call takes two batch strides an operand; deeper broadcasting is materialised.

Bias, activation and row scale are the epilogue of ragged rows. A derivative that needs the sums under an activation
computes them once, unfinished; the rest is elementwise, and a bias is itself a ragged product, of a column of ones.

    api.py        the public functions: checks, dtypes
    primitive.py  the primitive's operands and parameters
    rules.py      derivatives and vmap
    reference.py  its meaning in jnp, which serves platforms and dtypes without a kernel
    lowering.py   the choice between them, and the custom call (csrc/ragged_call.h)
    indices.py    indices that are data: clamped, counted, reported
    general.py    jax.lax.ragged_dot_general's dimension numbers, brought to these two forms
    lists.py      weights of different shapes: packed rows in, packed rows out
"""
