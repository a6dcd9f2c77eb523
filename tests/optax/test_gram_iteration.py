"""newton_schulz by Gram matrices: the numbers of the iteration by X, and where it is chosen."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.newton_schulz.cost import members_by_gram, segments
from jax_vbgemm._src.newton_schulz.orthogonal import PRECONDITIONINGS

SHAPES = {"wide": (12, 40), "tall": (37, 9), "square": (8, 8), "batch": (2, 3, 8, 5), "row": (1, 30)}


def tree(dtype="float64", names=SHAPES):
    return {name: oracle.random(SHAPES[name], dtype, 3) for name in names}


@functools.partial(jax.jit, static_argnames=("options",))
def both(xs, options=()):
    """By X and by Gram matrices."""
    return [vb.newton_schulz(xs, gram=gram, **dict(options)) for gram in (False, True)]


def error(found, expected):
    found, expected = oracle.wide(found), oracle.wide(expected)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("steps", range(14))
def test_segments(steps):
    """The Gram matrix is computed anew after two steps, and then after three at the latest."""
    lengths = segments(steps)
    assert sum(lengths) == steps
    assert all(1 <= length <= (2 if index == 0 else 3) for index, length in enumerate(lengths))


@pytest.mark.parametrize(
    ("dtype", "coeffs", "steps"),
    slow_except(
        itertools.product(["float64", "complex128"], ["simple", "polar_express", "cans"], [1, 2, 5, 8]),
        [("float64", "polar_express", 8), ("complex128", "simple", 5)],
    ),
)
def test_equal_to_the_iteration_by_x(dtype, coeffs, steps):
    by_x, by_gram = both(tree(dtype), (("coeffs", coeffs), ("steps", steps)))
    for name in SHAPES:
        np.testing.assert_allclose(by_gram[name], by_x[name], atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("preconditioning", "dtype"),
    slow_except(
        itertools.product(PRECONDITIONINGS, ["float64", "float32", "complex128"]),
        [("aol", "float64"), ("schatten", "complex128")],
    ),
)
def test_preconditionings_and_scales(preconditioning, dtype):
    steps = 3 if dtype == "complex128" else 5  # "schatten" does not bound complex matrices, as in optax
    by_x, by_gram = both(tree(dtype), (("preconditioning", preconditioning), ("scale", -2.0), ("steps", steps)))
    for name in SHAPES:
        np.testing.assert_allclose(by_gram[name], by_x[name], atol=1e-4 if dtype == "float32" else 1e-10)


def matrix(values, n, seed=0):
    """A matrix (len(values), n) with these singular values."""
    u, v = (np.linalg.qr(oracle.random((size, len(values)), "float64", seed + size))[0] for size in (len(values), n))
    return (u * values) @ v.T


EXTREME = {
    "few": np.r_[np.geomspace(1, 0.5, 4), np.zeros(60)],  # as gradients often are
    "spread": np.geomspace(1, 1e-6, 64),
    "one large": np.r_[1, np.full(63, 1e-4)],
    "orthogonal": np.ones(64),
}


@pytest.mark.parametrize("dtype", slow_except([None, "float16"], ["float16"]))
@pytest.mark.parametrize("coeffs", slow_except(["simple", "polar_express"], ["polar_express"]))
def test_extreme_singular_values(coeffs, dtype):
    """Errors are about those of the iteration by X, and no singular value grows beyond the bound of the steps."""
    xs = {name: matrix(values, 192) for name, values in EXTREME.items()}
    options = (("coeffs", coeffs), ("steps", 8))
    exact, _ = both(xs, options)
    by_x, by_gram = both({name: x.astype("float32") for name, x in xs.items()}, (*options, ("dtype", dtype)))
    floor = 1e-3 if dtype is None else 3e-2
    for name in xs:
        assert error(by_gram[name], exact[name]) < 2 * error(by_x[name], exact[name]) + floor, name
        assert np.linalg.svd(oracle.wide(by_gram[name]), compute_uv=False).max() < 1.25


@pytest.mark.parametrize("dtype", slow_except(["float32", "float16", "float64"], ["float16"]))
def test_zeros_and_nan(dtype):
    xs = [jnp.zeros((4, 9), dtype), jnp.ones((4, 9), dtype).at[1, 2].set(jnp.nan)]
    _, (zeros, wrong) = both(xs)
    np.testing.assert_array_equal(zeros, 0)
    assert np.isnan(wrong).all()


@pytest.mark.slow
@pytest.mark.parametrize("power", [-40, 60])
def test_any_magnitude(power):
    x = tree("float32", ["wide", "tall"])
    scaled = jax.tree.map(lambda x: x * 2.0**power, x)
    _, expected = both(x, (("eps", 0.0),))
    _, found = both(scaled, (("eps", 0.0),))
    for name in x:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)


def test_no_steps():
    X = oracle.random((3, 4), "float32")
    np.testing.assert_array_equal(vb.newton_schulz(X, 0, gram=True), vb.newton_schulz(X, 0))


def test_gradients():
    xs = {"wide": oracle.random((4, 7), "float64"), "tall": oracle.random((5, 3), "float64")}

    def loss(xs, gram):
        return sum(jnp.sum(jnp.sin(y)) for y in vb.newton_schulz(xs, 4, gram=gram).values())

    expected, found = jax.jit(lambda xs: [jax.grad(loss)(xs, gram) for gram in (False, True)])(xs)
    for name in xs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-7, atol=1e-9)


def test_traced_coefficients_and_packed_members():
    xs = tree(names=["wide", "tall"])
    rows = np.array([(3.0, -3.2, 1.2), (2.0, -1.5, 0.5), (2.0, -1.5, 0.5)])

    @jax.jit
    def run(xs, rows):
        return (
            vb.newton_schulz(xs, coeffs=rows),
            vb.newton_schulz(xs, coeffs=rows, gram=True),
            vb.newton_schulz(vb.pack(xs), coeffs=rows, gram=True).unpack(),
            vb.newton_schulz(xs, jnp.int32(3), gram=True),
            vb.newton_schulz(xs, 3),
        )

    by_x, by_gram, packed, looped, three = run(xs, jnp.asarray(rows))
    for name in xs:
        np.testing.assert_allclose(by_gram[name], by_x[name], atol=1e-11)
        np.testing.assert_allclose(packed[name], by_x[name], atol=1e-11)
        np.testing.assert_allclose(looped[name], three[name], atol=1e-11)


def test_five_steps_read_x_four_times():
    xs = [jax.ShapeDtypeStruct((12, 40), "float32")]
    f = functools.partial(vb.newton_schulz, gram=True, implementation="xla")
    dots = re.findall(r"dot_general .* : \((.*)\) -> tensor<(.*)xf32>", jax.jit(f).lower(xs).as_text())
    assert sum("12x40" in operands for operands, _ in dots) == 4
    assert sum(result == "12x40" for _, result in dots) == 2
    calls = jax.jit(functools.partial(vb.newton_schulz, gram=True, implementation="kernel")).lower(xs * 3).as_text()
    assert calls.count("custom_call @vbgemm_v2") == 17


def test_identities_are_added_in_one_call_on_a_gpu():
    xs = [jax.ShapeDtypeStruct(size, "float32") for size in [(12, 40), (12, 60), (30, 16)] * 8]
    f = jax.jit(functools.partial(vb.newton_schulz, gram=True, implementation="kernel", dtype="float16"))
    with vb.target("h100"):
        exported = jax.export.export(f, platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(xs)
    text = exported.mlir_module()
    assert text.count("custom_call @vbgemm_v2") == 17
    assert text.count("custom_call @vbgemm_add_v2") == 3  # one rounds the matrices


def chosen(sizes, steps=5, dtype="float32", implementation=None):
    xs = [jax.ShapeDtypeStruct(size, "float32") for size in sizes]
    with vb.target("h100"):
        return list(members_by_gram(xs, steps, None, "auto", implementation, jnp.dtype(dtype)))


def test_where_it_is_chosen():
    """For matrices far from square that are not small."""
    assert chosen([(4096, 4096), (4096, 14336), (14336, 4096)]) == [False, True, True]
    gpt2_small = [(768, 768)] * 12 + [(768, 2304)] * 12 + [(768, 3072)] * 24
    assert chosen(gpt2_small, dtype="float16") == [False] * 12 + [True] * 36
    assert chosen([(16, 64)] * 40) == [False] * 40  # whose steps are launches
    assert chosen([(4096, 14336)], steps=1) == [False]
    assert chosen([(768, 768), (768, 3072)], implementation="xla") == [False, True]


def test_auto():
    xs = [jax.ShapeDtypeStruct(size, "float32") for size in [(64, 64), (64, 512)]]
    f = functools.partial(vb.newton_schulz, gram="auto", implementation="xla")
    dots = re.findall(r"dot_general .* : \((.*)\) -> ", jax.jit(f).lower(xs).as_text())
    assert sum("64x512" in operands for operands in dots) == 4
    text = jax.jit(functools.partial(f, dtype="bfloat16")).lower(xs).as_text()
    assert sum("64x512" in operands for operands in re.findall(r"dot_general .* : \((.*)\) -> ", text)) == 10


@pytest.mark.slow
def test_symbolic_sizes():
    f = jax.jit(functools.partial(vb.newton_schulz, gram=True, dtype="float32"))
    program = jax.export.export(f)([jax.ShapeDtypeStruct(jax.export.symbolic_shape("b,m,8"), "float64")])
    x = oracle.random((3, 12, 8), "float64")
    np.testing.assert_allclose(program.call([x])[0], f([x])[0], atol=1e-4)


def test_maps_and_views():
    xs = tree(names=["wide", "tall"])
    stacked = jax.tree.map(lambda x: jnp.stack([x, 3 * x]), xs)
    buffer = oracle.random((6, 20), "float64")

    @jax.jit
    def run(stacked, buffer):
        mapped = jax.vmap(functools.partial(vb.newton_schulz, gram=True))(stacked)
        window = vb.View(buffer, (4, 9), (20, 1), 2)
        return mapped, vb.newton_schulz([window], gram=True), vb.newton_schulz([window.dense()])

    mapped, (of_view,), (of_array,) = run(stacked, buffer)
    by_x, _ = both(xs)
    for name in xs:
        np.testing.assert_allclose(mapped[name][1], by_x[name], atol=1e-7)  # eps
    np.testing.assert_allclose(of_view, of_array, atol=1e-11)


@pytest.mark.multidevice(4)
def test_many_devices():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    xs = tree(names=["wide", "tall", "square"])
    many = jax.jit(lambda xs: vb.newton_schulz(xs, gram=True, mesh_axis="x", mesh=mesh))(xs)
    by_x, _ = both(xs)
    for name in xs:
        np.testing.assert_allclose(many[name], by_x[name], atol=1e-11)


def test_mistakes():
    with pytest.raises(ValueError, match="gram must be False, True or 'auto', not 'always'"):
        vb.newton_schulz([jnp.ones((2, 3))], gram="always")
    with pytest.raises(ValueError, match=r"tree\['w'\] would be iterated in bfloat16.*use dtype='float16'"):
        vb.newton_schulz({"w": jnp.ones((2, 3), "bfloat16")}, gram=True)
    with pytest.raises(ValueError, match=r"tree\[0\] would be iterated in bfloat16"):
        vb.newton_schulz([jnp.ones((2, 3))], dtype="bfloat16", gram=True)


def test_muon():
    pytest.importorskip("optax")
    from jax_vbgemm.optax import muon

    params = tree(names=["wide", "tall"])
    with jax.numpy_dtype_promotion("standard"):
        updates = []
        for gram in (False, True):
            optimizer = muon(0.1, ns_gram=gram)
            updates.append(jax.jit(optimizer.update)(params, optimizer.init(params), params)[0])
    for name in params:
        np.testing.assert_allclose(updates[1][name], updates[0][name], atol=1e-11)
