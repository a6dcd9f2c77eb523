"""batched_gemm: alpha, beta, bias and activation against jnp."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from gemm_operands import operands, small, truth
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import FUNCTIONS

REAL = ["float32", "float64", "bfloat16", "float16"]


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
def test_activations(dtype):
    As, Bs, Cs, bias = operands(dtype)

    @jax.jit
    def results(As, Bs, Cs, bias):
        run = functools.partial(vb.batched_gemm, As, Bs, Cs, alpha=2, beta=0.5, bias=bias)
        return {name: run(activation=name) for name in FUNCTIONS}

    for activation, ours in results(As, Bs, Cs, bias).items():
        assert_close(ours, truth(As, Bs, Cs, [2.0] * 5, [0.5] * 5, bias, activation))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activations_at_extremes(dtype):
    x = np.array([[-np.inf, -1e30, -90.0, -5.0, -1e-8, 0.0, 1e-8, 5.0, 90.0, 1e30, np.inf, np.nan]], dtype)
    zeros = [np.zeros((1, 1), dtype)], [np.zeros((1, 12), dtype)]

    @jax.jit
    def results(x):
        ours = {name: vb.batched_gemm(*zeros, [x], beta=1, activation=name)[0] for name in FUNCTIONS}
        return ours, {name: function(x.astype("float64")) for name, function in FUNCTIONS.items()}

    rtol, atol = (2e-6, 5e-7) if dtype == "float32" else (1e-14, 1e-15)  # gelu subtracts numbers near 1
    ours, expected = results(x)
    for name in FUNCTIONS:
        np.testing.assert_allclose(np.float64(ours[name]), expected[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("dtype", REAL)
def test_relu_of_negative_zero_is_zero_as_in_jax(dtype):
    As, Bs = [jnp.zeros((2, 3), dtype)], [jnp.ones((3, 20), dtype)]
    (sums,) = vb.batched_gemm(As, Bs, alpha=-1, implementation="kernel")
    assert np.signbit(sums).all()
    (ours,) = vb.batched_gemm(As, Bs, alpha=-1, activation="relu", implementation="kernel")
    assert not np.signbit(ours).any()
    assert not np.signbit(jax.nn.relu(sums)).any()


@pytest.mark.parametrize("beta", [0, 0.0, jnp.float64(0.0)], ids=["int", "float", "traced"])
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_a_beta_of_zero_does_not_read_c(beta, dtype):
    As, Bs, Cs, _ = operands(dtype)
    poison = [np.full_like(c, np.nan) for c in Cs]
    ours = jax.jit(lambda As, Bs, Cs, beta: vb.batched_gemm(As, Bs, Cs, beta=beta))(As, Bs, poison, beta)
    assert_close(ours, truth(As, Bs, None, [1.0] * 5, [0.0] * 5, None, None))


def test_traced_beta_per_problem_reads_only_the_cs_it_needs():
    As, Bs, Cs, _ = operands()
    Cs[0], Cs[2] = jnp.full_like(Cs[0], jnp.nan), jnp.full_like(Cs[2], jnp.inf)
    beta = [0.0, 1.0, 0.0, 2.0, -1.0]
    ours = jax.jit(lambda beta: vb.batched_gemm(As, Bs, Cs, beta=beta))(jnp.asarray(beta))
    assert_close(ours, truth(As, Bs, Cs, [1.0] * 5, beta, None, None))


@pytest.mark.parametrize("beta", [np.float32(0), np.int64(0), np.array(0.0), np.zeros(1), [np.float64(0)], False])
def test_a_numpy_zero_is_a_number_too(beta):
    As, Bs, Cs, _ = small()
    (ours,) = vb.batched_gemm(As[:1], Bs[:1], beta=beta)
    np.testing.assert_allclose(ours, As[0] @ Bs[0], atol=1e-12)
    jaxpr = str(jax.make_jaxpr(lambda c: vb.batched_gemm(As[:1], Bs[:1], [c], beta=beta))(Cs[0]))
    assert "source=None" in jaxpr or "epilogues=()" in jaxpr


def test_scalars_in_every_form():
    As, Bs, Cs, _ = operands()
    alpha = [0.5, 2.0, -1.0, 3.0, 1.0]
    forms = [alpha, tuple(alpha), np.array(alpha), jnp.asarray(alpha), [jnp.asarray(x) for x in alpha],
             [np.float32(x) for x in alpha], [jnp.float32(alpha[0]), *alpha[1:]]]  # fmt: skip
    forms = [list(form) if isinstance(form, tuple) else form for form in forms]
    for ours in jax.jit(lambda As, Bs: [vb.batched_gemm(As, Bs, alpha=form) for form in forms])(As, Bs):
        assert_close(ours, truth(As, Bs, None, alpha, [0] * 5, None, None))
    vector = jnp.asarray([7.0, *alpha, -3.0])
    for view, expected in ((vb.View(vector, (5,), offset=1), alpha), (vb.View(vector, (), offset=6), [-3.0] * 5)):
        ours = jax.jit(lambda As, Bs, view: vb.batched_gemm(As, Bs, alpha=view))(As, Bs, view)
        assert_close(ours, truth(As, Bs, None, expected, [0] * 5, None, None))
    tree = vb.batched_gemm({"x": As[0]}, {"x": Bs[0]}, {"x": Cs[0]}, alpha={"x": 2}, beta={"x": jnp.float64(0.5)})
    assert_close([tree["x"]], truth(As[:1], Bs[:1], Cs[:1], [2.0], [0.5], None, None))


def test_complex_scalars():
    As, Bs, Cs, _ = operands("complex64")
    alpha, beta = 1 - 2j, [0.5j, 1.0, 2j, 0.0, 1.0 + 1j]
    ours = vb.batched_gemm(As, Bs, Cs, alpha=alpha, beta=beta)
    assert_close(ours, truth(As, Bs, Cs, [alpha] * 5, beta, None, None))
    ours = jax.jit(vb.batched_gemm)(As, Bs, Cs, alpha=jnp.asarray(alpha), beta=jnp.asarray(beta))
    assert_close(ours, truth(As, Bs, Cs, [alpha] * 5, beta, None, None))


@pytest.mark.parametrize("shared", [False, True])
def test_bias_shapes_and_batches(shared):
    shapes = (), (1,), (6,), (1, 6), (4, 1), (4, 6), (3, 1, 6), (3, 4, 6), (2, 1, 1, 1), (2, 3, 4, 6)
    a, b = oracle.random((2, 3, 4, 5), "float64"), oracle.random((5, 6) if shared else (3, 5, 6), "float64", 1)
    biases, c = [oracle.random(shape, "float64", 2) for shape in shapes], oracle.random((2, 3, 4, 6), "float64", 3)

    @jax.jit
    def results(a, b, c, biases):
        return [vb.batched_gemm([a], [b], [c], beta=2, bias=[bias])[0] for bias in biases]

    for ours, bias in zip(results(a, b, c, biases), biases, strict=True):
        expected = np.asarray(a) @ np.asarray(b) + 2 * np.asarray(c) + np.asarray(bias)
        np.testing.assert_allclose(ours, expected, rtol=1e-13, err_msg=str(bias.shape))


def test_bias_of_some():
    As, Bs, _, bias = operands()
    bias = [bias[0], None, bias[2], None, None]
    assert_close(vb.batched_gemm(As, Bs, bias=bias), truth(As, Bs, None, [1.0] * 5, [0] * 5, bias, None))


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


def test_integer_results_are_exact():
    A, B, C = [jnp.full((2, 2), 1)], [jnp.eye(2, dtype=int)], [jnp.full((2, 2), 1)]
    for number in (2**53 + 1, -(2**63), np.int64(2**53 + 1), np.array([2**53 + 1]), jnp.asarray(2**53 + 1)):
        expected = int(np.reshape(number, -1)[0])
        np.testing.assert_array_equal(vb.batched_gemm(A, B, alpha=number)[0], np.full((2, 2), expected))
        np.testing.assert_array_equal(vb.batched_gemm(A, B, C, alpha=0, beta=number)[0], np.full((2, 2), expected))


@pytest.mark.parametrize(
    ("traced", "dtype", "implementation"),
    slow_except(
        itertools.product([False, True], oracle.DTYPES, ["kernel", "xla"]),
        [(traced, dtype, "kernel") for traced in (False, True) for dtype in ("float32", "bfloat16", "complex64")]
        + [(False, "float32", "xla"), (True, "complex64", "xla")],
    ),
)
def test_an_alpha_of_0_leaves_the_product_out(dtype, implementation, traced):
    """As in BLAS, NaN and Inf in the product then do not reach the result."""
    As = [np.full((9, 7), value, jnp.dtype(dtype)) for value in (np.nan, np.inf, 1)]
    Bs, Cs = [np.ones((7, 5), jnp.dtype(dtype))] * 3, [oracle.random((9, 5), dtype)] * 3
    bias = [np.ones(5, jnp.dtype(dtype))] * 3
    run = functools.partial(vb.batched_gemm, implementation=implementation)

    def results(As, Bs, Cs, alpha):
        return run(As, Bs, Cs, alpha=alpha, beta=1), run(As, Bs, Cs, alpha=alpha, beta=0, bias=bias)

    if traced:
        found = jax.jit(results)(As, Bs, Cs, np.array([0.0, 0.0, 2.0]))
    else:
        found = jax.jit(functools.partial(results, alpha=[0, 0, 2]))(As, Bs, Cs)
    for ours, rest in zip(found, (oracle.wide(Cs[0]), np.ones((9, 5))), strict=True):
        assert_close(ours, [rest, rest, 14 + rest])


def test_functions_as_activations():
    """Functions that correspond to names run in the kernel; XLA applies other functions after it."""
    As, Bs, Cs, bias = operands("float32")
    run = functools.partial(vb.batched_gemm, As, Bs, Cs, beta=0.5, bias=bias)
    pairs = [*FUNCTIONS.items(), ("gelu", functools.partial(jax.nn.gelu, approximate=True))]

    @jax.jit
    def results():
        by_name = [(run(activation=function), run(activation=name)) for name, function in pairs]
        return [*by_name, (run(activation=jax.nn.softplus), [jax.nn.softplus(c) for c in run()])]

    for ours, expected in results():
        assert_close(ours, map(oracle.wide, expected))
    for _, function in pairs:
        assert "erf" not in str(jax.make_jaxpr(lambda f=function: run(activation=f))())
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


def test_an_alpha_that_rounds_to_zero_ignores_the_product():
    a = jnp.full((4, 32), jnp.nan, "float32")
    (got,) = vb.batched_gemm([a], [jnp.ones((32, 48), "float32")], alpha=1e-60)
    np.testing.assert_array_equal(got, jnp.zeros((4, 48)))
