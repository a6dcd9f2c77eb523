"""Views: derivatives, vmap and shard_map against jnp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except
from view_linear_map import ARGUMENTS, CHANNELS, NODES, OUT, calls_of, check, features, linear, linear_in_jnp

import jax_vbgemm as vb


@pytest.mark.parametrize("activation", slow_except([None, "silu"], ["silu"]))
def test_derivatives_to_second_order(activation):
    f = jax.nn.silu if activation else lambda y: y
    seen = features((NODES, 4 * OUT + 1), 7)

    def loss(*arguments):
        return jnp.sum(seen * linear(*arguments, activation=activation) ** 2)

    def expected(*arguments):
        return jnp.sum(seen * linear_in_jnp(*arguments, f) ** 2)

    every = (0, 1, 2)
    check(jax.jit(jax.grad(loss, every))(*ARGUMENTS), jax.jit(jax.grad(expected, every))(*ARGUMENTS))
    check(jax.jit(jax.grad(loss, 1))(*ARGUMENTS), jax.jit(jax.grad(expected, 1))(*ARGUMENTS))
    tangents = jax.tree.map(lambda x: features(x.shape, 9), ARGUMENTS)

    def directional(f):
        return lambda *arguments: jax.jvp(f, arguments, tangents)[1]

    check(*(jax.jit(jax.grad(directional(f), every))(*ARGUMENTS) for f in (loss, expected)))


def test_tangents_of_some_members():
    x, (scalars, vectors), base = ARGUMENTS

    def moved(f):
        return jax.jit(lambda w: jax.jvp(lambda w: f(x, [w, vectors], base), (w,), (jnp.ones_like(w),)))(scalars)

    check(moved(linear), moved(linear_in_jnp))


SINGLE = [(0, None, None), (None, 0, None), (None, None, 1)]


@pytest.mark.parametrize(
    "mapped", [(1, [0, None], None), *(pytest.param(one, marks=pytest.mark.slow) for one in SINGLE)]
)
def test_vmap(mapped):
    def stretched(x, axis):
        return x if axis is None else jnp.moveaxis(features((2, *x.shape), 11), 0, axis)

    x, weights, base = ARGUMENTS
    of_weights = mapped[1] if isinstance(mapped[1], list) else [mapped[1]] * 2
    arguments = (
        stretched(x, mapped[0]),
        [stretched(w, axis) for w, axis in zip(weights, of_weights, strict=True)],
        stretched(base, mapped[2]),
    )

    def gradients(f):
        return lambda *arguments: jax.value_and_grad(lambda *a: jnp.sum(f(*a) ** 3), (0, 1, 2))(*arguments)

    ours = jax.jit(jax.vmap(gradients(linear), mapped))(*arguments)
    check(ours, jax.jit(jax.vmap(gradients(linear_in_jnp), mapped))(*arguments))


def test_forward_and_backward_are_two_calls():
    assert calls_of(linear, *ARGUMENTS) == 1
    assert calls_of(jax.grad(lambda *a: jnp.sum(linear(*a) ** 2), (0, 1, 2)), *ARGUMENTS) == 2


def test_a_gradient_with_respect_to_a_view():
    x = features((6, 8), 1)
    view, w = vb.View.of(x, "a b -> b a", window=np.s_[1:4, 2:]), features((3, 2), 2)
    gradient = jax.grad(lambda view: jnp.sum(vb.batched_matmul([view], [w])[0]))(view)
    assert isinstance(gradient, vb.View)
    assert gradient.layout == view.layout
    expected = jax.grad(lambda x: jnp.sum(x[1:4, 2:].T @ w))(x)
    check(gradient.buffer, expected)


def test_overlapping_views_of_one_array_add_their_cotangents():
    x, w = features((7,), 1), features((3, 2), 2)

    def windows(x):  # of 3, 1 apart: a convolution
        return vb.batched_matmul([vb.View(x, (5, 3), (1, 1)), vb.View(x, (2, 3), (3, 1))], [w, w])

    def expected(x):
        return [jnp.stack([x[i : i + 3] for i in range(5)]) @ w, x[:6].reshape(2, 3) @ w]

    def loss(f):
        return lambda x: sum(jnp.sum(y**2) for y in f(x))

    check(jax.jit(windows)(x), jax.jit(expected)(x))
    check(*(jax.jit(jax.grad(loss(f)))(x) for f in (windows, expected)))


@pytest.mark.slow
def test_a_sum_that_is_scaled_stays_one_in_its_derivatives():
    a, b, bias = features((4, 3), 1), features((3, 5), 2), features((5,), 3)

    def ours(a, b, bias):
        return vb.batched_gemm([a, a], [b, 2 * b], alpha=[0.5, 3.0], bias=[bias, None])

    def theirs(a, b, bias):
        return [0.5 * (a @ b) + bias[None, :], 3.0 * (a @ (2 * b))]

    def of(f):
        def loss(*arguments):
            return sum(jnp.sum(jnp.sin(y)) for y in f(*arguments))

        def second(*arguments):
            return sum(jnp.sum(g**3) for g in jax.grad(loss, (0, 1, 2))(*arguments))

        return jax.jit(jax.grad(second, (0, 1, 2)))(a, b, bias)

    for found, expected in zip(of(ours), of(theirs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    # A bias that moves alone, and a linear map's transposes.
    tangent = jax.jvp(lambda bias: ours(a, b, bias), (bias,), (bias,))[1]
    np.testing.assert_allclose(tangent[0], jnp.broadcast_to(bias, (4, 5)), rtol=1e-12)
    np.testing.assert_allclose(tangent[1], 0)
    cotangents = [features((4, 5), 4), features((4, 5), 5)]
    moved = jax.linear_transpose(lambda a, bias: ours(a, b, bias), a, bias)(cotangents)
    expected = jax.linear_transpose(lambda a, bias: theirs(a, b, bias), a, bias)(cotangents)
    for x, y in zip(moved, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


@pytest.mark.multidevice(2)
@pytest.mark.slow
def test_shard_map():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x, weights, base = features((6, 4 * CHANNELS + 2), 1), ARGUMENTS[1], features((6, 4 * OUT + 1), 2)
    specs = (jax.P("i"), jax.P(), jax.P("i"))

    def loss(f):
        return lambda *arguments: jnp.sum(f(*arguments) ** 2)

    sharded = jax.shard_map(linear, mesh=mesh, in_specs=specs, out_specs=jax.P("i"))
    check(jax.jit(sharded)(x, weights, base), linear_in_jnp(x, weights, base))
    every = (0, 1, 2)
    check(
        jax.jit(jax.grad(loss(sharded), every))(x, weights, base),
        jax.grad(loss(linear_in_jnp), every)(x, weights, base),
    )
