"""`batched_gram`: values, exact symmetry, flags, derivatives, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb

SHAPES = [(5, 9), (1, 3), (70, 33), (3, 20, 6), (200, 2)]


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("transpose", [False, np.True_])
def test_values(dtype, transpose):
    Xs = [oracle.random(shape, dtype, 1) for shape in SHAPES]
    oracle.check(vb.batched_gram(Xs, transpose=transpose), Xs, Xs, [(transpose, not transpose)] * len(Xs))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_results_are_exactly_symmetric(dtype):
    Xs = [oracle.random(shape, dtype, 1) for shape in [*SHAPES, (65, 5000), (2, 4000)]]
    Cs = [c + jnp.swapaxes(c, -1, -2) for c in (oracle.random((*x.shape[:-1], x.shape[-2]), dtype, 2) for x in Xs)]
    for result in vb.batched_gram(Xs, alpha=0.3, beta=-0.7, Cs=Cs):
        np.testing.assert_array_equal(result, jnp.swapaxes(result, -1, -2))


def test_alpha_beta_and_derivatives():
    Xs = {"a": oracle.random((5, 9), "float64", 1), "b": oracle.random((4, 6), "float64", 2)}
    Cs = {"a": jnp.eye(5), "b": jnp.ones((6, 6))}
    weights = {"a": oracle.random((5, 5), "float64", 3), "b": oracle.random((6, 6), "float64", 4)}

    def loss(function):
        return lambda Xs: sum(jnp.sum(weights[key] * value**2) for key, value in function(Xs).items())

    def ours(Xs):
        return vb.batched_gram(Xs, transpose={"a": False, "b": True}, alpha={"a": 2.0, "b": -1.0}, beta=0.5, Cs=Cs)

    def plain(Xs):
        return {"a": 2 * Xs["a"] @ Xs["a"].T + 0.5 * Cs["a"], "b": -Xs["b"].T @ Xs["b"] + 0.5 * Cs["b"]}

    def compare(f, g):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), f, g)

    compare(ours(Xs), plain(Xs))
    compare(*(jax.jit(jax.grad(loss(function)))(Xs) for function in (ours, plain)))
    compare(*(jax.jit(lambda Xs, f=f: jax.jvp(jax.grad(loss(f)), (Xs,), (Xs,))[1])(Xs) for f in (ours, plain)))


def test_kernels_are_told_that_results_are_symmetric_and_operands_are_passed_once():
    call = jax.make_jaxpr(vb.batched_gram)([jnp.ones((3, 4)), jnp.ones((2, 5, 4))])
    (equation,) = [eqn for eqn in call.eqns if eqn.primitive.name == "batched_matmul"]
    assert [term.symmetric for term in equation.params["batched"].terms] == [True, True]
    assert len(equation.invars) == 2


def test_flags_of_numpy():
    x = [jnp.ones((2, 3))]
    assert vb.batched_gram(x, transpose=np.True_)[0].shape == (3, 3)
    assert vb.batched_matmul_sum(x, x, [0], transpose_b=np.True_, symmetric=np.True_)[0].shape == (2, 2)


def test_errors_name_the_matrix():
    with pytest.raises(ValueError, match=r"^batched_gram: Xs\['w'\] is \(3,\): .*rank 2"):
        vb.batched_gram({"w": jnp.ones(3)})
    with pytest.raises(TypeError, match=r"^batched_gram: Xs\[1\] must be an array"):
        vb.batched_gram([jnp.ones((2, 3)), "x"])
    with pytest.raises(ValueError, match=r"^batched_gram: Cs\[0\] is \(2, 3\) but result\[0\] is \(2, 2\)"):
        vb.batched_gram([jnp.ones((2, 3))], Cs=[jnp.ones((2, 3))], beta=1)
    with pytest.raises(ValueError, match=r"^batched_gram: beta must be the number 0 where there is no C"):
        vb.batched_gram([jnp.ones((2, 3))], beta=1)
    with pytest.raises(TypeError, match=r"^batched_gram: transpose must hold Python bools"):
        vb.batched_gram([jnp.ones((2, 3))], transpose=[1])
