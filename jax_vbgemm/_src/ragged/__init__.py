"""Ragged products: `ragged_dot` and related functions, for rows in groups whose sizes are known at run time.

One primitive, `ragged_dot_p` (primitive.py), has two forms, and the derivatives of each form are products of both
forms. With rows L (m, k) in groups and one matrix W[w] for each group,

    ragged rows         C = L op(W)   C[i] = L[i] op(W[group of i])          (m, n)
    ragged contraction  W = L^T C     W[w] = sum over rows i of w of L[i]^T C[i]   (g, k, n)

With R for the first form and K for the second (transposes are flags, or exchanged operands),

    C = R(L, W):   dL = R(dC, W^T)        dW = K(L, dC), or K(dC, L) where W is stored transposed
    D = K(L, C):   dL = R(C, dD^T)        dC = R(L, dD)

vmap gives the mapped operands a leading batch dimension. Batch dimensions broadcast, as in jnp.matmul, so that any
subset of operands may be mapped, the group sizes included. A custom call has no batch dimensions: a batch is one
product of the rows and matrices of all entries (batches.py), which is one launch on a GPU. Rows and weights that all
entries share are not copied.

Bias, activation and row scale are the epilogue of ragged rows. A derivative that needs the sums before the activation
computes them once without the epilogue, which is then elementwise work of XLA; the bias of each row is a ragged product
with a column of ones.

    api.py        the public functions: checks, dtypes
    scaled_factors.py  the rules for factors with scales, which products of lists share
    primitive.py  the primitive's operands and parameters
    rules.py      derivatives and vmap
    composed.py   gates, row scales, gathered rows and accumulators as work of XLA, for derivatives and for kernels
                  without them
    accumulate.py a product whose derivative adds the gradient of its weights to an accumulator
    select_rows.py sums of rows selected by index, whose transpose is again a selection
    choice.py     what computes a product: which parts XLA, and which kernel the rest
    batches.py    a batch as one product
    plan.py       by which kernel and which tiles a GPU computes a product
    reference.py  its definition in jnp, used on platforms and for dtypes without a kernel
    lowering.py   the parts that were chosen, around the custom call (csrc/ragged_call.h)
    segments.py   which group each row belongs to
    indices.py    indices that are data: clamped, counted, reported by checkify
    general.py    jax.lax.ragged_dot_general's dimension numbers, translated to these two forms

Matrices of different shapes are padded and become a `ragged_dot`:

    ragged_matmul.py  ragged_matmul: checks, dtypes
    flat_rows.py      rows of different lengths, one after another in a flat array; padded matrices
"""
