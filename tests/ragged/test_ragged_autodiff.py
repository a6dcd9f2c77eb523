"""Derivatives of vb.ragged_dot of first and second order, against those of a loop of jnp.matmul over static groups."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import ragged_loop
from slow_cases import slow_except

import jax_vbgemm as vb

SIZES = [5, 0, 4, 2]
M, K, N, G = 13, 4, 3, len(SIZES)
CASES = {
    "plain": {},
    "transposed": {"transpose_rhs": True},
    "bias": {"bias": True},
    "relu": {"bias": True, "activation": "relu", "row_scale": True},
    "silu": {"bias": True, "activation": "silu", "row_scale": True},
    "sigmoid": {"activation": "sigmoid"},
    "row_scale": {"row_scale": True},
    "window": {"group_offset": 1, "bias": True, "row_scale": True, "activation": "tanh"},
}


def both(case: str, implementation: str | None) -> tuple[Any, Any, dict[str, jax.Array]]:
    """ragged_dot and the loop as functions of the differentiated operands, and these operands."""
    options = dict(CASES[case])
    groups = G - options.get("group_offset", 0)
    shape = (groups, N, K) if options.get("transpose_rhs") else (groups, K, N)
    moving = {"lhs": oracle.random((M, K), "float64"), "rhs": oracle.random(shape, "float64", 1)}
    if options.pop("bias", False):
        moving["bias"] = oracle.random((groups, N), "float64", 2)
    if options.pop("row_scale", False):
        moving["row_scale"] = oracle.random((M,), "float64", 3)

    def ours(x: Any) -> jax.Array:
        return vb.ragged_dot(**x, group_sizes=jnp.array(SIZES), **options, implementation=implementation)

    def looped(x: Any) -> jax.Array:
        return ragged_loop.loop(**x, sizes=SIZES, **options)

    return ours, looped, moving


def assert_trees_close(ours: Any, theirs: Any, tolerance: float = 1e-11) -> None:
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(oracle.wide(x), oracle.wide(y), rtol=tolerance, atol=tolerance),
        ours,
        theirs,
    )


@pytest.mark.parametrize("implementation", slow_except([None, "xla"], [None]))
@pytest.mark.parametrize("case", CASES)
def test_gradient_and_tangent(case, implementation):
    ours, looped, x = both(case, implementation)
    v = oracle.random((M, N), "float64", 7)
    dx = jax.tree.map(lambda a: oracle.random(a.shape, "float64", 9), x)
    both_modes = [jax.jit(lambda x, f=f: (jax.jvp(f, [x], [dx]), jax.vjp(f, x)[1](v)))(x) for f in (ours, looped)]
    assert_trees_close(*both_modes)


@pytest.mark.parametrize("case", slow_except(["plain", "transposed", "silu", "window"], ["plain"]))
def test_second_derivatives_in_every_order_of_modes(case):
    ours, looped, x = both(case, None)

    def scalar(f: Any) -> Any:
        return lambda x: jnp.sum(jnp.sin(f(x)))

    dx = jax.tree.map(lambda a: oracle.random(a.shape, "float64", 9), x)
    for transform in (
        jax.hessian,
        lambda f: lambda x: jax.grad(lambda y: jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, jax.grad(f)(y), dx)))(x),
        lambda f: lambda x: jax.grad(lambda y: jax.jvp(f, [y], [dx])[1])(x),
        lambda f: lambda x: jax.jvp(jax.grad(f), [x], [dx])[1],
    ):
        assert_trees_close(*(jax.jit(transform(scalar(f)))(x) for f in (ours, looped)))


@pytest.mark.slow
def test_derivatives_of_the_gradient_of_the_weights():
    """A ragged contraction is bilinear, and so is each of its derivatives."""
    cotangent = oracle.random((M, N), "float64", 4)

    def weight_gradient(lhs: Any, cotangent: Any) -> Any:
        return jax.grad(lambda rhs: jnp.vdot(vb.ragged_dot(lhs, rhs, jnp.array(SIZES)), cotangent))(
            jnp.zeros((G, K, N))
        )

    oracle.check_grads(weight_gradient, (oracle.random((M, K), "float64"), cotangent), order=3, modes=["fwd", "rev"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_narrow_operands_have_their_dtype_and_are_summed_wide(dtype):
    m, ones = 4096, jnp.ones
    lhs, rhs = ones((m, 1), dtype), ones((2, 1, 1), dtype)
    # 1 added 3000 times in 16 bits would end at 256 or 2048.
    gradient = jax.grad(lambda rhs: vb.ragged_dot(lhs, rhs, jnp.array([3000, 500])).astype(jnp.float32).sum())(rhs)
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(oracle.wide(gradient).ravel(), [3008 if dtype == "bfloat16" else 3000, 500])


@pytest.mark.parametrize("implementation", slow_except([None, "xla"], [None]))
@pytest.mark.parametrize("scale", [None, 1e-4, jnp.inf])
def test_relu_has_a_slope_where_jaxs_has_one(scale, implementation):
    """Where the scaled result rounds to 0 or is NaN, too."""
    lhs = jnp.array([[1e-4], [-1.0], [jnp.nan], [2.0], [1.0]], "float16")
    rhs, sizes = jnp.ones((2, 1, 1), "float16"), jnp.array([3, 1])
    scales = None if scale is None else jnp.full((5,), scale, jnp.float32)

    def ours(lhs: Any) -> jax.Array:
        return vb.ragged_dot(
            lhs, rhs, sizes, activation="relu", row_scale=scales, implementation=implementation
        ).astype(jnp.float32)

    def theirs(lhs: Any) -> jax.Array:
        y = jax.nn.relu(lhs.astype(jnp.float32)).at[4].set(0.0)
        return y if scale is None else scale * y

    gradients = [jax.jit(jax.grad(lambda lhs, f=f: 1e4 * jnp.sum(f(lhs)[:, 0])))(lhs) for f in (ours, theirs)]
    np.testing.assert_allclose(*map(oracle.wide, gradients), rtol=1e-3)


def test_mixed_dtypes_promote():
    lhs, rhs = oracle.random((M, K), "bfloat16"), oracle.random((G, K, N), "float32")
    with jax.numpy_dtype_promotion("standard"):
        result, pull = jax.vjp(lambda lhs, rhs: vb.ragged_dot(lhs, rhs, jnp.array(SIZES)), lhs, rhs)
        assert result.dtype == jnp.float32
        assert [x.dtype for x in pull(result)] == [jnp.bfloat16, jnp.float32]


def test_nothing_moves_no_call():
    """Of what needs no derivative none is computed: the weights' gradient alone is one call beside the product."""
    lhs, rhs = oracle.random((M, K), "float64"), oracle.random((G, K, N), "float64")
    gradient = jax.grad(lambda rhs: vb.ragged_dot(lhs, rhs, jnp.array(SIZES)).sum())
    assert str(jax.make_jaxpr(gradient)(rhs)).count("= ragged_dot[") <= 2


@pytest.mark.parametrize("operand", ["lhs", "rhs", "bias"])
def test_linear_transpose(operand):
    x = {
        "lhs": oracle.random((M, K), "float64"),
        "rhs": oracle.random((G, K, N), "float64", 1),
        "bias": oracle.random((G, N), "float64", 2),
    }
    if operand != "bias":
        del x["bias"]
    v = oracle.random((M, N), "float64", 7)
    if operand == "bias":
        x["lhs"] = jnp.zeros_like(x["lhs"])

    def at(moving: Any) -> jax.Array:
        return vb.ragged_dot(**{**x, operand: moving}, group_sizes=jnp.array(SIZES))

    (transposed,) = jax.linear_transpose(at, x[operand])(v)
    assert_trees_close(transposed, jax.vjp(at, x[operand])[1](v)[0])


def test_what_is_not_linear_cannot_be_transposed():
    lhs, rhs = oracle.random((M, K), "float64"), oracle.random((G, K, N), "float64", 1)
    f = lambda lhs: vb.ragged_dot(lhs, rhs, jnp.array(SIZES), activation="tanh")  # noqa: E731
    with pytest.raises(NotImplementedError, match="not linear in its activation"):
        jax.linear_transpose(f, lhs)(jnp.ones((M, N)))
