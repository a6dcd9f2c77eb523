"""Operands of batched_gemm, and its result in float64, for the tests of values, derivatives and errors."""

import jax.numpy as jnp
import numpy as np
import oracle

from jax_vbgemm._src.epilogue import FUNCTIONS

SIZES = [(19, 33, 7), (1, 40, 65), (64, 1, 3), (5, 6, 0), (130, 17, 20)]


def operands(dtype="float64", sizes=SIZES):
    As = [oracle.random((m, k), dtype, 1) for m, _, k in sizes]
    Bs = [oracle.random((k, n), dtype, 2) for _, n, k in sizes]
    Cs = [oracle.random((m, n), dtype, 3) for m, n, _ in sizes]
    bias = [oracle.random((n,), dtype, 4) for _, n, _ in sizes]
    return As, Bs, Cs, bias


def truth(As, Bs, Cs, alpha, beta, bias, activation):
    """The result in float64 or complex128, whatever the dtype of the operands."""
    results = []
    for i, (a, b) in enumerate(zip(As, Bs, strict=True)):
        value = alpha[i] * (oracle.wide(a) @ oracle.wide(b))
        if Cs is not None and beta[i] != 0:
            value = value + beta[i] * oracle.wide(Cs[i])
        if bias is not None and bias[i] is not None:
            value = value + oracle.wide(bias[i])
        results.append(np.asarray(FUNCTIONS[activation](jnp.asarray(value))) if activation else value)
    return results


def small():
    return operands(sizes=[(3, 4, 2), (1, 5, 3)])
