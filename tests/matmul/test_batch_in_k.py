"""The cotangent of a factor that all batch entries share: one product whose K includes the batch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_vbgemm as vb

SIZE = st.sampled_from([0, 1, 2, 3, 5, 8])
BATCH = st.lists(st.sampled_from([1, 2, 3]), max_size=3)


@st.composite
def products(draw):
    """Shapes (A, B) whose leading dimensions broadcast, with transposes."""
    m, n, k = draw(SIZE), draw(SIZE), draw(SIZE)
    full = draw(BATCH)

    def leading():
        return tuple(size if draw(st.booleans()) else 1 for size in full)[draw(st.integers(0, len(full))) :]

    ta, tb = draw(st.booleans()), draw(st.booleans())
    return (*leading(), *((k, m) if ta else (m, k))), (*leading(), *((n, k) if tb else (k, n))), ta, tb


@settings(deadline=None, max_examples=8)
@given(st.lists(products(), min_size=1, max_size=3), st.sampled_from(["float32", "bfloat16", "complex128"]))
@pytest.mark.slow
def test_both_cotangents_of_any_broadcast(products, dtype):
    As = [oracle.random(a, dtype, 1) for a, _, _, _ in products]
    Bs = [oracle.random(b, dtype, 2) for _, b, _, _ in products]
    ta, tb = [p[2] for p in products], [p[3] for p in products]

    def ours(As, Bs):
        return vb.batched_matmul(As, Bs, transpose_a=ta, transpose_b=tb)

    def plain(As, Bs):
        turned = zip(As, Bs, ta, tb, strict=True)
        return [jnp.matmul(a.mT if x else a, b.mT if y else b) for a, b, x, y in turned]

    def cotangents(f, wide=None):
        def run(*operands):
            As, Bs, Cs = operands if wide is None else jax.tree.map(lambda x: x.astype(wide), operands)
            return jax.vjp(f, As, Bs)[1](Cs)

        return jax.jit(run)(As, Bs, Cs)

    Cs = [oracle.random(c.shape, dtype, 3) for c in jax.eval_shape(ours, As, Bs)]
    found = cotangents(ours)
    truth = cotangents(plain, jnp.complex128 if dtype == "complex128" else jnp.float64)
    terms = max(math.prod(c.shape[:-2]) for c in Cs) * 8  # what is summed has magnitude 1
    allowed = oracle.ROUNDING[dtype] * terms
    for result, expected in zip(jax.tree.leaves(found), jax.tree.leaves(truth), strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(oracle.wide(result), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("transpose_a", [False, True])
def test_no_batch_of_products_is_stored(transpose_a):
    """As in an equivariant layer: a weight (mul, mul) and features (nodes, mul, 2 l + 1)."""
    nodes, mul, components = 50, 16, 5
    W, x = jnp.ones((mul, mul)), jnp.ones((nodes, mul, components))
    f = jax.grad(lambda W, x: vb.batched_matmul([W], [x], transpose_a=transpose_a)[0].sum(), (0, 1))
    largest = max(v.aval.size for eqn in jax.make_jaxpr(f)(W, x).eqns for v in eqn.outvars)
    assert largest == x.size < nodes * mul * mul


def test_no_copies_larger_than_the_products_they_save():
    """Few large products: their factors would have to be copied as K is their last axis."""
    W, x = jnp.ones((4, 4)), jnp.ones((2, 4, 1000))
    f = jax.grad(lambda W: vb.batched_matmul([W], [x])[0].sum())
    assert "transpose[" not in str(jax.make_jaxpr(f)(W))


def test_derivatives_of_the_cotangent():
    W, x = oracle.random((3, 4), "float64"), oracle.random((5, 4, 2), "float64", 1)

    def loss(product):
        return lambda W: jnp.sum(jnp.sin(product(W)))

    ours = jax.jit(jax.hessian(loss(lambda W: vb.batched_matmul([W], [x])[0])))(W)
    np.testing.assert_allclose(ours, jax.jit(jax.hessian(loss(lambda W: W @ x)))(W), rtol=1e-10, atol=1e-12)
