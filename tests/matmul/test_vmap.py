"""vmap in every position and composition becomes batch counts and strides of one call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import Epilogue


def pair(lead_a=(), lead_b=(), dtype="float64"):
    As = [oracle.random((*lead_a, m, k), dtype, i) for i, (m, k) in enumerate([(3, 4), (5, 2)])]
    Bs = [oracle.random((*lead_b, k, n), dtype, 9 + i) for i, (k, n) in enumerate([(4, 6), (2, 7)])]
    return As, Bs


def plain(As, Bs):
    return [jnp.matmul(a, b) for a, b in zip(As, Bs, strict=True)]


def assert_equal(ours, theirs):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), ours, theirs)


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0), (1, 0), (2, 1), (-1, None)])
def test_in_axes(in_axes):
    As, Bs = pair()
    As = [a if in_axes[0] is None else jnp.stack([a, 2 * a, 3 * a], in_axes[0]) for a in As]
    Bs = [b if in_axes[1] is None else jnp.stack([b, -b, 5 * b], in_axes[1]) for b in Bs]
    ours, theirs = (jax.jit(jax.vmap(f, in_axes))(As, Bs) for f in (vb.batched_matmul, plain))
    assert_equal(ours, theirs)
    jaxpr = jax.make_jaxpr(jax.vmap(vb.batched_matmul, in_axes))(As, Bs)
    assert str(jaxpr).count("batched_matmul[") == 1
    assert "dot_general" not in str(jaxpr)


def test_mapped_and_unmapped_members_in_one_call():
    As, Bs = pair()
    stacked = jnp.stack([As[0]] * 3)
    out = jax.vmap(lambda a: vb.batched_matmul([a, As[1]], Bs), out_axes=[0, None])(stacked)
    assert_equal(out, [jnp.matmul(stacked, Bs[0]), As[1] @ Bs[1]])


def test_vmap_of_different_ranks():
    a, b = oracle.random((3, 4, 5), "float64"), oracle.random((2, 3, 7, 5, 6), "float64", 1)
    f = lambda a, b: vb.batched_matmul([a], [b])[0]  # noqa: E731
    ours = jax.vmap(f, (0, 1))(a, b)  # (4, 5) x (2, 7, 5, 6), mapped over 3
    theirs = jax.vmap(jnp.matmul, (0, 1))(a, b)
    assert_equal(ours, theirs)


@pytest.mark.slow
def test_vmap_of_vmap_with_grad():
    As, Bs = pair((2, 3), (3,))

    def scalar(As, Bs):
        return sum(jnp.sum(jnp.cos(c)) for c in vb.batched_matmul(As, Bs))

    def plain_scalar(As, Bs):
        return sum(jnp.sum(jnp.cos(c)) for c in plain(As, Bs))

    for order in (
        (lambda f: jax.vmap(jax.vmap(jax.grad(f, (0, 1))), (0, None))),
        (lambda f: jax.vmap(jax.grad(lambda *a: jax.vmap(f)(*a).sum()), (0, None))),
    ):
        assert_equal(order(scalar)(As, Bs), order(plain_scalar)(As, Bs))


def test_derivatives_of_vmap():
    As, Bs = pair((3,), ())
    oracle.check_grads(jax.vmap(vb.batched_matmul, (0, None)), (As, Bs), order=2, modes=["fwd", "rev"])


def test_vmap_of_jvp_with_an_unmapped_term():
    """d(AB) = dA B + A dB where only dA is mapped: both terms of the sum must get the mapped axis."""
    As, Bs = pair()
    dAs = [jnp.stack([a, 2 * a]) for a in As]

    def tangent(f):
        return jax.vmap(lambda dAs: jax.jvp(f, (As, Bs), (dAs, Bs))[1])(dAs)

    assert_equal(tangent(vb.batched_matmul), tangent(plain))


def test_vmap_over_nothing():
    As, Bs = pair((0,), (0,))
    assert [c.shape for c in jax.vmap(vb.batched_matmul)(As, Bs)] == [(0, 3, 6), (0, 5, 7)]


def test_a_weight_shared_by_a_batch_is_one_tall_product():
    """Its gradient is then one product with a long K, not a batch of products and a sum."""
    a, b = oracle.random((8, 3, 4), "float64"), oracle.random((4, 6), "float64", 1)
    jaxpr = jax.make_jaxpr(jax.vmap(lambda a: vb.batched_matmul([a], [b])))(a)
    (eqn,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "batched_matmul"]
    assert eqn.invars[0].aval.shape == (24, 4)


def test_scan_and_while_and_cond():
    As, Bs = pair()

    def step(carry, _):
        Cs = vb.batched_matmul(carry, Bs)
        return vb.batched_matmul(Cs, Bs, transpose_b=True), Cs[0].sum()

    carry, sums = jax.lax.scan(step, As, None, length=3)
    expected, total = As, []
    for _ in range(3):
        Cs = plain(expected, Bs)
        total.append(Cs[0].sum())
        expected = [c @ b.T for c, b in zip(Cs, Bs, strict=True)]
    assert_equal((carry, list(sums)), (expected, total))
    chosen = jax.jit(lambda p: jax.lax.cond(p, vb.batched_matmul, plain, As, Bs))(True)
    assert_equal(chosen, plain(As, Bs))


@pytest.mark.parametrize("name", slow_except(["C", "bias"], ["bias"]))
def test_what_is_added_alone_is_mapped(name):
    """One product serves all mapped entries, and the other results' epilogues stay in the kernel."""
    As = [oracle.random((5, 7), "float64", 1), oracle.random((3, 2, 4), "float64", 2)]
    Bs = [oracle.random((7, 6), "float64", 3), oracle.random((4, 8), "float64", 4)]
    mapped = oracle.random((9, 5, 6) if name == "C" else (9, 6), "float64", 5)
    other = oracle.random((3, 2, 8), "float64", 6)

    def both(x):
        options = {"Cs": [x, other], "beta": 0.5} if name == "C" else {"bias": [x, other]}
        return vb.batched_gemm(As, Bs, **options, alpha=2.0, activation="tanh")

    found = jax.vmap(both)(mapped)
    for i in range(9):
        for ours, truth in zip(found, both(mapped[i]), strict=True):
            np.testing.assert_allclose(ours[i], truth, rtol=1e-13)
    (eqn,) = (eqn for eqn in jax.make_jaxpr(jax.vmap(both))(mapped).eqns if "batched_matmul" in eqn.primitive.name)
    assert eqn.outvars[0].aval.shape == (5, 6)
    assert [epilogue != Epilogue() for epilogue in eqn.params["batched"].epilogues] == [False, True]
