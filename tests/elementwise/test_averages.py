"""averages against float64, under transformations, and in programs for GPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_vbgemm as vb
from jax_vbgemm._src.elementwise.averages import averages

SHAPES = [(), (7,), (3, 5), (2, 3, 4), (0, 4)]
SCALES = (0.25, 0.75, 0.5, -1.5)


def arrays(dtype, seed=0, shapes=SHAPES):
    return [oracle.random(shape, dtype, seed + index) for index, shape in enumerate(shapes)]


def plain(xs, ys, alpha, beta, gamma, delta):
    found = [alpha * x + beta * y for x, y in zip(xs, ys, strict=True)]
    ahead = [gamma * x + delta * average for x, average in zip(xs, found, strict=True)]
    return found, ahead, jnp.stack([jnp.sum(jnp.abs(x) ** 2) for x in ahead])


def assert_close(ours, theirs):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11), ours, theirs)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_values_and_transformations(dtype):
    xs, ys = arrays(dtype), arrays(dtype, 100)
    stacked = [jnp.stack([y, 2 * y]) for y in ys]

    def loss(f, xs, ys, scale):
        return sum(jnp.sum(jnp.abs(x) ** 3) for x in jax.tree.leaves(f(xs, ys, 0.25, scale, 0.5, -1.5)))

    @jax.jit
    def results(xs, ys, stacked):
        def of(f):
            gradients = jax.grad(functools.partial(loss, f), (0, 1, 2))(xs, ys, 0.75)
            mapped = jax.vmap(lambda ys: f(xs, ys, *SCALES))(stacked)
            scanned = jax.lax.scan(lambda ys, _: f(xs, ys, *SCALES)[::2], ys, length=3)
            return f(xs, ys, *SCALES), gradients, mapped, scanned

        return of(averages), of(plain)

    assert_close(*results(xs, ys, stacked))


def test_each_array_is_rounded_once():
    x = jnp.ones(8, "bfloat16")
    found, ahead, sums = averages([x], [x], 1.0, 0.0039, 0.0, 1.0)  # 1.0039 is below the midpoint above 1
    for array in (*found, *ahead):
        np.testing.assert_array_equal(oracle.wide(array), 1)
    assert sums.dtype == "float32"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_infinite_gradient_without_nesterov(dtype):
    """gamma is 0, and 0 times Inf is NaN: x is left out."""
    x, y = (jnp.array(values, dtype) for values in ([jnp.inf, -jnp.inf, jnp.nan, 1], [1, 2, 3, 4]))
    (found,), (ahead,), _ = jax.jit(lambda x, y, gamma: averages([x], [y], 0.5, 0.5, gamma, 2))(x, y, 0)
    np.testing.assert_array_equal(oracle.wide(found), [jnp.inf, -jnp.inf, jnp.nan, 2.5])
    np.testing.assert_array_equal(oracle.wide(ahead), [jnp.inf, -jnp.inf, jnp.nan, 5])


def exported(function, args, platform="cuda"):
    program = export.export(function, platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*args)
    return program.mlir_module()


def calls(text):
    return text.count("custom_call @vbgemm_averages_v1")


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_one_call_on_a_gpu(platform):
    xs, ys = arrays("float32"), arrays("float32", 100)
    text = exported(jax.jit(averages), (xs, ys, *SCALES), platform)
    assert calls(text) == 1
    assert text.count("output_operand_alias<") == len(xs)
    assert "stablehlo.reduce" not in text


def test_an_array_that_is_read_twice_is_not_overwritten():
    x, y, z = arrays("float32", shapes=[(3, 5)] * 3)
    text = exported(jax.jit(lambda x, y, z: averages([x, y, x], [y, y, z], *SCALES)), (x, y, z))
    assert calls(text) == 1
    assert text.count("output_operand_alias<") == 1
    assert "output_tuple_indices = [2]" in text


def test_no_call_without_a_kernel():
    xs = arrays("complex64")
    assert calls(exported(jax.jit(averages), (xs, xs, *SCALES))) == 0
    assert calls(exported(jax.jit(averages), (arrays("float32"), arrays("float32"), *SCALES), "cpu")) == 0


@pytest.mark.multidevice(8)
def test_several_devices():
    """Under plain jit XLA computes them on the shards; inside shard_map each device calls the kernel."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    xs, ys = (arrays("float32", seed, [(8, 3), (16,)]) for seed in (0, 100))
    f = functools.partial(averages, alpha=0.25, beta=0.75, gamma=0.5, delta=1.5)
    sharding = NamedSharding(mesh, P("x"))
    assert calls(exported(jax.jit(f, in_shardings=(sharding, sharding)), (xs, ys))) == 0
    split = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    assert calls(exported(jax.jit(split), (xs, ys))) == 1


X = jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("xs", "ys", "message"),
    [
        ([], [], "there are 0 xs"),
        ([X], [], "1 xs and 0 ys"),
        ([X, X], [X, X.T], r"xs\[1\] is float64\(2, 3\) and ys\[1\] is float64\(3, 2\)"),
        ([X], [X.astype("float32")], r"ys\[0\] is float32"),
    ],
)
def test_bad_input(xs, ys, message):
    with pytest.raises(ValueError, match=message):
        averages(xs, ys, *SCALES)
