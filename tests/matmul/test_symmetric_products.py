"""`symmetric=`: equal results with and without it, derived products that drop it, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.primitive import Term
from jax_vbgemm._src.newton_schulz.orthogonal import newton_schulz

SIZES = [(19, 33), (1, 5), (64, 7), (130, 20)]
XS = [oracle.random((n, k), "float64", 1) for n, k in SIZES]
CS = jax.device_put([c + c.T for c in (np.asarray(oracle.random((n, n), "float64", 2)) for n, _ in SIZES)])


def products(symmetric, **options):
    return lambda xs: vb.batched_matmul(xs, xs, transpose_b=True, symmetric=symmetric, **options)


def polynomial(symmetric, **options):
    """c1 A + c2 A A, of A = X X^T."""

    def function(xs, cs=CS):
        grams = products(symmetric)(xs)
        values = vb.batched_gemm(grams, grams, cs, alpha=0.5, beta=-1.5, symmetric=symmetric, **options)
        return values

    return function


def terms_of(function, *args) -> list[list[Term]]:
    """The terms of each call of the primitive."""
    jaxpr = jax.make_jaxpr(function)(*args)
    return [list(eqn.params["batched"].terms) for eqn in jaxpr.eqns if eqn.primitive.name == "batched_matmul"]


def flags_of(function, *args) -> list[list[bool]]:
    return [[term.symmetric for term in terms] for terms in terms_of(function, *args)]


def assert_equal(ours, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12 * np.abs(b).max()), ours, expected)


@pytest.mark.parametrize("make", slow_except([products, polynomial], [products]))
@pytest.mark.parametrize("implementation", slow_except([None, "xla"], [None]))
def test_values_and_derivatives_are_those_without_it(make, implementation):
    ours, plain = (make(flag, implementation=implementation) for flag in (True, False))
    assert_equal(jax.jit(ours)(XS), jax.jit(plain)(XS))
    tangents = [oracle.random(x.shape, "float64", 3) for x in XS]
    assert_equal(*(jax.jit(lambda xs, f=f: jax.jvp(f, (xs,), (tangents,)))(XS) for f in (ours, plain)))

    def loss(function):
        return lambda xs: sum(jnp.sum(c**2 * jnp.linspace(-1, 1, c.size).reshape(c.shape)) for c in function(xs))

    assert_equal(*(jax.jit(jax.grad(loss(f)))(XS) for f in (ours, plain)))
    batches = [oracle.random((3, *x.shape), "float64", 4) for x in XS]
    assert_equal(*(jax.jit(jax.vmap(f))(batches) for f in (ours, plain)))
    assert_equal(*(jax.jit(jax.vmap(jax.grad(loss(f))))(batches) for f in (ours, plain)))


def test_only_the_call_itself_keeps_the_flag():
    flags = [True, False, True, True]
    tangents = [jnp.ones_like(x) for x in XS]
    assert flags_of(products(flags), XS) == [flags]
    assert flags_of(lambda xs: jax.jvp(products(flags), (xs,), (tangents,)), XS) == [flags, [False] * 8]
    gradient = jax.grad(lambda xs: sum(jnp.sum(c**2) for c in products(flags)(xs)))
    assert flags_of(gradient, XS) == [flags, [False] * 8]
    with_epilogues = jax.grad(lambda xs: sum(jnp.sum(c**2) for c in polynomial(True)(xs)))
    first, second, *derived = sorted(flags_of(with_epilogues, XS), reverse=True)
    assert all(first + second)
    assert derived
    assert not any(map(any, derived))
    batches = [jnp.stack([x, 2 * x]) for x in XS]
    assert flags_of(jax.vmap(products(flags)), batches) == [flags]
    transposed = jax.linear_transpose(lambda xs: vb.batched_matmul(xs, CS, symmetric=True), CS)
    assert flags_of(lambda cs: transposed(cs), CS) == [[False] * 4]


def test_a_symmetric_product_never_becomes_a_tall_one():
    batch, matrix = jnp.ones((3, 4, 4)), jnp.eye(4)
    call = jax.make_jaxpr(lambda a, b: vb.batched_matmul([a], [b], symmetric=True))(batch, matrix).eqns[0]
    assert call.params["batched"].terms == (Term(0, 1, 0, symmetric=True),)
    assert call.outvars[0].aval.shape == (3, 4, 4)
    tall = jax.make_jaxpr(lambda a, b: vb.batched_matmul([a], [b]))(batch, matrix)
    assert any(v.aval.shape == (12, 4) for eqn in tall.eqns for v in eqn.outvars)
    (result,) = vb.batched_matmul([batch], [matrix], symmetric=True)
    np.testing.assert_array_equal(result, batch)


def test_plans_know_of_it():
    seen = []

    def planner(problems, device, catalogue):
        seen.extend(problems)
        return vb.Uniform()(problems, device, catalogue)

    with vb.target("h100"):
        call = jax.jit(products([True, False, True, False], planner=planner))
        xs = [x.astype("float32") for x in XS]
        jax.export.export(call, platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(xs)
    assert [problem.symmetric for problem in seen] == [True, False, True, False]
    assert [(problem.m, problem.n, problem.k) for problem in seen] == [(n, n, k) for n, k in SIZES]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("preconditioning", ["frobenius", "schatten"])
def test_newton_schulz_flags_what_is_symmetric(dtype, preconditioning):
    tree = [oracle.random((40, 24), dtype, 1), oracle.random((24, 40), dtype, 2)]
    options = {"steps": 2, "preconditioning": preconditioning, "implementation": "kernel"}
    flags = [any(call) for call in flags_of(lambda tree: newton_schulz(tree, **options), tree)][-6:]
    real = dtype == "float32"
    first = real or preconditioning == "schatten"  # it takes X X^T, which complex matrices need not conjugate
    assert flags == [first, first, False, real, real, False]


def test_what_is_not_symmetric_is_refused():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    with pytest.raises(ValueError, match=r"As\['w'\] is \(3, 4\) but .*a symmetric result must be square.* 3 x 5"):
        vb.batched_matmul({"v": a, "w": a}, {"v": a.T, "w": b}, symmetric={"v": True, "w": True})
    vb.batched_matmul({"v": a, "w": a}, {"v": a.T, "w": b}, symmetric={"v": True, "w": False})
    with pytest.raises(
        ValueError, match=r"batched_gemm: bias\[1\] is given for a symmetric result, which takes no bias"
    ):
        vb.batched_gemm([a, a], [a.T, a.T], bias=[None, jnp.ones(3)], symmetric=True)
    vb.batched_gemm([a, a], [a.T, a.T], bias=[jnp.ones(3), None], symmetric=[False, True], activation="relu")
    with pytest.raises(TypeError, match="symmetric must hold Python bools"):
        vb.batched_matmul([a], [a.T], symmetric=[1])
    with pytest.raises(ValueError, match="symmetric must be a bool or a prefix of As"):
        vb.batched_matmul([a], [a.T], symmetric=[True, False])
