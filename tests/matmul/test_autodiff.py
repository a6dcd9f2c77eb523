"""Derivatives: any order, forward and reverse, and how many kernel calls they cost."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.ad_checkpoint import checkpoint_name
from slow_cases import slow_except

import jax_vbgemm as vb


def count_calls(function, *args):
    """Binds of the primitive, and dots and custom calls in the lowered program."""
    text = jax.jit(function).lower(*args).as_text()
    binds = str(jax.make_jaxpr(function)(*args)).count("batched_matmul[")
    return binds, text.count("dot_general"), text.count("custom_call @vbgemm")


def ragged(dtype="float64", transposes=((False, False), (True, False), (False, True), (True, True))):
    sizes = [(3, 4, 5), (1, 7, 2), (6, 2, 3), (5, 5, 1)]
    As = [
        oracle.random((k, m) if ta else (m, k), dtype, 1) for (m, n, k), (ta, tb) in zip(sizes, transposes, strict=True)
    ]
    Bs = [
        oracle.random((n, k) if tb else (k, n), dtype, 2) for (m, n, k), (ta, tb) in zip(sizes, transposes, strict=True)
    ]
    flags = {"transpose_a": [ta for ta, _ in transposes], "transpose_b": [tb for _, tb in transposes]}
    return As, Bs, functools.partial(vb.batched_matmul, **flags)


def loss(function):
    return lambda As, Bs: sum(jnp.sum(jnp.sin(c)).real for c in jax.tree.leaves(function(As, Bs)))


@pytest.mark.parametrize("dtype", slow_except(["float64", "complex128"], ["complex128"]))
def test_check_grads(dtype):
    As, Bs, f = ragged(dtype)
    oracle.check_grads(f, (As, Bs), order=2, modes=["fwd", "rev"])


def test_gradients_equal_those_of_jnp():
    As, Bs, f = ragged("float32")

    def plain(As, Bs):
        As = [jnp.swapaxes(a, 0, 1) if t else a for a, t in zip(As, f.keywords["transpose_a"], strict=True)]
        Bs = [jnp.swapaxes(b, 0, 1) if t else b for b, t in zip(Bs, f.keywords["transpose_b"], strict=True)]
        return [a @ b for a, b in zip(As, Bs, strict=True)]

    ours = jax.jit(jax.grad(loss(f), (0, 1)))(As, Bs)
    theirs = jax.jit(jax.grad(loss(plain), (0, 1)))(As, Bs)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), ours, theirs)


BROADCASTS = [
    ((2, 3, 4, 5), (5, 6)), ((4, 5), (2, 5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((1, 4, 5), (3, 5, 6)),
    ((3, 4, 5), (1, 1, 5, 6)),
    ((2, 1, 3, 1, 4, 5), (1, 3, 1, 2, 5, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("lhs", "rhs"), slow_except(BROADCASTS, BROADCASTS[4:5]))
@pytest.mark.parametrize("flags", [(False, False), pytest.param((True, True), marks=pytest.mark.slow)])
def test_gradients_of_broadcasts(lhs, rhs, flags):
    a, b = oracle.random(lhs, "float64", 1), oracle.random(rhs, "float64", 2)
    a = jnp.swapaxes(a, -1, -2) if flags[0] else a
    b = jnp.swapaxes(b, -1, -2) if flags[1] else b
    f = functools.partial(vb.batched_matmul, transpose_a=flags[0], transpose_b=flags[1])
    oracle.check_grads(f, ([a], [b]), order=2, modes=["fwd", "rev"])


def test_gradients_of_shared_operands_are_summed():
    x, ws = oracle.random((4, 5), "float64"), [oracle.random((5, n), "float64", n) for n in (2, 3, 7)]
    oracle.check_grads(lambda x, ws: vb.batched_matmul([x] * 3, ws), (x, ws), order=2, modes=["fwd", "rev"])
    oracle.check_grads(
        lambda x: vb.batched_matmul([x, x], [x.T, x], transpose_b=[False, True]), (x,), order=2, modes=["fwd", "rev"]
    )


def test_kernel_calls_of_derivatives():
    As, Bs, f = ragged("float32")
    scalar = loss(f)
    assert count_calls(f, As, Bs) == (1, 0, 1)
    assert count_calls(jax.value_and_grad(scalar, (0, 1)), As, Bs) == (2, 0, 2)
    assert count_calls(jax.value_and_grad(scalar, 0), As, Bs) == (2, 0, 2)
    assert count_calls(lambda As, Bs: jax.jvp(f, (As, Bs), (As, Bs)), As, Bs) == (2, 0, 2)

    def hessian_vector_product(As, Bs):
        return jax.jvp(jax.grad(scalar), (As, Bs), (As, Bs))

    assert count_calls(hessian_vector_product, As, Bs) == (4, 0, 4)


def test_members_without_a_tangent_cost_nothing():
    As, Bs, f = ragged("float32")

    def one(a):
        return sum(jnp.sum(c**2) for c in f([a, *As[1:]], Bs))

    text = jax.jit(jax.grad(one)).lower(As[0]).as_text()
    calls = [line for line in text.splitlines() if "custom_call @vbgemm" in line]
    assert len(calls) == 2
    # The backward call holds the one product of the one member: one descriptor constant, its cotangent and Bs[0].
    assert calls[1].split("(")[1].split(")")[0].count("%") == 3


def test_unused_results_are_not_computed_in_the_backward_pass():
    As, Bs, f = ragged("float32")
    jaxpr = jax.make_jaxpr(jax.grad(lambda As, Bs: jnp.sum(f(As, Bs)[1] ** 2), (0, 1)))(As, Bs)
    backward = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "batched_matmul"][-1]
    assert len(backward.outvars) == 2  # dA[1], dB[1]


@pytest.mark.parametrize("dtype", slow_except(["bfloat16", "float16"], ["bfloat16"]))
def test_cotangents_are_accumulated_wide(dtype):
    """4096 broadcast cotangents of one: a 16-bit sum would stop growing at 256 (bfloat16) or 2048 (float16)."""
    b = jnp.ones((4096, 1, 1), dtype)
    grad = jax.jit(jax.grad(lambda a: vb.batched_matmul([a], [b])[0].sum().astype("float32")))(jnp.ones((1, 1), dtype))
    assert grad.dtype == dtype
    assert float(grad[0, 0]) == 4096.0
    shared = [jnp.ones((1, 1), dtype)] * 300

    def total(a):
        return sum(c.sum().astype("float32") for c in vb.batched_matmul([a] * 300, shared))

    grad = jax.jit(jax.grad(total))(shared[0])
    assert abs(float(grad[0, 0]) - 300.0) <= 1.0


@pytest.mark.parametrize("preferred", ["float32", "bfloat16"])
def test_gradients_with_preferred_element_type(preferred):
    a, b = oracle.random((20, 30), "bfloat16"), oracle.random((30, 40), "bfloat16", 1)

    def f(a, b):
        return vb.batched_matmul([a], [b], preferred_element_type=preferred)[0].astype("float32").sum()

    da, db = jax.grad(f, (0, 1))(a, b)
    assert da.dtype == db.dtype == jnp.bfloat16
    np.testing.assert_allclose(oracle.wide(da), np.broadcast_to(oracle.wide(b).sum(1), (20, 30)), rtol=2e-2, atol=2e-2)


@pytest.mark.slow
def test_linearize_remat_and_jacobians():
    As, Bs, f = ragged("float64")
    scalar = loss(f)
    expected = jax.jit(jax.grad(scalar))(As, Bs)
    _, linear = jax.linearize(scalar, As, Bs)
    zero = jax.tree.map(jnp.zeros_like, Bs)
    np.testing.assert_allclose(
        linear(As, zero), sum(jnp.vdot(g, a) for g, a in zip(expected, As, strict=True)), rtol=1e-12
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-12),
        jax.jit(jax.grad(jax.checkpoint(scalar)))(As, Bs),
        expected,
    )
    forward, reverse = (jax.jit(jac(lambda a: f([a, *As[1:]], Bs)[0]))(As[0]) for jac in (jax.jacfwd, jax.jacrev))
    np.testing.assert_allclose(forward, reverse, rtol=1e-12)


def test_third_derivatives():
    a = oracle.random((3, 3), "float64")

    def cubic(a):
        (square,) = vb.batched_matmul([a], [a])
        (cube,) = vb.batched_matmul([square], [a], transpose_b=True)
        return cube.sum()

    def plain(a):
        return (a @ a @ a.T).sum()

    ours, theirs = (jax.jit(jax.jacfwd(jax.jacrev(jax.jacrev(f))))(a) for f in (cubic, plain))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_shared_16_bit_operand_is_summed_wide_whatever_shapes_it_meets():
    a = jnp.ones((1, 1), "bfloat16")
    B = jnp.asarray([[256, 1]], "bfloat16")  # sums to 257, which is no bfloat16
    batch = jnp.asarray([[[-256]], [[0]]], "bfloat16")

    def total(a):
        return sum(jnp.sum(c.astype("float32")) for c in vb.batched_matmul([a, a], [B, batch]))

    np.testing.assert_array_equal(jax.grad(total)(a).astype("float32"), [[1]])


def test_linear_transpose_of_a_16_bit_factor_that_is_added_too():
    x = jnp.eye(2, dtype="bfloat16")
    (ct,) = jax.linear_transpose(lambda c: vb.batched_gemm([x], [c], [c], beta=1.0)[0], x)(jnp.full((2, 2), 3, x.dtype))
    np.testing.assert_array_equal(ct.astype("float32"), np.full((2, 2), 6))


def test_results_are_saved_by_name_under_checkpoint():
    w, x = oracle.random((6, 6), "float64", 1), oracle.random((3, 6), "float64", 2)

    def products(policy):
        @functools.partial(jax.checkpoint, policy=policy)
        def f(x):
            (y,) = vb.batched_matmul([x], [w])
            return jnp.sum(jnp.sin(jnp.sin(checkpoint_name(y, "product"))))

        return str(jax.make_jaxpr(jax.grad(f))(x)).count("batched_matmul[")

    policies = jax.checkpoint_policies
    assert 0 < products(policies.save_only_these_names("product")) < products(policies.nothing_saveable)


FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    slow_except(
        [*((dtype, preferred) for dtype in ("float16", "float32", "float64") for preferred in FLOAT8),
         *itertools.permutations(FLOAT8, 2),
         *((dtype, preferred) for dtype in (*FLOAT8, "float32") for preferred in ("complex64", "complex128"))],
        [("float16", "float8_e4m3fn"), ("float8_e4m3fn", "complex64")],
    ),
)  # fmt: skip
def test_results_that_only_xla_has_get_the_gradients_of_its_dot(dtype, preferred):
    """float8 results round the gradient's products to float8 too; complex results of real factors give real parts."""
    a, b, c = (oracle.random(shape, "float64", i) for i, shape in enumerate([(6, 7), (7, 5), (6, 5)]))
    a, b = a.astype(dtype), b.astype(dtype)

    def gradient(multiply):
        result, transpose = jax.vjp(multiply, a, b)
        return transpose(c.astype(result.dtype))

    try:
        theirs = gradient(lambda a, b: jax.lax.dot(a, b, preferred_element_type=preferred))
    except jax.errors.JaxRuntimeError as error:
        if jax.default_backend() == "cpu":  # which has them all
            raise
        pytest.skip(f"XLA has no such dot on this platform: {str(error).splitlines()[0]}")
    ours = gradient(lambda a, b: vb.batched_matmul([a], [b], preferred_element_type=preferred)[0])
    for x, y in zip(ours, theirs, strict=True):
        assert x.dtype == y.dtype == dtype
        tolerance = 0 if "float8" in dtype or "float8" in preferred else 1e-6
        np.testing.assert_allclose(x.astype("float64"), y.astype("float64"), rtol=tolerance, atol=tolerance)
