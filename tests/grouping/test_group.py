"""`group`: programs compute the same results, with one call for the small products of each level."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from free_calls import assert_close, calls
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb

WIDTHS = [8, 11, 14, 17, 20]
WS = [oracle.random((n, 5 + i), "float64", i) for i, n in enumerate(WIDTHS)]
XS = [oracle.random((4, n), "float64", 10 + i) for i, n in enumerate(WIDTHS)]


def assert_same(function, *args, kernels, dots=0):
    """Asserts that grouping keeps the values, and the numbers of kernel calls and dots."""
    grouped = vb.group(function)
    assert_close(*jax.jit(lambda *args: (grouped(*args), function(*args)))(*args))
    assert calls(grouped, *args) == (kernels, dots)


@jax.jit
def layer(x, w):
    return jnp.tanh(x @ w)


def two_levels(xs, ws):
    ys = [layer(x, w) for x, w in zip(xs, ws, strict=True)]
    return [jnp.einsum("zi,zj->ij", y, y) for y in ys]


def loss(xs, ws):
    return sum(jnp.sum(x**3) for x in two_levels(xs, ws))


def test_products_of_a_level_are_one_call_through_jit():
    assert_same(two_levels, XS, WS, kernels=2)


def test_gradients_are_grouped_from_outside_and_from_inside():
    outside, inside = vb.group(jax.grad(loss, (0, 1))), jax.grad(vb.group(loss), (0, 1))
    *ours, plain = jax.jit(lambda *args: [f(*args) for f in (outside, inside, jax.grad(loss, (0, 1)))])(XS, WS)
    for gradient, result in zip((outside, inside), ours, strict=True):
        assert_close(result, plain)
        assert calls(gradient, XS, WS) == (4, 0)


def test_second_derivatives_and_vmap():
    def along(function):
        return lambda *x: jax.jvp(jax.grad(function), x, x)[1]

    functions = [along(vb.group(loss)), along(loss)]
    assert_close(*jax.jit(lambda *x: [f(*x) for f in functions])(XS, WS), rtol=1e-8)
    batches, gradient = [np.stack([x, 2 * np.asarray(x)]) for x in XS], jax.grad(loss)
    plain = jax.vmap(gradient, (0, None))
    functions = [jax.vmap(vb.group(gradient), (0, None)), vb.group(plain), plain]
    first, second, expected = jax.jit(lambda *x: [f(*x) for f in functions])(batches, WS)
    assert_close(first, expected)
    assert_close(second, expected)


SQUARES = jax.device_put([np.asarray(oracle.random((n, n), "float64", n)) / n for n in WIDTHS])


def test_bodies_of_loops_and_branches():
    def step(carry, x):
        return [c @ c + x * jnp.eye(len(c)) for c in carry], [c[0, 0] for c in carry]

    assert_same(lambda xs: jax.lax.scan(step, xs, jnp.arange(3.0), reverse=True), SQUARES, kernels=1)

    def loop(xs):
        return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, [x @ x for x in s[1]]), (0, xs))[1]

    assert_same(loop, SQUARES, kernels=1)

    def branch(i, xs):
        return jax.lax.switch(i, [lambda xs: [x @ x for x in xs], lambda xs: [x @ (x + 1) for x in xs]], xs)

    for index in (0, 1):
        assert_same(branch, jnp.int32(index), SQUARES, kernels=2)
    assert_same(jax.checkpoint(lambda xs: [jnp.sin(x @ x) for x in xs]), SQUARES, kernels=1)


def test_independent_scans_of_one_length_become_one():
    def powers(xs):
        scans = [jax.lax.scan(lambda c, y, x=x: (c @ x + y, c[0]), x, jnp.arange(3.0)) for x in xs]
        other = jax.lax.scan(lambda c, _: (c @ c, None), xs[0], None, length=2)[0]
        return scans, other, jax.lax.scan(lambda c, _: (c @ c, None), scans[0][0], None, length=3)[0]

    assert_same(powers, SQUARES, kernels=1, dots=2)

    def total(xs):
        return sum(jnp.sum(c) for (c, _) in powers(xs)[0])

    assert_close(*jax.jit(lambda xs: [jax.grad(f)(xs) for f in (vb.group(total), total)])(SQUARES))


@jax.custom_jvp
def square(x):
    return x @ x


@square.defjvp
def _(primals, tangents):
    return square(*primals), 3 * tangents[0]  # not the derivative


@jax.custom_vjp
def cube(x):
    return x @ x @ x


cube.defvjp(lambda x: (cube(x), x), lambda x, g: (5 * g + x,))


@pytest.mark.parametrize("function", [square, cube])
def test_rules_of_their_own_stay(function):
    def total(xs):
        return sum(jnp.sum(function(x)) for x in xs)

    gradients = [jax.grad(vb.group(total)), vb.group(jax.grad(total)), jax.grad(total)]
    inside, outside, expected = jax.jit(lambda xs: [f(xs) for f in gradients])(SQUARES)
    assert_close(inside, expected, rtol=1e-12)
    assert_close(outside, expected, rtol=1e-12)
    np.testing.assert_allclose(vb.group(total)(SQUARES), total(SQUARES), rtol=1e-12)


CASES = {
    "batch": "bij,bjk->bik", "both transposed": "ji,kj->ik", "middle": "zui,uv->zvi", "two contracted": "abij,ijc->abc",
    "batch in the middle": "ibj,jbk->bik", "broadcast": "abi,ic->abc", "vector": "bi,i->b",
}  # fmt: skip


@pytest.mark.parametrize("pattern", CASES.values(), ids=CASES)
@pytest.mark.parametrize("dtype", slow_except(oracle.DTYPES, ["complex64", "bfloat16"]))
def test_every_layout_of_a_dot(pattern, dtype):
    sizes = dict(zip("abcijkuvz", (2, 3, 4, 5, 6, 7, 5, 8, 9), strict=True))
    lhs, rhs = pattern.split("->")[0].split(",")
    xs = [oracle.random([sizes[x] + i * (x == "i") for x in lhs], dtype, i) for i in range(4)]
    ys = [oracle.random([sizes[x] + i * (x == "i") for x in rhs], dtype, 9 + i) for i in range(4)]

    def products(xs, ys):
        return [jnp.einsum(pattern, x, y) for x, y in zip(xs, ys, strict=True)]

    kernels, dots = calls(vb.group(products), xs, ys)
    assert (kernels, dots) == (1, 0)
    both = jax.jit(lambda *args: [f(*args) for f in (vb.group(products), products)])(xs, ys)
    for ours, plain in zip(*both, strict=True):
        assert (ours.shape, ours.dtype) == (plain.shape, plain.dtype)
        scale = 20 * oracle.ROUNDING[dtype]
        np.testing.assert_allclose(oracle.wide(ours), oracle.wide(plain), rtol=scale, atol=scale)


def test_what_stays_a_dot_and_why(capsys):
    big = oracle.random((700, 700), "float64", 1)

    def mixed(xs, big, ints):
        alike = [x @ x for x in xs]
        return (
            alike,
            big @ big,
            jnp.outer(xs[0][0], xs[1][0]),
            ints @ ints,
            jnp.dot(xs[0], xs[0], precision="F32_F32_F32"),
        )

    grouped = vb.group(mixed, explain=True)
    with jax.default_matmul_precision("highest"):
        jax.make_jaxpr(grouped)(SQUARES, big, jnp.ones((3, 3), jnp.int32))
    text = capsys.readouterr().out
    assert "group(mixed): 5 products in 1 call" in text
    assert "5 products are one call" in text
    assert "float64[700, 700] x [700, 700] stays a dot: it is large enough for a dot of its own" in text
    assert "int32[3, 3] x [3, 3] stays a dot: there is no kernel for int32" in text
    assert "stays a dot: kernels don't implement the dot algorithm" in text


def test_products_that_are_added_become_one_sum(capsys):
    def blocks(xs, ys):
        sums = [xs[0] @ ys[0] + xs[1] @ ys[1] + xs[2] @ ys[2], xs[0] @ ys[1] + (xs[1] @ ys[2] + 1)]
        shared = xs[2] @ ys[0]
        return sums, shared, shared + xs[0] @ ys[2]

    xs, ys = (
        [oracle.random((5, 6), "float64", i) for i in range(3)],
        [oracle.random((6, 7), "float64", 9 + i) for i in range(3)],
    )
    grouped = vb.group(blocks, explain=True)
    program = jax.jit(grouped).lower(xs, ys).as_text()
    assert program.count("custom_call @vbgemm_v2") == 1
    assert program.count("stablehlo.add") == 3  # of 1, to it, and to what is a result by itself
    assert "7 products are one call with 5 results" in capsys.readouterr().out
    assert_same(blocks, xs, ys, kernels=1)
    tangent = jax.jit(lambda xs: jax.jvp(vb.group(lambda xs: [xs[0] @ x for x in xs]), (xs,), (xs,)))
    assert "stablehlo.add" not in tangent.lower(SQUARES[:1] * 3).as_text()

    def of_gradients(xs, ys):  # a factor's gradient is a sum over its products
        return jax.grad(lambda xs: sum(jnp.sum((x @ y) ** 2) for x in xs for y in ys))(xs)

    before = jax.make_jaxpr(of_gradients)(xs, ys)
    assert sum(eqn.primitive.name == "add_any" for eqn in before.eqns) == 6
    after = jax.make_jaxpr(vb.group(of_gradients))(xs, ys)
    assert sum(eqn.primitive.name == "add_any" for eqn in after.eqns) == 0
    assert_same(of_gradients, xs, ys, kernels=2)


def test_transposed_results_are_written_by_the_call():
    """JAX's gradient of x @ w by w is the transpose of a product."""
    shapes = [(4, 6), (6, 5), (3, 4, 6), (3, 6, 5)]
    args = [oracle.random(shape, "float64", i) for i, shape in enumerate(shapes)]

    def turned(x, y, z, w):
        sums = (x @ y + (x + 1) @ y).T, (x @ y).T + ((x + 1) @ y).T, (x @ y).T * 2, (x @ y).T.T
        return *sums, (z @ y).transpose(2, 0, 1), (z @ w).transpose(0, 2, 1)

    def kept(x, y, z, w):
        first = x @ y
        return first, first.T, (z @ y).transpose(0, 2, 1), (z @ w).transpose(2, 1, 0)

    for function, transposes in ((turned, 0), (kept, 3)):
        assert_same(function, *args, kernels=1)
        assert jax.jit(vb.group(function)).lower(*args).as_text().count("stablehlo.transpose") == transposes
    gradient = jax.grad(lambda ws: sum(jnp.sum(jnp.sin(args[0] @ w)) for w in ws))
    ws = [args[1], args[1] + 1]
    assert "transpose" not in jax.jit(vb.group(gradient)).lower(ws).as_text()
    assert_same(gradient, ws, kernels=2)


def test_sums_that_dots_do_faster_are_added_as_they_were():
    big = [oracle.random((600, 600), "float64", i) for i in range(2)]
    assert_same(lambda x, y: x @ y + y @ x, *big, kernels=0, dots=2)
    assert_same(lambda x, y, z: (x @ y + y @ x, [a @ a for a in z]), *big, SQUARES, kernels=1, dots=2)


def test_one_product_stays_a_dot():
    assert calls(vb.group(lambda x: x @ x), SQUARES[0]) == (0, 1)


def test_dead_products_are_dropped():
    def function(xs):
        dead = [x @ x for x in xs]
        return [x + 1 for x in xs], dead[0].shape

    assert calls(lambda xs: vb.group(function)(xs)[0], SQUARES) == (0, 0)


def test_precisions_do_not_mix():
    def function(xs):
        return [[jnp.matmul(x, x, precision=p) for x in xs] for p in ("highest", "high")]

    assert_same(function, SQUARES, kernels=2)


def test_constants_literals_keywords_and_leaves_that_are_no_arrays():
    outer = SQUARES[1]

    def function(x, scale, name, *, power=2, other=None):
        assert name == "label"
        assert other is None
        return {"a": (x @ x) ** power * scale, "b": outer @ outer, "c": x, "d": jnp.zeros((3, 3)) @ jnp.ones((3, 4))}

    result = vb.group(function)(SQUARES[0], 2, "label", power=3)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), result, function(SQUARES[0], 2, "label", power=3)
    )
    traced = jax.jit(lambda y: vb.group(lambda x: x @ y)(SQUARES[0]))(SQUARES[0])  # closes over a tracer
    np.testing.assert_allclose(traced, SQUARES[0] @ SQUARES[0], rtol=1e-12)


def test_effects_keep_their_order(capfd):
    def function(xs):
        jax.debug.print("first {}", xs[0][0, 0] * 0, ordered=True)
        ys = [x @ x for x in xs]
        jax.debug.print("second {}", ys[0][0, 0] * 0, ordered=True)
        jax.debug.print("third {}", xs[0][0, 0] * 0, ordered=True)
        return ys

    jax.block_until_ready(jax.jit(vb.group(function))(SQUARES))
    jax.effects_barrier()
    assert [line.split()[0] for line in capfd.readouterr().out.split("\n") if line] == ["first", "second", "third"]


@pytest.mark.multidevice(2)
def test_inside_shard_map():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    batches = [np.concatenate([x, 2 * np.asarray(x)]) for x in XS]

    def gradient(function):
        summed = lambda xs, ws: jax.lax.psum(function(xs, ws), "i")  # noqa: E731
        return jax.grad(jax.shard_map(summed, mesh=mesh, in_specs=(P("i"), P()), out_specs=P()), (0, 1))

    assert_close(*jax.jit(lambda *args: [gradient(f)(*args) for f in (vb.group(loss), loss)])(batches, WS))


def test_what_is_no_function_is_refused_at_once():
    with pytest.raises(TypeError, match="group: expected a function, got 3"):
        vb.group(3)
    with pytest.raises(TypeError, match=r"group: live_bytes must be an integer, got 1\.5"):
        vb.group(jnp.sin, live_bytes=1.5)
    with pytest.raises(ValueError, match="group: live_bytes must not be negative, got -1"):
        vb.group(live_bytes=-1)


def test_as_a_decorator_with_options(capsys):
    @vb.group(explain=True)
    def products(x):
        return x @ x, x.T @ x

    assert [y.shape for y in products(jnp.ones((3, 3)))] == [(3, 3)] * 2
    assert capsys.readouterr().out.startswith("group(products): ")
    with pytest.raises(ValueError, match="best"):
        vb.group(planner="best")


def test_results_that_are_no_arrays_are_named():
    def step(x, result):
        return {"loss": x, "log": result}

    with pytest.raises(TypeError, match=r"group: the result of step\['log'\] is a str, not an array or a number"):
        vb.group(step)(jnp.ones(3), "done")
    with pytest.raises(TypeError, match=r"group: the result of step\['log'\] is a generator"):
        vb.group(step)(jnp.ones(3), (x for x in ()))
    assert vb.group(step)(jnp.ones(3), 2)["log"] == 2
