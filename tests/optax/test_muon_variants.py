"""NorMuon and cautious weight decay against plain loops, and fused matrices against separate ones."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_vbgemm as vb

optax = pytest.importorskip("optax")
contrib = pytest.importorskip("optax.contrib")

from jax_vbgemm.optax import (  # noqa: E402
    MuonSplit,
    add_cautious_decayed_weights,
    muon,
    orthogonalize,
    pack_tree,
    scale_by_muon,
    scale_by_normuon,
)

Numbers = contrib.MuonDimensionNumbers


pytestmark = pytest.mark.usefixtures("standard_promotion")


def trained(optimizer, params, steps=3, seed=1):
    """The parameters after a few steps with random gradients."""
    state = optimizer.init(params)
    step = jax.jit(lambda grads, state, params: optimizer.update(grads, state, params))
    for index in range(steps):
        grads = jax.tree.map(lambda x, s=seed + index: oracle.random(x.shape, x.dtype, s), params)
        updates, state = step(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def assert_close(ours, theirs, tolerance=1e-10):
    for (path, a), (_, b) in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves_with_path(theirs), strict=True):
        np.testing.assert_allclose(oracle.wide(a), oracle.wide(b), rtol=0, atol=tolerance, err_msg=str(path))


def test_normuon_is_the_algorithm_of_its_paper():
    """Written out in NumPy for kernels (inputs, outputs), whose columns are the neurons."""
    params = {"wide": oracle.random((6, 10), "float64"), "tall": oracle.random((9, 4), "float64")}
    found, _ = trained(muon(0.1, normuon_beta2=0.9), params)
    plain = scale_by_muon()
    state, expected = plain.init(params), dict(params)
    averages = {name: np.zeros(x.shape[1]) for name, x in params.items()}
    for index in range(3):
        grads = {name: oracle.random(x.shape, x.dtype, 1 + index) for name, x in params.items()}
        updates, state = jax.jit(plain.update)(grads, state)
        for name, update in updates.items():
            o = np.asarray(update)
            averages[name] = 0.9 * averages[name] + 0.1 * (o**2).mean(0)
            scaled = o / (np.sqrt(averages[name]) + 1e-10)
            scaled *= np.linalg.norm(o) / np.linalg.norm(scaled)
            m, n = o.shape
            expected[name] = expected[name] - 0.1 * max(1, n / m) ** 0.5 * scaled
    assert_close(found, expected)


def test_normuon_of_batches_zeros_and_dtypes():
    x = {"stack": oracle.random((3, 4, 6), "bfloat16"), "zero": jnp.zeros((2, 3), "float32"), "none": jnp.ones((0, 3))}
    numbers = {"stack": Numbers(1, 2), "zero": Numbers(), "none": Numbers()}
    transformation = scale_by_normuon(weight_dimension_numbers=numbers)
    state = transformation.init(x)
    scaled, new = jax.jit(transformation.update)(x, state)
    assert state.nu["stack"].shape == (3, 1, 6)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), new)
    assert state.nu["stack"].dtype == "float32"
    assert scaled["stack"].dtype == "bfloat16"
    of_matrices = [np.linalg.norm(oracle.wide(y), axis=(1, 2)) for y in (scaled["stack"], x["stack"])]
    np.testing.assert_allclose(*of_matrices, rtol=1e-2)
    assert not np.asarray(scaled["zero"]).any()
    assert all(np.isfinite(y).all() for y in jax.tree.leaves(new))


def test_cautious_decay_never_works_against_the_step():
    params = {"w": oracle.random((6, 10), "float64", 3), "b": oracle.random((5,), "float64", 4)}
    plain, cautious, none = (
        trained(muon(0.1, weight_decay=decay, cautious=flag), params, steps=1)[0]["w"] - params["w"]
        for decay, flag in ((0.3, False), (0.3, True), (0.0, True))
    )
    towards = np.asarray(none * params["w"]) <= 0
    assert 0 < towards.mean() < 1
    np.testing.assert_allclose(cautious, np.where(towards, plain, none), atol=1e-12)


def test_cautious_decay_has_the_state_of_optax():
    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    mask = {"w": True, "b": False}
    for decay in (0.1, lambda count: 0.1 / (1 + count)):
        for given in (None, mask):
            ours, theirs = (make(decay, given) for make in (add_cautious_decayed_weights, optax.add_decayed_weights))
            state = ours.init(params)
            assert jax.tree.structure(state) == jax.tree.structure(theirs.init(params))
            updates, state = ours.update(params, state, params)
            expected, other = theirs.update(params, theirs.init(params), params)
            assert_close(updates, expected)  # parameters as updates: all signs agree
            assert_close(state, other)
    with pytest.raises(ValueError, match="params"):
        ours.update(params, state)


def fused(names, params, axis):
    return jnp.concatenate([params[name] for name in names], axis)


@pytest.mark.parametrize("options", [{}, {"normuon_beta2": 0.9, "cautious": True, "weight_decay": 0.1}], ids=str)
def test_parts_are_updated_as_separate_parameters(options):
    """Query, key and value of different widths, three heads, gate and up stacked by rows; another one is whole."""
    apart = {name: oracle.random(shape, "float64", 7) for name, shape in {
        "q": (8, 12), "k": (8, 4), "v": (8, 4), "h0": (6, 5), "h1": (6, 5), "h2": (6, 5), "gate": (7, 10),
        "up": (7, 10), "whole": (6, 15), "bias": (4,)}.items()}  # fmt: skip

    def join(tree):
        return {
            "qkv": {"kernel": fused(["q", "k", "v"], tree, 1)},
            "heads": fused(["h0", "h1", "h2"], tree, 1),
            "gate_up": fused(["gate", "up"], tree, 0),
            "whole": tree["whole"],
            "bias": tree["bias"],
        }

    split = {"^whole$": None, r"qkv/kernel$": (12, 4, 4), (6, 15): 3, "gate_up": MuonSplit(2, axis=0)}
    ours = muon(0.1, split=split, **options)
    theirs = muon(0.1, **options)
    whole, alone = join(apart), apart
    state, other = ours.init(whole), theirs.init(alone)
    assert "normuon_beta2" in options or jax.tree.structure(state) == jax.tree.structure(contrib.muon(0.1).init(whole))
    step, step_alone = jax.jit(ours.update), jax.jit(theirs.update)
    for index in range(2):
        grads = {name: oracle.random(x.shape, x.dtype, index + 3) for name, x in alone.items()}
        updates, state = step(join(grads), state, whole)
        expected, other = step_alone(grads, other, alone)
        assert_close(updates, join(expected))
        whole, alone = optax.apply_updates(whole, updates), optax.apply_updates(alone, expected)


def test_a_mapping_takes_its_first_key_that_fits():
    params = {"a": oracle.random((4, 6), "float64"), "b": oracle.random((4, 6), "float64", 2)}
    found = jax.jit(lambda x: orthogonalize(x, split={"a": (2, 4), (4, 6): 3}))(params)
    for name, sizes in (("a", (2, 4)), ("b", (2, 2, 2))):
        parts = np.split(np.asarray(params[name]), np.cumsum(sizes)[:-1], axis=1)
        assert_close(found[name], np.concatenate(jax.jit(vb.newton_schulz)(parts), axis=1))


def test_parts_of_arrays_with_dimension_numbers():
    x = oracle.random((5, 6, 4), "float64")
    found = orthogonalize([x], dimension_numbers=[Numbers(1, 2)], split={(5, 6, 4): MuonSplit((2, 4), axis=1)})[0]
    expected = [orthogonalize([part], dimension_numbers=[Numbers(1, 2)])[0] for part in (x[:, :2], x[:, 2:])]
    assert_close(found, jnp.concatenate(expected, axis=1))


def test_parts_are_read_and_written_in_place():
    params = {"qkv": jax.ShapeDtypeStruct((16, 48), "float32"), "w": jax.ShapeDtypeStruct((16, 16), "float32")}
    optimizer = scale_by_muon(split={"qkv": 3})
    state = jax.eval_shape(optimizer.init, params)
    f = jax.jit(optimizer.update)
    with vb.target("h100"):
        text = jax.export.export(f, platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            params, state
        ).mlir_module()
    assert "stablehlo.concatenate" not in "".join(re.findall(r".*16x48xf32.*", text))
    calls = re.findall(r"custom_call @vbgemm_v2.* : \((.*)\) -> (.*)", text)
    assert len(calls) == 15
    assert "tensor<768xf32>" in calls[0][0] or "16x48" in calls[0][0]


@pytest.mark.multidevice(4)
def test_parts_on_many_devices():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = {"qkv": oracle.random((8, 24), "float64"), "w": oracle.random((5, 9), "float64")}
    one = jax.jit(lambda x: orthogonalize(x, split={"qkv": 3}))(x)
    many = jax.jit(lambda x: orthogonalize(x, split={"qkv": 3}, mesh_axis="x", mesh=mesh))(x)
    assert_close(many, one)


@pytest.mark.multidevice(4)
def test_parts_on_meshes_with_explicit_axes():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    params = {"qkv": oracle.random((8, 24), "float64")}
    options = {"split": {"qkv": 3}, "normuon_beta2": 0.9}
    optimizer = muon(0.1, **options)
    expected = jax.jit(optimizer.update)(params, optimizer.init(params), params)[0]
    with jax.set_mesh(mesh):
        sharded = jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, P(None, "x"))), params)
        divided = muon(0.1, mesh_axis="x", **options)
        updates, _ = jax.jit(lambda params: divided.update(params, divided.init(params), params))(sharded)
        assert jax.typeof(updates["qkv"]).sharding.spec == P(None, "x")
        assert_close(updates, expected)
        with pytest.raises(
            ValueError, match=r"newton_schulz: tree\['qkv'\] is sharded over the explicit mesh axes 'x'"
        ):
            jax.jit(lambda x: orthogonalize(x, split={"qkv": 3}))(sharded)


def test_dual_norms_are_of_the_parts():
    whole = {"qkv": oracle.random((16, 24), "float32")}
    apart = {str(i): x for i, x in enumerate(jnp.split(whole["qkv"], 3, axis=1))}
    optimizers = scale_by_muon(adaptive=True, split={"qkv": np.int64(3)}), scale_by_muon(adaptive=True)
    updates = [jax.jit(lambda x, o=o: o.update(x, o.init(x))[0]) for o in optimizers]
    ours, parts = (update(x) for update, x in zip(updates, (whole, apart), strict=True))
    np.testing.assert_allclose(ours["qkv"], np.concatenate(list(parts.values()), axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ({"w": 5}, ValueError, r"split of 'w' into 5 equal parts does not fit axis 1 of \(4, 6\)"),
        ({"w": (2, 3)}, ValueError, r"split of 'w' into \(2, 3\) does not fit axis 1 of \(4, 6\)"),
        ({"w": MuonSplit(2, axis=2)}, ValueError, r"split of 'w' names axis 2 of a parameter of shape \(4, 6\)"),
        ({"w": ()}, TypeError, r"split of 'w' is \(\): it must be a number of parts"),
        ({"w": (0, 6)}, ValueError, r"split of 'w' into \(0, 6\) does not fit"),
        ({3: 2}, TypeError, "split has the key 3: it must be a regular expression or a shape"),
        ({"w": "heads"}, TypeError, "split of 'w' is 'heads': it must be a number of parts, sizes, or a MuonSplit"),
        (3, TypeError, "split is 3: it must be a mapping or a function"),
    ],
)
def test_bad_splits(split, error, message):
    params = {"w": jnp.ones((4, 6))}
    optimizer = muon(0.1, split=split)
    with pytest.raises(error, match=message):
        optimizer.update(params, optimizer.init(params), params)


def test_packed_parameters_are_refused():
    packed = pack_tree({"w": jnp.ones((4, 6))})
    with pytest.raises(ValueError, match="split cannot be used with packed parameters"):
        muon(0.1, split={"w": 2}).update(packed, muon(0.1).init(packed), packed)
    with pytest.raises(ValueError, match="scale_by_normuon: parameters are packed"):
        muon(0.1, normuon_beta2=0.9).init(packed)
    with pytest.raises(ValueError, match=r"scale_by_normuon: beta2 = 1.0 must be in \[0, 1\)"):
        scale_by_normuon(1.0)


def test_newton_schulz_into_views():
    """Results in windows of shared buffers, with what else lies in them; an array where there is no view."""
    xs = {
        "a": oracle.random((4, 6), "float64"),
        "b": oracle.random((4, 3), "float64"),
        "c": oracle.random((2, 5), "float64"),
    }
    buffer = jnp.full((4, 10), 7.0)

    def views(buffer):
        return {"a": vb.View(buffer, (4, 6), (10, 1)), "b": vb.View(buffer, (4, 3), (10, 1), 7), "c": None}

    into = views(buffer)
    ways = ({}, {"gram": True}, {"preconditioning": "spectral"}, {"implementation": "xla"})

    @jax.jit
    def run(xs, buffer, steps):
        into, window = views(buffer), vb.View(buffer, (3, 4), (10, 1), 2)
        found = [vb.newton_schulz(xs, 2, into=into, **options) for options in ways]
        return found, vb.newton_schulz(xs, steps, into=into), vb.newton_schulz(xs, 2), vb.newton_schulz([window], 2)

    found, looped, expected, read = run(xs, buffer, 2)
    for options, results in zip(ways, found, strict=True):
        if "preconditioning" not in options:
            assert_close([results["a"].dense(), results["b"].dense(), results["c"]], [expected[name] for name in "abc"])
        np.testing.assert_array_equal(results["a"].buffer, results["b"].buffer)
        np.testing.assert_array_equal(results["a"].buffer[:, 6], 7)
    assert_close(looped["b"].dense(), expected["b"])
    assert read[0].shape == (3, 4)
    with pytest.raises(ValueError, match=r"into\['a'\] is float64\(4, 3\) but tree\['a'\] is float64\(4, 6\)"):
        vb.newton_schulz(xs, into={**into, "a": into["b"]})
    with pytest.raises(ValueError, match="into is given for a RaggedArray"):
        vb.newton_schulz(vb.pack(xs), into=into)
    with pytest.raises(ValueError, match="into has another structure than tree"):
        vb.newton_schulz(xs, into=[None])
