"""batched_gemm: derivatives, transposition and vmap against jnp."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gemm_operands import operands, small
from slow_cases import slow_except

import jax_vbgemm as vb


def test_nan_in_c_under_a_traced_zero_beta_stays_out_of_derivatives():
    """Derivatives that do not involve beta; the derivative with respect to beta is C's NaN, correctly."""
    a, b, c = oracle.random((3, 4), "float64", 1), oracle.random((4, 5), "float64", 2), jnp.full((3, 5), jnp.nan)

    def f(beta, a, c):
        return vb.batched_gemm([a], [b], [c], beta=beta, activation="tanh")[0]

    def derivatives(beta, c):
        tangent = jax.jvp(functools.partial(f, beta), (a, c), (a, jnp.ones_like(c)))
        hessian = jax.hessian(lambda a, c: f(beta, a, c).sum(), (0, 1))(a, c)
        linear = jax.linearize(functools.partial(f, beta), a, c)[1](a, jnp.ones_like(c))
        return tangent, hessian, linear

    ours = jax.jit(derivatives)(jnp.float64(0), c)
    theirs = jax.jit(derivatives)(jnp.float64(0), jnp.zeros_like(c))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


def test_linear_transpose():
    As, Bs, Cs, bias = operands()
    alpha, beta = [0.5, -1.0, 2.0, 3.0, 0.0], jnp.asarray([1.0, 0.25, 0.0, -2.0, 1.5])

    def f(As, Cs, bias):
        return vb.batched_gemm(As, Bs, Cs, alpha=alpha, beta=beta, bias=bias)

    ours = jax.jit(jax.linear_transpose(f, As, Cs, bias))(Cs)
    As, Bs, Cs, bias = jax.device_get((As, Bs, Cs, bias))
    beta = np.asarray(beta)
    theirs = ([al * c @ b.T for al, b, c in zip(alpha, Bs, Cs, strict=True)],
              [be * c for be, c in zip(beta, Cs, strict=True)], [c.sum(0) for c in Cs])  # fmt: skip
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-10)
    with pytest.raises(NotImplementedError, match="not linear in its activation 'relu'"):
        jax.linear_transpose(lambda As: vb.batched_gemm(As, Bs, activation="relu"), As)(Cs)
    with pytest.raises(NotImplementedError, match="not linear in its alpha or beta"):
        jax.linear_transpose(lambda alpha: vb.batched_gemm(As, Bs, alpha=alpha), jnp.float64(1))(Cs)


@pytest.mark.parametrize("activation", slow_except([None, "tanh", "gelu", "silu", "sigmoid", "relu"], ["silu"]))
def test_derivatives_in_everything(activation):
    As, Bs, Cs, bias = small()

    def f(As, Bs, Cs, alpha, beta, bias):
        return vb.batched_gemm(As, Bs, Cs, alpha=alpha, beta=beta, bias=bias, activation=activation)

    args = (As, Bs, Cs, jnp.asarray([0.7, -1.2]), [jnp.asarray(0.4), jnp.asarray(1.5)], bias)
    oracle.check_grads(f, args, order=2, modes=["fwd", "rev"], atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_derivatives_of_complex():
    As, Bs, Cs, bias = operands("complex128", sizes=[(3, 4, 2)])
    f = functools.partial(vb.batched_gemm, alpha=1 + 1j, beta=0.5j)
    oracle.check_grads(
        lambda As, Bs, Cs, bias: f(As, Bs, Cs, bias=bias), (As, Bs, Cs, bias), order=2, modes=["fwd", "rev"]
    )


def test_derivative_with_respect_to_beta_at_zero():
    As, Bs, Cs, _ = small()

    def f(beta):
        return sum(c.sum() for c in vb.batched_gemm(As, Bs, Cs, beta=beta))

    expected = sum(float(np.sum(c)) for c in Cs)
    np.testing.assert_allclose(
        jax.jit(lambda beta: (jax.grad(f)(beta), jax.jacfwd(f)(beta)))(0.0), expected, rtol=1e-12
    )


def test_a_gradient_with_its_forward_is_two_calls():
    As, Bs, Cs, bias = small()

    def f(As, Bs, Cs, bias):
        return sum(c.sum() for c in vb.batched_gemm(As, Bs, Cs, alpha=2, beta=3, bias=bias, activation="gelu"))

    text = jax.jit(jax.value_and_grad(f, (0, 1, 2, 3))).lower(As, Bs, Cs, bias).as_text()
    assert text.count("custom_call @vbgemm_v2") == 2
    assert "dot_general" not in text
    assert jax.jit(f).lower(As, Bs, Cs, bias).as_text().count("custom_call @vbgemm_v2") == 1


@pytest.mark.parametrize("activation", slow_except([None, "relu", "gelu"], ["gelu"]))
@pytest.mark.parametrize("dtype", slow_except(["bfloat16", "float16"], ["bfloat16"]))
def test_gradients_of_16_bit_products_are_16_bit_products(dtype, activation):
    """As in XLA: sums before an epilogue have the accumulator's dtype, but their cotangents have the result's dtype."""
    As, Bs, Cs, bias = operands(dtype)

    def f(As, Bs, bias, weights):
        results = vb.batched_gemm(As, Bs, alpha=0.5, bias=bias, activation=activation)
        return sum(jnp.sum(c.astype(weights[0].dtype) * x) for c, x in zip(results, weights, strict=True))

    gradient = jax.grad(f, (0, 1, 2))
    jaxpr = jax.make_jaxpr(gradient)(As, Bs, bias, Cs)
    calls = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "batched_matmul"]
    factors = [
        c.invars[i].aval.dtype for c in calls for term in c.params["batched"].terms for i in (term.lhs, term.rhs)
    ]
    assert len(calls) == 2
    assert set(factors) == {jnp.dtype(dtype)}

    gradient = jax.jit(gradient)
    expected = gradient(*jax.tree.map(oracle.wide, (As, Bs, bias, Cs)))
    tolerance = 20 * oracle.ROUNDING[dtype]
    for found, right in zip(jax.tree.leaves(gradient(As, Bs, bias, Cs)), jax.tree.leaves(expected), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(
            oracle.wide(found), right, rtol=tolerance, atol=tolerance * jnp.max(jnp.abs(right), initial=0)
        )


def test_a_relu_is_differentiated_from_its_result():
    As, Bs, _, bias = small()

    def f(As, Bs, bias):
        return sum(c.sum() for c in vb.batched_gemm(As, Bs, bias=bias, activation="relu"))

    forward, backward = (
        eqn for eqn in jax.make_jaxpr(jax.grad(f, (0, 1)))(As, Bs, bias).eqns if eqn.primitive.name == "batched_matmul"
    )
    assert all(epilogue.activation == "relu" for epilogue in forward.params["batched"].epilogues)
    assert not backward.params["batched"].epilogues


@pytest.mark.parametrize("alpha", [1e-4, jnp.float32(1e-4)])
def test_a_relu_has_a_slope_where_its_result_rounds_to_zero(alpha):
    """As an epilogue computes in float32: 1e-4 * 1e-4 is positive there, and 0 in float16."""
    b = [jnp.ones((1, 1), "float16")]
    gradient = jax.grad(lambda a: vb.batched_gemm([a], b, alpha=alpha, activation="relu")[0].sum() * 1e4)
    values = [gradient(jnp.full((1, 1), x, "float16")).item() for x in (1e-4, -1e-4, np.nan)]
    np.testing.assert_allclose(values, [1, 0, 0], rtol=1e-3)


@pytest.mark.parametrize("mapped", slow_except(["A", "C", "bias", "alpha", "beta", "all"], ["A", "beta"]))
def test_vmap(mapped):
    As, Bs, Cs, bias = small()
    args = {"A": As, "B": Bs, "C": Cs, "bias": bias, "alpha": jnp.asarray(2.0), "beta": jnp.asarray([0.5, 0.0])}
    names = list(args) if mapped == "all" else [mapped]
    axes = {name: 0 if name in names else None for name in args}
    stack = lambda x: jnp.stack([x, 2 * x, -x])  # noqa: E731
    args = {name: jax.tree.map(stack, value) if name in names else value for name, value in args.items()}

    def f(args):
        return vb.batched_gemm(
            args["A"],
            args["B"],
            args["C"],
            alpha=args["alpha"],
            beta=args["beta"],
            bias=args["bias"],
            activation="tanh",
        )

    def take(name, value, i):
        return jax.tree.map(lambda x: x[i], value) if name in names else value

    ours = jax.jit(jax.vmap(f, in_axes=(axes,)))(args)
    alone = jax.jit(f)
    for i in range(3):
        single = alone({name: take(name, value, i) for name, value in args.items()})
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), [c[i] for c in ours], single)


@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("first", slow_except([0, 1, 2, 3], [0]))
def test_second_derivatives_where_a_traced_beta_is_zero(outer, first):
    """A gate that starts at 0 has no second derivative of its own, but mixed ones."""
    x, w, c = (oracle.random((2, 2), "float64", seed) for seed in (1, 2, 3))

    def loss(multiply):
        return lambda beta, x, w, c: jnp.sum(multiply(beta, x, w, c) ** 2 * jnp.arange(4.0).reshape(2, 2))

    ours = loss(lambda beta, x, w, c: vb.batched_gemm([x], [w], [c], beta=beta)[0])
    truth = loss(lambda beta, x, w, c: x @ w + beta * c)
    arguments = (jnp.float64(0), x, w, c)
    of_all = [jax.jit(outer(jax.grad(f, first), (0, 1, 2, 3)))(*arguments) for f in (ours, truth)]
    for found, expected in zip(*of_all, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
