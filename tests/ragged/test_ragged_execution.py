"""vb.ragged_dot under scan, remat, shard_map, export and donation, and what it lowers to."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import ragged_loop
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends

M, K, N, G = 24, 6, 6, 4
SIZES = [7, 0, 9, 3]


def operands() -> tuple[jax.Array, jax.Array, jax.Array]:
    return oracle.random((M, K), "float64"), oracle.random((G, K, N), "float64", 1), jnp.array(SIZES)


def assert_close(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12), ours, theirs)


def exported(f: Any, *args: Any, platforms: Any = None) -> Any:
    platforms = platforms or [backends.platform_of(jax.devices()[0])]
    return export.export(jax.jit(f), platforms=platforms, disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*args)


@pytest.mark.skipif(jax.default_backend() not in backends.RAGGED_PLATFORMS, reason="no kernel on this platform")
def test_a_gradient_with_its_forward_pass_is_three_calls_and_expands_nothing():
    lhs, rhs, sizes = operands()

    def loss(lhs: Any, rhs: Any) -> Any:
        return jnp.sum(vb.ragged_dot(lhs, rhs, sizes) ** 2)

    text = jax.jit(jax.grad(loss, (0, 1))).lower(lhs, rhs).compile().as_text()
    assert text.count(f'custom_call_target="{backends.RAGGED_TARGET_NAME}"') == 3
    assert " dot(" not in text
    assert " transpose(" not in text


@pytest.mark.slow
def test_scan_and_remat():
    lhs, rhs, _ = operands()
    per_step = jnp.array([[7, 0, 9, 3], [24, 0, 0, 0], [1, 1, 1, 1]])

    def scanned(lhs: Any, rhs: Any) -> Any:
        @jax.checkpoint
        def step(x: Any, sizes: Any) -> tuple[Any, None]:
            return vb.ragged_dot(x, rhs, sizes, activation="tanh"), None

        return jnp.sum(jax.lax.scan(step, lhs, per_step)[0] ** 2)

    def looped(lhs: Any, rhs: Any) -> Any:
        for sizes in per_step.tolist():
            lhs = ragged_loop.loop(lhs, rhs, sizes, activation="tanh")
        return jnp.sum(lhs**2)

    assert_close(jax.jit(jax.value_and_grad(scanned, (0, 1)))(lhs, rhs), jax.value_and_grad(looped, (0, 1))(lhs, rhs))


@pytest.mark.multidevice(4)
@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
@pytest.mark.parametrize("implementation", slow_except([None, "xla"], [None]))
def test_shard_map_over_rows(check_vma, implementation):
    """Each device has rows and sizes of its own, and all have the same weights."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    lhs, rhs = oracle.random((4 * M, K), "float64"), oracle.random((G, K, N), "float64", 1)
    sizes = jnp.array([SIZES, [0, 24, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]])

    def f(lhs: Any, rhs: Any, sizes: Any) -> Any:
        return vb.ragged_dot(
            lhs, rhs, sizes.reshape(G), bias=rhs[:, 0], activation="silu", implementation=implementation
        )

    sharded = jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P(), P("x")), out_specs=P("x"), check_vma=check_vma)

    def unsharded(lhs: Any, rhs: Any) -> Any:
        parts = [f(x, rhs, s) for x, s in zip(jnp.split(lhs, 4), sizes, strict=True)]
        return jnp.concatenate(parts)

    def loss(function: Any) -> Any:
        return jax.value_and_grad(lambda lhs, rhs: jnp.sum(jnp.sin(function(lhs, rhs))), (0, 1))

    both = (lambda lhs, rhs: sharded(lhs, rhs, sizes)), unsharded
    assert_close(*(jax.jit(loss(f))(lhs, rhs) for f in both))


@pytest.mark.multidevice(4)
def test_experts_spread_over_devices_by_windows_of_the_groups():
    mesh = jax.make_mesh((4,), ("e",), axis_types=(AxisType.Auto,))
    lhs, rhs, sizes = operands()

    def part(lhs: Any, rhs: Any, sizes: Any) -> Any:
        own = vb.ragged_dot(lhs, rhs, sizes, group_offset=jax.lax.axis_index("e"))
        return jax.lax.psum(own, "e")

    spread = jax.shard_map(part, mesh=mesh, in_specs=(P(), P("e"), P()), out_specs=P())

    def loss(f: Any) -> Any:
        return jax.value_and_grad(lambda lhs, rhs: jnp.sum(jnp.sin(f(lhs, rhs, sizes))), (0, 1))

    assert_close(jax.jit(loss(spread))(lhs, rhs), loss(vb.ragged_dot)(lhs, rhs))


@pytest.mark.multidevice(4)
def test_sharded_operands_under_plain_jit():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    lhs, rhs, sizes = operands()
    placed = jax.device_put(lhs, NamedSharding(mesh, P("x"))), jax.device_put(rhs, NamedSharding(mesh, P("x")))
    assert_close(jax.jit(vb.ragged_dot)(*placed, sizes), vb.ragged_dot(lhs, rhs, sizes))


@pytest.mark.multidevice(4)
def test_explicit_axes_are_refused_by_name():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
    lhs, rhs, sizes = operands()
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="lhs is sharded over the explicit mesh axes 'x'"):
        vb.ragged_dot(jax.device_put(lhs, NamedSharding(mesh, P("x"))), rhs, sizes)


def test_export_round_trip():
    lhs, rhs, sizes = operands()
    blob = exported(vb.ragged_dot, lhs, rhs, sizes, platforms=["cpu", "cuda", "rocm", "tpu"]).serialize()
    if jax.default_backend() == "cpu":
        assert_close(export.deserialize(blob).call(lhs, rhs, sizes), vb.ragged_dot(lhs, rhs, sizes))


@pytest.mark.slow
def test_symbolic_rows_go_through_xla():
    (rows,) = export.symbolic_shape("rows")
    _, rhs, sizes = operands()

    def f(lhs: Any, rhs: Any, sizes: Any) -> Any:
        def loss(lhs: Any, rhs: Any) -> Any:
            y = vb.ragged_dot(lhs, rhs, sizes, row_scale=lhs[:, 0], activation="tanh", bias=rhs[:, 0])
            return jnp.sum(jnp.sin(y))

        return vb.ragged_dot(lhs, rhs, sizes), jax.grad(loss, (0, 1))(lhs, rhs)

    program = exported(f, jax.ShapeDtypeStruct((rows, K), jnp.float64), rhs, sizes)
    for m in (1, M, 1000):
        lhs = oracle.random((m, K), "float64", m)
        assert_close(program.call(lhs, rhs, sizes), jax.jit(f)(lhs, rhs, sizes))


@pytest.mark.parametrize("flat", [pytest.param(False, marks=pytest.mark.slow), True], ids=["rows", "flat rows"])
def test_symbolic_rows_times_matrices_of_different_shapes(flat):
    (size,) = export.symbolic_shape("size")
    Bs = [oracle.random(shape, "float64", i) for i, shape in enumerate([(2, 3), (4, 5)] if flat else [(K, 2), (K, 4)])]
    sizes = jnp.array([2, 3])

    def f(x: Any, Bs: Any) -> Any:
        def loss(x: Any, Bs: Any) -> Any:
            y = vb.ragged_matmul(x, Bs, sizes, rows=5 if flat else None)
            return jnp.sum(jnp.sin(y)), y

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(x, Bs)

    program = exported(f, jax.ShapeDtypeStruct((size,) if flat else (size, K), jnp.float64), Bs)
    for count in (9,) if flat else (1, 7):  # of flat rows, some don't exist
        x = oracle.random((count,) if flat else (count, K), "float64", count)
        assert_close(program.call(x, Bs), jax.jit(f)(x, Bs))


@pytest.mark.parametrize("argument", ["rhs", "group_sizes"])
def test_a_symbolic_number_of_groups_is_refused(argument):
    (g,) = export.symbolic_shape("g")
    lhs, rhs, sizes = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands())
    if argument == "rhs":
        rhs, sizes = (jax.ShapeDtypeStruct((g, *x.shape[1:]), x.dtype) for x in (rhs, sizes))
    else:  # weights of some groups
        sizes = jax.ShapeDtypeStruct((g,), sizes.dtype)
    product = functools.partial(vb.ragged_dot, group_offset=None if argument == "rhs" else 0)
    with pytest.raises(ValueError, match=rf"ragged_dot: {argument} is \(g,.*: the number of groups must be static"):
        exported(product, lhs, rhs, sizes)


def test_a_kernel_of_symbolic_rows_is_refused():
    (rows,) = export.symbolic_shape("rows")
    _, rhs, sizes = operands()
    with pytest.raises(NotImplementedError, match="ragged_dot: implementation='kernel', but"):
        exported(
            lambda lhs: vb.ragged_dot(lhs, rhs, sizes, implementation="kernel"),
            jax.ShapeDtypeStruct((rows, K), jnp.float64),
        )


def test_donated_operands():
    lhs, rhs, sizes = operands()
    truth = vb.ragged_dot(lhs, rhs, sizes)
    result = jax.jit(vb.ragged_dot, donate_argnums=(0,))(jnp.copy(lhs), rhs, sizes)
    assert_close(result, truth)


def test_concurrent_calls_agree():
    lhs, rhs, sizes = operands()
    many = jax.jit(lambda x: [vb.ragged_dot(x + i, rhs, sizes) for i in range(16)])(lhs)
    for i, y in enumerate(many):
        assert_close(y, ragged_loop.truth(lhs + i, rhs, SIZES))
