"""newton_schulz with iterates of another dtype than the matrices, against float64."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.newton_schulz.orthogonal import PRECONDITIONINGS

SHAPES = {"wide": (12, 40), "tall": (37, 9), "batch": (2, 8, 5), "row": (1, 30)}
COEFFS = (2.0, -1.5, 0.5)
# Relative, of a whole result; a matrix of such sizes has a condition of 10 to 100.
ERRORS = {"float16": 6e-3, "bfloat16": 5e-2, "float32": 1e-5}


def tree(dtype, factor=1.0):
    return {name: factor * oracle.random(shape, dtype, 2) for name, shape in SHAPES.items()}


@functools.partial(jax.jit, static_argnames=("options",))
def run(xs, options=()):
    return vb.newton_schulz(xs, 6, COEFFS, **dict(options))


def error(found, expected):
    found, expected = oracle.wide(found), oracle.wide(expected)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def test_float64_means_float32_without_the_x64_mode():
    xs = [oracle.random((4 + i, 12), "float32", i) for i in range(6)]
    with jax.enable_x64(False), vb.target("h100"):
        lowered = jax.jit(lambda xs: vb.newton_schulz(xs, 2, COEFFS, dtype="float64")).trace(xs).lower()
    assert "f64" not in lowered.as_text()


@pytest.mark.parametrize(
    ("of_leaf", "dtype", "implementation"),
    slow_except(
        itertools.product(["float32", "float64", "bfloat16", "float16"], ERRORS, [None, "kernel", "xla"]),
        [("float32", "float16", None), ("float32", "bfloat16", "xla"), ("bfloat16", "float32", None)],
    ),
)
def test_values(of_leaf, dtype, implementation):
    xs = tree(of_leaf)
    expected = run(jax.tree.map(oracle.wide, xs))
    found = run(xs, (("dtype", dtype), ("implementation", implementation)))
    allowed = max(ERRORS[dtype], {"bfloat16": 4e-3, "float16": 5e-4}.get(of_leaf, 0))
    for name, x in found.items():
        assert (x.shape, x.dtype) == (xs[name].shape, of_leaf)
        assert error(x, expected[name]) < allowed, name


@pytest.mark.parametrize("preconditioning", slow_except(PRECONDITIONINGS, ["aol"]))
def test_preconditionings(preconditioning):
    xs = tree("float32")
    options = (("preconditioning", preconditioning),)
    expected, found = run(tree("float64"), options), run(xs, (*options, ("dtype", "float16")))
    for name, x in found.items():
        assert error(x, expected[name]) < ERRORS["float16"], name


@pytest.mark.parametrize("dtype", slow_except(["float16", "bfloat16"], ["float16"]))
def test_matrices_of_any_magnitude(dtype):
    """Norms are of the leaf's accumulator: a factor changes the rounding only. Zeros and NaN stay."""
    options = (("dtype", dtype), ("eps", 0.0))
    xs = {name: tree("float32")[name] for name in ("wide", "batch")}
    expected = run(xs, options)
    for power in (-40, 60):
        found = run(jax.tree.map(lambda x, p=power: x * 2.0**p, xs), options)
        for name, x in found.items():
            np.testing.assert_allclose(x, expected[name], atol=1e-2 if dtype == "bfloat16" else 2e-3)
    zeros = jax.tree.map(jnp.zeros_like, xs)
    for x in run(zeros, (("dtype", dtype),)).values():
        np.testing.assert_array_equal(x, 0)
    wrong = jax.tree.map(lambda x: x.at[..., 1, 1].set(jnp.nan), xs)
    assert all(np.isnan(x).any() for x in run(wrong, options).values())


def test_small_elements_of_large_matrices():
    """The elements of X and of X X^T are far below the least normal number of float16."""
    x = oracle.random((500, 900), "float32", 4)
    found, expected = run([x], (("dtype", "float16"),))[0], run([x.astype("float64")])[0]
    assert error(found, expected) < 4e-3
    assert np.mean(np.abs(oracle.wide(x @ x.T)) < 2.0**-14 * float(jnp.sum(x * x))) > 0.5


def test_the_last_product_is_not_rounded():
    x = oracle.random((12, 40), "float32", 2)
    result = np.asarray(run([x], (("dtype", "bfloat16"),))[0])
    assert np.mean(result == oracle.wide(jnp.asarray(result).astype("bfloat16"))) < 0.2


def test_all_products_have_operands_of_the_dtype():
    xs = [jax.ShapeDtypeStruct((12, 40), "float32")]
    f = functools.partial(vb.newton_schulz, steps=2, dtype="bfloat16", implementation="xla")
    dots = re.findall(r"dot_general .* : \((.*)\) -> (.*)", jax.jit(f).lower(xs).as_text())
    assert len(dots) == 6
    assert all(operands.count("bf16") == 2 for operands, _ in dots)
    f, xs = jax.jit(functools.partial(vb.newton_schulz, steps=2, dtype="bfloat16")), xs * 20
    with vb.target("h100"):
        text = jax.export.export(f, platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(xs).mlir_module()
    calls = re.findall(r"custom_call @vbgemm_v2.* : \((.*)\) -> (.*)", text)
    assert len(calls) == 6
    assert all(operands.count("bf16") >= 2 for operands, _ in calls)
    assert "xbf16" in calls[0][1]
    assert "xf32" in calls[-1][1]


def test_transformations():
    xs = {name: tree("float32")[name] for name in ("wide", "tall")}
    options = {"dtype": "float16", "coeffs": COEFFS}
    looped = jax.jit(lambda xs, steps: vb.newton_schulz(xs, steps, scale=2.0, **options))(xs, 3)
    packed = jax.jit(lambda xs: vb.newton_schulz(vb.pack(xs), 3, scale=2.0, **options).unpack())(xs)
    expected = jax.jit(lambda xs: vb.newton_schulz(xs, 3, scale=2.0, **options))(xs)
    for name in xs:
        np.testing.assert_allclose(looped[name], expected[name], atol=2e-3)
        np.testing.assert_allclose(packed[name], expected[name], atol=2e-3)

    def gradient(xs, **options):
        return jax.jit(jax.grad(lambda xs: sum(jnp.sum(y * y**2) for y in vb.newton_schulz(xs, 2, COEFFS, **options))))(
            xs
        )

    x = [oracle.random((4, 7), "float32")]
    assert error(gradient(x, dtype="float16")[0], gradient(x)[0]) < 2e-2


@pytest.mark.multidevice(4)
def test_many_devices():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    xs = {"stack": oracle.random((8, 6, 10), "float32"), "rows": oracle.random((12, 5), "float32")}
    xs |= {"layers": oracle.random((4, 6, 10), "float32", 1), "half": oracle.random((3, 4), "float16")}
    shardings = {"stack": P(), "rows": P("x"), "layers": P("x"), "half": P()}
    options = {"dtype": "float16", "coeffs": COEFFS, "scale": 1e-6 * jnp.arange(1.0, 5.0)}
    many = jax.jit(lambda xs: vb.newton_schulz(xs, mesh_axis="x", mesh=mesh, shardings=shardings, **options))
    compiled = many.lower(xs).compile()
    found, one = compiled(xs), jax.jit(lambda xs: vb.newton_schulz(xs, **options))(xs)
    for name in xs:
        assert found[name].dtype == xs[name].dtype
        rounding = 1e-4 if name == "layers" else 2.0**-10  # layers are not sent
        np.testing.assert_allclose(found[name], one[name], rtol=0, atol=rounding * float(jnp.max(one[name])))
    for line in compiled.as_text().splitlines():
        if " all-gather(" in line or " all-reduce(" in line:
            assert "f32" not in line.split("=")[1].split("(")[0]


def test_bad_dtypes():
    with pytest.raises(TypeError, match="newton_schulz: dtype is int8: it must be a real floating one"):
        vb.newton_schulz([jnp.ones((2, 3))], dtype="int8")
    with pytest.raises(TypeError, match=r"tree\['w'\] is complex64, but dtype is float16: it must be real"):
        vb.newton_schulz({"w": jnp.ones((2, 3), "complex64")}, dtype="float16")


def test_muon_trains_with_float16():
    """The loss after training equals that with float32 iterates within a few percent."""
    pytest.importorskip("optax")
    from jax_vbgemm.optax import muon

    x = oracle.random((64, 10), "float32", 5)
    y = jnp.sin(3 * x[:, :4])
    params = {"in": 0.3 * oracle.random((10, 24), "float32", 6), "out": 0.3 * oracle.random((24, 4), "float32", 7)}

    def loss(params):
        return jnp.mean(jnp.square(jnp.tanh(x @ params["in"]) @ params["out"] - y))

    @functools.partial(jax.jit, static_argnums=0)
    def train(dtype):
        optimizer = muon(0.02, ns_dtype=dtype)

        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            return (jax.tree.map(jnp.add, params, updates), state), None

        with jax.numpy_dtype_promotion("standard"):
            (trained, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=100)
        return loss(trained)

    half, full = float(train("float16")), float(train(None))
    assert full < 0.3 * float(loss(params))
    assert abs(half - full) < 0.05 * full
