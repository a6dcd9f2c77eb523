"""add_scaled against float64, under transformations, and in programs for GPUs."""

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
from jax_vbgemm._src.elementwise.addition import add_scaled, negated

SHAPES = [(), (1,), (7,), (3, 5), (64, 33), (2, 3, 4), (0, 4), (4099,)]
DTYPES = {"float64": 1e-15, "float32": 1e-6, "bfloat16": 1e-2, "float16": 1e-3, "complex64": 1e-6, "complex128": 1e-15}


def arrays(dtype="float32", shapes=SHAPES, seed=0):
    return [oracle.random(shape, dtype, seed + index) for index, shape in enumerate(shapes)]


def check(sums, xs, ys, alpha, beta):
    count = len(xs)
    alpha, beta = (np.broadcast_to(np.asarray(scale, np.float64), count) for scale in (alpha, beta))
    for total, x, y, a, b in zip(sums, xs, ys, alpha, beta, strict=True):
        assert (total.shape, total.dtype) == (x.shape, jnp.result_type(x, y))
        expected = a * oracle.wide(x) + (b * oracle.wide(y) if b else 0)
        np.testing.assert_allclose(oracle.wide(total), expected, rtol=0, atol=4 * DTYPES[total.dtype.name])


CASES = [*((dtype, True) for dtype in DTYPES), ("float32", False)]
DEFAULT = [("bfloat16", True), ("complex64", True), ("float32", False)]


@pytest.mark.parametrize(("dtype", "in_place"), slow_except(CASES, DEFAULT))
def test_values(dtype, in_place):
    xs, ys = arrays(dtype), arrays(dtype, seed=100)
    many = np.linspace(-1, 2, len(xs))
    scales = [(1, 1), (0.95, 0.05), (many, 1.0), (1, many), (np.float32(0.5), np.int32(2)), (0, 1), (1, 0)]
    add = functools.partial(add_scaled, in_place=in_place)

    @jax.jit
    def results(xs, ys, traced):
        return [add(xs, ys, *pair) for pair in [*scales, *traced]]

    for sums, (alpha, beta) in zip(results(xs, ys, scales), scales * 2, strict=True):
        check(sums, xs, ys, alpha, beta)
    check(add_scaled(xs, xs), xs, xs, 1, 1)


@pytest.mark.parametrize(("beta", "expected"), [(0.0039, 1.0), (0.00392, 1.0078125)])
def test_one_rounding(beta, expected):
    """1 + beta lies on either side of the midpoint above 1. If beta were rounded first, both sums would round to 1."""
    ones = jnp.ones(8, "bfloat16")
    for function in (add_scaled, jax.jit(add_scaled)):
        (total,) = function([ones], [ones], 1.0, beta)
        np.testing.assert_array_equal(oracle.wide(total), expected)


def test_no_members_and_mixed_dtypes():
    assert add_scaled([], []) == []
    with jax.numpy_dtype_promotion("standard"):
        xs, ys = arrays("float32"), [*arrays("bfloat16", SHAPES[:4]), *arrays("float32", SHAPES[4:])]
        check(add_scaled(xs, ys, 0.5, 2.0), xs, ys, 0.5, 2.0)
    with pytest.raises(ValueError, match=r"float32.*bfloat16|bfloat16.*float32"):  # the strict mode of this suite
        add_scaled(xs, ys)
    xs = [*arrays("float32"), *arrays("bfloat16")]
    scales = np.linspace(0.5, 2, len(xs))
    check(add_scaled(xs, xs, scales, 1), xs, xs, scales, 1)
    check(jax.jit(add_scaled)(xs, xs, scales, jnp.asarray(2.0)), xs, xs, scales, 2)


@pytest.mark.parametrize("beta", [0, 0.0, jnp.zeros(()), jnp.zeros(len(SHAPES))], ids=str)
def test_y_is_not_read_where_beta_is_0(beta):
    xs = arrays()
    ys = [np.full_like(x, np.nan) for x in xs]
    for sums in jax.jit(lambda xs, ys, traced: [add_scaled(xs, ys, 2, b) for b in (beta, traced)])(xs, ys, beta):
        check(sums, xs, xs, 2, 0)


def test_nan_and_infinity():
    x = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 1.0], "float32")
    (total,) = add_scaled([x], [x[::-1]], 0, 1)
    np.testing.assert_array_equal(total, [jnp.nan, jnp.nan, jnp.nan, jnp.nan])  # 0 times infinity too, as in BLAS


def scalar(sums):
    return sum(jnp.sum(jnp.sin(total)) for total in sums)


def plain(xs, ys, alpha, beta):
    return [alpha * x + beta * y for x, y in zip(xs, ys, strict=True)]


def assert_close(ours, theirs):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-13), ours, theirs)


def test_derivatives():
    xs, ys = arrays("float64", SHAPES[2:5]), arrays("float64", SHAPES[2:5], 100)
    args = (xs, ys, jnp.asarray(0.7), jnp.asarray(-0.3))

    def derivatives(f, *args):
        gradients = [jax.grad(lambda *a: scalar(f(*a)), argnums)(*args) for argnums in [(0, 1, 2, 3), (1,), (3,)]]
        transpose = jax.linear_transpose(lambda y: f(xs, y, 0.0, 2.0)[1:], ys)
        return gradients, jax.jvp(f, args, args), transpose(ys[1:])

    assert_close(*jax.jit(lambda *args: [derivatives(f, *args) for f in (add_scaled, plain)])(*args))
    oracle.check_grads(lambda *a: scalar(add_scaled(*a)), args, order=1, modes=["fwd", "rev"])


def test_vmap_and_scan():
    xs, ys = arrays("float64", SHAPES[:5]), arrays("float64", SHAPES[:5], 100)
    stacked = [jnp.stack([x, 2 * x]) for x in xs]
    scales = jnp.array([0.5, 2.0])
    for in_axes, args in [
        ((0, None, None, None), (stacked, ys, 0.5, 2.0)),
        ((None, 0, 0, None), (xs, stacked, scales, 2.0)),
        ((0, 0, None, 0), (stacked, stacked, jnp.asarray(0.5), scales)),
    ]:
        mapped = [jax.vmap(f, in_axes) for f in (add_scaled, plain)]
        assert_close(*jax.jit(lambda *args, mapped=mapped: [f(*args) for f in mapped])(*args))

    def steps(xs):
        return jax.lax.scan(lambda ys, beta: (add_scaled(xs, ys, 0.5, beta), None), xs, scales)[0]

    assert_close(*jax.jit(lambda xs: (steps(xs), plain(xs, plain(xs, xs, 0.5, 0.5), 0.5, 2.0)))(xs))


def test_donated_operands():
    xs, ys = arrays(), arrays(seed=100)
    expected = add_scaled(xs, ys, 0.5, 2.0)
    step = jax.jit(functools.partial(add_scaled, alpha=0.5, beta=2.0), donate_argnums=1)
    assert step.lower(xs, ys).compile().memory_analysis().alias_size_in_bytes >= sum(y.nbytes for y in ys)
    for ours, theirs in zip(step(xs, [jnp.copy(y) for y in ys]), expected, strict=True):
        np.testing.assert_array_equal(oracle.wide(ours), oracle.wide(theirs))


@pytest.mark.multidevice(8)
@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_shard_map(check_vma):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    xs, ys = arrays("float64", [(8, 3), (16,), (5,)]), arrays("float64", [(8, 3), (16,), (5,)], 100)
    specs = [P("x"), P(("x", "y")), P()]
    for in_specs in [(specs, specs, P(), P()), (specs, [P(None, None), P("x"), P()], P(), P())]:

        def f(xs, ys, alpha, beta):
            # The second case adds what is replicated to what is not.
            ys = [y[: len(x)] for x, y in zip(xs, ys, strict=True)]
            return add_scaled(xs, ys, alpha, beta)

        def g(xs, ys, alpha, beta):
            return plain(xs, [y[: len(x)] for x, y in zip(xs, ys, strict=True)], alpha, beta)

        args = (xs, ys, jnp.asarray(0.7), jnp.asarray(-0.3))
        sharded = [
            jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=specs, check_vma=check_vma)
            for function in (f, g)
        ]
        gradients = [jax.grad(lambda *a, f=f: scalar(f(*a)), (0, 1, 2, 3)) for f in sharded]
        results = jax.jit(lambda *args, functions=(*sharded, *gradients): [f(*args) for f in functions])(*args)
        assert_close(results[::2], results[1::2])


@pytest.mark.multidevice(8)
def test_explicit_meshes():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    xs, ys = arrays("float64", [(8, 3), (16,)]), arrays("float64", [(8, 3), (16,)], 100)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(xs, NamedSharding(mesh, P("x"))), jax.device_put(ys, NamedSharding(mesh, P("x")))
        sums = jax.jit(add_scaled)(*sharded, 0.5, 2.0)
        assert [jax.typeof(total).sharding.spec[0] for total in sums] == ["x", "x"]
    assert_close([np.asarray(total) for total in sums], plain(xs, ys, 0.5, 2.0))


def exported(function, args, platform="cuda"):
    program = export.export(function, platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*args)
    return program.mlir_module()


def calls(text):
    return text.count("custom_call @vbgemm_add_v2")


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_one_call_on_a_gpu(platform):
    xs, ys = arrays(), arrays(seed=100)
    text = exported(jax.jit(add_scaled), (xs, ys, 0.5, jnp.ones(len(xs))), platform)
    assert calls(text) == 1
    assert text.count("output_operand_alias<") == len(xs) - 1  # one is empty
    text = exported(jax.jit(functools.partial(add_scaled, in_place=False)), (xs, ys), platform)
    assert calls(text) == 1
    assert "output_operand_alias<" not in text
    assert calls(exported(jax.jit(add_scaled), (xs + arrays("bfloat16"), ys + arrays("bfloat16")), platform)) == 2


def test_what_is_read_twice_is_not_overwritten():
    x, y = arrays(shapes=[(3, 4), (3, 4)])
    text = exported(jax.jit(lambda x, y: add_scaled([x, x, y], [y, x, x])), (x, y))
    assert calls(text) == 1
    assert "output_operand_alias<" not in text


def test_no_call_without_a_kernel():
    xs = arrays("complex64")
    assert calls(exported(jax.jit(add_scaled), (xs, xs))) == 0
    assert calls(exported(jax.jit(add_scaled), (arrays(), arrays()), "cpu")) == 0
    assert calls(jax.jit(add_scaled).lower(arrays(), arrays()).as_text()) == (jax.default_backend() == "gpu")
    (size,) = export.symbolic_shape("b")
    args = [jax.ShapeDtypeStruct((size, 3), jnp.float32)]
    assert calls(exported(jax.jit(add_scaled), (args, args))) == 0


@pytest.mark.multidevice(8)
def test_several_devices():
    """Under plain jit XLA computes the sums on the shards; inside shard_map each device calls the kernel."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    xs, ys = arrays(shapes=[(8, 3), (16,)]), arrays(shapes=[(8, 3), (16,)], seed=100)
    sharding = NamedSharding(mesh, P("x"))
    assert calls(exported(jax.jit(add_scaled, in_shardings=(sharding, sharding)), (xs, ys))) == 0
    split = jax.shard_map(add_scaled, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    assert calls(exported(jax.jit(split), (xs, ys))) == 1
    two = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    partly = jax.shard_map(add_scaled, mesh=two, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    assert calls(exported(jax.jit(partly), (xs, ys))) == 0


X = jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (([X], []), ValueError, "1 xs but 0 ys"),
        (([X, X], [X, X.T]), ValueError, r"xs\[1\] is \(2, 3\) but ys\[1\] is \(3, 2\)"),
        (([X], [X.astype("int32")]), TypeError, r"ys\[0\] is int32"),
        (([X, X], [X, X], jnp.ones(3)), ValueError, r"alpha has shape \(3,\), but there are 2 members"),
        (([X], [X], 1, 1j), TypeError, "beta is complex128: it must be real"),
        (([X], [X], "1"), TypeError, "alpha is"),
    ],
)
def test_bad_input(args, error, message):
    with pytest.raises(error, match=message):
        add_scaled(*args)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_more_members_than_a_launch_holds(dtype):
    shapes = [(1 + index % 37, index % 5) for index in range(2000)]
    xs, ys = arrays(dtype, shapes), arrays(dtype, shapes, 5000)
    beta = np.linspace(-1, 1, len(xs))
    check(jax.jit(add_scaled, donate_argnums=1)(xs, [jnp.copy(y) for y in ys], 0.5, beta), xs, ys, 0.5, beta)


def test_multiples_are_one_operation_in_derivatives_too():
    """On a GPU negated arrays are one launch; that of their gradient would be a kernel for each array otherwise."""
    xs = [jnp.arange(3.0), jnp.ones((2, 2)), jnp.float64(2)]

    def loss(xs):
        return sum(jnp.sum(x**2) for x in negated(xs[:2])) + xs[2]

    gradients = jax.jit(jax.grad(loss))(xs)
    jax.tree.map(np.testing.assert_array_equal, gradients, [2 * xs[0], 2 * xs[1], np.float64(1)])
    written = str(jax.make_jaxpr(jax.grad(loss))(xs))
    assert written.count("add_scaled[") == 2
    assert " neg " not in written
    one_moves = jax.jvp(lambda x: negated([x, xs[1]]), (xs[0],), (xs[0],))[1]
    jax.tree.map(np.testing.assert_array_equal, one_moves, [-xs[0], 0 * xs[1]])
