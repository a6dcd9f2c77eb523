"""square_sums against float64, under transformations, and in programs for GPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src.elementwise.square_sums import square_sums

SHAPES = [(), (1,), (7,), (3, 5), (64, 33), (2, 3, 4), (0, 4), (4099,)]


def arrays(dtype="float32", shapes=SHAPES, seed=0):
    return [oracle.random(shape, dtype, seed + index) for index, shape in enumerate(shapes)]


def check(sums, xs):
    double = xs[0].dtype in ("float64", "complex128")
    assert (sums.shape, sums.dtype) == ((len(xs),), "float64" if double else "float32")
    expected = [np.sum(np.abs(oracle.wide(x)) ** 2) for x in xs]
    np.testing.assert_allclose(oracle.wide(sums), expected, rtol=1e-14 if double else 2e-6)


@pytest.mark.parametrize("dtype", slow_except(oracle.DTYPES, ["bfloat16"]))
def test_values(dtype):
    chunk = _core.ARRAY_CHUNK_BYTES // jnp.dtype(dtype).itemsize
    xs = arrays(dtype, [*SHAPES, (chunk - 1,), (chunk,), (chunk + 1,), (3, chunk + 7), (101, 1009)])
    check(square_sums([np.asarray(x) for x in xs]), xs)
    # What XLA puts together may not begin at a vector's address.
    parts = slice(1, None), slice(3, None), slice(-1)
    all_sums, of_parts = jax.jit(lambda xs: (square_sums(xs), square_sums([xs[-1][part] for part in parts])))(xs)
    check(all_sums, xs)
    check(of_parts, [np.asarray(xs[-1])[part] for part in parts])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_sums_of_equal_elements(dtype):
    """The worst case: every rounding of a long sum then goes the same way."""
    xs = [jnp.full(shape, 0.1, dtype) for shape in [(1024, 1024), (768, 768), (16, 263)]]
    check(jax.jit(square_sums)(xs), xs)


def test_nan_and_infinity():
    xs = [jnp.array(values, "float32") for values in ([1, jnp.nan], [jnp.inf, 2], [-jnp.inf], [1e30, 1])]
    np.testing.assert_array_equal(square_sums(xs), [jnp.nan, jnp.nan, jnp.nan, jnp.inf])


def scalar(f, xs):
    return jnp.sum(jnp.sin(f(xs)))


def plain(xs):
    return jnp.stack([jnp.sum(jnp.abs(x) ** 2) for x in xs])


def assert_close(ours, theirs):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11), ours, theirs)


@pytest.mark.slow
def test_derivatives():
    xs = arrays("float64")

    def derivatives(f, xs, complex_xs):
        gradient = jax.grad(functools.partial(scalar, f))
        of_one = jax.grad(lambda x: scalar(f, [xs[2], x]))(xs[3])
        return gradient(xs), jax.jvp(f, (xs,), (xs,)), of_one, gradient(complex_xs)

    args = xs, arrays("complex128", SHAPES[1:4])
    assert_close(*jax.jit(lambda *args: [derivatives(f, *args) for f in (square_sums, plain)])(*args))
    oracle.check_grads(functools.partial(scalar, square_sums), (arrays("float64", SHAPES[:4]),), order=2)


def test_vmap_and_scan():
    xs = arrays("float64")
    stacked = [np.stack([x, 2 * np.asarray(x)], axis=-1) for x in xs]

    def results(f, stacked):
        of_one = jax.vmap(lambda x: f([xs[0], x]))(stacked[4])
        steps = jax.lax.scan(lambda xs, _: ([x / 2 for x in xs], f(xs)), xs, length=3)
        return jax.vmap(f, -1)(stacked), of_one, jax.vmap(jax.grad(functools.partial(scalar, f)), -1)(stacked), steps

    assert_close(*jax.jit(lambda stacked: [results(f, stacked) for f in (square_sums, plain)])(stacked))


@pytest.mark.multidevice(8)
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    xs = arrays("float64", [(8, 3), (16,), (5,)])
    specs = [P("x"), P(("x", "y")), P()]

    def local(f):  # the result varies over all axes
        return jax.shard_map(f, mesh=mesh, in_specs=(specs,), out_specs=P(("x", "y")), check_vma=check_vma)

    sums = [local(f) for f in (square_sums, plain)]
    assert_close(*jax.jit(lambda xs: [(f(xs), jax.grad(functools.partial(scalar, f))(xs)) for f in sums])(xs))


@pytest.mark.multidevice(8)
def test_explicit_meshes():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    xs = arrays("float64", [(8, 3), (16,)])
    with jax.set_mesh(mesh):
        check(jax.jit(square_sums)(jax.device_put(xs, NamedSharding(mesh, P("x")))), xs)


def exported(function, args, platform="cuda"):
    program = export.export(function, platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*args)
    return program.mlir_module()


def calls(text):
    return text.count("custom_call @vbgemm_square_sums_v1")


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_one_call_on_a_gpu(platform, dtype):
    text = exported(jax.jit(square_sums), (arrays(dtype),), platform)
    assert calls(text) == 1
    assert "stablehlo.reduce" not in text


def test_no_call_without_a_kernel():
    assert calls(exported(jax.jit(square_sums), (arrays("complex64"),))) == 0
    assert calls(exported(jax.jit(square_sums), (arrays(),), "cpu")) == 0
    assert calls(jax.jit(square_sums).lower(arrays()).as_text()) == (jax.default_backend() == "gpu")
    (size,) = export.symbolic_shape("b")
    assert calls(exported(jax.jit(square_sums), ([jax.ShapeDtypeStruct((size, 3), jnp.float32)],))) == 0


@pytest.mark.multidevice(8)
def test_several_devices():
    """Under plain jit XLA computes the sums on the shards; inside shard_map each device calls the kernel."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    xs = arrays(shapes=[(8, 3), (16,)])
    assert calls(exported(jax.jit(square_sums, in_shardings=NamedSharding(mesh, P("x"))), (xs,))) == 0
    split = jax.shard_map(square_sums, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    assert calls(exported(jax.jit(split), (xs,))) == 1


X = jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("xs", "error", "message"),
    [
        ([], ValueError, "there are no arrays"),
        ([X, X.astype("int32")], TypeError, r"xs\[1\] is int32: it must be floating or complex"),
        ([X, X.astype("float32")], TypeError, r"xs\[1\] is float32 but xs\[0\] is float64"),
    ],
)
def test_bad_input(xs, error, message):
    with pytest.raises(error, match=message):
        square_sums(xs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_more_arrays_than_a_launch_holds(dtype):
    xs = arrays(dtype, [(1 + index % 37, index % 5) for index in range(2000)])
    sums = jax.jit(square_sums)(xs)
    check(sums, xs)
    np.testing.assert_array_equal(jax.jit(square_sums)(xs), sums)
