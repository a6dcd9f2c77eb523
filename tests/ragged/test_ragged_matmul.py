"""vb.ragged_matmul: flat rows times weights of different shapes."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb

IMPLEMENTATIONS = (None, "xla")


def looped(x: jax.Array, Bs: Sequence[jax.Array], sizes: Sequence[int], rows: int, size: int) -> jax.Array:
    """The flat result by one matmul for each group; for sizes whose rows all lie in x."""
    parts, at, left = [], 0, rows
    for b, wanted in zip(Bs, sizes, strict=True):
        count = min(max(int(wanted), 0), left)
        k = b.shape[0]
        parts.append((x[at : at + count * k].reshape(count, k) @ b).ravel())
        at, left = at + count * k, left - count
    y = jnp.concatenate(parts)
    return jnp.concatenate([y, jnp.zeros((size - y.size,), y.dtype)])


def matrices(shapes: Sequence[tuple[int, int]], dtype: Any = "float64") -> list[jax.Array]:
    return [oracle.random(shape, dtype, seed) for seed, shape in enumerate(shapes)]


def flat_rows(shapes: Sequence[tuple[int, int]], rows: int, dtype: Any = "float64") -> jax.Array:
    return oracle.random((rows * max(k for k, _ in shapes),), dtype, 77)


SHAPES = [(4, 7), (1, 3), (9, 2), (5, 5)]


@given(
    shapes=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6),
    rows=st.integers(0, 40),
    data=st.data(),
    transpose=st.booleans(),
    implementation=st.sampled_from(IMPLEMENTATIONS),
)
def test_any_shapes_and_sizes_give_the_loop(shapes, rows, data, transpose, implementation):
    sizes = data.draw(st.lists(st.integers(-2, 20), min_size=len(shapes), max_size=len(shapes)))
    x, Bs = flat_rows(shapes, rows), matrices(shapes)
    stored = [b.T for b in Bs] if transpose else Bs
    options = {"rows": rows, "transpose_b": transpose, "implementation": implementation}
    y = jax.jit(functools.partial(vb.ragged_matmul, **options))(x, stored, jnp.array(sizes))
    truth = jax.jit(lambda x, Bs: looped(x, Bs, sizes, rows, rows * max(n for _, n in shapes)))(x, Bs)
    np.testing.assert_allclose(y.ravel(), truth, rtol=1e-12, atol=1e-12)
    assert y.ndim == (2 if len({n for _, n in shapes}) == 1 else 1)


@pytest.mark.parametrize("dtype", slow_except(oracle.DTYPES, ["float32", "complex64", "bfloat16"]))
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dtypes(dtype, implementation):
    rows, sizes = 30, [8, 0, 13, 9]
    x, Bs = jax.device_get((flat_rows(SHAPES, rows, dtype), matrices(SHAPES, dtype)))
    multiply = jax.jit(functools.partial(vb.ragged_matmul, rows=rows, implementation=implementation))
    y = np.asarray(multiply(x, Bs, np.array(sizes, "int32")))
    assert y.dtype == dtype
    at = out = 0
    for b, count in zip(Bs, sizes, strict=True):
        (k, n), end, out_end = b.shape, at + count * b.shape[0], out + count * b.shape[1]
        oracle.check([y[out:out_end].reshape(count, n)], [x[at:end].reshape(count, k)], [b])
        at, out = end, out_end
    assert not y[out:].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_that_are_not_in_x_as_a_whole_are_left_out(implementation):
    multiply = jax.jit(functools.partial(vb.ragged_matmul, implementation=implementation), static_argnames="rows")
    x, Bs = np.ones(10), [np.ones((3, 1)), np.ones((2, 2))]
    # 2 rows of 3 and 2 of the 4 rows of 2 are in 10 numbers.
    np.testing.assert_array_equal(multiply(x, Bs, np.array([2, 4]), rows=6), [3, 3, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(multiply(x, Bs, np.array([5, 4]), rows=9), [3, 3, 3, *[0] * 15])


def value_and_cotangents(f: Any, x: Any, Bs: Any, sizes: Any, cotangent: Any) -> Any:
    @jax.jit
    def both(x: Any, Bs: Any, cotangent: Any) -> Any:
        y, pull = jax.vjp(lambda x, Bs: f(x, Bs, sizes), x, Bs)
        return y, pull(cotangent)

    return jax.device_get(both(x, Bs, cotangent))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nan_of_rows_that_are_left_out_reaches_nothing(implementation):
    """The last of 2 rows of group 1, and the row of group 2, do not lie in 8 numbers: their matrices are never read."""
    Bs, sizes = [np.ones((3, 2)), np.ones((4, 1)), np.full((5, 3), np.nan)], np.array([1, 2, 1])
    f = functools.partial(vb.ragged_matmul, rows=4, implementation=implementation)
    y, (d_x, d_Bs) = value_and_cotangents(f, np.ones(8), Bs, sizes, np.where(np.arange(12) < 3, 1.0, np.nan))
    np.testing.assert_array_equal(y, [3, 3, 4, *[0] * 9])
    np.testing.assert_array_equal(d_x, [2, 2, 2, 1, 1, 1, 1, 0])
    for b, right in zip(d_Bs, (1, 1, 0), strict=True):
        np.testing.assert_array_equal(b, np.full(b.shape, right))


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "kernel"])
def test_an_empty_x_has_no_rows(implementation):
    Bs = [np.full((3, 2), np.nan), np.full((4, 2), np.nan)]
    f = functools.partial(vb.ragged_matmul, rows=3, implementation=implementation)
    y, (_, d_Bs) = value_and_cotangents(f, np.zeros(0), Bs, np.array([1, 1]), np.full((3, 2), np.nan))
    np.testing.assert_array_equal(y, np.zeros((3, 2)))
    assert not any(b.any() for b in d_Bs)


def test_matrices_without_rows_have_a_gradient():
    f = functools.partial(vb.ragged_matmul, group_sizes=jnp.array([1]), rows=1, implementation="xla")
    np.testing.assert_array_equal(jax.grad(lambda x: f(x, [jnp.ones((0, 3))]).sum())(jnp.ones(2)), jnp.zeros(2))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nan_stays_in_its_group(implementation):
    x, Bs = np.array(flat_rows(SHAPES, 20)), [np.array(b) for b in matrices(SHAPES)]
    x[20:23] = x[43:] = Bs[1][:] = Bs[2][:] = np.nan
    cotangent = np.ones(20 * 7)
    cotangent[35:44] = cotangent[64:] = np.nan
    f = functools.partial(vb.ragged_matmul, rows=20, implementation=implementation)
    y, (d_x, d_Bs) = value_and_cotangents(f, x, Bs, np.array([5, 3, 0, 4]), cotangent)
    assert np.isnan(y[35:44]).all()
    assert np.isfinite(y[:35]).all()
    assert np.isfinite(y[44:]).all()
    assert np.isfinite(d_x[np.r_[0:20, 23:43]]).all()
    for i in (0, 2, 3):
        assert np.isfinite(d_Bs[i]).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_infinity_times_the_zeros_of_padding_reaches_nothing(implementation):
    """In rows, matrices and cotangents: the positive numbers give infinity, and any 0 of the padding would give NaN."""
    sizes, rows = [5, 3, 0, 4], 20
    x, Bs = (jax.tree.map(lambda a: jnp.abs(a) + 1, v) for v in (flat_rows(SHAPES, rows), matrices(SHAPES)))
    x, Bs[1] = x.at[2].set(jnp.inf), Bs[1].at[0, 1].set(jnp.inf)
    ct = jnp.ones(rows * 7).at[8].set(jnp.inf).at[50].set(jnp.inf)

    def ours(x: Any, Bs: Any) -> Any:
        return vb.ragged_matmul(x, Bs, jnp.array(sizes), rows=rows, implementation=implementation)

    for f in (jax.jit, lambda f: jax.jit(lambda x, Bs: jax.vjp(f, x, Bs)[1](ct))):
        found, right = f(ours)(x, Bs), f(lambda x, Bs: looped(x, Bs, sizes, rows, rows * 7))(x, Bs)
        assert any(np.isinf(leaf).any() for leaf in jax.tree.leaves(right))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, right)


def scalar(f: Any) -> Any:
    return lambda *args: jnp.sum(jnp.sin(f(*args)))


def test_derivatives_of_first_order():
    rows, sizes = 12, [3, 0, 5, 2]
    x, Bs = flat_rows(SHAPES, rows), matrices(SHAPES)

    def close(ours: Any, theirs: Any) -> None:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), ours, theirs)

    for implementation in IMPLEMENTATIONS:
        for transpose in (False, True):

            def ours(x: Any, Bs: Any, transpose: bool = transpose, implementation: Any = implementation) -> Any:
                stored = [b.T for b in Bs] if transpose else Bs
                return vb.ragged_matmul(
                    x, stored, jnp.array(sizes), rows=rows, transpose_b=transpose, implementation=implementation
                )

            def theirs(x: Any, Bs: Any) -> Any:
                return looped(x, Bs, sizes, rows, rows * 7)

            close(*(jax.jit(jax.grad(scalar(f), (0, 1)))(x, Bs) for f in (ours, theirs)))
            d = jax.tree.map(lambda a: oracle.random(a.shape, "float64", 5), (x, Bs))
            close(*(jax.jit(lambda *at, f=f, d=d: jax.jvp(f, at, d))(x, Bs) for f in (ours, theirs)))


@pytest.mark.slow
def test_derivatives_of_second_order():
    sizes = jnp.array([3, 0, 5, 2])
    x, Bs = flat_rows(SHAPES, 12), matrices(SHAPES)

    def f(x, Bs):
        return jnp.sum(jnp.sin(vb.ragged_matmul(x, Bs, sizes, rows=12)))

    oracle.check_grads(f, (x, Bs), order=2)


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, None), (None, None, 0), (1, 0, 0)])
@pytest.mark.slow
def test_vmap_of_values_and_gradients(mapped):
    b, rows = 3, 10
    x = oracle.random((b, rows * 9), "float64", 1)
    Bs = [oracle.random((b, *shape), "float64", 2) for shape in SHAPES]
    sizes = jnp.array([[2, 3, 1, 0], [0, 0, 9, 4], [-1, 2, 2, 2]])
    given = [
        v if axis is not None else jax.tree.map(lambda a: a[0], v)
        for v, axis in zip((x, Bs, sizes), mapped, strict=True)
    ]
    given[0] = given[0].T if mapped[0] == 1 else given[0]

    def f(x: Any, Bs: Any, sizes: Any) -> Any:
        return vb.ragged_matmul(x, Bs, sizes, rows=rows)

    for function in (f, jax.grad(scalar(f), (0, 1))):
        ours, alone = jax.jit(jax.vmap(function, in_axes=mapped))(*given), jax.jit(function)
        for i in range(b):
            entry = [
                v if axis is None else jax.tree.map(lambda a, axis=axis, i=i: jnp.take(a, i, axis), v)
                for v, axis in zip(given, mapped, strict=True)
            ]
            jax.tree.map(
                lambda a, t, i=i: np.testing.assert_allclose(a[i], t, rtol=1e-12, atol=1e-12), ours, alone(*entry)
            )


@pytest.mark.multidevice(4)
@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
@pytest.mark.parametrize("implementation", slow_except(IMPLEMENTATIONS, [None]))
def test_shard_map_over_rows(check_vma, implementation):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    down = matrices([(6, 1), (6, 4), (6, 2)])
    x, sizes = oracle.random((4 * 8, 6), "float64"), jnp.array([[3, 3, 2], [0, 8, 0], [1, 0, 1], [0, 0, 0]])

    def f(x: Any, down: Any, sizes: Any) -> Any:
        sizes = sizes.reshape(3)
        hidden = vb.ragged_matmul(x, down, sizes, implementation=implementation)
        return vb.ragged_matmul(hidden, down, sizes, rows=8, transpose_b=True, implementation=implementation)

    sharded = jax.shard_map(f, mesh=mesh, in_specs=(P("x"), P(), P("x")), out_specs=P("x"), check_vma=check_vma)

    def unsharded(x: Any, down: Any, sizes: Any) -> Any:
        return jnp.concatenate([f(*part[:1], down, part[1]) for part in zip(jnp.split(x, 4), sizes, strict=True)])

    for function in (sharded, jax.grad(scalar(sharded), (0, 1))):
        plain = unsharded if function is sharded else jax.grad(scalar(unsharded), (0, 1))
        jax.tree.map(
            lambda a, t: np.testing.assert_allclose(a, t, rtol=1e-11, atol=1e-12),
            jax.jit(function)(x, down, sizes),
            jax.jit(plain)(x, down, sizes),
        )


def test_a_tree_of_matrices():
    Bs = {"b": jnp.ones((2, 3)), "a": 2 * jnp.ones((2, 3))}
    y = vb.ragged_matmul(jnp.ones((3, 2)), Bs, jnp.array([1, 1]))
    np.testing.assert_array_equal(y[:, 0], [4, 2, 0])  # leaves in order: "a", "b"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": jnp.ones((5, 4))}, ValueError, r"x is \(5, 4\) but Bs\[0\] is \(3, 2\): inner dimensions 4 and 3"),
        ({"x": jnp.ones(10)}, ValueError, r"x is flat, \(10,\): rows must be given"),
        ({"x": jnp.ones((1, 5, 3))}, ValueError, r"x is \(1, 5, 3\): it must be \(m, k\), or \(size,\)"),
        ({"Bs": [jnp.ones(3)] * 2}, ValueError, r"Bs\[0\] is \(3,\): it must be a matrix"),
        ({"Bs": []}, ValueError, r"Bs has no matrices"),
        ({"group_sizes": jnp.array([1])}, ValueError, r"there are 2 Bs but group_sizes is \(1,\)"),
        ({"group_sizes": jnp.ones(2)}, TypeError, r"group_sizes is float64\(2,\): it must be integers"),
        ({"Bs": [jnp.ones((3, 2), jnp.float32)] * 2}, ValueError, r"x is float64 but Bs are float32"),
        ({"rows": -1}, ValueError, r"rows is -1: it must be a non-negative integer"),
        ({"transpose_b": 1}, TypeError, r"transpose_b must be a bool, not 1"),
        ({"implementation": "gpu"}, ValueError, r"implementation must be None, 'kernel' or 'xla', not 'gpu'"),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {"x": jnp.ones((5, 3)), "Bs": [jnp.ones((3, 2)), jnp.ones((3, 4))], "group_sizes": jnp.array([1, 2])}
    with pytest.raises(error, match=f"ragged_matmul: {message}"):
        vb.ragged_matmul(**{**arguments, **change})
