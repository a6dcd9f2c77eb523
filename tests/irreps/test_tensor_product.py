"""`TensorProduct` beside its sum by einsum, and the tensor product of e3nn-jax with weights."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jax_vbgemm._src.irreps.channelwise import channelwise_p
from jax_vbgemm.irreps import TensorProduct

IRREPS = "3x1o+2x0e+2x2e", "0e+1o+2e"


def made(seed=0, paths=((0, 1, 3), (1, 1, 3), (0, 2, 1), (1, 0, 1))):
    """A product with random coefficients, in which no path takes the last irrep of x, and its paths."""
    rng, d = np.random.default_rng(seed), ([3, 1, 5], [1, 3, 5])
    paths = [(i, j, rng.standard_normal((d[0][i], d[1][j], k))) for i, j, k in paths]
    return TensorProduct(*IRREPS, paths), paths


def arrays(product, leading=(4,), dtype=jnp.float64):
    rng = np.random.default_rng(1)
    widths = product.dim_1, product.dim_2, product.num_weights
    return [jnp.asarray(rng.standard_normal((*leading, width)), dtype) for width in widths]


def by_einsum(paths, x, y, w):
    muls, starts_1, starts_2 = [3, 2, 2], [0, 9, 11], [0, 1, 4]
    parts, first = [], 0
    for i, j, coefficients in paths:
        d_1, d_2, _ = coefficients.shape
        x_1 = x[:, starts_1[i] : starts_1[i] + muls[i] * d_1].reshape(-1, muls[i], d_1)
        y_2, of_path = y[:, starts_2[j] : starts_2[j] + d_2], w[:, first : first + muls[i]]
        first += muls[i]
        parts.append(jnp.einsum("rui,rj,ijk,ru->ruk", x_1, y_2, coefficients, of_path).reshape(len(x), -1))
    return jnp.concatenate(parts, axis=1)


def test_equals_the_sum_by_einsum():
    product, paths = made()
    given = arrays(product)
    np.testing.assert_allclose(jax.jit(product)(*given), by_einsum(paths, *given), rtol=1e-12)


def test_sums_are_float32_or_wider():
    """With coefficients times y that are exact in bfloat16, results and gradients are rounded once."""
    coefficients = np.random.default_rng(0).integers(-8, 9, (5, 1, 5))
    product = TensorProduct("40x2e", "0e", [(0, 0, coefficients)])
    x, y, w = arrays(product, dtype=jnp.bfloat16)
    y = jnp.exp2(jnp.round(y))

    def results(x, w, y):
        value, pullback = jax.vjp(lambda x, w: product(x, y, w), x, w)
        return value, *pullback(x)

    found = jax.jit(results)(x, w, y)
    exact = results(*(array.astype(jnp.float64) for array in (x, w, y)))
    for f, e in zip(found, exact, strict=True):
        assert f.dtype == jnp.bfloat16
        np.testing.assert_allclose(f.astype(jnp.float64), e, rtol=0.51 * float(jnp.finfo(f.dtype).eps))


def test_derivatives_of_second_order():
    product, _ = made()
    oracle.check_grads(jax.jit(product), arrays(product, (2,)), order=2)


def test_a_gradient_takes_one_pass_for_each_argument():
    product, _ = made()
    given = arrays(product)
    gradient = jax.make_jaxpr(jax.grad(lambda *a: jnp.sum(product(*a) ** 2), (0, 1, 2)))(*given)
    assert [eqn.primitive for eqn in gradient.eqns].count(channelwise_p) == 4


def test_vmap_of_any_argument():
    product, _ = made()
    given = arrays(product, (3, 4))
    expected = product(*given)
    np.testing.assert_allclose(jax.vmap(product)(*given), expected, rtol=1e-12)
    x, y, w = given
    found = jax.vmap(product, (1, None, 0), 1)(x.swapaxes(0, 1), y[0], w)
    np.testing.assert_allclose(found, product(x, y[:1], w).swapaxes(0, 1), rtol=1e-12)


def test_leading_axes_broadcast_and_weights_are_optional():
    product, _ = made()
    x, y, w = arrays(product, (2, 3))
    expected = product(jnp.repeat(x[:, :1], 3, axis=1), jnp.stack([y[0]] * 2), jnp.ones_like(w))
    np.testing.assert_allclose(product(x[:, :1], y[0]), expected, rtol=1e-12)


@pytest.mark.parametrize(("rows", "paths"), [(0, ((0, 1, 3),)), (4, ())])
def test_no_rows_or_no_paths(rows, paths):
    product, _ = made(paths=paths)
    x, y, w = arrays(product, (rows,))
    gradients = jax.grad(lambda *given: jnp.sum(product(*given)), (0, 1, 2))(x, y, w)
    assert product(x, y, w).shape == (rows, product.dim_out)
    assert [g.shape for g in gradients] == [x.shape, y.shape, w.shape]


def test_exported_with_any_number_of_rows():
    product, _ = made()
    (rows,) = jax.export.symbolic_shape("rows")
    given = arrays(product)
    specs = [jax.ShapeDtypeStruct((rows, a.shape[1]), a.dtype) for a in given]
    program = jax.export.export(jax.jit(jax.grad(lambda *a: jnp.sum(product(*a) ** 2))))(*specs)
    expected = jax.grad(lambda *a: jnp.sum(product(*a) ** 2))(*given)
    np.testing.assert_allclose(program.call(*given), expected, rtol=1e-12)


@pytest.mark.multidevice(2)
def test_rows_may_be_sharded_over_explicit_axes():
    """Those of x and weights here; gradients have the types of their arguments."""
    mesh = jax.make_mesh((2, 1), ("x", "z"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    product, _ = made()
    given = arrays(product, (2, 3))
    both = jax.value_and_grad(lambda *a: (jnp.sum((y := product(*a)) ** 2), y), (0, 1, 2), has_aux=True)
    expected = jax.jit(lambda *a: both(*a))(*given)
    with jax.set_mesh(mesh):
        x, y, w = given
        sharded = jax.device_put(x, jax.P("x")), y, jax.device_put(w, jax.P("x"))
        found = jax.jit(both)(*sharded)
        _, *types = jax.make_jaxpr(both)(*sharded).out_avals
        assert [a.sharding.spec[0] for a in types] == ["x", "x", None, "x"]
        with pytest.raises(ValueError, match=r"x is sharded as P\(None, 'x', None\) over explicit .*reshard"):
            product(jax.device_put(given[0].swapaxes(0, 1), jax.P(None, "x")), y.swapaxes(0, 1))
        with pytest.raises(ValueError, match=r"sharded over different explicit mesh axes: x P.*, y P"):
            product(sharded[0], jax.device_put(y, jax.P("z")))
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(f), np.asarray(e), rtol=1e-12)


@pytest.mark.parametrize(
    ("irreps_2", "paths", "error", "match"),
    [
        ("2x1o", [], ValueError, r"irreps_2\[0\] is 2x1o: irreps of y must have one channel"),
        ("1o", [(0, 0, np.ones((3, 5, 1)))], ValueError, r"from 2x1o and 1x1o, has coefficients \(3, 5, 1\)"),
        ("1o", [(1, 0, np.ones((3, 3, 1)))], ValueError, r"paths\[0\] takes irreps_1\[1\], but irreps_1 has 1 entries"),
        ("1o", [(0, np.ones((3, 3, 1)))], TypeError, r"paths\[0\] must be \(index in irreps_1"),
        ("1o", [(0, 0, np.ones((3, 3, 1)) * 1j)], TypeError, r"paths\[0\] has complex coefficients"),
        ("1o", 3, TypeError, r"TensorProduct: paths must be triples.*, not 3"),
    ],
)  # fmt: skip
def test_bad_paths_are_named(irreps_2, paths, error, match):
    with pytest.raises(error, match=match):
        TensorProduct("2x1o", irreps_2, paths)


def test_bad_arguments_are_named():
    product, _ = made()
    x, y, w = arrays(product)
    with pytest.raises(ValueError, match=r"weights is \(4, 3\): its last axis must be 10"):
        product(x, y, w[:, :3])
    with pytest.raises(ValueError, match=r"leading axes must broadcast: x \(4,\), y \(3,\), weights \(4,\)"):
        product(x, y[:3], w)
    with pytest.raises(TypeError, match="one of them must be floating-point"):
        product(*(array.astype(int) for array in (x, y, w)))


@pytest.mark.parametrize("normalization", ["component", "norm"])
def test_equals_that_of_e3nn_times_weights(normalization):
    e3nn = pytest.importorskip("e3nn_jax")
    from jax_vbgemm.irreps.e3nn import tensor_product

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        x = e3nn.normal("2x1o+3x0e+0x1e+1x2e+1x1o", jax.random.key(0), (5,), dtype=jnp.float64)
        y = e3nn.normal("0e+1o", jax.random.key(1), (5,), dtype=jnp.float64)
        options = {"filter_ir_out": e3nn.Irreps("0e+1o+2e+1e"), "irrep_normalization": normalization}
        expected = jax.jit(lambda *given: e3nn.tensor_product(*given, **options))(x, y)
        w = jax.random.normal(jax.random.key(2), (5, expected.irreps.num_irreps), jnp.float64)
        found = jax.jit(lambda *given: tensor_product(*given, **options))(x, y, w)
        assert found.irreps == expected.irreps
        np.testing.assert_allclose(found.array, (expected * w).array, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(tensor_product(x, y, **options).array, expected.array, rtol=1e-12, atol=1e-12)
        with pytest.raises(ValueError, match=r"weights is \(5, 2\)"):
            tensor_product(x, y, w[:, :2], **options)
        with pytest.raises(ValueError, match="irrep_normalization must be one of component, norm, none, not 'foo'"):
            tensor_product(x, y, filter_ir_out="9e", irrep_normalization="foo")
        with pytest.raises(ValueError, match=r"tensor_product: y has the irreps 2x0e: each of them must have one"):
            tensor_product(x, e3nn.normal("2x0e", jax.random.key(1), (5,), dtype=jnp.float64))
