"""Checks of indices: they leave no effect in programs, compute nothing without checkify, and checkify finds them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import jax_vbgemm as vb
from jax_vbgemm import moe

X, GATE_UP, DOWN = (jax.device_put(np.ones(shape)) for shape in [(5, 8), (4, 8, 12), (4, 6, 8)])
LOGITS, SIZES = jax.device_put((np.eye(5, 4), np.array([1, 2, 0, 2])))
ROWS, SLOTS = jax.device_put((np.arange(5), np.arange(5)[:, None]))


def layer(x, gate_up, down, logits):
    return moe.expert_mlp(x, gate_up, down, moe.route(logits, 2))


PROGRAMS = {
    "gather": (lambda x, rows: vb.ragged_dot(x, GATE_UP, SIZES, gather=rows), (X, ROWS)),
    "gather with slots": (lambda x, *pair: vb.ragged_dot(x, GATE_UP, SIZES, gather=pair), (X, ROWS, SLOTS)),
    "given experts": (lambda logits, experts: moe.route(logits, experts=experts), (LOGITS, ROWS[:, None])),
    "a layer": (layer, (X, GATE_UP, DOWN, LOGITS)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_have_no_effect(name):
    function, operands = PROGRAMS[name]
    assert not jax.make_jaxpr(function)(*operands).effects
    vjp = jax.make_jaxpr(lambda first, *rest: jax.vjp(lambda first: function(first, *rest), first)[0])
    assert not vjp(*operands).effects


def test_a_check_computes_nothing_without_checkify():
    function, operands = PROGRAMS["gather with slots"]
    lowered = jax.jit(function).lower(*operands)
    assert "sort" in lowered.as_text()  # the check, which is not used
    assert "sort" not in lowered.compile().as_text()


def test_a_layer_is_serialized_with_its_gradient():
    function, operands = PROGRAMS["a layer"]
    exported = jax.export.export(jax.jit(function), disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*operands)
    again = jax.export.deserialize(exported.serialize(vjp_order=1))

    def gradient(f):
        return jax.jit(jax.grad(lambda *operands: jnp.sum(jnp.sin(f(*operands))), argnums=(0, 1, 3)))(*operands)

    for got, wanted in zip(gradient(again.call), gradient(function), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def found(function, *operands):
    error, _ = checkify.checkify(function, errors=checkify.user_checks)(*operands)
    return error.get()


@pytest.mark.slow
def test_checkify_finds_checks_in_transformed_functions():
    def product(x, rows):
        return jnp.sum(vb.ragged_dot(x, GATE_UP, SIZES, gather=rows))

    def step(total, rows):
        return total + product(X, rows), None

    wrong = jnp.stack([ROWS, ROWS.at[0].set(5), ROWS - 1])
    for transformed in (
        lambda rows: jax.vmap(jax.grad(product), (None, 0))(X, rows),
        lambda rows: jax.lax.scan(step, 0.0, rows)[0],
        lambda rows: jax.jit(jax.checkpoint(product))(X, rows[2]),
    ):
        assert "of gather are outside [0, 5)" in found(transformed, wrong)
        assert found(transformed, jnp.stack([ROWS, ROWS, ROWS])) is None


def test_other_checks_do_not_report_indices():
    function, (x, rows) = PROGRAMS["gather"]
    error, _ = checkify.checkify(function, errors=checkify.nan_checks)(x, rows - 1)
    assert error.get() is None
