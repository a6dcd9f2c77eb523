"""Layouts against NumPy's indexing: positions, reshapes, and `take` and `put` by XLA."""

import hypothesis.strategies as st
import jax
import numpy as np
from hypothesis import given, settings

from jax_vbgemm._src.matmul.addresses import addresses
from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.matmul.overlap import covers, overlap

LEVEL = st.tuples(st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 4, 6, 12, 24]))
LAYOUT = st.builds(
    lambda dimensions, offset: Layout(tuple(map(tuple, dimensions)), offset),
    st.lists(st.lists(LEVEL, min_size=1, max_size=2), min_size=1, max_size=3), st.integers(0, 9),
)  # fmt: skip


def places(layout):
    """Each element's place in the buffer, an array of the layout's shape."""
    index = np.full((), layout.offset)
    for levels in layout.dimensions:
        dimension = np.zeros(1, int)
        for size, stride in levels:
            dimension = np.add.outer(dimension, np.arange(size) * stride).reshape(-1)
        index = np.add.outer(index, dimension)
    return index


@given(LAYOUT)
def test_what_is_known_without_a_look_at_each_element(layout):
    index = places(layout)
    assert layout.shape == index.shape
    assert layout.end == index.max() + 1
    assert layout.is_injective() == (len(np.unique(index)) == index.size)
    assert layout.is_dense(layout.end) == np.array_equal(index.reshape(-1), np.arange(layout.end))
    np.testing.assert_array_equal(places(layout.batched(3, 100)), np.add.outer(100 * np.arange(3), index))
    axes = tuple(reversed(range(index.ndim)))
    np.testing.assert_array_equal(places(layout.transpose(axes)), index.transpose(axes))
    np.testing.assert_array_equal(places(layout.reshape((layout.size,))), index.reshape(-1))
    sizes = [size for levels in layout.dimensions for size, _ in levels]
    np.testing.assert_array_equal(places(layout.reshape((1, *sizes))), index.reshape(1, *sizes))


@given(st.lists(LAYOUT.filter(Layout.is_injective), min_size=2, max_size=4))
def test_overlap(layouts):
    found = overlap(tuple(layouts))
    sets = [set(places(layout).reshape(-1).tolist()) for layout in layouts]
    pairs = [(i, j) for j in range(len(sets)) for i in range(j) if sets[i] & sets[j]]
    assert (found in pairs) if pairs else found is None
    if not pairs:
        assert covers(tuple(layouts), len(set().union(*sets)))


@settings(max_examples=8)
@given(LAYOUT, st.integers(0, 30))
def test_take_put_and_add(layout, beyond):
    rng = np.random.default_rng(0)
    index, buffer = places(layout), rng.normal(size=layout.end + beyond)
    values = rng.normal(size=layout.shape)

    @jax.jit
    def results(buffer, values):
        put = layout.put(buffer, values) if layout.is_injective() else None
        return layout.take(buffer), put, layout.add(buffer, values)

    taken, put, added = results(buffer, values)
    np.testing.assert_array_equal(taken, buffer[index])
    if layout.is_injective():
        expected = buffer.copy()
        expected[index] = values
        np.testing.assert_array_equal(put, expected)
    np.add.at(buffer_sum := buffer.copy(), index, values)
    np.testing.assert_allclose(added, buffer_sum)


def matrix(place, batch, inner, rows, cols):
    """Each element's place, (batch, rows, cols), of one of an address's operands."""
    outer_index, inner_index = np.divmod(np.arange(batch), inner)
    starts = place.offset + outer_index * place.batch_strides[0] + inner_index * place.batch_strides[1]
    within = np.add.outer(np.arange(rows) * place.row_stride, np.arange(cols) * place.col_stride)
    return np.add.outer(starts, within)


@given(
    st.permutations(range(3)), st.permutations(range(3)), st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 3), st.sampled_from(["rows", "k"]),
)  # fmt: skip
def test_addresses_of_two_levels(order, out_order, sizes, n, cut):
    """Rows or K of two levels, in any order in memory: the addresses contain every product exactly once."""
    x = np.arange(sizes[0] * sizes[1] * 5)

    def strided(order):  # (s0, s1, last) with memory in this order
        shape = (*sizes, 5)
        strides = [0] * 3
        stride = 1
        for axis in reversed(order):
            strides[axis], stride = stride, stride * shape[axis]
        return strides

    s, t = strided(order), strided(out_order)
    two_levels = ((sizes[0], s[0]), (sizes[1], s[1]))
    m = sizes[0] * sizes[1]
    if cut == "rows":
        a, b = Layout((two_levels, ((5, s[2]),))), Layout.row_major((5, 5))
        c = Layout((((sizes[0], t[0]), (sizes[1], t[1])), ((5, t[2]),)))
    else:
        a, b, c = Layout((((5, s[2]),), two_levels)), Layout.row_major((m, n)), Layout.row_major((5, n))
    products = addresses(((a, b),), c)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, len(x)), rng.integers(0, 9, b.size)
    result = np.zeros(c.size, int)
    assert products is not None
    for at in products:
        left, right, out = (
            matrix(place, at.batch, at.inner_batch, *size)
            for place, size in ((at.a, (at.m, at.k)), (at.b, (at.k, at.n)), (at.c, (at.m, at.n)))
        )
        result[out] += x[left] @ y[right]
    np.testing.assert_array_equal(result[places(c)], x[places(a)] @ y[places(b)])
