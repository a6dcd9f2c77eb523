"""newton_schulz at every exponent of every dtype, against optax where optax's own norm can be held."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.newton_schulz.orthogonal import PRECONDITIONINGS

contrib = pytest.importorskip("optax.contrib._muon")

COEFFS = (2.0, -1.5, 0.5)
FORMS = ["kernel", "xla", "batch", "loop"]
LARGEST = {"float32": 127, "bfloat16": 127, "float16": 15, "float64": 1023, "complex64": 126}


@functools.partial(jax.jit, static_argnames=("form", "preconditioning"))
def iterate(x, form, preconditioning):
    run = functools.partial(vb.newton_schulz, steps=2, coeffs=COEFFS, preconditioning=preconditioning)
    if form == "batch":
        return run([jnp.stack([x, x])])[0][1]
    if form == "loop":
        return jax.jit(lambda x, steps: vb.newton_schulz([x], steps, COEFFS, preconditioning=preconditioning)[0])(x, 2)
    return run([x], implementation=form)[0]


@functools.partial(jax.jit, static_argnames="preconditioning")
def expected(x, preconditioning):
    return contrib.orthogonalize_via_newton_schulz(x, jnp.asarray(COEFFS), 2, preconditioning)


def matrix(dtype, shape, exponent, seed):
    x = oracle.wide(oracle.random(shape, "complex128" if dtype == "complex64" else "float64", seed))
    x = x / max(np.abs(x.real).max(), np.abs(x.imag).max())
    return jnp.asarray(x * np.ldexp(1.0, exponent)).astype(dtype)


@pytest.mark.parametrize("preconditioning", slow_except(PRECONDITIONINGS, ["frobenius", "spectral"]))
@pytest.mark.parametrize("dtype", slow_except(LARGEST, ["float16"]))
@settings(deadline=None, max_examples=8, derandomize=True)
@given(data=st.data())
def test_every_exponent(dtype, preconditioning, data):
    largest = LARGEST[dtype]
    near = [] if dtype == "float16" else [largest // 2 + step for step in range(-2, 3)]
    exponent = data.draw(st.one_of(st.integers(-largest, largest), st.sampled_from([0, largest, *near])))
    shape = (6, 4)
    x = matrix(dtype, shape, exponent, data.draw(st.integers(0, 3)))
    # The result of optax where the norm can be held: in float64, for an X that is large enough for eps not to matter.
    scaled = oracle.wide(x) * (2.0 ** (100 - exponent) if exponent > 100 else 1.0)
    with jax.numpy_dtype_promotion("standard"):
        truth = np.asarray(expected(jnp.asarray(scaled), preconditioning))
    squares = np.longdouble(np.abs(oracle.wide(x))) ** 2
    largest = float(jnp.finfo("float32" if dtype == "float16" else dtype).max)
    # Zeros, as optax gives in this dtype, or where it gives NaN.
    if preconditioning == "spectral":
        if np.linalg.norm(scaled, ord=2) / (np.abs(scaled).max() / np.abs(oracle.wide(x)).max()) >= largest:
            truth = np.zeros(shape)
    elif squares.sum() >= largest:
        truth = np.zeros(shape)
    tolerance = {"bfloat16": 0.1, "float16": 0.02, "float64": 1e-9}.get(dtype, 1e-4)
    for form in FORMS:
        ours = oracle.wide(iterate(x, form, preconditioning))
        np.testing.assert_allclose(ours, truth, rtol=0, atol=tolerance, err_msg=f"{form} 2^{exponent}")


@pytest.mark.parametrize("preconditioning", slow_except(PRECONDITIONINGS, ["frobenius", "spectral"]))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_optax_gives_zeros_or_the_same(dtype, preconditioning):
    """A Frobenius norm that overflows, and a spectral norm that does not although X X^T does."""
    for value in (1e19, 1e20, 5e18, 1e30):
        x = jnp.full((4, 6), value, dtype)
        for form in FORMS:
            assert np.isfinite(oracle.wide(iterate(x, form, preconditioning))).all()
        if preconditioning == "frobenius" and value > 4e18:
            np.testing.assert_array_equal(oracle.wide(iterate(x, "kernel", preconditioning)), 0)


@pytest.mark.parametrize("preconditioning", slow_except(["frobenius", "aol", "schatten"], ["frobenius"]))
@pytest.mark.parametrize("form", FORMS)
def test_infinity_and_nan_are_not_zeros(form, preconditioning):
    for value in (jnp.inf, jnp.nan):
        x = jnp.ones((4, 6), "float32").at[1, 2].set(value)
        assert np.isnan(iterate(x, form, preconditioning)).any()


@pytest.mark.parametrize("preconditioning", slow_except(PRECONDITIONINGS, ["frobenius", "spectral"]))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", slow_except(LARGEST, ["float32", "float16"]))
def test_zeros_stay_zeros(dtype, form, preconditioning):
    shape = (4, 6) if dtype == "float32" else (6, 4)  # as above, where the same programs may have been compiled
    np.testing.assert_array_equal(oracle.wide(iterate(jnp.zeros(shape, dtype), form, preconditioning)), 0)
