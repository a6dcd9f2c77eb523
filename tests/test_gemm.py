"""batched_gemm: alpha, beta, bias and activation against jnp, in values and derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.reference import ACTIVATIONS

SIZES = [(19, 33, 7), (1, 40, 65), (64, 1, 3), (5, 6, 0), (130, 17, 20)]
REAL = ["float32", "float64", "bfloat16", "float16"]


def operands(dtype="float64", sizes=SIZES):
    As = [oracle.random((m, k), dtype, 1) for m, _, k in sizes]
    Bs = [oracle.random((k, n), dtype, 2) for _, n, k in sizes]
    Cs = [oracle.random((m, n), dtype, 3) for m, n, _ in sizes]
    bias = [oracle.random((n,), dtype, 4) for _, n, _ in sizes]
    return As, Bs, Cs, bias


def truth(As, Bs, Cs, alpha, beta, bias, activation):
    """In float64 or complex128, whatever the operands are."""
    results = []
    for i, (a, b) in enumerate(zip(As, Bs, strict=True)):
        value = alpha[i] * (oracle.wide(a) @ oracle.wide(b))
        if Cs is not None and beta[i] != 0:
            value = value + beta[i] * oracle.wide(Cs[i])
        if bias is not None and bias[i] is not None:
            value = value + oracle.wide(bias[i])
        results.append(np.asarray(ACTIVATIONS[activation](jnp.asarray(value))) if activation else value)
    return results


def assert_close(ours, expected, scale=40):
    for c, t in zip(ours, expected, strict=True):
        tolerance = scale * oracle.ROUNDING[c.dtype.name]
        np.testing.assert_allclose(oracle.wide(c), t, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("traced", [False, True])
def test_alpha_beta_bias(dtype, traced):
    As, Bs, Cs, bias = operands(dtype)
    alpha, beta = [0.5, -1.0, 2.0, 3.0, 0.0], [1.0, 0.25, 0.0, -2.0, 1.5]
    scalars = (jnp.asarray(alpha), jnp.asarray(beta)) if traced else (alpha, beta)
    f = jax.jit(lambda As, Bs, Cs, bias, *s: vb.batched_gemm(As, Bs, Cs, alpha=s[0], beta=s[1], bias=bias))
    if not traced:
        f = lambda *args: vb.batched_gemm(*args[:3], alpha=args[4], beta=args[5], bias=args[3])  # noqa: E731
    ours = f(As, Bs, Cs, bias, *scalars)
    assert all(c.dtype == dtype for c in ours)
    assert_close(ours, truth(As, Bs, Cs, alpha, beta, bias, None))


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations(dtype, activation):
    As, Bs, Cs, bias = operands(dtype)
    ours = jax.jit(functools.partial(vb.batched_gemm, alpha=2, beta=0.5, activation=activation))(As, Bs, Cs, bias=bias)
    assert_close(ours, truth(As, Bs, Cs, [2.0] * 5, [0.5] * 5, bias, activation))


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activations_at_extremes(activation, dtype):
    x = jnp.asarray([[-np.inf, -1e30, -90.0, -5.0, -1e-8, 0.0, 1e-8, 5.0, 90.0, 1e30, np.inf, np.nan]], dtype)
    (ours,) = vb.batched_gemm(
        [jnp.zeros((1, 1), dtype)], [jnp.zeros((1, 12), dtype)], [x], beta=1, activation=activation
    )
    expected = np.asarray(ACTIVATIONS[activation](x.astype("float64")))
    rtol, atol = (2e-6, 5e-7) if dtype == "float32" else (1e-14, 1e-15)  # gelu subtracts numbers near 1
    np.testing.assert_allclose(np.asarray(ours, np.float64), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("beta", [0, 0.0, jnp.float64(0.0)], ids=["int", "float", "traced"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_a_beta_of_zero_does_not_read_c(beta, dtype):
    As, Bs, Cs, _ = operands(dtype)
    poison = [jnp.full_like(c, jnp.nan) for c in Cs]
    ours = jax.jit(lambda As, Bs, Cs, beta: vb.batched_gemm(As, Bs, Cs, beta=beta))(As, Bs, poison, beta)
    assert_close(ours, truth(As, Bs, None, [1.0] * 5, [0.0] * 5, None, None))


def test_traced_beta_per_problem_reads_only_the_cs_it_needs():
    As, Bs, Cs, _ = operands()
    Cs[0], Cs[2] = jnp.full_like(Cs[0], jnp.nan), jnp.full_like(Cs[2], jnp.inf)
    beta = [0.0, 1.0, 0.0, 2.0, -1.0]
    ours = jax.jit(lambda beta: vb.batched_gemm(As, Bs, Cs, beta=beta))(jnp.asarray(beta))
    assert_close(ours, truth(As, Bs, Cs, [1.0] * 5, beta, None, None))


def test_nan_in_c_under_a_traced_zero_beta_stays_out_of_derivatives():
    """Those in which beta itself doesn't move: with respect to beta they are C's NaN, rightly."""
    a, b, c = oracle.random((3, 4), "float64", 1), oracle.random((4, 5), "float64", 2), jnp.full((3, 5), jnp.nan)

    def f(beta, a, c):
        return vb.batched_gemm([a], [b], [c], beta=beta, activation="tanh")[0]

    def derivatives(beta, c):
        tangent = jax.jvp(functools.partial(f, beta), (a, c), (a, jnp.ones_like(c)))
        hessian = jax.hessian(lambda a, c: f(beta, a, c).sum(), (0, 1))(a, c)
        linear = jax.linearize(functools.partial(f, beta), a, c)[1](a, jnp.ones_like(c))
        return tangent, hessian, linear

    ours = jax.jit(derivatives)(jnp.float64(0), c)
    theirs = derivatives(jnp.float64(0), jnp.zeros_like(c))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-12)


@pytest.mark.parametrize("beta", [np.float32(0), np.int64(0), np.array(0.0), np.zeros(1), [np.float64(0)], False])
def test_a_numpy_zero_is_a_number_too(beta):
    As, Bs, Cs, _ = small()
    (ours,) = vb.batched_gemm(As[:1], Bs[:1], beta=beta)
    np.testing.assert_allclose(ours, As[0] @ Bs[0], atol=1e-12)
    jaxpr = str(jax.make_jaxpr(lambda c: vb.batched_gemm(As[:1], Bs[:1], [c], beta=beta))(Cs[0]))
    assert "source=None" in jaxpr or "epilogues=()" in jaxpr


def test_linear_transpose():
    As, Bs, Cs, bias = operands()
    alpha, beta = [0.5, -1.0, 2.0, 3.0, 0.0], jnp.asarray([1.0, 0.25, 0.0, -2.0, 1.5])

    def f(As, Cs, bias):
        return vb.batched_gemm(As, Bs, Cs, alpha=alpha, beta=beta, bias=bias)

    ours = jax.linear_transpose(f, As, Cs, bias)(Cs)
    theirs = ([al * c @ b.T for al, b, c in zip(alpha, Bs, Cs, strict=True)],
              [be * c for be, c in zip(beta, Cs, strict=True)], [c.sum(0) for c in Cs])  # fmt: skip
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-10)
    with pytest.raises(NotImplementedError, match="not linear in its activation 'relu'"):
        jax.linear_transpose(lambda As: vb.batched_gemm(As, Bs, activation="relu"), As)(Cs)
    with pytest.raises(NotImplementedError, match="not linear in its alpha or beta"):
        jax.linear_transpose(lambda alpha: vb.batched_gemm(As, Bs, alpha=alpha), jnp.float64(1))(Cs)


def test_scalars_in_every_form():
    As, Bs, Cs, _ = operands()
    alpha = [0.5, 2.0, -1.0, 3.0, 1.0]
    forms = [alpha, tuple(alpha), np.array(alpha), jnp.asarray(alpha), [jnp.asarray(x) for x in alpha],
             [np.float32(x) for x in alpha], [jnp.float32(alpha[0]), *alpha[1:]]]  # fmt: skip
    for form in forms:
        form = list(form) if isinstance(form, tuple) else form
        assert_close(vb.batched_gemm(As, Bs, alpha=form), truth(As, Bs, None, alpha, [0] * 5, None, None))
    tree = vb.batched_gemm({"x": As[0]}, {"x": Bs[0]}, {"x": Cs[0]}, alpha={"x": 2}, beta={"x": jnp.float64(0.5)})
    assert_close([tree["x"]], truth(As[:1], Bs[:1], Cs[:1], [2.0], [0.5], None, None))


def test_complex_scalars():
    As, Bs, Cs, _ = operands("complex64")
    alpha, beta = 1 - 2j, [0.5j, 1.0, 2j, 0.0, 1.0 + 1j]
    ours = vb.batched_gemm(As, Bs, Cs, alpha=alpha, beta=beta)
    assert_close(ours, truth(As, Bs, Cs, [alpha] * 5, beta, None, None))
    ours = jax.jit(vb.batched_gemm)(As, Bs, Cs, alpha=jnp.asarray(alpha), beta=jnp.asarray(beta))
    assert_close(ours, truth(As, Bs, Cs, [alpha] * 5, beta, None, None))


@pytest.mark.parametrize(
    "shape", [(), (1,), (6,), (1, 6), (4, 1), (4, 6), (3, 1, 6), (3, 4, 6), (2, 1, 1, 1), (2, 3, 4, 6)]
)
@pytest.mark.parametrize("shared", [False, True])
def test_bias_shapes_and_batches(shape, shared):
    a, b = oracle.random((2, 3, 4, 5), "float64"), oracle.random((5, 6) if shared else (3, 5, 6), "float64", 1)
    bias, c = oracle.random(shape, "float64", 2), oracle.random((2, 3, 4, 6), "float64", 3)
    (ours,) = vb.batched_gemm([a], [b], [c], beta=2, bias=[bias])
    np.testing.assert_allclose(ours, np.asarray(a) @ np.asarray(b) + 2 * np.asarray(c) + np.asarray(bias), rtol=1e-13)


def test_bias_of_some():
    As, Bs, _, bias = operands()
    bias = [bias[0], None, bias[2], None, None]
    assert_close(vb.batched_gemm(As, Bs, bias=bias), truth(As, Bs, None, [1.0] * 5, [0] * 5, bias, None))


def small():
    return operands(sizes=[(3, 4, 2), (1, 5, 3)])


@pytest.mark.parametrize("activation", [None, "tanh", "gelu", "silu", "sigmoid", "relu"])
def test_derivatives_in_everything(activation):
    As, Bs, Cs, bias = small()

    def f(As, Bs, Cs, alpha, beta, bias):
        return vb.batched_gemm(As, Bs, Cs, alpha=alpha, beta=beta, bias=bias, activation=activation)

    args = (As, Bs, Cs, jnp.asarray([0.7, -1.2]), [jnp.asarray(0.4), jnp.asarray(1.5)], bias)
    check_grads(f, args, order=2, modes=["fwd", "rev"], atol=1e-3, rtol=1e-3)


def test_derivatives_of_complex():
    As, Bs, Cs, bias = operands("complex128", sizes=[(3, 4, 2)])
    f = functools.partial(vb.batched_gemm, alpha=1 + 1j, beta=0.5j)
    check_grads(lambda As, Bs, Cs, bias: f(As, Bs, Cs, bias=bias), (As, Bs, Cs, bias), order=2, modes=["fwd", "rev"])


def test_derivative_with_respect_to_beta_at_zero():
    As, Bs, Cs, _ = small()

    def f(beta):
        return sum(c.sum() for c in vb.batched_gemm(As, Bs, Cs, beta=beta))

    np.testing.assert_allclose(jax.grad(f)(0.0), sum(float(c.sum()) for c in Cs), rtol=1e-12)
    np.testing.assert_allclose(jax.jacfwd(f)(0.0), sum(float(c.sum()) for c in Cs), rtol=1e-12)


def test_a_gradient_with_its_forward_is_two_calls():
    As, Bs, Cs, bias = small()

    def f(As, Bs, Cs, bias):
        return sum(c.sum() for c in vb.batched_gemm(As, Bs, Cs, alpha=2, beta=3, bias=bias, activation="gelu"))

    text = jax.jit(jax.value_and_grad(f, (0, 1, 2, 3))).lower(As, Bs, Cs, bias).as_text()
    assert text.count("custom_call @vbgemm_v1") == 2
    assert "dot_general" not in text
    assert jax.jit(f).lower(As, Bs, Cs, bias).as_text().count("custom_call @vbgemm_v1") == 1


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_16_bit_products_are_16_bit_products(dtype, activation):
    """As XLA's are: the sums under an epilogue are wide, but what comes back to them has the result's dtype."""
    As, Bs, Cs, bias = operands(dtype)

    def f(As, Bs, bias, weights):
        results = vb.batched_gemm(As, Bs, alpha=0.5, bias=bias, activation=activation)
        return sum(jnp.sum(c.astype(weights[0].dtype) * x) for c, x in zip(results, weights, strict=True))

    gradient = jax.grad(f, (0, 1, 2))
    jaxpr = jax.make_jaxpr(gradient)(As, Bs, bias, Cs)
    calls = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "batched_matmul"]
    factors = [c.invars[i].aval.dtype for c in calls for term in c.params["terms"] for i in (term.lhs, term.rhs)]
    assert len(calls) == 2
    assert set(factors) == {jnp.dtype(dtype)}

    expected = gradient(*jax.tree.map(lambda x: jnp.asarray(oracle.wide(x)), (As, Bs, bias, Cs)))
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
    assert all(epilogue.activation == "relu" for epilogue in forward.params["epilogues"])
    assert not backward.params["epilogues"]


@pytest.mark.parametrize("mapped", ["A", "C", "bias", "alpha", "beta", "all"])
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

    ours = jax.vmap(f, in_axes=(axes,))(args)
    for i in range(3):
        single = f({name: take(name, value, i) for name, value in args.items()})
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), [c[i] for c in ours], single)


@given(st.lists(st.tuples(*[st.sampled_from([0, 1, 7, 16, 33])] * 3), max_size=4), st.booleans())
def test_odd_sizes(sizes, with_bias):
    As, Bs, Cs, bias = operands("float32", sizes)
    ours = vb.batched_gemm(As, Bs, Cs, alpha=0.5, beta=2, bias=bias if with_bias else None, activation="relu")
    count = len(sizes)
    assert_close(ours, truth(As, Bs, Cs, [0.5] * count, [2.0] * count, bias if with_bias else None, "relu"))


def test_c_in_place_when_donated():
    """The result is C's buffer: the compiled program aliases them and copies nothing."""
    As, Bs, Cs, _ = operands("float32", sizes=[(64, 48, 32), (33, 17, 9)])
    f = jax.jit(lambda As, Bs, Cs: vb.batched_gemm(As, Bs, Cs, alpha=2, beta=3), donate_argnums=2)
    compiled = f.lower(As, Bs, Cs).compile().as_text()
    assert "output_to_operand_aliasing" in compiled
    assert " copy(" not in compiled
    expected = truth(As, Bs, Cs, [2.0] * 2, [3.0] * 2, None, None)
    assert_close(f(As, Bs, [c.copy() for c in Cs]), expected)


def test_c_is_kept_when_it_is_not_donated():
    As, Bs, Cs, _ = operands("float32", sizes=[(64, 48, 32)])
    before = np.asarray(Cs[0]).copy()
    jax.block_until_ready(jax.jit(functools.partial(vb.batched_gemm, beta=3))(As, Bs, Cs))
    np.testing.assert_array_equal(Cs[0], before)


def test_c_that_is_also_an_operand():
    a = oracle.random((40, 40), "float64")
    for donate in ((), (0,)):
        f = jax.jit(lambda x: vb.batched_gemm([x, x], [x, x], [x, x], beta=[1, 2]), donate_argnums=donate)
        ours = f(a.copy())
        assert_close(ours, truth([a, a], [a, a], [a, a], [1.0] * 2, [1.0, 2.0], None, None))
    # Two values that XLA finds equal must not share a buffer that is written.
    f = jax.jit(lambda x: vb.batched_gemm([x + 1], [x + 1], [x + 1], beta=1))
    assert_close(f(a), truth([a + 1], [a + 1], [a + 1], [1.0], [1.0], None, None))


ERRORS = [
    ({"beta": 1}, None, "beta must be the number 0 where there is no C, but Cs is None"),
    ({"beta": jnp.float64(0)}, None, "beta must be the number 0"),
    ({"alpha": jnp.ones(3)}, None, r"alpha has shape \(3,\), but there are 2 problems"),
    ({"alpha": jnp.ones((2, 2))}, None, "alpha has shape"),
    ({"alpha": [1.0]}, None, "alpha must have the structure of As"),
    ({"alpha": [1.0, jnp.ones(2)]}, None, r"alpha\[1\] has shape \(2,\): it must be a number"),
    ({"alpha": 1j}, None, r"alpha\[0\] is complex, but result\[0\] is float64"),
    ({"activation": "elu"}, None, "activation must be None, a function, or one of 'relu'.*not 'elu'"),
    ({"bias": [jnp.ones(5), jnp.ones(5)]}, None, r"bias\[0\] is \(5,\) but result\[0\] is \(3, 4\): it must broadcast"),
    ({"beta": 1}, lambda Cs: [Cs[0], Cs[1].T], r"Cs\[1\] is \(5, 1\) but result\[1\] is \(1, 5\): it must have"),
    ({"beta": 1}, lambda Cs: Cs[:1], "Cs must have the structure of As"),
    ({"beta": 1}, lambda Cs: [c.astype("complex128") for c in Cs], r"Cs\[0\] is complex128, which does not promote"),
    ({"beta": 1}, lambda Cs: [Cs[0], Cs[1].astype("float32")], r"Cs\[1\] is float32, which does not promote"),
    ({}, lambda Cs: [Cs[0], Cs[1].T], r"Cs\[1\] is \(5, 1\) but result\[1\] is \(1, 5\): it must have"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "change", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors(options, change, message):
    As, Bs, Cs, _ = small()
    with pytest.raises(ValueError, match=message):
        vb.batched_gemm(As, Bs, change(Cs) if change else None, **options)


def test_integer_results_are_exact():
    A, B, C = [jnp.full((2, 2), 1)], [jnp.eye(2, dtype=int)], [jnp.full((2, 2), 1)]
    for number in (2**53 + 1, -(2**63), np.int64(2**53 + 1), np.array([2**53 + 1]), jnp.asarray(2**53 + 1)):
        expected = int(np.reshape(number, -1)[0])
        np.testing.assert_array_equal(vb.batched_gemm(A, B, alpha=number)[0], np.full((2, 2), expected))
        np.testing.assert_array_equal(vb.batched_gemm(A, B, C, alpha=0, beta=number)[0], np.full((2, 2), expected))


@pytest.mark.parametrize("number", [2**63, 10**400, -(2**63) - 1, 1e30, np.uint64(2**63)])
def test_integers_out_of_range(number):
    A, B = [jnp.full((2, 2), 1)], [jnp.eye(2, dtype=int)]
    with pytest.raises(ValueError, match=r"batched_gemm: alpha\[0\] is .*, but result\[0\] is int64: it must lie in"):
        vb.batched_gemm(A, B, alpha=number)
    with pytest.raises(ValueError, match=r"batched_gemm: beta\[0\] is .*, but result\[0\] is int64: it must lie in"):
        vb.batched_gemm(A, B, A, beta=number)
    As, Bs, Cs, _ = small()
    with pytest.raises(
        ValueError, match=r"beta\[1\] is an integer of 1329 bits, but result\[1\] is float64: it is beyond"
    ):
        vb.batched_gemm(As, Bs, Cs, beta=[1, 10**400])


@pytest.mark.parametrize("implementation", ["kernel", "xla"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
@pytest.mark.parametrize("traced", [False, True])
def test_an_alpha_of_0_leaves_the_product_out(dtype, implementation, traced):
    """As in BLAS: NaN and Inf in it are fine."""
    As = [jnp.full((9, 7), value, dtype) for value in (jnp.nan, jnp.inf, 1)]
    Bs, Cs = [jnp.ones((7, 5), dtype)] * 3, [oracle.random((9, 5), dtype)] * 3
    alpha = jnp.asarray([0.0, 0.0, 2.0]) if traced else [0, 0, 2]
    for beta, bias in ((1, None), (0, [jnp.ones(5, dtype)] * 3)):
        f = functools.partial(vb.batched_gemm, beta=beta, bias=bias, implementation=implementation)
        ours = jax.jit(lambda alpha, f=f: f(As, Bs, Cs, alpha=alpha))(alpha)
        rest = oracle.wide(Cs[0]) if beta else np.ones((9, 5))
        assert_close(ours, [rest, rest, 14 + rest])


def test_functions_as_activations():
    """The same as names, by the rule of the Flax layers; others follow the kernel."""
    As, Bs, Cs, bias = operands("float32")
    run = functools.partial(vb.batched_gemm, As, Bs, Cs, beta=0.5, bias=bias)
    for name, function in [*ACTIVATIONS.items(), ("gelu", functools.partial(jax.nn.gelu, approximate=True))]:
        assert_close(run(activation=function), [oracle.wide(c) for c in run(activation=name)])
        assert "erf" not in str(jax.make_jaxpr(lambda f=function: run(activation=f))())
    assert_close(run(activation=jax.nn.softplus), [oracle.wide(jax.nn.softplus(c)) for c in run()])
    A = [jnp.full((2, 2), -3)]
    np.testing.assert_array_equal(vb.batched_gemm(A, A, alpha=-1, activation=jax.nn.relu)[0], 0)
    with pytest.raises(TypeError, match="activation must be None, a function or a name, not 3"):
        run(activation=3)


@pytest.mark.parametrize("implementation", ["kernel", "xla"])
def test_debug_nans_outside_jit(implementation):
    a, b, z = jnp.ones((2, 3, 4)), jnp.ones((4, 5)), jnp.zeros(1)
    c = jnp.full((2, 3, 5), jnp.nan)
    run = functools.partial(vb.batched_gemm, [a], [b], implementation=implementation)
    with jax.debug_nans(True):
        np.testing.assert_array_equal(run([c], beta=z)[0], np.full((2, 3, 5), 4))
        with pytest.raises(FloatingPointError):
            run([c], beta=z + 1)


def test_integer_results_take_whole_numbers_alone():
    A, B = [jnp.full((2, 2), 3)], [jnp.eye(2, dtype=int)]
    np.testing.assert_array_equal(vb.batched_gemm(A, B, alpha=2.0)[0], np.full((2, 2), 6))
    for alpha in (0.5, jnp.float32(2)):
        with pytest.raises(ValueError, match=r"alpha\[0\] is .*, but result\[0\] is int64"):
            vb.batched_gemm(A, B, alpha=alpha)
    with pytest.raises(ValueError, match=r"activation='tanh', but result\[0\] is int64: it must be real and floating"):
        vb.batched_gemm(A, B, activation="tanh")


@pytest.mark.parametrize("options", [{"precision": "foo"}, {"preferred_element_type": "foo"}])
def test_an_option_is_not_blamed_on_a_leaf(options):
    for As, Bs, *_ in (small(), ([], [])):
        with pytest.raises((TypeError, ValueError), match=r"batched_gemm: (?!As).*foo"):
            vb.batched_gemm(As, Bs, **options)


def test_a_wrong_structure_is_told_without_the_arrays():
    As, Bs, _, _ = small()
    with pytest.raises(ValueError, match=r"bias must have the structure of As: As is a list but bias is an array$"):
        vb.batched_gemm(As, Bs, bias=jnp.ones(33))


@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_second_derivatives_where_a_traced_beta_is_zero(outer, first):
    """A gate that starts at 0 has no second derivative of its own, but mixed ones."""
    x, w, c = (oracle.random((2, 2), "float64", seed) for seed in (1, 2, 3))

    def loss(multiply):
        return lambda beta, x, w, c: jnp.sum(multiply(beta, x, w, c) ** 2 * jnp.arange(4.0).reshape(2, 2))

    ours = loss(lambda beta, x, w, c: vb.batched_gemm([x], [w], [c], beta=beta)[0])
    truth = loss(lambda beta, x, w, c: x @ w + beta * c)
    arguments = (jnp.float64(0), x, w, c)
    for second in range(4):
        found, expected = (outer(jax.grad(f, first), second)(*arguments) for f in (ours, truth))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_errors_name_the_leaf_as_the_user_would():
    As, Bs, Cs, _ = ({"w": leaves[0]} for leaves in small())
    for options, message in (
        ({"Cs": {"w": Cs["w"].T}, "beta": 1}, r"Cs\['w'\] is "),
        ({"bias": {"w": jnp.ones(7)}}, r"bias\['w'\] is "),
        ({"alpha": {"w": 1j}}, r"alpha\['w'\] is complex"),
    ):
        with pytest.raises(ValueError, match=message):
            vb.batched_gemm(As, Bs, **options)


def test_wrong_types():
    As, Bs, _, _ = small()
    with pytest.raises(TypeError, match=r"Cs\[1\] must be an array, but is 'x'"):
        vb.batched_gemm(As, Bs, [jnp.zeros((3, 4)), "x"])
    with pytest.raises(TypeError, match=r"alpha\[0\] must be a number, not 'x'"):
        vb.batched_gemm(As, Bs, alpha=np.array(["x", "y"], object))
    with pytest.raises(TypeError, match=r"alpha\[1\] must be a number, not 'x'"):
        vb.batched_gemm(As, Bs, alpha=[1.0, "x"])
    As, Bs, _, _ = operands("complex64", [(2, 2, 2)])
    with pytest.raises(ValueError, match=r"activation='relu', but result\[0\] is complex64: it must be real"):
        vb.batched_gemm(As, Bs, activation="relu")
