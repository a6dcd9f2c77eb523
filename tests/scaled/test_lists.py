"""`batched_matmul` and `batched_gemm` of `Scaled` factors, against float64 of the numbers that these stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.factors import Flags, checked_sizes
from jax_vbgemm._src.matmul.scaled_products import Product, choose

KINDS = [("float8_e4m3fn", "float8_e5m2"), ("int8", "int8"), ("int4", "int8")]
# Blocks of lhs (m, k) and of rhs (n, k).
BLOCKS = [
    ((-1, -1), (-1, -1)), ((1, -1), (1, -1)), ((3, -1), (2, -1)), ((1, 128), (128, 128)), ((1, 32), (1, 32)),
    ((1, -1), (128, 128)),
]  # fmt: skip
SIZES = [(0, 3, 4), (3, 1, 0), (5, 0, 3), (1, 1, 1), (127, 7, 129), (13, 128, 127), (2, 129, 256)]  # m, n, k


def random(shape, seed=0):
    return oracle.random(shape, "float32", seed)


def wide(x):
    return oracle.wide(x.dequantized() if isinstance(x, vb.Scaled) else x)


def assert_products(found, As, Bs, dtype, *, transpose_a=False, transpose_b=False):
    """Each result is the product of the numbers, rounded once to dtype."""
    for c, a, b in zip(found, As, Bs, strict=True):
        truth, scale = oracle.matmul(wide(a), wide(b), transpose_a, transpose_b)
        assert (c.shape, c.dtype) == (truth.shape, dtype)
        rounding = 4 * oracle.ROUNDING["float32"] + oracle.unit_roundoff(np.dtype(dtype).name)
        assert (np.abs(oracle.wide(c) - truth) <= rounding * scale).all()


@pytest.mark.parametrize(("lhs", "rhs"), KINDS)
def test_products_of_all_shapes_and_blocks(lhs, rhs):
    As, Bs = [], []
    for seed, (m, n, k) in enumerate(SIZES):
        for a, b in BLOCKS:
            As.append(vb.quantize(random((m, k), seed), lhs, a))
            Bs.append(vb.quantize(random((n, k), seed + 50), rhs, b))
    product = jax.jit(vb.batched_matmul, static_argnames=("transpose_a", "transpose_b", "preferred_element_type"))
    assert_products(product(As, Bs, transpose_b=True), As, Bs, jnp.bfloat16, transpose_b=True)
    transposed = [a.mT for a in As]
    found = product(transposed, [b.mT for b in Bs], transpose_a=True, preferred_element_type="float32")
    assert_products(found, As, Bs, np.float32, transpose_b=True)
