"""Gated ragged products: activation(one half of the columns) times the other half, in the kernel's epilogue."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import FUNCTIONS
from jax_vbgemm._src.matmul.reference import accumulator

TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 0.02, "float16": 0.003}


def operands(m, k, n, g, dtype="float64"):
    return oracle.random((m, k), dtype), oracle.random((g, k, 2 * n), dtype, seed=1)


def composed(lhs, rhs, sizes, activation, row_scale=None, bias=None, **options):
    """The same from an ordinary ragged product, whose result stays in the accumulator's dtype."""
    wide = accumulator(lhs.dtype)
    if bias is not None:
        options["bias"] = bias.astype(wide)
    both = vb.ragged_dot(lhs, rhs, sizes, preferred_element_type=wide, implementation="xla", **options)
    gate, up = jnp.split(both, 2, axis=-1)
    value = FUNCTIONS[activation](gate) * up
    return value if row_scale is None else row_scale[:, None] * value


def close(got, truth, dtype="float64"):
    truth = oracle.wide(truth)
    assert got.dtype == dtype
    largest = max(1.0, np.abs(truth).max(initial=0))
    np.testing.assert_allclose(oracle.wide(got), truth, rtol=0, atol=TOLERANCE[dtype] * largest)


@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 5), st.integers(1, 18), st.integers(1, 6)),
    data=st.data(),
    dtype=st.sampled_from(sorted(TOLERANCE)),
    activation=st.sampled_from(sorted(FUNCTIONS)),
    aligned=st.booleans(),
    transpose=st.booleans(),
    extras=st.sets(st.sampled_from(["bias", "row_scale", "group_offset"])),
)
def test_values(shape, data, dtype, activation, aligned, transpose, extras):
    """Aligned sizes of 16-bit types take Hopper's pipelined kernel, all others the list of tiles and XLA's gates."""
    m, k, n, g = shape
    k, n = (8 * k, 8 * n) if aligned else (k, n)
    total = data.draw(st.integers(1, 8)) if "group_offset" in extras else g
    sizes = jnp.array(data.draw(st.lists(st.integers(-3, 2 * m // g + 3), min_size=total, max_size=total)), jnp.int32)
    lhs, rhs = operands(m, k, n, g, dtype)
    options = {"bias": oracle.random((g, 2 * n), dtype, 2), "row_scale": oracle.random((m,), accumulator(dtype), 3)}
    options = {name: value for name, value in options.items() if name in extras}
    if "group_offset" in extras:
        options["group_offset"] = data.draw(st.integers(-3, total))
    stored = jnp.swapaxes(rhs, 1, 2) if transpose else rhs
    ours = functools.partial(vb.ragged_dot, activation=activation, gated=True, transpose_rhs=transpose)
    theirs = functools.partial(composed, activation=activation)
    got = jax.jit(ours)(lhs, stored, sizes, **options)
    close(got, jax.jit(theirs)(lhs, rhs, sizes, **options), dtype)


@pytest.mark.parametrize(
    "rows", [[1, 0, 63, 64, 65, 127, 128, 129, 200], [900, 0, 0, 0, 0, 0, 0, 0, 5]], ids=["borders", "one"]
)
@pytest.mark.parametrize("n", slow_except([8, 64, 72, 128, 136, 264], [72]))
def test_borders_of_tiles_and_groups(rows, n):
    """Columns that end within a box, a tile's half and a tile; NaN in rows and weights that must not be read."""
    m, k, g, dtype = 1000, 136, len(rows), "bfloat16"
    lhs, rhs = operands(m, k, n, g, dtype)
    sizes = jnp.array(rows, jnp.int32)
    truth = jax.jit(functools.partial(composed, activation="silu"))(lhs, rhs, sizes)
    lhs = jnp.where((jnp.arange(m) < sum(rows))[:, None], lhs, jnp.nan)
    rhs = jnp.where((sizes > 0)[:, None, None], rhs, jnp.nan)
    for stored, transpose in ((rhs, False), (jnp.swapaxes(rhs, 1, 2), True)):
        for wide in (None, jnp.float32):
            options = {"transpose_rhs": transpose, "preferred_element_type": wide}
            ours = functools.partial(vb.ragged_dot, activation="silu", gated=True, **options)
            got = jax.jit(ours)(lhs, stored, sizes)
            close(got.astype(dtype), truth, dtype)
            assert (got[sum(rows) :] == 0).all()


@pytest.mark.slow
def test_derivatives_to_second_order():
    lhs, rhs = operands(9, 3, 2, 3)
    bias, scale, sizes = oracle.random((3, 4), "float64", 2), oracle.random((9,), "float64", 3), jnp.array([4, 0, 3])

    def ours(lhs, rhs, bias, scale):
        return vb.ragged_dot(lhs, rhs, sizes, bias=bias, row_scale=scale, activation="gelu", gated=True)

    oracle.check_grads(ours, (lhs, rhs, bias, scale), order=2)


@pytest.mark.slow
def test_vmap_over_any_operand():
    lhs, rhs = operands(9, 3, 2, 3)
    sizes = jnp.array([[4, 0, 3], [1, 8, 1]])
    weights = jnp.stack([rhs, 2 * rhs])

    def ours(lhs, rhs, sizes):
        return vb.ragged_dot(lhs, rhs, sizes, activation="silu", gated=True)

    got = jax.jit(jax.vmap(ours, (None, 0, 0)))(lhs, weights, sizes)
    one = jax.jit(ours)
    for index in range(2):
        close(got[index], one(lhs, weights[index], sizes[index]))
    gradient_of_one = jax.grad(lambda *x: ours(*x).sum())
    gradient = jax.jit(jax.vmap(gradient_of_one, (None, 0, 0)))(lhs, weights, sizes)
    close(gradient[1], jax.jit(gradient_of_one)(lhs, weights[1], sizes[1]))


X, W, SIZES = jnp.ones((4, 3)), jnp.ones((2, 3, 6)), jnp.array([1, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: vb.ragged_dot(X, W, SIZES, gated=True), ValueError, "gated product needs an activation"),
        (lambda: vb.ragged_dot(X, W[..., 1:], SIZES, gated=True, activation="silu"), ValueError, "5 is odd"),
        (lambda: vb.ragged_dot(X, W, SIZES, gated=1, activation="silu"), TypeError, "gated must be a bool"),
        (
            lambda: vb.ragged_dot(X, W, SIZES, gated=True, activation="silu", bias=jnp.ones((2, 3))),
            ValueError,
            r"bias is \(2, 3\) but must be \(g, 2 n\), \(2, 6\)",
        ),
        (lambda: vb.ragged_dot(X.astype(int), W.astype(int), SIZES, gated=True, activation="silu"), ValueError, "real"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
