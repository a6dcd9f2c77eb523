"""newton_schulz on pytrees, against a loop in float64."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.newton_schulz import norms as newton_schulz_norms
from jax_vbgemm._src.newton_schulz import orthogonal
from jax_vbgemm._src.newton_schulz.coefficients import MUON_COEFFS
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.single_dots import split

ONE_FOR_NORMS = int(jax.default_backend() == "gpu")
SHAPES = {"wide": (12, 40), "tall": (37, 9), "batch": (2, 3, 8, 5), "one": (1, 1), "row": (1, 30)}


def tree(dtype="float64", names=SHAPES):
    return {name: oracle.random(SHAPES[name], dtype) for name in names}


def truth(x, rows):
    """The result in float64, one matrix (or batch) at a time, without transposing; rows: the coefficients of each
    step."""
    x = oracle.wide(x)
    x = x / (np.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-8)
    for c0, c1, c2 in rows:
        a = x @ x.swapaxes(-1, -2).conj()
        x = c0 * x + (c1 * a + c2 * a @ a) @ x
    return x


def assert_close(ours, expected, tolerance):
    for name, x in ours.items():
        np.testing.assert_allclose(oracle.wide(x), expected[name], rtol=0, atol=tolerance, err_msg=name)


def compiled(xs, *args, **options):
    """By one program. Outside of jit, as in test_trees, each operation is one."""
    return jax.jit(lambda xs: vb.newton_schulz(xs, *args, **options))(xs)


TOLERANCES = {"float64": 1e-12, "complex128": 1e-12, "float32": 2e-5, "complex64": 2e-5, "bfloat16": 0.1}


@pytest.mark.parametrize(
    ("dtype", "implementation"),
    slow_except(
        itertools.product(TOLERANCES, [None, "kernel", "xla"]),
        [("complex128", None), ("float32", "xla"), ("bfloat16", None)],
    ),
)
def test_values(dtype, implementation):
    xs = tree(dtype)
    coeffs = (2.0, -1.5, 0.5)  # exact in every dtype
    ours = compiled(xs, 4, coeffs, implementation=implementation)
    assert all(ours[name].dtype == dtype for name in xs)
    assert_close(ours, {name: truth(x, [coeffs] * 4) for name, x in xs.items()}, TOLERANCES[dtype])


def test_it_orthogonalises():
    xs = tree(names=["wide", "tall", "batch"])
    for x in map(np.asarray, compiled(xs, 25, (2.0, -1.5, 0.5)).values()):
        gram = x @ x.swapaxes(-1, -2) if x.shape[-2] < x.shape[-1] else x.swapaxes(-1, -2) @ x
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(gram.shape[-1]), gram.shape), atol=1e-9)


def test_coefficients_in_every_form():
    xs = tree()
    rows = np.array([MUON_COEFFS, (2.0, -1.5, 0.5)])
    forms = (rows, jax.device_put(rows), rows.tolist())

    @jax.jit
    def run(xs, coeffs):
        return [vb.newton_schulz(xs, coeffs=form) for form in forms], vb.newton_schulz(xs, 3, coeffs)

    known, traced = run(xs, np.asarray(MUON_COEFFS))
    for ours in known:
        assert_close(ours, {name: truth(x, rows) for name, x in xs.items()}, 1e-12)
    assert_close(traced, {name: truth(x, [MUON_COEFFS] * 3) for name, x in xs.items()}, 1e-12)


@pytest.mark.parametrize(
    ("preconditioning", "steps"),
    slow_except(itertools.product(orthogonal.PRECONDITIONINGS, [0, 1, 4]), [("frobenius", 4), ("aol", 0)]),
)
def test_a_traced_number_of_steps(preconditioning, steps):
    xs = tree()

    def run(xs, steps):
        return vb.newton_schulz(xs, steps, preconditioning=preconditioning, scale=2.0)

    assert_close(jax.jit(run)(xs, jnp.int32(steps)), jax.jit(run, static_argnums=1)(xs, steps), 1e-12)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": -1}, ValueError, "steps = -1 must not be negative"),
        ({"steps": 2.0}, TypeError, "steps = 2.0 must be an integer"),
        ({"coeffs": (1j, 0, 0)}, TypeError, "coeffs are complex128: they must be real"),
    ],
)
def test_bad_steps_and_coefficients(options, error, message):
    with pytest.raises(error, match=message):
        vb.newton_schulz(tree(), **options)


def test_a_symbolic_batch_goes_through_xla():
    (b,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((b, 4, 8), "float64")
    program = jax.export.export(jax.jit(lambda x: vb.newton_schulz([x])[0]))(shape)
    x = oracle.random((3, 4, 8), "float64")
    np.testing.assert_allclose(program.call(x), compiled([x])[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "preconditioning"),
    slow_except(
        itertools.product(["m,n", "b,m,8", "8,n"], ["frobenius", "spectral", "schatten"]),
        [("m,n", "frobenius"), ("8,n", "spectral")],
    ),
)
def test_symbolic_sizes(shape, preconditioning):
    if preconditioning == "spectral" and jax.default_backend() == "gpu":
        pytest.skip("JAX's singular values on GPUs need to know which size is larger")
    f = jax.jit(functools.partial(vb.newton_schulz, preconditioning=preconditioning))
    program = jax.export.export(f)([jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), "float64")])
    x = oracle.random((3, 12, 8)[3 - program.in_avals[0].ndim :] if shape != "8,n" else (8, 3), "float64")
    np.testing.assert_allclose(program.call([x])[0], f([x])[0], rtol=1e-9, atol=1e-11)


def test_symbolic_sizes_whose_order_counts():
    f = jax.jit(functools.partial(vb.newton_schulz, preconditioning="aol"))
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("m,n", constraints=["m >= n + 1"]), "float64")
    program, x = jax.export.export(f)([x]), oracle.random((12, 8), "float64")
    np.testing.assert_allclose(program.call([x])[0], f([x])[0], rtol=1e-9, atol=1e-11)
    with pytest.raises(ValueError, match=r"tree\[0\] is \(m, n\), and 'aol' needs to know which size is larger"):
        jax.export.export(f)([jax.ShapeDtypeStruct(jax.export.symbolic_shape("m,n"), "float64")])


@pytest.mark.parametrize(
    ("steps", "dtype"),
    slow_except(
        itertools.product([0, 1, 3], ["float64", "float32", "bfloat16", "complex64"]),
        [(3, "complex64")],
    ),
)
def test_scale(steps, dtype):
    """A factor of the last product, in every form."""
    xs = tree(dtype)
    coeffs, many = (2.0, -1.5, 0.5), np.linspace(-1, 2, len(xs))
    scales = (0.5, many, np.float32(0.5))  # the first two as arrays too
    run = functools.partial(vb.newton_schulz, steps=steps, coeffs=coeffs)

    @jax.jit
    def results(xs, traced):
        alone, known = run(xs, preconditioning="aol"), run(xs, scale=many, preconditioning="aol")
        return [run(xs, scale=scale) for scale in traced + scales[:2]], alone, known

    scaled, alone, known = results(xs, scales)
    for scale, ours in zip(scales + scales[:2], scaled, strict=True):
        assert all(ours[name].dtype == dtype for name in xs)
        of_leaf = dict(zip(sorted(xs), np.broadcast_to(scale, len(xs)), strict=True))
        expected = {name: of_leaf[name] * truth(x, [coeffs] * steps) for name, x in xs.items()}
        assert_close(ours, expected, TOLERANCES[dtype])
    of_leaf = dict(zip(sorted(xs), many, strict=True))
    assert_close(known, {name: of_leaf[name] * oracle.wide(x) for name, x in alone.items()}, TOLERANCES[dtype])


@pytest.mark.parametrize("options", [{}, {"preconditioning": "aol"}, {"dtype": "float16"}, {"steps": jnp.int32(3)}])
def test_known_norms_are_not_computed_again(options):
    xs = [oracle.random(shape, "float32") for shape in [(4, 9), (7, 3), (2, 3, 5), (6, 6)]]  # one is a batch
    norms = jnp.stack([jnp.linalg.norm(x) for x in xs])

    @jax.jit
    def results(xs, norms):
        of = functools.partial(vb.newton_schulz, xs, **options)
        return of(), of(norms=norms), of(norms=norms * jnp.array([1, 2, 2, 1], "float32")), of(norms=norms[0])

    found, known, twice, _ = results(xs, norms)
    for ours, theirs in zip(known, found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3 if "dtype" in options else 1e-5)
    if not options:  # X that is divided by twice its norm converges later; the norm of the batch is not used
        assert not np.allclose(twice[1], found[1], atol=1e-2)
        np.testing.assert_array_equal(twice[2], known[2])


def test_transformations():
    xs = tree(names=["wide", "tall"])

    @jax.jit
    def results(xs):
        stacked = jax.vmap(vb.newton_schulz)(jax.tree.map(lambda x: jnp.stack([x, 2 * x]), xs))
        scanned, _ = jax.lax.scan(lambda x, _: (vb.newton_schulz(x), None), xs, length=2)
        once = vb.newton_schulz(xs)
        return once, jax.tree.map(lambda x: x[1], stacked), scanned, vb.newton_schulz(once)

    once, stacked, scanned, twice = results(xs)
    assert_close(stacked, once, 1e-7)
    assert_close(scanned, twice, 1e-12)
    small = {"a": oracle.random((2, 3), "float64"), "b": oracle.random((3, 2), "float64")}
    oracle.check_grads(functools.partial(vb.newton_schulz, steps=2), (small,), order=1, modes=["fwd", "rev"])


def test_trees():
    assert vb.newton_schulz({}) == {}
    assert vb.newton_schulz([None, []]) == [None, []]
    mixed = {"a": oracle.random((4, 6), "float32"), "b": [oracle.random((6, 4), "bfloat16"), None]}
    ours = compiled(mixed)
    assert jax.tree.structure(ours) == jax.tree.structure(mixed)
    assert [x.dtype for x in jax.tree.leaves(ours)] == ["float32", "bfloat16"]
    empty = compiled([np.zeros((0, 3)), np.zeros((3, 0)), np.zeros((0, 2, 2))])
    assert [x.shape for x in empty] == [(0, 3), (3, 0), (0, 2, 2)]
    alone = [oracle.random((6, 4), "float64")]
    np.testing.assert_allclose(vb.newton_schulz(alone, 1)[0], compiled(alone, 1)[0], rtol=1e-12)


def test_three_calls_a_step():
    text = jax.jit(lambda xs: vb.newton_schulz(xs, 4)).lower(tree("float32", ["wide", "tall"])).as_text()
    assert text.count("custom_call @vbgemm_v2") == 12
    assert text.count("custom_call @vbgemm_square_sums_v1") == ONE_FOR_NORMS
    assert not re.search("stablehlo.(dot_general|transpose)", text)
    text = jax.jit(lambda xs: vb.newton_schulz(xs, 4, implementation="xla")).lower(tree("float32", ["wide"])).as_text()
    assert text.count("dot_general") == 12


@pytest.mark.parametrize("dtype", slow_except(["float32", "bfloat16", "complex64", "float64"], ["bfloat16"]))
def test_norms(dtype):
    """Equal elements are the worst case: every rounding of a long sum then goes the same way."""
    shapes = [(1024, 1024), (768, 768), (96, 64), (64, 9), (37, 9), (16, 1), (1, 16), (16, 263), (5, 0), (2048, 1024)]
    xs = [jnp.full(shape, 0.1, dtype) for shape in shapes] + [oracle.random((300, 512), dtype)]
    norms = jax.jit(lambda xs: newton_schulz_norms.norms_of(xs, 2**20))(xs)
    np.testing.assert_allclose(norms, [np.linalg.norm(oracle.wide(x)) for x in xs], rtol=2e-6)


def test_large_matrices_are_single_dots():
    """The negative control: where XLA's dot is as fast, XLA's dot is used."""
    large, small = (jax.ShapeDtypeStruct(shape, "float32") for shape in [(4096, 14336), (16, 64)])
    xs = [large] + [small] * 20
    text = jax.jit(vb.newton_schulz).lower(xs).as_text()
    assert text.count("dot_general") == 15
    assert text.count("custom_call @vbgemm_v2") == 15
    assert text.count("custom_call @vbgemm_square_sums_v1") == ONE_FOR_NORMS


@pytest.mark.parametrize("precision", slow_except(["default", "highest"], ["default"]))
def test_the_split_is_that_of_the_named_target(precision):
    """In a program exported for an H100, the members that leave the batch there are dots."""
    sizes = [(384, 1536)] * 40 + [(16, 64)] * 40
    rounds = [tuple(vb.Problem(*mnk(m, n)) for m, n in sizes)
              for mnk in (lambda m, n: (m, m, n), lambda m, n: (m, m, m), lambda m, n: (m, n, m))]  # fmt: skip
    alone = split(tuple(rounds), "float32", precision, device_spec("h100")).alone
    f = jax.jit(functools.partial(vb.newton_schulz, precision=precision))
    with vb.target("h100"):
        exported = jax.export.export(f, platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            [jax.ShapeDtypeStruct(size, "float32") for size in sizes]
        )
    text = exported.mlir_module()
    assert text.count("custom_call @vbgemm_v2") == 15
    assert text.count("custom_call @vbgemm_square_sums_v1") == 1
    assert ("dot_general" in text) == any(alone)


@pytest.mark.parametrize(
    ("xs", "options", "error", "message"),
    [
        ({"a": jnp.ones(3)}, {}, ValueError, r"tree\['a'\] is \(3,\): a matrix has rank 2 or more"),
        ([jnp.ones((2, 2), "int32")], {}, TypeError, r"tree\[0\] is int32: it must be floating"),
        ([], {"coeffs": (1.0, 2.0)}, ValueError, r"shape \(3,\) or \(n, 3\), got \(2,\)"),
        ([jnp.ones((2, 2))], {"scale": np.ones(2)}, ValueError, r"scale is float64\(2,\): .* one for each of 1 leaves"),
        ([jnp.ones((2, 2))], {"scale": 1j}, ValueError, "scale is complex128"),
        ([jnp.ones((2, 2))], {"norms": np.ones(2)}, ValueError, r"norms is float64\(2,\): .* for each of 1 leaves"),
        ([], {"preconditioning": "trace"}, ValueError, "Unknown preconditioning trace"),
        ([jnp.ones((2, 2))], {"implementation": "cublas"}, ValueError, "implementation must be"),
    ],
)
def test_errors(xs, options, error, message):
    with pytest.raises(error, match=message):
        vb.newton_schulz(xs, **options)


@pytest.mark.multidevice(4)
@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_sharding(check_vma):
    """Sharded matrices under plain jit are replicated; under shard_map each device takes its part of a stack."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    xs = {"stack": oracle.random((8, 6, 10), "float64"), "matrix": oracle.random((12, 5), "float64")}
    expected = compiled(xs)
    placed = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, P("x"))), xs)
    assert_close(jax.jit(vb.newton_schulz)(placed), expected, 1e-12)
    specs = {"stack": P("x"), "matrix": P()}
    split = jax.shard_map(vb.newton_schulz, mesh=mesh, in_specs=(specs,), out_specs=specs, check_vma=check_vma)
    lowered = jax.jit(split).lower(xs)
    assert_close(jax.jit(split)(xs), expected, 1e-12)
    assert "all-gather" not in lowered.compile().as_text()


@pytest.mark.parametrize("preconditioning", slow_except(orthogonal.PRECONDITIONINGS, ["frobenius"]))
def test_the_gradient_in_zero_matrices(preconditioning):
    """Those of difference quotients, for matrices, tall ones and batches; packed ones are read in place."""
    xs = {"wide": (3, 4), "tall": (4, 2), "batch": (2, 2, 3)}
    weights = [oracle.random(shape, "float64", 3) for shape in (*xs.values(), (3, 3))]
    matrices = [*(jnp.zeros(shape) for shape in xs.values()), oracle.random((3, 3), "float64")]

    def loss(matrices):
        results = vb.newton_schulz(matrices, 2, preconditioning=preconditioning)
        return sum(jnp.sum(w * x) for w, x in zip(weights, results, strict=True))

    gradient, derivative = jax.jit(jax.grad(loss)), jax.jit(lambda x, y: (loss(x) - loss(y)) / 2e-13)
    found = gradient(matrices)
    steps = [1e-13 * oracle.random(x.shape, "float64", 4) for x in matrices[:3]]
    up, down = ([sign * step for step in steps] + matrices[3:] for sign in (1, -1))
    expected = float(derivative(up, down))
    along = sum(float(jnp.vdot(step, x)) for step, x in zip(steps, found[:3], strict=True)) * 1e13
    np.testing.assert_allclose(along, expected, rtol=1e-4)
    alone = jax.jit(jax.grad(lambda x: loss([*matrices[:3], x])))(matrices[3])
    np.testing.assert_allclose(found[3], alone, rtol=1e-12)
    assert np.isfinite(alone).all()
    flat = [matrices[index] for index in (0, 1, 3)]

    def packed_loss(packed):
        return loss_of_flat(vb.newton_schulz(packed, 2, preconditioning=preconditioning))

    def loss_of_flat(results):
        return sum(jnp.sum(weights[i] * x) for i, x in zip((0, 1, 3), results, strict=True))

    packed = jax.jit(jax.grad(packed_loss))(vb.pack(flat))
    for x, y in zip(packed, (found[0], found[1], found[3]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)


def test_mistakes_are_of_newton_schulz():
    with pytest.raises(ValueError, match="newton_schulz: implementation must be None, 'kernel' or 'xla', not 'foo'"):
        vb.newton_schulz(tree(names=["wide"]), implementation="foo")
    with pytest.raises(TypeError, match=r"newton_schulz: tree\['w'\] must be an array, but is 'x'"):
        vb.newton_schulz({"w": "x"})


@pytest.mark.multidevice(8)
def test_explicit_axes_are_refused_by_newton_schulz():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh), pytest.raises(ValueError, match=r"newton_schulz: tree\['w'\] is sharded over .* 'd'"):
        vb.newton_schulz({"w": jax.device_put(jnp.ones((8, 2)), NamedSharding(mesh, P("d")))})
