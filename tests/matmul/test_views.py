"""Views as operands and results, read and written in place."""

import itertools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from view_linear_map import ARGUMENTS, CHANNELS, NODES, calls_of, check, features, linear, linear_in_jnp

import jax_vbgemm as vb


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_an_equivariant_linear_map_in_place(implementation):
    def f(*arguments):
        return linear(*arguments, implementation=implementation)

    check(jax.jit(f)(*ARGUMENTS), linear_in_jnp(*ARGUMENTS))


def test_nothing_is_copied_in_or_out():
    text = jax.jit(linear, donate_argnums=2).lower(*ARGUMENTS).compile().as_text()
    for copying in (" copy(", " slice(", " transpose(", " gather(", "dynamic-update-slice(", " broadcast("):
        assert copying not in text, f"{copying}\n{text}"


def test_a_view_goes_through_scan_and_tree_map():
    x, w = features((4, 6), 1), features((2, 2), 2)
    view = vb.View.of(x, "a b -> a b", window=np.s_[:, 4:])

    def step(view, _):
        return vb.batched_matmul([view], [w], into=[view])[0], None

    final = jax.lax.scan(step, view, length=3)[0]
    check(final.buffer, x.at[:, 4:].set(x[:, 4:] @ w @ w @ w))
    check(jax.tree.map(lambda x: 2 * x, view).dense(), 2 * x[:, 4:])


def test_results_may_replace_what_the_call_reads():
    x = features((6, 6), 1)
    corners = [vb.View(x, (3, 3), (6, 1), offset) for offset in (0, 21)]
    swapped = jax.jit(lambda x: vb.batched_matmul(
        [vb.View(x, (3, 3), (6, 1), 0), vb.View(x, (3, 3), (6, 1), 21)],
        [vb.View(x, (3, 3), (6, 1), 21), vb.View(x, (3, 3), (6, 1), 0)],
        into=[vb.View(x, (3, 3), (6, 1), 21), vb.View(x, (3, 3), (6, 1), 0)],
    )[0].buffer, donate_argnums=0)  # fmt: skip
    a, b = corners[0].dense(), corners[1].dense()
    expected = x.at[3:, 3:].set(a @ b).at[:3, :3].set(b @ a)
    check(swapped(x + 0), expected)


def test_c_in_its_place_and_elsewhere():
    x, a, b = features((4, 9), 1), features((4, 2), 2), features((2, 3), 3)

    def f(x, source, target):
        where = [vb.View.of(x, "m n -> m n", window=np.s_[:, columns]) for columns in (source, target)]
        return vb.batched_gemm([a], [b], [where[0]], beta=2.0, into=[where[1]])[0].buffer

    for source, target in itertools.product((np.s_[:3], np.s_[2:5], np.s_[6:]), repeat=2):
        expected = x.at[:, target].set(a @ b + 2 * x[:, source])
        check(jax.jit(lambda x, s=source, t=target: f(x, s, t))(x), expected)


def test_a_buffer_that_windows_cover_is_not_read():
    x, w = features((4, 3), 1), features((3, 5), 2)

    def program(base):
        windows = [vb.View.of(base, "n m -> n m", window=np.s_[:, first : first + 5]) for first in (0, 5)]
        return vb.batched_matmul([x, x], [w, 2 * w], into=windows)[0].buffer

    base = jnp.full((4, 10), jnp.nan)
    assert "output_operand_alias" not in jax.jit(program).lower(base).as_text()
    np.testing.assert_allclose(program(base), jnp.concatenate([x @ w, 2 * x @ w], axis=1), rtol=1e-12)
    assert not jax.grad(lambda base: program(base).sum())(base).any()


def test_nan_in_the_rest_of_a_buffer():
    x = jnp.full((5, 8), jnp.nan).at[1:3, 2:5].set(1.0)
    view = vb.View.of(x, "a b -> a b", window=np.s_[1:3, 2:5])
    (result,) = vb.batched_matmul([view], [jnp.ones((3, 4))])
    check(result, jnp.full((2, 4), 3.0))
    gradient = jax.grad(lambda w: jnp.sum(vb.batched_matmul([view], [w])[0]))(jnp.ones((3, 4)))
    check(gradient, jnp.full((3, 4), 2.0))


def test_a_k_of_two_levels_is_a_sum():
    x = features((NODES, 3 * CHANNELS), 1)
    rows = vb.View.of(x, "node (mul c) -> (node c) mul", c=3)
    y = features((NODES * 3, 2), 2)
    (result,) = jax.jit(lambda x, y: vb.batched_matmul([vb.View(x, rows.shape, None)], [y], transpose_a=True))(x, y)
    assert result.shape == (CHANNELS, 2)
    view = vb.View.with_layout(x, rows.layout)
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
    a = vb.View.of(x, f"a b c d -> {one} {two} {dims[0]} {dims[1]}")
    m, k = a.shape[2:]
    if transpose_a:
        m, k = k, m
    other = features((int(sizes[axes[1]]), *((4, k) if transpose_b else (k, 4))), seed + 1, dtype)
    flags = (transpose_a, transpose_b)
    results = vb.batched_matmul([a], [other], transpose_a=flags[0], transpose_b=flags[1])
    oracle.check(results, [x.transpose(axes)], [other], [flags])


def test_sums_and_grams_of_views():
    x = features((8, 8), 1)
    blocks = {key: vb.View(x, (4, 4), (8, 1), offset) for key, offset in (("a", 0), ("b", 4), ("c", 36))}
    (total,) = vb.batched_matmul_sum(blocks, blocks, segments=[[("a", "b"), ("b", "c")]])
    check(total, x[:4, :4] @ x[:4, 4:] + x[:4, 4:] @ x[4:, 4:])
    grams = vb.batched_gram(blocks, into={"a": blocks["c"], "b": None, "c": None})
    check(grams["b"], x[:4, 4:] @ x[:4, 4:].T)
    check(grams["a"].buffer, x.at[4:, 4:].set(x[:4, :4] @ x[:4, :4].T))


def test_shared_view_and_dead_results():
    x = features((4, 6), 1)
    view = vb.View.of(x, "a b -> a b", window=np.s_[:, 1:4])
    weights = {"q": features((3, 2), 2), "k": features((3, 5), 3)}
    results = jax.jit(lambda v, w: vb.batched_matmul(v, w)["k"])(view, weights)
    check(results, x[:, 1:4] @ weights["k"])

    def one_of_two(x, y):
        into = {"q": vb.View(x, (4, 2)), "k": vb.View(y, (4, 5))}
        return vb.batched_matmul(view, weights, into=into)["k"].buffer

    y = features((20,), 4)
    check(jax.jit(one_of_two)(features((8,), 5), y), (x[:, 1:4] @ weights["k"]).reshape(-1))


@pytest.mark.parametrize(("implementation", "source"), [(None, 70), ("xla", 94)])
def test_what_a_call_reads_and_overwrites(implementation, source):
    """XLA treats a product with K = 1 as elementwise work, and once overwrote elements that it still had to read."""
    x, w = features((10, 15), 1), features((1, 6), 2)

    def f(x, w):
        column, window = vb.View(x, (6, 1), offset=source), vb.View(x, (6, 6), (1, 6), 70)
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
        source = vb.View(x, (2, 1, 6, (2, 2)), (2, 8, 2, (1, 4)), 20)
        return vb.batched_gemm([a], [b], [source], beta=0.5)[0]

    def expected(b, x):
        return a @ b + 0.5 * vb.View(x, (2, 1, 6, (2, 2)), (2, 8, 2, (1, 4)), 20).dense()

    check(jax.jit(jax.vmap(f))(b, x), jax.vmap(expected)(b, x))


def test_a_k_of_two_levels_and_more_tiles_than_are_described_one_by_one():
    """Tracing such a call once recursed without end."""
    x, y = jax.ShapeDtypeStruct((800_000,), "float32"), jax.ShapeDtypeStruct((16, 20_000), "float32")

    def f(x, y):
        return vb.batched_matmul([vb.View(x, (20_000, (2, 8)), (40, (20, 1)))], [y], planner="uniform")[0]

    assert calls_of(f, x, y) == 1


def test_buffers_beyond_32_bits():
    """Programs are only lowered, as the host does not have the memory to run them."""
    x, w = jax.ShapeDtypeStruct((3_000_000_000,), "bfloat16"), jnp.ones((8, 3), "bfloat16")
    for strides in ((8, 1), (9, 2)):

        def f(x, w, strides=strides):
            far = vb.View(x, (4, 8), strides, 2_999_999_000)
            return vb.batched_matmul([far], [w]), vb.batched_matmul([far], [w], implementation="xla")

        jax.jit(f).lower(x, w)  # float64 is on in tests, and with it indices of 64 bits
    with (
        jax.enable_x64(False),
        pytest.raises(NotImplementedError, match="this view of a buffer of 3000000000 elements"),
    ):
        jax.jit(f).lower(x, w)


def test_heads_are_seen_to_be_disjoint_at_once():
    """A comparison of all elements would take ten seconds."""
    shape, (q, k) = (64, 1024, 1536), (jnp.zeros((64, 8, 1024, 1)), jnp.zeros((64, 8, 1, 64)))

    def f(x):
        heads = [vb.View.of(x, "b t (h c) -> b h t c", window=np.s_[:, :, i : i + 512], h=8) for i in (0, 512)]
        return vb.batched_matmul([q, q], [k, k], into=heads)[0].buffer

    assert jax.eval_shape(f, jax.ShapeDtypeStruct(shape, "float64")).shape == shape


def test_c_in_the_place_of_a_whole_buffer_is_not_copied():
    a, b, x = features((3, 4, 2), 1), features((2, 5), 2), features((60,), 3)

    def f(a, b, x):
        window = vb.View(x, (3, 4, 5))
        return vb.batched_gemm([a], [b], [window], beta=2.0, into=[window])[0].buffer

    check(jax.jit(f)(a, b, x), (a @ b + 2 * x.reshape(3, 4, 5)).reshape(-1))
    text = jax.jit(f, donate_argnums=2).lower(a, b, x).compile().as_text()
    assert " copy(" not in text


def test_views_where_products_are_no_single_call():
    x, sizes = features((6, 8), 1), jnp.array([2, 1])
    view = vb.View.of(x, "a b -> a b", window=np.s_[1:4, 2:6])
    near = jax.jit(vb.newton_schulz)
    check(near([view]), near([x[1:4, 2:6]]))
    rows, others = features((3, 3), 2), features((3, 4), 3)
    product = jax.jit(vb.ragged_matmul)
    expected = product(rows, [x[1:4, 2:6], others], sizes)
    check(product(rows, [view, others], sizes), expected)
    check(product(rows, vb.pack([x[1:4, 2:6], others]), sizes), expected)
    with pytest.raises(TypeError, match="ragged_dot: rhs must be an array, but is of type View"):
        vb.ragged_dot(rows, view, sizes)


def test_windows_of_symbolic_sizes_go_through_xla():
    """The linear map in place, its gradient, and windows that no slice reaches."""

    def f(x, weights, base):
        def loss(x, weights, base):
            y = linear(x, weights, base)
            return jnp.sum(jnp.sin(y)), y

        rows = x.shape[0]
        overlapping = vb.View(x, (rows, 2, 3), (CHANNELS, 3, 2)).dense()
        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, weights, base), overlapping

    (nodes,) = jax.export.symbolic_shape("nodes")
    x, weights, base = ARGUMENTS
    symbolic = [jax.ShapeDtypeStruct((nodes, array.shape[1]), array.dtype) for array in (x, base)]
    program = jax.export.export(jax.jit(f), disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
        symbolic[0], weights, symbolic[1]
    )
    check(program.call(*ARGUMENTS), jax.jit(f)(*ARGUMENTS))
