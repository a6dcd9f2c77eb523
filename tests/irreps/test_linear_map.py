"""`LinearMap` beside its dense matrix: values, layouts, derivatives, vmap, weights that rows choose, errors."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm.irreps import LinearMap

MACE = "128x0e+128x1o+128x2e+128x3o"
NEQUIP = "32x0e+8x0o+16x1o+8x1e+4x2e"
IRREPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["0e", "0o", "1o", "2e"])), max_size=5)


def dense(linear, weights, x):
    """The map by einsum, irrep by irrep, in float64; differentiable."""
    weights, x = [w.astype(jnp.float64) for w in weights], jnp.asarray(x, jnp.float64)
    is_mul_ir, first, parts = linear.layout == "mul_ir", 0, []
    for of in linear.irreps_in:
        part = x[..., first : first + of.dim]
        shape = (of.mul, of.irrep_dim) if is_mul_ir else (of.irrep_dim, of.mul)
        part = part.reshape(*x.shape[:-1], *shape)
        parts.append(part if is_mul_ir else part.swapaxes(-1, -2))
        first += of.dim
    results = [jnp.zeros((*x.shape[:-1], of.mul, of.irrep_dim)) for of in linear.irreps_out]
    for path, weight in zip(linear.paths, weights, strict=True):
        if path.i_in is None:
            product = jnp.broadcast_to(weight[:, None], results[path.i_out].shape)
        else:
            product = path.scale * jnp.einsum("uw,...ui->...wi", weight, parts[path.i_in])
        results[path.i_out] += product
    results = [y if is_mul_ir else y.swapaxes(-1, -2) for y in results]
    return jnp.concatenate(
        [y.reshape(*x.shape[:-1], y.shape[-1] * y.shape[-2]) for y in results] or [x[..., :0]], axis=-1
    )


def dense_of_each(linear, weights, x):
    """`dense` of each entry of the first axis of x, with weights of its own."""
    return jax.vmap(lambda w, x: dense(linear, w, x))(weights, x)


def weights_of(linear, dtype="float64", groups=None, seed=0):
    leading = () if groups is None else (groups,)
    return [oracle.random((*leading, *path.shape), dtype, seed + i) for i, path in enumerate(linear.paths)]


def flat(linear, weights, groups=None):
    leading = () if groups is None else (groups,)
    return np.concatenate([np.asarray(w).reshape(*leading, -1) for w in weights], axis=-1)


@settings(max_examples=8)
@given(
    irreps_in=IRREPS,
    irreps_out=IRREPS,
    layout=st.sampled_from(["mul_ir", "ir_mul"]),
    leading=st.sampled_from([(), (3,), (2, 2), (0,)]),
    biases=st.booleans(),
    normalization=st.sampled_from(["element", "path", 0.5]),
    is_flat=st.booleans(),
)
def test_values(irreps_in, irreps_out, layout, leading, biases, normalization, is_flat):
    linear = LinearMap(irreps_in, irreps_out, biases=biases, path_normalization=normalization, layout=layout)
    weights, x = weights_of(linear), oracle.random((*leading, linear.dim_in), "float64", 99)
    given_weights = np.zeros(0) if is_flat and not weights else flat(linear, weights) if is_flat else weights
    both = jax.jit(lambda given_weights, weights, x: (linear(given_weights, x), dense(linear, weights, x)))
    y, expected = both(given_weights, weights, x)
    assert y.shape == (*leading, linear.dim_out)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("irreps", "layout"), [(MACE, "mul_ir"), (NEQUIP, "ir_mul")])
def test_arrays_an_irrep_and_one_array_are_the_same(irreps, layout):
    linear = LinearMap(irreps, irreps, layout=layout)
    weights = weights_of(linear, "float32")
    x = np.asarray(oracle.random((5, linear.dim_in), "float32", 9))
    parts, first = [], 0
    for of in linear.irreps_in:
        shape = (of.mul, of.irrep_dim) if layout == "mul_ir" else (of.irrep_dim, of.mul)
        parts.append(x[:, first : first + of.dim].reshape(5, *shape))
        first += of.dim
    y, expected, results = jax.jit(lambda w, x, xs: (linear(w, x), dense(linear, w, x), linear(w, xs)))(
        weights, x, parts
    )
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert [part.shape for part in results] == [part.shape for part in parts]
    joined = np.concatenate([np.asarray(part).reshape(5, -1) for part in results], axis=-1)
    np.testing.assert_allclose(joined, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_one_call_and_no_copy_of_features(layout):
    linear = LinearMap("6x0e+4x1o+2x0e", "3x0e+2x1o", layout=layout)
    weights, x = weights_of(linear, "float32"), oracle.random((7, linear.dim_in), "float32", 1)
    text = jax.jit(lambda w, x: linear(w, x, implementation="kernel")).lower(weights, x).as_text()
    assert text.count("custom_call @vbgemm") == 1
    # No irrep is copied from the features or into the results.
    copies = ("stablehlo.slice", "dynamic_update_slice", "stablehlo.transpose", "gather")
    assert not any(name in text for name in copies)
    # Gradients copy nothing either, and are one call, which includes the scaling.
    gradients = jax.jit(lambda w, x, dy: jax.vjp(linear, w, x)[1](dy))
    text = gradients.lower(weights, x, jnp.ones((7, linear.dim_out), jnp.float32)).as_text()
    assert text.count("custom_call @vbgemm") == 1
    assert not any(name in text for name in (*copies, "stablehlo.multiply"))


def gradients_of_forces(map_of):
    """Forces are derivatives by features, and are trained on: these are gradients by weights and features."""

    def energy(weights, x):
        return jnp.sum(jnp.sin(map_of(weights, x)) ** 2)

    def loss(weights, x):
        return jnp.sum(jax.grad(energy, 1)(weights, x) ** 2)

    return jax.grad(loss, (0, 1))


def assert_same(functions, *args, tolerance=1e-12):
    """Asserts equal results of two functions, in one program."""
    found, expected = jax.jit(lambda *args: [function(*args) for function in functions])(*args)
    jax.tree.map(lambda f, e: np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance), found, expected)


@pytest.mark.parametrize(
    ("layout", "biases"), slow_except(itertools.product(["mul_ir", "ir_mul"], [False, True]), [("ir_mul", True)])
)
def test_gradients_of_gradients(layout, biases):
    linear = LinearMap("3x0e+2x1o+2x0e", "2x0e+3x1o+1x0e", layout=layout, biases=biases, path_normalization="path")
    weights, x = weights_of(linear), oracle.random((4, linear.dim_in), "float64", 5)
    maps = linear, functools.partial(dense, linear)
    assert_same([gradients_of_forces(f) for f in maps], weights, x, tolerance=1e-9)


def test_tangents():
    linear = LinearMap("3x0e+2x1o+2x0e", "2x0e+3x1o+1x0e", biases=True)
    arguments = weights_of(linear), oracle.random((4, linear.dim_in), "float64", 5)
    tangents = weights_of(linear, seed=50), oracle.random((4, linear.dim_in), "float64", 60)
    maps = linear, functools.partial(dense, linear)
    assert_same([functools.partial(jax.jvp, f) for f in maps], arguments, tangents)


def test_vmap_over_rows_weights_and_both():
    linear = LinearMap("3x0e+2x1o", "2x0e+3x1o", biases=True)
    weights = [oracle.random((3, *path.shape), "float64", i) for i, path in enumerate(linear.paths)]
    x = oracle.random((3, 4, linear.dim_in), "float64", 5)

    def results(function, weights, x):
        axes = (0, 0), (None, 0), (0, None)
        args = (weights, x), ([w[0] for w in weights], x), (weights, x[0])
        return [jax.vmap(function, of)(*arguments) for of, arguments in zip(axes, args, strict=True)]

    maps = linear, functools.partial(dense, linear)
    assert_same([functools.partial(results, f) for f in maps], weights, x)


@pytest.mark.parametrize("layout", slow_except(["mul_ir", "ir_mul"], ["ir_mul"]))
def test_rows_choose_their_weights(layout):
    linear = LinearMap("3x0e+2x1o+1x2e", "2x0e+3x1o+1x0e+2x0o", layout=layout, biases=True)
    weights = weights_of(linear, groups=4)
    x = oracle.random((3, 5, linear.dim_in), "float64", 5)
    indices = np.array([[0, 3, 3, 0, 1]])  # broadcasts; nothing has number 2
    odd = np.array([-4, 7, -1, -9, 1])  # as JAX indexes: from the end, and clamped
    counts, of_sorted = np.array([2, 1, 0, 0]), np.array([0, 3, 4, 1])

    @jax.jit
    def results(weights, joined, x, indices, odd, counts):
        by_index = linear(weights, x, indices=indices), linear(joined, x, indices=odd)
        expected = dense_of_each(linear, [w[indices[0]] for w in weights], x.swapaxes(0, 1)).swapaxes(0, 1)
        rows = x[0][of_sorted]
        of_rows = dense_of_each(linear, [w[np.array([0, 0, 1])] for w in weights], rows[:3])
        return (*by_index, expected), (linear(weights, rows, counts=counts), of_rows)

    (y, from_end, expected), (by_count, of_rows) = results(weights, flat(linear, weights, 4), x, indices, odd, counts)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(from_end, y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_count[:3], of_rows, rtol=1e-12, atol=1e-12)
    assert not by_count[3].any()


def test_gradients_of_gradients_where_rows_choose_their_weights():
    linear = LinearMap("3x0e+2x1o", "2x0e+3x1o", biases=True)
    weights, x = weights_of(linear, groups=3), oracle.random((5, linear.dim_in), "float64", 5)
    indices = jnp.array([2, 0, 2, 2, 0])
    maps = (
        lambda w, x: linear(w, x, indices=indices),
        lambda w, x: dense_of_each(linear, [part[indices] for part in w], x),
    )
    assert_same([gradients_of_forces(f) for f in maps], weights, x, tolerance=1e-9)


@pytest.mark.parametrize("options", [{}, {"indices": np.array([0, 1, 0])}])
def test_nan_stays_in_its_irrep_row_and_weights(options):
    linear = LinearMap("3x0e+2x1o+2x2e", "2x0e+3x1o+2x3o")
    weights = weights_of(linear, groups=2 if options else None)
    x = np.array(oracle.random((3, linear.dim_in), "float64", 5))
    x[0, 4], x[:, -10:] = np.nan, np.nan  # a vector of row 0, and tensors that go nowhere
    run = jax.jit(lambda weights, x: linear(weights, x, **options))
    nan = np.isnan(run(weights, x))
    assert nan[0, 2:11].any()
    assert not nan[0, :2].any()
    assert not nan[1:].any()
    assert not nan[:, 11:].any()
    if options:
        wrong = np.arange(2) == 1
        nan = np.isnan(run([np.where(wrong[:, None, None], np.nan, w) for w in weights], x))
        assert nan[1, :11].all()
        assert not nan[2].any()


def test_dtypes():
    linear = LinearMap("4x0e+2x1o", "3x0e+2x1o")
    weights, x = weights_of(linear, "bfloat16"), oracle.random((5, linear.dim_in), "bfloat16", 5)
    assert linear(weights, x).dtype == jnp.bfloat16
    with jax.numpy_dtype_promotion("standard"):
        y = linear(weights, x.astype(jnp.float32))
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, dense(linear, weights, x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearMap("3x0e+1q", "0e"), "irreps_in: '1q' is no irrep"),
        (lambda: LinearMap([(2, 1)], "0e"), "1 is no irrep"),
        (lambda: LinearMap([(-2, "1o")], "0e"), r"\(-2, '1o'\) has a negative multiplicity"),
        (lambda: LinearMap(3, "0e"), "irreps_in must be irreps"),
        (lambda: LinearMap("3x0e", "4x1o", instructions=[(0, 0)]), "leads from 3x0e to 4x1o"),
        (lambda: LinearMap("3x0e", "4x1o", instructions=[(0, 2)]), "irreps_out has 1 entries"),
        (lambda: LinearMap("3x0e", "4x1o", biases=[True]), r"irreps_out\[0\] is 4x1o: only scalars"),
        (lambda: LinearMap("3x0e", "4x1o", layout="ir"), "layout must be"),
        (lambda: LinearMap("3x0e", "4x1o", path_normalization="both"), "path_normalization must be"),
    ],
)
def test_descriptions_that_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


class IrrepsArray(NamedTuple):
    """As e3nn-jax's, a pytree with irreps beside the array."""

    array: Any


@pytest.mark.parametrize(
    ("weights", "x", "options", "message"),
    [
        ([np.ones((3, 2))], np.ones((4, 9)), {}, "1 weights, but 2 paths"),
        (
            [np.ones((3, 2)), np.ones((1, 2))],
            np.ones((4, 9)),
            {},
            r"of the path 2x1o -> 1x1o, are \(1, 2\), not \(2, 1\)",
        ),
        (np.ones(7), np.ones((4, 9)), {}, r"weights are \(7,\): they must be \(8,\)"),
        (np.ones(8), np.ones((4, 8)), {}, r"3x0e\+2x1o have 9 numbers"),
        (np.ones(8), [np.ones((4, 3, 1)), np.ones((4, 3, 2))], {}, r"x\[1\] is \(4, 3, 2\), but for 2x1o it must be"),
        (np.ones(8), [np.ones((4, 3, 1))], {}, "one for each irrep"),
        (np.ones(8, int), np.ones((4, 9), int), {}, "LinearMap: weights and x are int64: one of them must be floating"),
        (np.ones(8), IrrepsArray(jnp.ones((4, 9))), {}, "LinearMap: x is of type IrrepsArray: pass its array, x.array"),
        (np.ones((2, 8)), np.ones((4, 9)), {"indices": np.ones(4)}, "indices is float64"),
        (np.ones((2, 8)), np.ones((4, 9)), {"indices": np.ones(3, int)}, "must broadcast"),
        (np.ones((2, 8)), np.ones((4, 9)), {"counts": np.ones(3, int)}, "a count for each of 2"),
        (np.ones((2, 8)), np.ones((4, 9)), {"counts": np.ones(2, int), "indices": np.ones(4, int)}, "give either"),
    ],
)
def test_arguments_that_are_refused(weights, x, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        LinearMap("3x0e+2x1o", "2x0e+1x1o")(weights, x, **options)


@pytest.mark.parametrize("choice", slow_except([None, "indices", "counts"], [None, "indices"]))
def test_a_symbolic_number_of_nodes_exports(choice):
    linear = LinearMap("3x0e+2x1o", "2x0e+1x1o", biases=True)
    (nodes,) = jax.export.symbolic_shape("nodes")
    weights = flat(linear, weights_of(linear, groups=2), 2)
    x = oracle.random((5, linear.dim_in), "float64")
    chosen = {"indices": jnp.array([1, 0, 1, 1, 0]), "counts": jnp.array([1, 3])}
    operands = [weights if choice else weights[0], x, *([chosen[choice]] if choice else [])]

    def f(weights, x, *chosen):
        return linear(weights, x, **({choice: chosen[0]} if choice else {}))

    specs = [jax.ShapeDtypeStruct((nodes, *a.shape[1:]) if len(a) == 5 else a.shape, a.dtype) for a in operands]
    program = jax.export.export(jax.jit(f), disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*specs)
    np.testing.assert_allclose(program.call(*operands), jax.jit(f)(*operands), rtol=1e-12, atol=1e-12)
