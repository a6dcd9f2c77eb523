"""shard_map, sharded operands under plain jit, explicit meshes: values and gradients equal the unsharded run's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb

pytestmark = pytest.mark.multidevice(8)


def mesh(axis_type=AxisType.Auto):
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(axis_type,) * 2)


def operands():
    As = [
        oracle.random((8, 5, 6), "float64", 1),
        oracle.random((3, 7), "float64", 2),
        oracle.random((16, 4), "float64", 3),
    ]
    Bs = [oracle.random((6, 3), "float64", 4), oracle.random((7, 2), "float64", 5), oracle.random((4, 9), "float64", 6)]
    return As, Bs


def assert_close(ours, theirs):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13), ours, theirs)


SPECS = [P("x"), P(), P(("x", "y"))]  # the operands of As; Bs are replicated


def scalar(Cs):
    return sum(jnp.sum(jnp.sin(c)) for c in Cs)


unsharded = jax.jit(vb.batched_matmul)
unsharded_gradients = jax.jit(jax.grad(lambda As, Bs: scalar(vb.batched_matmul(As, Bs)), (0, 1)))


@pytest.mark.parametrize("check_vma", slow_except([True, False], [False]))
@pytest.mark.parametrize(
    "function", [vb.batched_matmul, lambda As, Bs: [jnp.matmul(a, b) for a, b in zip(As, Bs, strict=True)]]
)
def test_shard_map_values_and_gradients(check_vma, function):
    """The second function is jnp.matmul, for which the same assertions hold."""
    As, Bs = operands()
    sharded = jax.shard_map(function, mesh=mesh(), in_specs=(SPECS, P()), out_specs=SPECS, check_vma=check_vma)
    assert_close(jax.jit(sharded)(As, Bs), unsharded(As, Bs))
    ours = jax.jit(jax.grad(lambda As, Bs: scalar(sharded(As, Bs)), (0, 1)))(As, Bs)
    assert_close(ours, unsharded_gradients(As, Bs))


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_inside_shard_map(check_vma):
    """The gradient of replicated weights, summed over the devices by psum, as in data-parallel training."""
    As, Bs = operands()

    def step(As, Bs):
        def loss(Bs):
            value = scalar(vb.batched_matmul([As[0]], [Bs[0]]))
            return jax.lax.psum(value, "x") if check_vma else value

        gradient = jax.grad(loss)(Bs)
        return gradient if check_vma else jax.tree.map(lambda g: jax.lax.psum(g, "x"), gradient)

    sharded = jax.shard_map(step, mesh=mesh(), in_specs=(SPECS, P()), out_specs=P(), check_vma=check_vma)
    expected = jax.jit(jax.grad(lambda Bs: scalar(vb.batched_matmul([As[0]], [Bs[0]]))))(Bs)
    assert_close(jax.jit(sharded)(As, Bs)[0], expected[0])


def test_outputs_vary_over_the_union_of_their_own_operands_axes_only():
    As, Bs = operands()

    def check(As, Bs):
        Cs = vb.batched_matmul(As, Bs)
        assert [set(jax.typeof(c).mat.varying) for c in Cs] == [{"x"}, set(), {"x", "y"}]
        return Cs

    jax.jit(jax.shard_map(check, mesh=mesh(), in_specs=(SPECS, P()), out_specs=SPECS))(As, Bs)


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_gemm_and_forward_mode_in_shard_map(check_vma):
    As, Bs = operands()
    Cs = vb.batched_matmul(As, Bs)

    def f(As, Bs, Cs, beta):
        return vb.batched_gemm(As, Bs, Cs, alpha=2, beta=beta, activation="tanh")

    def tangent(*args):
        return jax.jvp(f, args, args)[1]

    beta = jnp.asarray(0.5)
    for function in (f, tangent):
        sharded = jax.shard_map(
            function, mesh=mesh(), in_specs=(SPECS, P(), SPECS, P()), out_specs=SPECS, check_vma=check_vma
        )
        assert_close(jax.jit(sharded)(As, Bs, Cs, beta), jax.jit(function)(As, Bs, Cs, beta))


def test_second_derivatives_in_shard_map():
    As, Bs = operands()
    sharded = jax.shard_map(vb.batched_matmul, mesh=mesh(), in_specs=(SPECS, P()), out_specs=SPECS)

    def hessian_vector(function):
        gradient = jax.grad(lambda As, Bs: scalar(function(As, Bs)), (0, 1))
        return jax.jit(lambda As, Bs: jax.jvp(gradient, (As, Bs), (As, Bs))[1])(As, Bs)

    assert_close(hessian_vector(sharded), hessian_vector(vb.batched_matmul))


def test_sharded_operands_under_plain_jit_are_right():
    As, Bs = operands()
    placed = [jax.device_put(a, NamedSharding(mesh(), spec)) for a, spec in zip(As, SPECS, strict=True)]
    assert_close(jax.jit(vb.batched_matmul)(placed, Bs), unsharded(As, Bs))
    ours = jax.jit(jax.grad(lambda As, Bs: scalar(vb.batched_matmul(As, Bs)), (0, 1)))(placed, Bs)
    assert_close(ours, unsharded_gradients(As, Bs))


def test_explicit_meshes():
    """Replicated operands work, gradients too; one sharded over an explicit axis is an error that names the axis."""
    As, Bs = operands()
    explicit = mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
        replicated = jax.device_put((As, Bs), NamedSharding(explicit, P()))
        assert_close(jax.jit(vb.batched_matmul)(*replicated), unsharded(As, Bs))
        ours = jax.jit(jax.grad(lambda As, Bs: scalar(vb.batched_matmul(As, Bs)), (0, 1)))(*replicated)
        assert_close(ours, unsharded_gradients(As, Bs))
        sharded = [jax.device_put(a, NamedSharding(explicit, spec)) for a, spec in zip(As, SPECS, strict=True)]
        with pytest.raises(ValueError, match=r"As\[0\].*'x'.*shard_map"):
            jax.jit(vb.batched_matmul)(sharded, replicated[1])
        alpha = jax.device_put(np.ones(8), NamedSharding(explicit, P("x")))
        with pytest.raises(ValueError, match=r"alpha is sharded over the explicit mesh axes 'x'"):
            vb.batched_gemm([replicated[0][0]] * 8, [replicated[1][0]] * 8, alpha=alpha)


def test_vmap_over_an_explicit_axis():
    """The call inside the vmap doesn't see the axis, so that it cannot refuse the axis."""
    explicit = mesh(AxisType.Explicit)
    a, b = oracle.random((8, 3, 4), "float64", 1), oracle.random((4, 5), "float64", 2)

    def f(a, b, product):
        return jnp.sum(jax.vmap(product, (0, None))(a, b) ** 3)

    theirs = jax.jit(jax.grad(f, (0, 1)), static_argnums=2)(a, b, jnp.matmul)
    with jax.set_mesh(explicit):
        placed = jax.device_put(a, NamedSharding(explicit, P("x"))), jax.device_put(b, NamedSharding(explicit, P()))
        ours = jax.jit(jax.grad(lambda a, b: f(a, b, lambda a, b: vb.batched_matmul([a], [b])[0]), (0, 1)))(*placed)
    assert_close(ours, theirs)
