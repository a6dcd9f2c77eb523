"""Named coefficients: the papers' tables, and what the papers claim of the composed polynomials."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.newton_schulz.coefficients import LOWER, NAMES, coefficients

# arXiv 2505.16932, Algorithm 1, before its division by the safety factor; the last row is the limit.
POLAR_EXPRESS = np.array(
    [
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        (1.875, -1.25, 0.375),
    ]
)
# arXiv 2506.10935, as Emerging-Optimizers prints them.
CANS = [
    (8.4703, -25.1081, 18.6293),
    (4.1828, -3.1087, 0.5806),
    (3.9619, -2.9541, 0.5630),
    (3.2866, -2.4647, 0.5074),
    (2.2737, -1.6447, 0.4162),
]
# The singular values [from, 1] that are mapped into [least, most] by five steps ("aol": four, for which the norm's
# bound is not tight). Those of tables are their own, rounded outwards; those of "polar_express" without its safety
# factor and of "cans" follow from the last error of the minimax problem.
IMAGES = {
    "simple": (5e-3, 0.68, 1.21),
    "quintic": (5e-3, 0.97, 1.15),
    "aol": (2e-2, 0.97, 1.15),
    "polar_express": (LOWER, 0.84, 1.13),
    "cans": (LOWER, 0.88, 1.12),
}


def image(rows, x):
    for c0, c1, c2 in rows:
        x = c0 * x + c1 * x**3 + c2 * x**5
    return x


def test_polar_express_is_the_table_of_its_paper():
    factors = np.where(np.arange(8)[:, None] < 7, 1.01 ** np.array([1, 3, 5]), 1)
    np.testing.assert_allclose(coefficients("polar_express", 8) * factors, POLAR_EXPRESS, rtol=1e-8)
    np.testing.assert_allclose(coefficients("polar_express", 5), coefficients("polar_express", 8)[:5], rtol=1e-15)
    np.testing.assert_allclose(coefficients("polar_express", 12)[8:], np.tile(POLAR_EXPRESS[-1], (4, 1)), rtol=1e-8)


def test_cans_is_the_table_of_its_paper():
    np.testing.assert_allclose(coefficients("cans", 5), CANS, atol=5.1e-5)


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_the_error_of_cans_takes_its_bound_with_changing_signs(steps):
    """Each quintic takes its largest error in four points, which is what makes it the best one (Chebyshev)."""
    x = np.geomspace(LOWER, 1, 200001)
    rows = coefficients("cans", steps)
    error = image(rows, x) - 1
    bound = np.abs(error).max()
    np.testing.assert_allclose(-error[0], bound, rtol=1e-9)  # the least singular value
    last = np.unique(np.round(image(rows[:-1], x), 12))
    error = image(rows[-1:], last) - 1
    places = np.flatnonzero(np.abs(error) > bound * (1 - 1e-5))
    signs = np.sign(error[places])
    assert np.count_nonzero(np.diff(signs)) == 3


@pytest.mark.parametrize("name", IMAGES)
def test_singular_values_end_near_1(name):
    rows = coefficients(name, 5)
    rows = rows if rows.ndim == 2 else [rows] * 5
    start, least, most = IMAGES[name]
    x = np.geomspace(1e-9, 1, 100001)
    y = image(rows, x)
    assert least < y[x >= start].min()
    assert y.max() < most
    assert (y > 0).all()  # no direction is turned around


def test_polar_express_bears_rounding():
    """The safety factor: singular values of up to 1.01 stay in the interval of each step."""
    x = np.linspace(LOWER, 1.01, 100001)
    assert np.abs(image(coefficients("polar_express", 8), x) - 1).max() < 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_matrices(name):
    steps = 8 if name in ("polar_express", "cans") else 5
    preconditioning = "aol" if name == "aol" else "frobenius"
    x = {"wide": oracle.random((12, 40), "float64"), "tall": oracle.random((37, 9), "float64")}
    results = jax.jit(lambda x: vb.newton_schulz(x, steps, name, preconditioning=preconditioning))(x)
    for y in results.values():
        values = np.linalg.svd(y, compute_uv=False)
        tolerance = 1e-2 if name == "polar_express" else 1e-6 if name == "cans" else 0.35
        np.testing.assert_allclose(values, 1, atol=tolerance)


def test_names_of_muon():
    pytest.importorskip("optax")
    from jax_vbgemm.optax import muon, scale_by_muon

    params = {"w": jnp.ones((4, 6))}
    for name, rows in (("simple", None), ("quintic", 5), ("aol", 4), ("polar_express", 5), ("dion", 5)):
        state = scale_by_muon(name).init(params)
        assert state.ns_coeffs.shape == ((3,) if rows is None else (rows, 3))
        with jax.numpy_dtype_promotion("standard"):
            optimizer = muon(0.1, ns_coeffs=name)
            updates, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
        assert jnp.isfinite(updates["w"]).all()
    assert scale_by_muon("cans", ns_steps=7).init(params).ns_coeffs.shape == (7, 3)
    with pytest.raises(TypeError, match=r"scale_by_muon: ns_steps is traced.*static_args"):
        jax.jit(lambda steps: scale_by_muon("cans", ns_steps=steps).init(params))(5)


def test_bad_names():
    x = [jnp.ones((2, 3))]
    with pytest.raises(ValueError, match=r"Unknown ns_coeff preset string: best \(known are simple, standard, "):
        vb.newton_schulz(x, coeffs="best")
    with pytest.raises(TypeError, match="newton_schulz: steps is traced, and coeffs = 'cans' need to know it"):
        jax.jit(lambda steps: vb.newton_schulz(x, steps, "cans"))(3)
