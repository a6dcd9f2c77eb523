"""Newton-Schulz and Muon with the matrices divided among devices give the results of one device."""

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
from jax_vbgemm._src.many_devices.layouts import Copies
from jax_vbgemm._src.many_devices.partition import partition
from jax_vbgemm._src.many_devices.stack import Stack
from jax_vbgemm._src.matmul.primitive import batched_matmul_p

optax = pytest.importorskip("optax")
from optax.contrib import MuonDimensionNumbers  # noqa: E402

from jax_vbgemm.optax import muon, scale_by_muon  # noqa: E402

pytestmark = pytest.mark.multidevice(8)


def mesh(*sizes, axis_type=AxisType.Auto):
    names = ("x", "y")[: len(sizes)]
    devices = jax.devices()[: int(np.prod(sizes))]
    return jax.make_mesh(sizes, names, axis_types=(axis_type,) * len(sizes), devices=devices)


def tree(dtype="float64"):
    shapes = {"wide": (12, 40), "tall": (37, 9), "stack": (11, 6, 10), "grid": (2, 3, 4, 4), "empty": (0, 4)}
    return {name: oracle.random(shape, dtype, seed) for seed, (name, shape) in enumerate(shapes.items())}


one_device = jax.jit(vb.newton_schulz)


def assert_close(ours, theirs, tolerance=1e-10):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(oracle.wide(a), oracle.wide(b), rtol=0, atol=tolerance)


@pytest.mark.parametrize("sizes", [(1,), *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((2,), (8,)))])
def test_the_same_code_on_1_2_and_8_devices(sizes):
    mixed = tree() | {"complex": oracle.random((5, 7), "complex128", 7), "half": oracle.random((8, 9), "bfloat16", 8)}
    scale = jnp.arange(1.0, 8.0)
    run = functools.partial(vb.newton_schulz, mesh_axis="x", mesh=mesh(*sizes))
    expected = one_device(mixed, scale=scale)
    compiled = jax.jit(run).lower(mixed, scale=scale).compile()
    results = compiled(mixed, scale=scale)
    assert_close(results.pop("half"), expected.pop("half"), 0.1)
    assert_close(results, expected)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(results))
    assert (" conditional(" in compiled.as_text()) == (sizes != (1,))  # matrices that occur once


@pytest.mark.slow
def test_results_are_the_same_each_time_and_on_every_device():
    run = jax.jit(functools.partial(vb.newton_schulz, steps=2, mesh_axis="x", mesh=mesh(8)))
    first, second = run(tree("float32")), run(tree("float32"))
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        for shard in a.addressable_shards:
            np.testing.assert_array_equal(shard.data, b)


def test_each_device_has_its_own_matrices():
    """The branch of a device multiplies only the device's part of the matrices."""
    leaves = [oracle.random((16, 16 + i), "float64", i) for i in range(8)]
    run = functools.partial(vb.newton_schulz, steps=1, mesh_axis="x", mesh=mesh(8), implementation="kernel")
    equations = jax.make_jaxpr(run)(leaves).eqns
    body = next(e for e in equations if e.primitive.name == "shard_map").params["jaxpr"]
    branches = next(e for e in body.eqns if e.primitive.name == "cond").params["branches"]
    products = [sum(len(e.outvars) for e in b.eqns if e.primitive is batched_matmul_p) for b in branches]
    assert products == [3] * 8


def test_equal_matrices_need_no_conditional():
    """Each device multiplies its part of the matrices of each shape, which it selects."""
    leaves = [oracle.random((16, 16 + i % 2), "float64", i) for i in range(8)] + [oracle.random((4, 5, 6), "float64")]
    run = functools.partial(vb.newton_schulz, steps=1, mesh_axis="x", mesh=mesh(4), implementation="kernel")
    equations = jax.make_jaxpr(run)(leaves).eqns
    body = next(e for e in equations if e.primitive.name == "shard_map").params["jaxpr"]
    assert not any(e.primitive.name == "cond" for e in body.eqns)
    assert sum(len(e.outvars) for e in body.eqns if e.primitive is batched_matmul_p) == 3 * (2 + 1) - 2
    scale = jnp.arange(1.0, 10.0)
    assert_close(jax.jit(run)(leaves, scale=scale), jax.jit(vb.newton_schulz, static_argnums=1)(leaves, 1, scale=scale))


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
@pytest.mark.slow
def test_results_in_rounds(monkeypatch, check_vma):
    """Rounds as for matrices that take long: each but the last is sent while the next one is computed."""
    monkeypatch.setattr(partition_module, "_SECONDS_OF_ROUND", 1e-12)
    leaves = {str(i): oracle.random((16, 16), "float64", i) for i in range(9)}
    run = functools.partial(vb.newton_schulz, steps=2, mesh_axis="x")
    spread = jax.shard_map(run, mesh=mesh(4), in_specs=P(), out_specs=P(), check_vma=check_vma)
    text = str(jax.make_jaxpr(spread)(leaves))
    assert text.count("cond[") == 1  # for the ninth matrix
    assert text.count("all_gather_dimension=") == 2
    stacks = {"stack": oracle.random((27, 6, 10), "float64", 3), "empty": np.zeros((0, 4))}
    whole = functools.partial(vb.newton_schulz, steps=2)
    assert_close(*jax.jit(lambda *trees: [list(map(f, trees)) for f in (spread, whole)])(leaves, stacks))


def test_too_little_to_divide():
    """ResNet-50's matrices are not divided between two H200s, GPT-2 small's are; of one matrix nothing is saved."""
    run = functools.partial(vb.newton_schulz, mesh_axis="x", mesh=mesh(2))
    resnet = [jax.ShapeDtypeStruct((256, 2304), jnp.float32)] * 20
    gpt = [jax.ShapeDtypeStruct((768, 3072), jnp.float32)] * 24
    with vb.target("h200"):
        sent = ["all_gather" in str(jax.make_jaxpr(run)(leaves)) for leaves in (resnet, gpt, gpt[:1])]
    assert sent == [False, True, False]


def test_nothing_but_empty_arrays():
    run = functools.partial(vb.newton_schulz, mesh_axis="x", mesh=mesh(2))
    assert_close(jax.jit(run)([jnp.zeros((0, 4))]), [jnp.zeros((0, 4))])


@pytest.mark.slow
def test_two_axes_as_one_and_one_of_two():
    expected = one_device(tree())
    with jax.set_mesh(mesh(4, 2)):
        both = jax.jit(lambda xs: [vb.newton_schulz(xs, mesh_axis=axis) for axis in (("x", "y"), "y")])(tree())
    for results in both:
        assert_close(results, expected)


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_inside_shard_map(check_vma):
    """Over the axis itself, and over another one with different matrices on each of its devices."""
    both = mesh(4, 2)
    expected = one_device(tree())

    def spread(axis, **options):
        function = functools.partial(vb.newton_schulz, mesh_axis=axis)
        return jax.jit(jax.shard_map(function, mesh=both, check_vma=check_vma, **options))

    assert_close(spread("x", in_specs=P(), out_specs=P())(tree()), expected)
    stacks = {"stack": oracle.random((8, 6, 10), "float64", 3)}
    of_stack = one_device(stacks)
    assert_close(spread("x", in_specs=P("y"), out_specs=P("y"))(stacks), of_stack)
    if check_vma:  # partial shard_maps need it
        nested = spread("x", in_specs=P("y"), out_specs=P("y"), axis_names={"y"})
        assert_close(nested(stacks), of_stack)


@pytest.mark.slow
def test_matrices_that_vary_over_other_axes_beside_matrices_that_do_not():
    """All results vary over the union of the axes, as they lie in one buffer."""
    parts = {"parts": oracle.random((4, 6, 10), "float64", 1), "whole": oracle.random((5, 8), "float64", 2)}
    run = functools.partial(vb.newton_schulz, mesh_axis="x")
    spread = jax.shard_map(
        run, mesh=mesh(2, 2), in_specs=({"parts": P("y"), "whole": P()},), out_specs={"parts": P("y"), "whole": P("y")}
    )
    results = jax.jit(spread)(parts)
    expected = jax.device_get(one_device(parts))
    assert_close(results, expected | {"whole": np.concatenate([expected["whole"]] * 2)})


def test_explicit_shardings_are_kept():
    explicit = mesh(8, axis_type=AxisType.Explicit)
    specs = {"stack": P(None, None, None), "wide": P(None, "x"), "square": P("x", None)}
    host = {"stack": (3, 6, 10), "wide": (12, 40), "square": (8, 8)}
    host = {name: oracle.random(shape, "float64", 1) for name, shape in host.items()}
    with jax.set_mesh(explicit):
        placed = {name: jax.device_put(x, NamedSharding(explicit, specs[name])) for name, x in host.items()}
        results = jax.jit(functools.partial(vb.newton_schulz, mesh_axis="x"))(placed)
    for name, result in results.items():
        assert result.sharding.spec == placed[name].sharding.spec
    assert_close(jax.device_get(results), jax.device_get(one_device(host)))


def test_gradients():
    leaves = [oracle.random((4, 6), "float64", 1), oracle.random((3, 5, 4), "float64", 2)]

    def loss(leaves, scale, **options):
        results = vb.newton_schulz(leaves, 2, scale=scale, **options)
        return sum(jnp.sum(jnp.sin(y) * jnp.arange(y.size).reshape(y.shape)) for y in results)

    scale = jnp.array([0.5, 2.0])
    divided = functools.partial(loss, mesh_axis="x", mesh=mesh(2))
    with jax.numpy_dtype_promotion("standard"):
        assert_close(*jax.jit(lambda *args: [jax.grad(f, (0, 1))(*args) for f in (divided, loss)])(leaves, scale))


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
@pytest.mark.parametrize("count", slow_except([1, 4], [4]))  # results are collected by a sum, and by an all-gather
def test_gradients_inside_shard_map(count, check_vma):
    leaves = [oracle.random((4, 5), "float64", index) for index in range(count)]

    def function(leaves, **options):
        return vb.newton_schulz(leaves, 1, **options)

    def loss(function, leaves):
        return sum(jnp.sum(jnp.sin(y)) for y in function(leaves))

    on_devices = functools.partial(function, mesh_axis="x")
    spread = jax.shard_map(on_devices, mesh=mesh(4), in_specs=P(), out_specs=P(), check_vma=check_vma)
    gradients = [jax.grad(functools.partial(loss, f)) for f in (spread, function)]
    assert_close(*jax.jit(lambda leaves: [gradient(leaves) for gradient in gradients])(leaves))


@pytest.mark.parametrize(("counts", "gathers"), [([1] * 4, True), ([1], False)])
def test_fewer_bytes_are_sent(counts, gathers):
    """One matrix on two devices: an all-gather of padded shares would send as much as a sum, of four devices more."""
    shares = partition(counts, [1.0] * len(counts), 4)
    stack = Stack((8, 8), jnp.dtype("float32"), jnp.dtype("float32"), None)
    assert Copies(shares, [stack] * len(counts)).gathers == gathers


NUMBERS = {"stack": MuonDimensionNumbers(-2, -1), "grid": MuonDimensionNumbers(-2, -1)}


def numbers(params):
    """Dimension numbers by leaf name, which each part of the tree keeps (optax masks the leaves of the other part)."""
    return {name: NUMBERS.get(name, MuonDimensionNumbers() if name != "bias" else None) for name in params}


def steps(params, make, count=2):
    with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic needs it
        optimizer = make(0.1, ns_steps=2, weight_decay=0.01, muon_weight_dimension_numbers=numbers)
        state = jax.jit(optimizer.init)(params)

        @jax.jit
        def step(params, state):
            updates, state = optimizer.update(jax.tree.map(jnp.cos, params), state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(count):
            params, state = step(params, state)
        return params


PARAMS = tree() | {"bias": oracle.random((8,), "float64", 5)}


@pytest.mark.parametrize("sharded", slow_except([False, True], [True]))
def test_muon(sharded):
    """Muon equals the run on one device, and XLA gives the results the sharding of the parameters."""
    devices = mesh(8)
    specs = dict.fromkeys(PARAMS, P()) | ({"wide": P(None, "x"), "bias": P("x")} if sharded else {})
    placed = {name: jax.device_put(x, NamedSharding(devices, specs[name])) for name, x in PARAMS.items()}
    results = steps(placed, functools.partial(muon, mesh_axis="x", mesh=devices))
    assert_close(jax.device_get(results), jax.device_get(steps(PARAMS, muon)))


@pytest.mark.slow
def test_muon_on_an_explicit_mesh():
    explicit = mesh(8, axis_type=AxisType.Explicit)
    with jax.set_mesh(explicit):
        spec = NamedSharding(explicit, P("x"))
        placed = {"a": jax.device_put(oracle.random((8, 5), "float64"), spec), "bias": jnp.zeros(3, jnp.float64)}
        results = steps(placed, functools.partial(muon, mesh_axis="x"))
        assert results["a"].sharding.spec == P("x", None)
    assert_close(jax.device_get(results), jax.device_get(steps(jax.device_get(placed), muon)))


@pytest.mark.slow
def test_injected_hyperparameters():
    """With inject_hyperparams steps and eps are arrays. A mesh is callable, so that optax needs static_args for it."""
    params = {"a": oracle.random((6, 5), "float64"), "b": oracle.random((4, 7), "float64")}
    with jax.numpy_dtype_promotion("standard"):
        updates = []
        for options in ({}, {"mesh_axis": "x", "mesh": mesh(2)}):
            optimizer = optax.inject_hyperparams(muon, static_args="mesh")(learning_rate=0.1, **options)
            updates.append(jax.jit(lambda x, of=optimizer: of.update(x, of.init(x), x)[0])(params))
        assert_close(*updates)


def test_what_is_wrong_is_named():
    leaves = [jnp.ones((3, 4))]
    devices = mesh(4, 2)
    run = functools.partial(vb.newton_schulz, leaves)
    with pytest.raises(ValueError, match=r"mesh_axis='x', but there is no mesh"):
        run(mesh_axis="x")
    with pytest.raises(ValueError, match=r"mesh_axis='z': 'z' is not an axis of the mesh, which has 'x', 'y'"):
        run(mesh_axis="z", mesh=devices)
    with pytest.raises(ValueError, match=r"names 'x' twice"):
        run(mesh_axis=("x", "x"), mesh=devices)
    with pytest.raises(TypeError, match=r"mesh_axis is 3: it must be the name"):
        run(mesh_axis=3, mesh=devices)
    with pytest.raises(TypeError, match=r"mesh is 'x': it must be a jax.sharding.Mesh"):
        run(mesh_axis="x", mesh="x")
    inside = jax.shard_map(
        lambda x: vb.newton_schulz(x, mesh_axis=("x", "y")), mesh=devices, in_specs=P(), out_specs=P(), axis_names={"x"}
    )
    with pytest.raises(ValueError, match=r"the enclosing shard_map is over 'x' only"):
        jax.jit(inside)(leaves)
    with jax.numpy_dtype_promotion("standard"), pytest.raises(ValueError, match=r"'z' is not an axis"):
        scale_by_muon(mesh_axis="z", mesh=devices).update(leaves, scale_by_muon().init(leaves))
