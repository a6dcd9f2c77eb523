"""Views as operands and results: read and written where they lie, with derivatives, vmap and errors that name them."""

import itertools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given

import jax_vbgemm as vb
from jax_vbgemm import View

NODES, CHANNELS, OUT = 5, 4, 3


def features(shape, seed, dtype="float64"):
    return oracle.random(shape, dtype, seed)


def irreps(x, channels):
    """Scalars and vectors of (nodes, 4 channels + 2), laid out (node, channel) and (node, channel, 3)."""
    scalars = View.of(x, "node mul -> node mul", window=np.s_[:, :channels])
    vectors = View.of(x, "node (mul c) -> (node c) mul", window=np.s_[:, channels : 4 * channels], c=3)
    return [scalars, vectors]


def linear(x, weights, base, **options):
    """An equivariant linear map of both, into the first columns of `base`."""
    return vb.batched_gemm(irreps(x, CHANNELS), weights, into=irreps(base, OUT), **options)[0].buffer


def linear_in_jnp(x, weights, base, f=lambda y: y):
    scalars = f(x[:, :CHANNELS] @ weights[0])
    vectors = x[:, CHANNELS : 4 * CHANNELS].reshape(len(x), CHANNELS, 3)
    vectors = f(jnp.einsum("nmc,mo->noc", vectors, weights[1]).reshape(len(x), -1))
    return base.at[:, :OUT].set(scalars).at[:, OUT : 4 * OUT].set(vectors)


ARGUMENTS = (
    features((NODES, 4 * CHANNELS + 2), 1),
    [features((CHANNELS, OUT), 2), features((CHANNELS, OUT), 3)],
    features((NODES, 4 * OUT + 1), 4),
)


def check(ours, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-12), ours, expected)


def calls_of(f, *arguments):
    return jax.jit(f).lower(*arguments).as_text().count("custom_call @vbgemm")


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_an_equivariant_linear_map_in_place(implementation):
    def f(*arguments):
        return linear(*arguments, implementation=implementation)

    check(jax.jit(f)(*ARGUMENTS), linear_in_jnp(*ARGUMENTS))


def test_nothing_is_copied_in_or_out():
    text = jax.jit(linear, donate_argnums=2).lower(*ARGUMENTS).compile().as_text()
    for copying in (" copy(", " slice(", " transpose(", " gather(", "dynamic-update-slice(", " broadcast("):
        assert copying not in text, f"{copying}\n{text}"


@pytest.mark.parametrize("activation", [None, "silu"])
def test_derivatives_to_second_order(activation):
    f = jax.nn.silu if activation else lambda y: y
    seen = features((NODES, 4 * OUT + 1), 7)

    def loss(*arguments):
        return jnp.sum(seen * linear(*arguments, activation=activation) ** 2)

    def expected(*arguments):
        return jnp.sum(seen * linear_in_jnp(*arguments, f) ** 2)

    every = (0, 1, 2)
    check(jax.jit(jax.grad(loss, every))(*ARGUMENTS), jax.grad(expected, every)(*ARGUMENTS))
    check(jax.jit(jax.grad(loss, 1))(*ARGUMENTS), jax.grad(expected, 1)(*ARGUMENTS))
    tangents = jax.tree.map(lambda x: features(x.shape, 9), ARGUMENTS)

    def directional(f):
        return lambda *arguments: jax.jvp(f, arguments, tangents)[1]

    check(jax.jit(jax.grad(directional(loss), every))(*ARGUMENTS), jax.grad(directional(expected), every)(*ARGUMENTS))


def test_tangents_of_some_members():
    x, (scalars, vectors), base = ARGUMENTS

    def moved(f):
        return jax.jvp(lambda w: f(x, [w, vectors], base), (scalars,), (jnp.ones_like(scalars),))

    check(moved(linear), moved(linear_in_jnp))


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, None), (None, None, 1), (1, [0, None], None)])
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
    check(ours, jax.vmap(gradients(linear_in_jnp), mapped)(*arguments))


def test_forward_and_backward_are_two_calls():
    assert calls_of(linear, *ARGUMENTS) == 1
    assert calls_of(jax.grad(lambda *a: jnp.sum(linear(*a) ** 2), (0, 1, 2)), *ARGUMENTS) == 2


def test_a_gradient_with_respect_to_a_view():
    x = features((6, 8), 1)
    view, w = View.of(x, "a b -> b a", window=np.s_[1:4, 2:]), features((3, 2), 2)
    gradient = jax.grad(lambda view: jnp.sum(vb.batched_matmul([view], [w])[0]))(view)
    assert isinstance(gradient, View)
    assert gradient.layout == view.layout
    expected = jax.grad(lambda x: jnp.sum(x[1:4, 2:].T @ w))(x)
    check(gradient.buffer, expected)


def test_a_view_goes_through_scan_and_tree_map():
    x, w = features((4, 6), 1), features((2, 2), 2)
    view = View.of(x, "a b -> a b", window=np.s_[:, 4:])

    def step(view, _):
        return vb.batched_matmul([view], [w], into=[view])[0], None

    final = jax.lax.scan(step, view, length=3)[0]
    check(final.buffer, x.at[:, 4:].set(x[:, 4:] @ w @ w @ w))
    check(jax.tree.map(lambda x: 2 * x, view).dense(), 2 * x[:, 4:])


def test_overlapping_views_of_one_array_add_their_cotangents():
    x, w = features((7,), 1), features((3, 2), 2)

    def windows(x):  # of 3, 1 apart: a convolution
        return vb.batched_matmul([View(x, (5, 3), (1, 1)), View(x, (2, 3), (3, 1))], [w, w])

    def expected(x):
        return [jnp.stack([x[i : i + 3] for i in range(5)]) @ w, x[:6].reshape(2, 3) @ w]

    def loss(f):
        return lambda x: sum(jnp.sum(y**2) for y in f(x))

    check(windows(x), expected(x))
    check(jax.jit(jax.grad(loss(windows)))(x), jax.grad(loss(expected))(x))


def test_results_may_replace_what_the_call_reads():
    x = features((6, 6), 1)
    corners = [View(x, (3, 3), (6, 1), offset) for offset in (0, 21)]
    swapped = jax.jit(lambda x: vb.batched_matmul(
        [View(x, (3, 3), (6, 1), 0), View(x, (3, 3), (6, 1), 21)],
        [View(x, (3, 3), (6, 1), 21), View(x, (3, 3), (6, 1), 0)],
        into=[View(x, (3, 3), (6, 1), 21), View(x, (3, 3), (6, 1), 0)],
    )[0].buffer, donate_argnums=0)  # fmt: skip
    a, b = corners[0].dense(), corners[1].dense()
    expected = x.at[3:, 3:].set(a @ b).at[:3, :3].set(b @ a)
    check(swapped(x + 0), expected)


def test_c_in_its_place_and_elsewhere():
    x, a, b = features((4, 9), 1), features((4, 2), 2), features((2, 3), 3)

    def f(x, source, target):
        where = [View.of(x, "m n -> m n", window=np.s_[:, columns]) for columns in (source, target)]
        return vb.batched_gemm([a], [b], [where[0]], beta=2.0, into=[where[1]])[0].buffer

    for source, target in itertools.product((np.s_[:3], np.s_[2:5], np.s_[6:]), repeat=2):
        expected = x.at[:, target].set(a @ b + 2 * x[:, source])
        check(jax.jit(lambda x, s=source, t=target: f(x, s, t))(x), expected)


def test_a_buffer_that_windows_cover_is_not_read():
    x, w = features((4, 3), 1), features((3, 5), 2)

    def program(base):
        windows = [View.of(base, "n m -> n m", window=np.s_[:, first : first + 5]) for first in (0, 5)]
        return vb.batched_matmul([x, x], [w, 2 * w], into=windows)[0].buffer

    base = jnp.full((4, 10), jnp.nan)
    assert "output_operand_alias" not in jax.jit(program).lower(base).as_text()
    np.testing.assert_allclose(program(base), jnp.concatenate([x @ w, 2 * x @ w], axis=1), rtol=1e-12)
    assert not jax.grad(lambda base: program(base).sum())(base).any()


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


def test_nan_in_the_rest_of_a_buffer():
    x = jnp.full((5, 8), jnp.nan).at[1:3, 2:5].set(1.0)
    view = View.of(x, "a b -> a b", window=np.s_[1:3, 2:5])
    (result,) = vb.batched_matmul([view], [jnp.ones((3, 4))])
    check(result, jnp.full((2, 4), 3.0))
    gradient = jax.grad(lambda w: jnp.sum(vb.batched_matmul([view], [w])[0]))(jnp.ones((3, 4)))
    check(gradient, jnp.full((3, 4), 2.0))


def test_a_k_of_two_levels_is_a_sum():
    x = features((NODES, 3 * CHANNELS), 1)
    rows = View.of(x, "node (mul c) -> (node c) mul", c=3)
    y = features((NODES * 3, 2), 2)
    (result,) = jax.jit(lambda x, y: vb.batched_matmul([View(x, rows.shape, None)], [y], transpose_a=True))(x, y)
    assert result.shape == (CHANNELS, 2)
    view = View.with_layout(x, rows.layout)
    (result,) = jax.jit(lambda v, y: vb.batched_matmul([v], [y], transpose_a=True))(view, y)
    check(result, rows.dense().T @ y)


@given(
    st.permutations(range(4)), st.sampled_from(["float32", "complex128", "bfloat16"]), st.booleans(), st.booleans(),
    st.integers(0, 3),
)  # fmt: skip
def test_any_axes_of_an_array(axes, dtype, transpose_a, transpose_b, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, 4)
    x = features(sizes, seed, dtype)
    names = ["a", "b", "c", "d"]
    one, two, *dims = (names[axis] for axis in axes)
    a = View.of(x, f"a b c d -> {one} {two} {dims[0]} {dims[1]}")
    m, k = a.shape[2:]
    if transpose_a:
        m, k = k, m
    other = features((int(sizes[axes[1]]), *((4, k) if transpose_b else (k, 4))), seed + 1, dtype)
    flags = (transpose_a, transpose_b)
    results = vb.batched_matmul([a], [other], transpose_a=flags[0], transpose_b=flags[1])
    oracle.check(results, [x.transpose(axes)], [other], [flags])


def test_sums_and_grams_of_views():
    x = features((8, 8), 1)
    blocks = {key: View(x, (4, 4), (8, 1), offset) for key, offset in (("a", 0), ("b", 4), ("c", 36))}
    (total,) = vb.batched_matmul_sum(blocks, blocks, segments=[[("a", "b"), ("b", "c")]])
    check(total, x[:4, :4] @ x[:4, 4:] + x[:4, 4:] @ x[4:, 4:])
    grams = vb.batched_gram(blocks, into={"a": blocks["c"], "b": None, "c": None})
    check(grams["b"], x[:4, 4:] @ x[:4, 4:].T)
    check(grams["a"].buffer, x.at[4:, 4:].set(x[:4, :4] @ x[:4, :4].T))


def test_shared_view_and_dead_results():
    x = features((4, 6), 1)
    view = View.of(x, "a b -> a b", window=np.s_[:, 1:4])
    weights = {"q": features((3, 2), 2), "k": features((3, 5), 3)}
    results = jax.jit(lambda v, w: vb.batched_matmul(v, w)["k"])(view, weights)
    check(results, x[:, 1:4] @ weights["k"])

    def one_of_two(x, y):
        into = {"q": View(x, (4, 2)), "k": View(y, (4, 5))}
        return vb.batched_matmul(view, weights, into=into)["k"].buffer

    y = features((20,), 4)
    check(jax.jit(one_of_two)(features((8,), 5), y), (x[:, 1:4] @ weights["k"]).reshape(-1))


@pytest.mark.multidevice(2)
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


X = jnp.ones((4, 6))
WINDOW = View.of(X, "a b -> a b", window=np.s_[:, :2])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: View(X, (4, 7)), ValueError, "View: its last element is number 27 of a buffer of 24 elements"),
        (lambda: View(X, (4, 2), (6, -1)), ValueError, "View: strides holds -1: it must not be negative"),
        (lambda: View(X, (4, 2), offset=-1), ValueError, "View: offset holds -1"),
        (lambda: View(X, (4, 2.5)), TypeError, "View: shape must hold integers that are known at trace time, not 2.5"),
        (lambda: View(X, ((2, 2), 2), (6, 1)), ValueError, "don't have the form of shape"),
        (lambda: View.of(X, "a b c -> a b c"), ValueError, r"names 3 axes of an array of shape \(4, 6\)"),
        (lambda: View.of(X, "a (b c) -> a b c"), ValueError, "say the size of 'b' or of 'c'"),
        (lambda: View.of(X, "a (b c) -> a b c", c=4), ValueError, "an axis of 6 cannot be b x c=4"),
        (lambda: View.of(X, "a b -> a"), ValueError, "each name must stand once on each side"),
        (lambda: View.of(X, "a b - b a"), ValueError, "with -> between them"),
        (lambda: View.of(X, "a b -> a b", d=3), ValueError, "there is no 'd' to have a size"),
        (lambda: View.of(X, "a b -> a b", window=np.s_[..., 3:9]), ValueError, "window 3:9 reaches past axis 1 of 6"),
        (lambda: View.of(X, "a b -> a b", window=np.s_[::-1]), ValueError, "in steps of -1"),
        (lambda: View.of(X, "a b -> a b", window=(0,)), ValueError, "window must hold slices, not 0"),
        (lambda: View.of(X, "a b -> a b", window=np.ones((9, 9))), ValueError, "must hold slices, not of type nd"),
        (lambda: View(None, (2, 2)), TypeError, "View: buffer must be a jax.Array, as .* but is None"),
        (lambda: View.of(np.ones((2, 2)), "a b -> a b"), TypeError, "View.of: x must be a jax.Array"),
        (lambda: View(WINDOW, (2, 2)), TypeError, "View: buffer is a View already"),
        (lambda: View.of(WINDOW, "a b -> a b"), TypeError, "View.of: x is a View already"),
        (lambda: View(X, (4, True)), TypeError, "View: shape must hold integers that .*, not True"),
        (lambda: View(X, (0, 5), offset=25), ValueError, "View: its offset is 25 in a buffer of 24 elements"),
        (
            lambda: vb.batched_matmul([X, View.with_layout(X[:1], WINDOW.layout)], [X.T, X[:2]]),
            ValueError, r"batched_matmul: As\[1\] doesn't fit its buffer: its last element is number 19 of a",
        ),
        (
            lambda: vb.batched_matmul([X.T], [X], into=[View(jnp.ones(99), (6, 5))]),
            ValueError, r"into\[0\] is float64\(6, 5\) but result\[0\] is float64\(6, 6\): they must be the same",
        ),
        (
            lambda: vb.batched_matmul([X, X], [X.T, X.T], into=[View(X, (4, 4)), View(X, (4, 4), offset=8)]),
            ValueError, r"batched_matmul: into\[0\] and into\[1\] overlap in their buffer",
        ),
        (
            lambda: vb.batched_matmul([X], [X.T], into=[View(X, (4, 4), (1, 1))]),
            ValueError, r"into\[0\] overlaps itself: two of its elements lie in one place",
        ),
        (lambda: vb.batched_matmul([X], [X.T], into=[X]), TypeError, r"into\[0\] must be a View or None"),
        (lambda: vb.batched_matmul([X], [X.T], into=[WINDOW] * 2), ValueError, "into must have the structure of As"),
        (lambda: vb.batched_matmul([WINDOW], [X]), ValueError, r"As\[0\] is \(4, 2\) but Bs\[0\] is \(4, 6\): in"),
    ],
)  # fmt: skip
def test_mistakes_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(("implementation", "source"), [(None, 70), ("xla", 94)])
def test_what_a_call_reads_and_overwrites(implementation, source):
    """A product of K = 1 is elementwise work to XLA, which stored it while it read the same numbers."""
    x, w = features((10, 15), 1), features((1, 6), 2)

    def f(x, w):
        column, window = View(x, (6, 1), offset=source), View(x, (6, 6), (1, 6), 70)
        return vb.batched_gemm([column], [w], alpha=1.5, into=[window], implementation=implementation)[0].buffer

    def expected(x, w):
        flat = x.reshape(-1)
        return flat.at[70:106].set((1.5 * flat[source : source + 6, None] * w).T.reshape(-1)).reshape(x.shape)

    def loss(f):
        return lambda *arguments: jnp.sum(f(*arguments) ** 3)

    check(jax.jit(f)(x, w), expected(x, w))
    check(jax.jit(jax.grad(loss(f), (0, 1)))(x, w), jax.grad(loss(expected), (0, 1))(x, w))


def test_a_source_that_no_stride_leads_through():
    """Two levels of columns in C where the batch has two strides already: it is copied, the result is an array."""
    a, b, x = features((2, 1, 6, 4), 1), features((3, 2, 1, 4, 4), 2), features((3, 60), 3)

    def f(b, x):
        source = View(x, (2, 1, 6, (2, 2)), (2, 8, 2, (1, 4)), 20)
        return vb.batched_gemm([a], [b], [source], beta=0.5)[0]

    def expected(b, x):
        return a @ b + 0.5 * View(x, (2, 1, 6, (2, 2)), (2, 8, 2, (1, 4)), 20).dense()

    check(jax.jit(jax.vmap(f))(b, x), jax.vmap(expected)(b, x))


def test_a_k_of_two_levels_and_more_tiles_than_are_described_one_by_one():
    """Tracing came back to the same call without end."""
    x, y = jax.ShapeDtypeStruct((800_000,), "float32"), jax.ShapeDtypeStruct((16, 20_000), "float32")

    def f(x, y):
        return vb.batched_matmul([View(x, (20_000, (2, 8)), (40, (20, 1)))], [y], planner="uniform")[0]

    assert calls_of(f, x, y) == 1


def test_buffers_beyond_32_bits():
    """Nothing is run: the host has not the memory."""
    x, w = jax.ShapeDtypeStruct((3_000_000_000,), "bfloat16"), jnp.ones((8, 3), "bfloat16")
    for strides in ((8, 1), (9, 2)):

        def f(x, w, strides=strides):
            far = View(x, (4, 8), strides, 2_999_999_000)
            return vb.batched_matmul([far], [w]), vb.batched_matmul([far], [w], implementation="xla")

        jax.jit(f).lower(x, w)  # float64 is on in tests, and with it indices of 64 bits
    with (
        jax.enable_x64(False),
        pytest.raises(NotImplementedError, match="this view of a buffer of 3000000000 elements"),
    ):
        jax.jit(f).lower(x, w)


def test_heads_are_seen_to_be_disjoint_at_once():
    """Element by element, this took ten seconds."""
    shape, (q, k) = (64, 1024, 1536), (jnp.zeros((64, 8, 1024, 1)), jnp.zeros((64, 8, 1, 64)))

    def f(x):
        heads = [View.of(x, "b t (h c) -> b h t c", window=np.s_[:, :, i : i + 512], h=8) for i in (0, 512)]
        return vb.batched_matmul([q, q], [k, k], into=heads)[0].buffer

    assert jax.eval_shape(f, jax.ShapeDtypeStruct(shape, "float64")).shape == shape


def test_c_in_the_place_of_a_whole_buffer_is_not_copied():
    a, b, x = features((3, 4, 2), 1), features((2, 5), 2), features((60,), 3)

    def f(a, b, x):
        window = View(x, (3, 4, 5))
        return vb.batched_gemm([a], [b], [window], beta=2.0, into=[window])[0].buffer

    check(jax.jit(f)(a, b, x), (a @ b + 2 * x.reshape(3, 4, 5)).reshape(-1))
    text = jax.jit(f, donate_argnums=2).lower(a, b, x).compile().as_text()
    assert " copy(" not in text


def test_views_where_products_are_no_single_call():
    x, sizes = features((6, 8), 1), jnp.array([2, 1])
    view = View.of(x, "a b -> a b", window=np.s_[1:4, 2:6])
    check(vb.newton_schulz([view]), vb.newton_schulz([x[1:4, 2:6]]))
    rows, others = features((3, 3), 2), features((3, 4), 3)
    expected = vb.ragged_matmul(rows, [x[1:4, 2:6], others], sizes)
    check(vb.ragged_matmul(rows, [view, others], sizes), expected)
    check(vb.ragged_matmul(rows, vb.pack([x[1:4, 2:6], others]), sizes), expected)
    with pytest.raises(TypeError, match="ragged_dot: rhs must be an array, but is of type View"):
        vb.ragged_dot(rows, view, sizes)


def test_views_behind_scan_and_symbolic_sizes_are_refused():
    stacked = jax.lax.scan(lambda c, _: (c, View(c, (1, 2))), jnp.ones(3), length=4)[1]
    with pytest.raises(ValueError, match=r"a window of 3 elements, but its buffer is \(4, 3\): behind vmap or scan"):
        stacked.dense()
    assert jax.vmap(View.dense)(stacked).shape == (4, 1, 2)
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 3"), "float64")
    with pytest.raises(ValueError, match=r"View.of: its buffer is \(n, 3\): a view needs sizes that are numbers"):
        jax.export.export(jax.jit(lambda x: View.of(x, "a b -> b a").dense()))(symbolic)
