"""`SymmetricContraction` beside the sum of its terms, and the symmetric contraction of cuequivariance."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jax_vbgemm._src.irreps import monomials
from jax_vbgemm._src.irreps.monomials import (
    _derivative,
    _on_cpu,
    _transposed,
    _values,
    _written_out,
    sum_of_monomials_p,
)
from jax_vbgemm.irreps import SymmetricContraction

SIZES = 3, 4, 2  # weights, components of x and of the result
CHANNELS, SPECIES, ROWS = 2, 3, 5
TERMS = [
    (0, (1,), 0, 0.5), (1, (0, 2), 0, 1.5), (2, (2, 0), 0, -1.0), (1, (3, 3), 1, 2.0), (2, (3, 3), 1, 0.25),
    (0, (1, 1, 1), 1, 1.0), (2, (0, 1, 3), 1, 3.0), (1, (3, 0, 1), 1, -2.0), (2, (1, 1, 2), 0, 0.5),
]  # fmt: skip


def arrays(dtype=jnp.float64):
    rng = np.random.default_rng(0)
    shapes = (SPECIES, SIZES[0], CHANNELS), (ROWS, SIZES[1], CHANNELS)
    weights, x = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)
    return weights, x, jnp.asarray([2, 0, 1, 1, 2])


def by_terms(weights, x, indices):
    y = [jnp.zeros((len(x), CHANNELS), x.dtype)] * SIZES[2]
    for w, factors, k, coefficient in TERMS:
        product = coefficient * weights[indices, w]
        for i in factors:
            product = product * x[:, i]
        y[k] = y[k] + product
    return jnp.stack(y, axis=1)


def test_equals_the_sum_of_terms():
    contraction = SymmetricContraction(*SIZES, TERMS)
    weights, x, indices = arrays()
    expected = by_terms(weights, x, indices)
    np.testing.assert_allclose(jax.jit(contraction)(weights, x, indices=indices), expected, rtol=1e-12)
    np.testing.assert_allclose(contraction(weights[1], x), by_terms(weights, x, [1] * ROWS), rtol=1e-12)
    found = contraction(weights, x[None], indices=indices[None] - SPECIES)
    np.testing.assert_allclose(found, expected[None], rtol=1e-12)


def test_derivatives_of_second_order():
    contraction = SymmetricContraction(*SIZES, TERMS)
    weights, x, indices = arrays()
    oracle.check_grads(jax.jit(lambda w, x: contraction(w, x, indices=indices)), (weights, x), order=2)


def test_all_forms_of_a_sum_are_equal(monkeypatch):
    """Of the polynomial, of its gradient by x, of that by weights, which adds nothing up, and of a polynomial with one
    result: written out, gathered, and two rows at once, in parts."""
    polynomial = SymmetricContraction(*SIZES, TERMS)._polynomial
    by_x, by_weights = _transposed(_derivative(polynomial, 1), 2), _transposed(polynomial, 0)
    assert by_x.powers == (1, 2, 1)
    single = SymmetricContraction(*SIZES[:2], 1, [(w, factors, 0, c) for w, factors, _, c in TERMS])._polynomial
    for of in (polynomial, by_x, by_weights, single):
        rng = np.random.default_rng(0)
        operands = [rng.standard_normal((ROWS, size, CHANNELS)) for size in of.sizes[:-1]]
        found = [jax.jit(partial(form, of=of))(*operands) for form in (_written_out, _values)]
        with monkeypatch.context() as patch:
            for name, value in (("PART", 2), ("WRITTEN_OUT", 0), ("IN_CACHE", 2 * CHANNELS)):
                patch.setattr(monomials, name, value)
            found.append(jax.jit(partial(_on_cpu, of=of))(*operands))
        for each in found[1:]:
            np.testing.assert_allclose(each, found[0], rtol=1e-12, atol=1e-12)


def test_equal_products_are_one_and_a_gradient_is_one_sum():
    """Of nine terms, two pairs differ by weights and one by the order of its factors too."""
    contraction = SymmetricContraction(*SIZES, TERMS)
    assert "6 products of degree 3" in repr(contraction)
    weights, x, indices = arrays()
    gradient = jax.make_jaxpr(jax.grad(lambda x: jnp.sum(contraction(weights, x, indices=indices))))(x)
    assert [eqn.primitive for eqn in gradient.eqns].count(sum_of_monomials_p) <= 2


def test_sums_are_float32_or_wider():
    """One rounding at the end, where products are exact in float32."""
    contraction = SymmetricContraction(1, 3, 1, [(0, (i, j), 0, 1.0) for i in range(3) for j in range(i + 1)])
    x = jnp.asarray(np.random.default_rng(0).integers(-15, 16, (4, 3, 5)), jnp.bfloat16)
    found = contraction(jnp.ones((1, 5), jnp.bfloat16), x)
    exact = contraction(jnp.ones((1, 5)), x.astype(jnp.float64))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


def test_vmap_of_any_argument():
    contraction = SymmetricContraction(*SIZES, TERMS)
    weights, x, indices = arrays()
    found = jax.vmap(lambda w, x: contraction(w, x, indices=indices), (0, None))(jnp.stack([weights, -weights]), x)
    expected = contraction(weights, x, indices=indices)
    np.testing.assert_allclose(found, jnp.stack([expected, -expected]), rtol=1e-12)
    of_one = jax.vmap(lambda x, i: contraction(weights, x[None], indices=i[None])[0])(x, indices)
    np.testing.assert_allclose(of_one, expected, rtol=1e-12)


def test_no_rows_or_no_terms():
    weights, x, indices = arrays()
    assert SymmetricContraction(*SIZES, TERMS)(weights, x[:0], indices=indices[:0]).shape == (0, 2, CHANNELS)
    none = SymmetricContraction(*SIZES, [])
    gradients = jax.grad(lambda w, x: jnp.sum(none(w, x, indices=indices)), (0, 1))(weights, x)
    assert not none(weights, x, indices=indices).any()
    assert not any(g.any() for g in gradients)


def test_terms_without_components_of_x_are_constants():
    weights, x, indices = arrays()
    constant = SymmetricContraction(*SIZES, [(1, (), 0, 2.0)])
    np.testing.assert_array_equal(constant(weights, x, indices=indices)[:, 0], 2 * weights[indices, 1])
    assert not jax.grad(lambda x: jnp.sum(constant(weights, x, indices=indices)))(x).any()


def test_exported_with_any_number_of_rows():
    contraction = SymmetricContraction(*SIZES, TERMS)
    weights, x, indices = arrays()
    (rows,) = jax.export.symbolic_shape("rows")
    gradient = jax.jit(jax.grad(lambda x, i: jnp.sum(contraction(weights, x, indices=i) ** 2)))
    specs = jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), jax.ShapeDtypeStruct((rows,), indices.dtype)
    np.testing.assert_allclose(jax.export.export(gradient)(*specs).call(x, indices), gradient(x, indices), rtol=1e-12)


def test_bad_input_is_named():
    contraction = SymmetricContraction(*SIZES, TERMS)
    weights, x, indices = arrays()
    for terms, error, match in (
        ([(0, (4,), 0, 1.0)], ValueError, r"terms\[0\] has component of x 4, but there are 4"),
        ([(0, (1,), 0, 1j)], TypeError, r"terms\[0\] must be \(weight, .*real"),
        ([(0, (1,), 0, np.complex64(1 + 2j))], TypeError, r"terms\[0\] must be \(weight, .*real"),
        (3, TypeError, "terms must be tuples"),
    ):
        with pytest.raises(error, match=match):
            SymmetricContraction(*SIZES, terms)
    with pytest.raises(TypeError, match="dim_out is None: it must be an integer"):
        SymmetricContraction(1, 3, None, [])
    with pytest.raises(ValueError, match="num_weights is -1: it must not be negative"):
        SymmetricContraction(-1, 3, 1, [])
    with pytest.raises(ValueError, match="5 rows choose among no species"):
        contraction(weights[:0], x, indices=indices)
    with pytest.raises(ValueError, match=r"x is \(5, 3, 2\): it must be \(..., 4, channels\)"):
        contraction(weights, x[:, :3], indices=indices)
    with pytest.raises(ValueError, match=r"weights are \(3, 3, 2\): they must be \(3, 2\) without indices"):
        contraction(weights, x)
    with pytest.raises(ValueError, match=r"indices are \(3,\): they must be \(5,\)"):
        contraction(weights, x, indices=indices[:3])
    with pytest.raises(TypeError, match="they must be integers"):
        contraction(weights, x, indices=x[:, 0, 0])
    with pytest.raises(TypeError, match="one of them must be floating-point"):
        contraction(weights.astype(int), x.astype(int), indices=indices)


@pytest.mark.multidevice(2)
def test_explicit_axes_are_refused():
    contraction = SymmetricContraction(*SIZES, TERMS)
    weights, x, _ = arrays()
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    with (
        jax.set_mesh(mesh),
        pytest.raises(ValueError, match=r"x is sharded over explicit mesh axes: use jax.shard_map"),
    ):
        contraction(weights[0], jax.device_put(x[:4], jax.P("rows")))


def test_equals_that_of_cuequivariance():
    cue, cuex = pytest.importorskip("cuequivariance"), pytest.importorskip("cuequivariance_jax")
    irreps = cue.Irreps("O3", "2x0e + 2x1o")
    polynomial = cue.descriptors.symmetric_contraction(irreps, irreps[:1], (1, 2, 3)).polynomial
    operands = polynomial.operands
    terms = [
        (weight, components, component, coefficient)
        for _, product in polynomial.operations
        for (weight, *components, component), coefficient in zip(
            product.indices, product.stacked_coefficients, strict=True
        )
    ]
    contraction = SymmetricContraction(*(operand.num_segments for operand in operands), terms)
    rng = np.random.default_rng(0)
    weights, x = (
        jnp.asarray(rng.standard_normal((n, o.num_segments, 2))) for n, o in zip((3, 5), operands, strict=False)
    )
    indices = jnp.asarray([2, 0, 1, 1, 2])

    def theirs(weights, x):
        out = [jax.ShapeDtypeStruct((5, operands[2].size), x.dtype)]
        given = weights[indices].reshape(5, -1), x.reshape(5, -1)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            (y,) = cuex.segmented_polynomial(polynomial, given, out, method="naive")
        return y.reshape(5, -1, 2)

    def gradients(function):
        return jax.jit(jax.value_and_grad(lambda *given: jnp.sum(jnp.sin(function(*given))), (0, 1)))(weights, x)

    ours = gradients(lambda weights, x: contraction(weights, x, indices=indices))
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(gradients(theirs)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
