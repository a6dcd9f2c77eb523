"""Rows without weights that a product leaves as they are: they hold NaN here, and nothing else depends on them."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from undefined_rest import undefined_rows_are_nan  # noqa: F401

import jax_vbgemm as vb
from jax_vbgemm._src.ragged.primitive import ragged_dot_p

pytestmark = pytest.mark.usefixtures("undefined_rows_are_nan")
ROWS, K, N, GROUPS, TERMS = 24, 5, 6, 3, 2
SIZES = jnp.array([4, 0, 7])


def operands(dtype="float32", rows=ROWS):
    return oracle.random((rows, K), dtype), oracle.random((GROUPS, K, N), dtype, 1)


def selection():
    """Each of 12 rows twice, in any order, and the places of each."""
    gather = np.random.default_rng(0).permutation(np.repeat(np.arange(ROWS // TERMS), TERMS))
    return jnp.asarray(gather), jnp.asarray(np.argsort(gather, kind="stable").reshape(-1, TERMS))


@pytest.mark.parametrize("offset", [None, 1])
def test_rows_with_weights_are_those_of_the_product_with_zeros(offset):
    lhs, rhs = operands()
    rhs = rhs if offset is None else rhs[1:]
    plain = jax.jit(lambda: vb.ragged_dot(lhs, rhs, SIZES, group_offset=offset))()
    given = jax.jit(lambda: vb.ragged_dot(lhs, rhs, SIZES, group_offset=offset, undefined_rest=True))()
    first = 0 if offset is None else 4
    np.testing.assert_array_equal(given[first:11], plain[first:11])
    assert np.isnan(given[11:]).all()
    assert np.isnan(given[:first]).all()


@pytest.mark.parametrize("way", ["rows", "gather", "slots"])
@pytest.mark.parametrize("gated", [False, True])
def test_gradients_do_not_read_them(way, gated):
    lhs, rhs = operands(rows=ROWS if way == "rows" else ROWS // TERMS)
    scale = oracle.random((ROWS,), "float32", 2)
    gather = {"rows": None, "gather": selection()[0], "slots": selection()}[way]

    def loss(lhs, rhs, scale, undefined_rest):
        y = vb.ragged_dot(lhs, rhs, SIZES, gather=gather, activation="silu", gated=gated, row_scale=scale,
                          undefined_rest=undefined_rest)  # fmt: skip
        return jnp.sum(jnp.sin(jnp.where(jnp.arange(ROWS)[:, None] < 11, y, 0)))

    gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2)), static_argnums=3)
    (value, given), (plain_value, plain) = (gradient(lhs, rhs, scale, rest) for rest in (True, False))
    assert value == plain_value
    rows = slice(0, 11) if way == "rows" else slice(None)
    np.testing.assert_array_equal(given[0][rows], plain[0][rows])
    np.testing.assert_array_equal(given[1], plain[1])
    np.testing.assert_allclose(given[2][:11], plain[2][:11], rtol=1e-6)  # sums of XLA's in another program


def test_vmap_with_and_without_mapped_sizes():
    lhs, rhs = operands()
    sizes = jnp.array([[4, 0, 7], [0, 9, 1]])
    given = jax.jit(jax.vmap(lambda sizes: vb.ragged_dot(lhs, rhs, sizes, undefined_rest=True)))(sizes)
    for one, rows, of in zip(given, (11, 10), sizes, strict=True):
        np.testing.assert_array_equal(one[:rows], vb.ragged_dot(lhs, rhs, of)[:rows])


def test_a_contraction_never_has_them():
    lhs, rhs = operands()
    jaxpr = jax.make_jaxpr(jax.grad(lambda rhs: vb.ragged_dot(lhs, rhs, SIZES, undefined_rest=True).sum()))(rhs)
    calls = [equation.params["ragged"] for equation in jaxpr.eqns if equation.primitive is ragged_dot_p]
    assert [call.undefined_rest for call in calls if call.contraction] == [False]


def test_xla_leaves_zeros():
    lhs, rhs = operands()
    given = vb.ragged_dot(lhs, rhs, SIZES, undefined_rest=True, implementation="xla")
    np.testing.assert_array_equal(given[11:], 0)


def test_it_is_a_bool():
    with pytest.raises(TypeError, match="undefined_rest must be a bool, not 1"):
        vb.ragged_dot(*operands(), SIZES, undefined_rest=1)


def test_gradients_of_what_a_gate_depends_on():
    lhs, rhs = operands()
    adapter = oracle.random((GROUPS, K, 2), "float32", 3), oracle.random((GROUPS, 2, N), "float32", 4)

    def loss(slope, undefined_rest):
        y = vb.moe.gated_dot(lhs, rhs, SIZES, gate=lambda y, z: jnp.tanh(slope * y) * z, lora=adapter, lora_scale=slope,
                             undefined_rest=undefined_rest)  # fmt: skip
        return jnp.sum(y)

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    given, plain = (gradient(1.5, rest) for rest in (True, False))
    np.testing.assert_allclose(given, plain, rtol=1e-6)
