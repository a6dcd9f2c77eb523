"""Newton-Schulz and Muon on sharded matrices: slices are sent to the device that treats a matrix, and back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.many_devices import partition as partition_module

optax = pytest.importorskip("optax")
from optax.contrib import MuonDimensionNumbers  # noqa: E402

from jax_vbgemm.optax import muon  # noqa: E402

pytestmark = pytest.mark.multidevice(8)

SHAPES = {
    "rows": (8, 12), "columns": (12, 8), "layers": (4, 6, 10), "stack": (7, 8, 5), "grid": (2, 3, 4, 8),
    "whole": (5, 9), **{f"equal{i}": (4, 6) for i in range(9)},
}  # fmt: skip
SPECS = {
    "rows": P("x"), "columns": P(None, "x"), "layers": P("x"), "stack": P(None, "x", None),
    "grid": P(None, None, None, "x"), "whole": P(), **{f"equal{i}": P("x", None) for i in range(9)},
}  # fmt: skip


def mesh(*sizes, axis_type=AxisType.Auto):
    names = ("x", "y")[: len(sizes)]
    return jax.make_mesh(
        sizes, names, axis_types=(axis_type,) * len(sizes), devices=jax.devices()[: int(np.prod(sizes))]
    )


@functools.cache
def case():
    """Matrices and their results on one device."""
    tree = {name: oracle.random(shape, "float64", seed) for seed, (name, shape) in enumerate(SHAPES.items())}
    return tree, jax.device_get(jax.jit(functools.partial(vb.newton_schulz, steps=2))(tree))


def placed(tree, devices, specs):
    return {name: jax.device_put(x, NamedSharding(devices, specs[name])) for name, x in tree.items()}


def assert_close(ours, theirs, tolerance=1e-10):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(oracle.wide(a), oracle.wide(b), rtol=0, atol=tolerance)


def assert_placed(results, like):
    for name, result in results.items():
        assert result.sharding.is_equivalent_to(like[name].sharding, result.ndim), name


def test_nothing_is_gathered():
    """Two collectives for the matrices in equal parts, two for those left over, one for those that all devices hold."""
    tree, expected = case()
    devices = mesh(4)
    inputs = placed(tree, devices, SPECS)
    run = jax.jit(functools.partial(vb.newton_schulz, steps=2, mesh_axis="x", mesh=devices, shardings=SPECS))
    compiled = run.lower(inputs).compile()
    results = compiled(inputs)
    assert_close(jax.device_get(results), expected)
    assert_placed(results, inputs)
    text = compiled.as_text()
    assert "all-gather" not in text
    assert text.count(" all-to-all(") == 4
    layers = {"layers": inputs["layers"]}
    alone = functools.partial(vb.newton_schulz, steps=2, mesh_axis="x", mesh=devices, shardings=P("x"))
    text = jax.jit(alone).lower(layers).compile().as_text()
    assert not any(name in text for name in ("all-gather", "all-to-all", "all-reduce"))


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_inside_shard_map(check_vma):
    tree, expected = case()
    function = functools.partial(vb.newton_schulz, steps=2, mesh_axis="x", shardings=SPECS)
    spread = jax.shard_map(function, mesh=mesh(4), in_specs=(SPECS,), out_specs=SPECS, check_vma=check_vma)
    assert_close(jax.jit(spread)(tree), expected)


def test_on_an_explicit_mesh():
    """The types tell the shardings."""
    tree, expected = case()
    explicit = mesh(4, axis_type=AxisType.Explicit)
    with jax.set_mesh(explicit):
        inputs = placed(tree, explicit, SPECS)
        compiled = jax.jit(functools.partial(vb.newton_schulz, steps=2, mesh_axis="x")).lower(inputs).compile()
        results = compiled(inputs)
    assert_placed(results, inputs)
    assert_close(jax.device_get(results), expected)
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize("axis", slow_except(["x", "y", "xy"], ["xy"]))
def test_two_mesh_axes(axis):
    """Over both axes, matrices that are sharded over one of them or along both sides are divided by rows or columns."""
    tree = {name: case()[0][name] for name in ("rows", "columns", "stack", "layers")}
    specs = {"rows": P("x", "y"), "columns": P(None, ("x", "y")), "stack": P(None, "y"), "layers": P("y")}
    devices = mesh(4, 2) if axis != "y" else mesh(2, 2)
    axis = tuple(axis)
    inputs = placed(tree, devices, specs)
    run = functools.partial(vb.newton_schulz, steps=2, mesh_axis=axis, mesh=devices, shardings=specs)
    results = jax.jit(run)(inputs)
    assert_placed(results, inputs)
    assert_close(jax.device_get(results), {name: case()[1][name] for name in tree})


@pytest.mark.slow
def test_results_in_rounds(monkeypatch):
    """Rounds as for matrices that take long, of which parts of a stack are in both."""
    monkeypatch.setattr(partition_module, "_SECONDS_OF_ROUND", 1e-12)
    tree = {"layers": oracle.random((12, 4, 6), "float64"), "stack": oracle.random((13, 8, 5), "float64", 1)}
    specs = {"layers": P("x"), "stack": P(None, "x")}
    run = functools.partial(vb.newton_schulz, steps=1, mesh_axis="x", mesh=mesh(4), shardings=specs)
    assert str(jax.make_jaxpr(run)(tree)).count("all_to_all[") == 2 * 3
    assert_close(*jax.jit(lambda tree: [run(tree), vb.newton_schulz(tree, 1)])(tree))


@pytest.mark.parametrize("spec", [P("x"), P(None, "x")], ids=["rows", "columns"])
def test_slices_of_equal_shape_are_packed_together(spec):
    """The number of transpositions, copies on a GPU, depends on the shapes alone, not on the number of matrices."""
    run = functools.partial(vb.newton_schulz, steps=1, mesh_axis="x", mesh=mesh(2), shardings=spec)

    def copies(count):
        leaves = [jax.ShapeDtypeStruct(shape, "float32") for shape in count * [(4, 6), (8, 4)]]
        text = str(jax.make_jaxpr(run)(leaves))
        assert text.count("all_to_all[") == 2
        return text.count("transpose["), text.count("concatenate[")

    few, many = copies(4), copies(12)
    assert few == many
    assert few[0] > 0


def test_gradients():
    shapes = {"rows": (4, 6), "columns": (5, 4), "layers": (2, 3, 4), "whole": (3, 4)}
    tree = {name: oracle.random(shape, "float64", seed) for seed, (name, shape) in enumerate(shapes.items())}
    specs = {name: SPECS[name] for name in tree}

    def loss(tree, scale, **options):
        results = vb.newton_schulz(tree, 1, scale=scale, **options)
        return sum(jnp.sum(jnp.sin(y) * jnp.arange(y.size).reshape(y.shape)) for y in results.values())

    spread = functools.partial(loss, mesh_axis="x", mesh=mesh(2), shardings=specs)
    with jax.numpy_dtype_promotion("standard"):
        scale = jnp.array([1.0, 2.0, 3.0, 4.0])
        assert_close(*jax.jit(lambda *args: [jax.grad(f, (0, 1))(*args) for f in (spread, loss)])(tree, scale))


def numbers(params):
    """Dimension numbers by leaf name: `conv` is a kernel (height, width, inputs, outputs)."""
    known = {"conv": MuonDimensionNumbers((0, 1, 2), 3), "layers": MuonDimensionNumbers(1, 2), "bias": None}
    return {name: known.get(name, MuonDimensionNumbers()) for name in params}


PARAM_SHAPES = {"rows": (8, 12), "columns": (12, 8), "layers": (4, 6, 10), "conv": (3, 2, 8, 5), "bias": (8,)}
PARAM_SPECS = {"rows": P("x"), "columns": P(None, "x"), "layers": P("x"), "conv": P(None, None, "x"), "bias": P("x")}


@functools.cache
def muon_case(**options):
    params = {name: oracle.random(shape, "float64", seed) for seed, (name, shape) in enumerate(PARAM_SHAPES.items())}
    return params, jax.device_get(jax.jit(functools.partial(muon_step, **options))(params))


def muon_step(params, **options):
    with jax.numpy_dtype_promotion("standard"):
        optimizer = muon(0.1, ns_steps=2, weight_decay=0.01, muon_weight_dimension_numbers=numbers, **options)
        updates, state = optimizer.update(jax.tree.map(jnp.cos, params), optimizer.init(params), params)
        return optax.apply_updates(params, optimizer.update(updates, state, params)[0])


@pytest.mark.parametrize("given", slow_except(["tree", "shardings", "function"], ["function"]))
def test_muon(given):
    params, expected = muon_case()
    devices = mesh(4)
    inputs = placed(params, devices, PARAM_SPECS)
    shardings = {
        "tree": PARAM_SPECS,
        "shardings": jax.tree.map(lambda x: x.sharding, inputs),
        "function": lambda tree: {name: PARAM_SPECS[name] for name in tree},
    }[given]
    step = jax.jit(functools.partial(muon_step, mesh_axis="x", mesh=devices, shardings=shardings))
    compiled = step.lower(inputs).compile()
    results = compiled(inputs)
    assert_placed(results, inputs)
    assert_close(jax.device_get(results), expected)
    assert "all-gather" not in compiled.as_text()


@pytest.mark.parametrize("options", slow_except([{}, {"consistent_rms": 0.2, "cautious": True}], [{}]))
def test_muon_inside_shard_map(options):
    """Scales are those of the whole matrices."""
    params, expected = muon_case(**options)
    step = functools.partial(muon_step, mesh_axis="x", shardings=PARAM_SPECS, **options)
    assert_close(
        jax.jit(jax.shard_map(step, mesh=mesh(4), in_specs=(PARAM_SPECS,), out_specs=PARAM_SPECS))(params), expected
    )


def test_muon_on_an_explicit_mesh():
    params, expected = muon_case()
    explicit = mesh(4, axis_type=AxisType.Explicit)
    with jax.set_mesh(explicit):
        inputs = placed(params, explicit, PARAM_SPECS)
        results = jax.jit(functools.partial(muon_step, mesh_axis="x"))(inputs)
    assert_placed(results, inputs)
    assert_close(jax.device_get(results), expected)


@pytest.mark.parametrize("shardings", [None, P()])
def test_slices_that_are_said_to_be_whole(shardings):
    """Refused by newton_schulz and by Muon, on two axes too; a mean over the devices is the same everywhere."""
    params = {"w": oracle.random((8, 6), "float64"), "bias": oracle.random((8,), "float64")}
    options = {"mesh_axis": ("x", "y"), "shardings": shardings}

    def raises(function, spec, name):
        with pytest.raises(
            ValueError, match=rf"tree\['w'\] varies over the mesh axis {name}, .* in shardings; .*pmean"
        ):
            jax.make_jaxpr(jax.shard_map(function, mesh=mesh(2, 2), in_specs=(spec,), out_specs=spec))(params)

    raises(lambda tree: vb.newton_schulz({"w": tree["w"]}, 1, **options), P(("x", "y")), "'x' x 'y'")
    raises(functools.partial(muon_step, **options), P("y"), "'y'")

    def whole(tree):
        return vb.newton_schulz(jax.lax.pmean(jax.lax.all_gather(tree["w"], "x", tiled=True), "x"), 1, mesh_axis="x")

    spread = jax.jit(jax.shard_map(whole, mesh=mesh(2), in_specs=P("x"), out_specs=P()))
    assert_close(spread(params), vb.newton_schulz(params["w"], 1))


def test_shardings_of_arrays_that_were_not_placed():
    """A SingleDeviceSharding is None on a mesh of one device, and refused on a mesh of several."""
    params, _ = muon_case()
    shardings = jax.tree.map(lambda x: x.sharding, params)
    step = functools.partial(muon_step, params, mesh_axis="x", shardings=shardings)
    alone = jax.make_jaxpr(functools.partial(muon_step, params, mesh_axis="x", mesh=mesh(1)))()
    assert str(jax.make_jaxpr(functools.partial(step, mesh=mesh(1)))()) == str(alone)
    with pytest.raises(ValueError, match=r"tree\['columns'\] has a SingleDeviceSharding, but the mesh has 4 devices"):
        step(mesh=mesh(4))
    with pytest.raises(ValueError, match=r"newton_schulz: tree has a SingleDeviceSharding, but the mesh has 4 devices"):
        vb.newton_schulz(params["rows"], mesh_axis="x", mesh=mesh(4), shardings=params["rows"].sharding)


def test_what_is_wrong_is_named():
    tree = {"a": jnp.ones((3, 4)), "b": jnp.ones((8, 8))}
    devices = mesh(4, 2)
    run = functools.partial(vb.newton_schulz, tree, mesh_axis="x", mesh=devices)
    with pytest.raises(ValueError, match=r"newton_schulz: shardings without mesh_axis"):
        vb.newton_schulz(tree, shardings=P())
    with pytest.raises(ValueError, match=r"tree\['a'\]: the mesh axis 'x' has 4 devices, which don't divide 3 entries"):
        run(shardings=P("x"))
    with pytest.raises(ValueError, match=r"tree\['b'\] has the sharding .*'z' is not an axis of the mesh"):
        run(shardings={"a": None, "b": P("z")})
    fit = "shardings don't fit the tree"
    for given, what in (
        ({"a": None}, r"tree has the key 'b' but shardings has not; .* not orthogonalised the entry None"),
        ({"b": None, "w": P(), "z": P()}, "shardings has the keys 'w', 'z' but tree has not"),
        ((P(), P()), "shardings is a tuple but tree is a dict"),
        ({"a": None, "b": [P()]}, r"shardings\['b'\] is a list but tree\['b'\] is an array"),
    ):
        with pytest.raises(ValueError, match=f"{fit}: {what}"):
            run(shardings=given)
    with pytest.raises(TypeError, match=r"tree\['a'\] has the sharding 3: it must be a PartitionSpec"):
        run(shardings={"a": 3, "b": None})
    with pytest.raises(ValueError, match=r"tree\['b'\] has the sharding .*, but its shape is \(8, 8\)"):
        run(shardings={"a": None, "b": P(None, None, "x")})
    for spec in P("x", "x"), P(("y", "y")):
        with pytest.raises(ValueError, match=r"newton_schulz: tree\['b'\] has the sharding .*, which names '.' twice"):
            run(shardings={"a": None, "b": spec})

    def inside(function, spec):
        return jax.jit(jax.shard_map(function, mesh=devices, in_specs=spec, out_specs=spec, check_vma=False))

    both = functools.partial(vb.newton_schulz, mesh_axis="x", shardings=P("x", "y"))
    with pytest.raises(ValueError, match=r"tree\['b'\] has the sharding .*: inside shard_map, one of its axes"):
        inside(both, P("x", "y"))({"b": tree["b"]})
    refused = {"normuon_beta2": 0.9}, {"adaptive": True}, {"split": {"b": 2}}
    for options, why in zip(refused, ("normuon_beta2", "dual norm", "split"), strict=True):
        optimizer = muon(0.1, mesh_axis="x", shardings=P("x"), **options)
        with (
            jax.numpy_dtype_promotion("standard"),
            pytest.raises(ValueError, match=rf"tree\['b'\] is a slice of the parameter, and .*{why}"),
        ):
            inside(lambda x, of=optimizer: of.update(x, of.init(x), x)[0], P("x"))({"b": tree["b"]})
