"""Experts divided among devices: the results and gradients of one device that has all of them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb

pytestmark = pytest.mark.multidevice(8)
ROWS, EXPERTS, K, N = 6, 8, 5, 3
ROWS_BY = ("all_gather", "ragged_all_to_all")


def mesh(*sizes):
    return jax.make_mesh(
        sizes,
        ("x", "y")[: len(sizes)],
        axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
        devices=jax.devices()[: int(np.prod(sizes))],
    )


def routing(devices, kind):
    """Group sizes of each device."""
    rng = np.random.default_rng(devices)
    if kind == "one expert":
        sizes = np.zeros((devices, EXPERTS), int)
        sizes[:, 5] = ROWS
        return sizes
    if kind == "none":
        return np.zeros((devices, EXPERTS), int)
    if kind == "illegal":  # negative, and more than there are
        return np.tile([2, -3, 1, 0, 2**30, 2**31 - 1, 5, 1], (devices, 1))
    # rows of the last index belong to no expert: they come after the groups
    places = rng.integers(0, EXPERTS + 1, (devices, ROWS))
    return np.stack([np.bincount(p, minlength=EXPERTS + 1)[:EXPERTS] for p in places])


def operands(devices, kind):
    lhs = oracle.random((devices * ROWS, K), "float64", 1)
    return lhs, oracle.random((EXPERTS, K, N), "float64", 2), routing(devices, kind).ravel().astype(np.int32)


def two_products(lhs, rhs, sizes):
    hidden = vb.ragged_dot(lhs, rhs, sizes, activation="silu")
    return vb.ragged_dot(hidden, rhs, sizes, transpose_rhs=True)


def one_device(lhs, rhs, sizes, product=two_products):
    parts = jnp.split(lhs, len(lhs) // ROWS)
    return jnp.concatenate([product(x, rhs, s) for x, s in zip(parts, sizes.reshape(-1, EXPERTS), strict=True)])


def spread(product, devices, axis="x", exchange=None, **options):
    def on_device(lhs, rhs, sizes):
        function = lambda rows, sizes: product(rows, rhs, sizes)  # noqa: E731
        return vb.moe.expert_parallel(function, lhs, sizes, mesh_axis=axis, exchange=exchange)

    return jax.jit(jax.shard_map(on_device, mesh=devices, in_specs=P(axis), out_specs=P(axis), **options))


def assert_close(ours, theirs):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12), ours, theirs)


def assert_same(functions, *args):
    """Asserts equal results of functions, in one program."""
    *ours, theirs = jax.jit(lambda *args: [function(*args) for function in functions])(*args)
    for each in ours:
        assert_close(each, theirs)


def exchanged(make, exchanges=ROWS_BY):
    """make(exchange=) for each exchange."""
    return [make(exchange=exchange) for exchange in exchanges]


def gradient(function, *arguments):
    def loss(*args):
        return jnp.sum(jnp.sin(function(*args)))

    return jax.value_and_grad(loss, arguments)


@pytest.mark.parametrize("devices", slow_except([1, 2, 8], [1, 8]))
def test_results(devices):
    functions = *exchanged(functools.partial(spread, two_products, mesh(devices))), one_device
    together = jax.jit(lambda *args: [f(*args) for f in functions])
    for kind in ("random", "one expert", "none", "illegal"):
        *ours, theirs = together(*operands(devices, kind))
        for each in ours:
            assert_close(each, theirs)


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_gradients(check_vma):
    functions = *exchanged(functools.partial(spread, two_products, mesh(4), check_vma=check_vma)), one_device
    assert_same([gradient(f, 0, 1) for f in functions], *operands(4, "random"))


@pytest.mark.slow
def test_second_derivatives():
    lhs, rhs, sizes = operands(2, "random")

    def hessian_vector(function):
        return lambda *x: jax.jvp(gradient(lambda *args: function(*args, sizes), 0, 1), x, x)[1]

    functions = *exchanged(functools.partial(spread, two_products, mesh(2))), one_device
    assert_same([hessian_vector(f) for f in functions], lhs, rhs)


@pytest.mark.parametrize("shape", [(0, K), (2 * ROWS, 0)])
def test_nothing_to_send(shape):
    args = np.zeros(shape), np.zeros((EXPERTS, shape[1], N)), np.ones(2 * EXPERTS, np.int32)
    for function in exchanged(functools.partial(spread, vb.ragged_dot, mesh(2))):
        result = function(*args)
        assert result.shape == (shape[0], N)
        assert not result.any()


def test_two_axes():
    functions = *exchanged(functools.partial(spread, two_products, mesh(4, 2), axis=("x", "y"))), one_device
    assert_same(functions, *operands(8, "random"))


TWO_AXES = {
    # experts along x; the second axis divides the tokens
    "tokens": (P(("y", "x")), P("x"), P("x")),
    # it divides the columns of the first weights and the rows of the second ones
    "weights": (P("x"), P("x", None, "y"), P("x", "y", None)),
}


@pytest.mark.parametrize(
    ("divided", "check_vma"),
    slow_except(list(itertools.product(TWO_AXES, [True, False])), [("weights", False)]),
)
def test_a_second_axis(divided, check_vma):
    """Tokens or weights are divided along an axis over which nothing is exchanged."""
    rows, *weights = TWO_AXES[divided]
    lhs, up, sizes = operands(4 if divided == "tokens" else 2, "random")
    down = oracle.random((EXPERTS, N, K), "float64", 3)
    up, down = (jnp.concatenate([x, -2 * x], axis) for x, axis in ((up, 2), (down, 1)))  # two devices along y

    def layer(rows, up, down, sizes):
        return vb.ragged_dot(vb.ragged_dot(rows, up, sizes, activation="silu"), down, sizes)

    def ours(exchange):
        def on_device(lhs, up, down, sizes):
            function = lambda rows, sizes: layer(rows, up, down, sizes)  # noqa: E731
            result = vb.moe.expert_parallel(function, lhs, sizes, mesh_axis="x", exchange=exchange)
            return jax.lax.psum(result, "y") if divided == "weights" else result

        return jax.shard_map(
            on_device, mesh=mesh(2, 2), in_specs=(rows, *weights, rows), out_specs=rows, check_vma=check_vma
        )

    theirs = lambda lhs, up, down, sizes: one_device(  # noqa: E731
        lhs, None, sizes, lambda rows, _, sizes: layer(rows, up, down, sizes)
    )
    assert_same(
        [lambda *args, f=f: (f(*args), gradient(f, 0, 1, 2)(*args)) for f in (*exchanged(ours), theirs)],
        lhs, up, down, sizes,
    )  # fmt: skip


def test_rows_that_vary_over_a_second_axis_by_type_alone():
    def on_device(lhs, rhs, sizes):
        lhs, sizes = (jax.lax.pcast(x, "y", to="varying") for x in (lhs, sizes))
        result = vb.moe.expert_parallel(lambda rows, sizes: two_products(rows, rhs, sizes), lhs, sizes, mesh_axis="x")
        return jax.lax.pmean(result, "y")

    ours = jax.shard_map(on_device, mesh=mesh(2, 2), in_specs=P("x"), out_specs=P("x"))
    assert_same([ours, one_device], *operands(2, "random"))


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
@pytest.mark.slow
def test_a_shard_map_over_one_axis_of_two(check_vma):
    product = functools.partial(vb.ragged_dot, implementation="xla")
    partly = spread(product, mesh(2, 2), axis_names={"x"}, check_vma=check_vma)
    theirs = functools.partial(one_device, product=vb.ragged_dot)
    assert_same([gradient(f, 0, 1) for f in (partly, theirs)], *operands(2, "random"))


def test_nan_stays_in_its_group_and_behind_the_last():
    lhs, rhs, _ = operands(2, "none")
    sizes = jnp.array([[1, 0, 2, 0, 0, 1, 0, 0], [0, 1, 0, 0, 3, 0, 0, 0]])
    lhs = lhs.at[0].set(jnp.nan).at[ROWS - 1].set(jnp.nan)
    for function in exchanged(functools.partial(spread, vb.ragged_dot, mesh(2))):
        bad = np.isnan(function(lhs, rhs, sizes.ravel())).any(axis=1)
        assert bad.tolist() == [True] + [False] * (2 * ROWS - 1)


def test_part_of_the_experts_and_a_sum():
    """The alternative: all devices have all rows, each has some experts (group_offset), and results are added."""
    lhs, rhs, sizes = oracle.random((9, K), "float64"), oracle.random((EXPERTS, K, N), "float64", 1), jnp.arange(8) % 3

    def on_device(lhs, rhs, sizes):
        offset = jax.lax.axis_index("x").astype(jnp.int32) * len(rhs)
        return jax.lax.psum(vb.ragged_dot(lhs, rhs, sizes, group_offset=offset), "x")

    ours = jax.shard_map(on_device, mesh=mesh(4), in_specs=(P(), P("x"), P()), out_specs=P())
    both = ours, vb.ragged_dot
    assert_same([lambda *args, f=f: (f(*args), gradient(f, 0, 1)(*args)) for f in both], lhs, rhs, sizes)


@pytest.mark.parametrize("split", ["n", "k"])
def test_tensor_parallelism(split):
    """Columns of the weights on each device, or rows of them and a sum."""
    lhs, rhs = oracle.random((9, 8), "float64"), oracle.random((3, 8, 12), "float64", 1)
    sizes = jnp.array([4, 0, 3])
    specs = (P(), P(None, None, "x")) if split == "n" else (P(None, "x"), P(None, "x"))

    def on_device(lhs, rhs):
        part = vb.ragged_dot(lhs, rhs, sizes)
        return part if split == "n" else jax.lax.psum(part, "x")

    out = P(None, "x") if split == "n" else P()
    ours = jax.shard_map(on_device, mesh=mesh(4), in_specs=specs, out_specs=out)
    whole = lambda lhs, rhs: vb.ragged_dot(lhs, rhs, sizes)  # noqa: E731
    assert_same([lambda *args, f=f: (f(*args), gradient(f, 0, 1)(*args)) for f in (ours, whole)], lhs, rhs)


def test_what_is_wrong_is_named():
    lhs, sizes = jnp.ones((4, 2)), jnp.ones(6, jnp.int32)

    def run(lhs=lhs, sizes=sizes, axis="x", function=lambda rows, sizes: rows):
        call = functools.partial(vb.moe.expert_parallel, function, mesh_axis=axis)
        jax.jit(jax.shard_map(call, mesh=mesh(4), in_specs=P(), out_specs=P("x")))(lhs, sizes)

    with pytest.raises(
        ValueError, match=r"group_sizes is \(6,\): the mesh axis 'x' has 4 devices, which don't divide 6"
    ):
        run()
    with pytest.raises(ValueError, match=r"group_sizes is \(0,\)"):
        run(sizes=jnp.ones(0, jnp.int32))
    eight = jnp.ones(8, jnp.int32)
    with pytest.raises(ValueError, match=r"mesh_axis='z': 'z' is not an axis of the mesh, which has 'x'"):
        run(sizes=eight, axis="z")
    with pytest.raises(ValueError, match=r"lhs must be \(t, k\) and group_sizes \(E,\)"):
        run(lhs=jnp.ones(4), sizes=eight)
    with pytest.raises(TypeError, match=r"group_sizes is float"):
        run(sizes=jnp.ones(8))
    with pytest.raises(ValueError, match=r"function returned \(3, 2\) for rows \(16, 2\)"):
        run(sizes=eight, function=lambda rows, sizes: rows[:3])
    with pytest.raises(ValueError, match=r"exchange is 'all_to_all': it must be None or one of all_gather, ragged_all"):
        spread(two_products, mesh(2), exchange="all_to_all")(*operands(2, "none"))
    with jax.set_mesh(mesh(4)), pytest.raises(ValueError, match=r"there is no enclosing shard_map over it"):
        vb.moe.expert_parallel(lambda rows, sizes: rows, lhs, eight, mesh_axis="x")
