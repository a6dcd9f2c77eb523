"""Elementwise work of a Muon step on sharded parameters: one call for all parts that a device holds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_vbgemm as vb
from jax_vbgemm._src.many_devices import parts as parts_module

pytest.importorskip("optax")

from jax_vbgemm.optax import apply_updates, muon

pytestmark = pytest.mark.multidevice(4)

SHAPES = {"a": (8, 12), "b": (12, 8), "c": (4, 6), "d": (4, 6)}
WHOLE = dict.fromkeys(SHAPES, P())
SPECS = {"a": P("x"), "b": P(None, "x"), "c": P(), "d": P("y", "x")}


@functools.cache
def mesh(axis_type=AxisType.Auto):
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(axis_type,) * 2, devices=jax.devices()[:4])


def tree(seed):
    return {name: oracle.random(shape, "float32", seed + i) for i, (name, shape) in enumerate(SHAPES.items())}


def step_of(specs, **options):
    """A step, traced for a GPU, on which averages are one call; specs: None for one device."""
    places = {} if specs is None else {"mesh": mesh(), "shardings": specs}
    axis = {} if specs is None else {"mesh_axis": "x"}
    optimizer = muon(0.1, ns_steps=2, weight_decay=0.1, **axis, **places, **options)

    def step(params, state, grads):
        with jax.numpy_dtype_promotion("standard"):  # optax's own arithmetic needs it
            updates, state = optimizer.update(grads, state, params)
        return apply_updates(params, updates, **places), state

    return optimizer, step


def traced(specs, placed=lambda params: params):
    optimizer, step = step_of(specs)
    params, grads = placed(tree(0)), placed(tree(7))
    with jax.numpy_dtype_promotion("standard"):
        state = optimizer.init(params)
    with vb.target("h200"):
        return jax.jit(step).trace(params, state, grads), (params, state, grads)


def primitives(jaxpr, inside=False):
    """The primitives of a program, and whether each is inside a shard_map."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name, inside
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner, inside or eqn.primitive.name == "shard_map")


def test_values_and_shardings():
    def placed(params):
        return {name: jax.device_put(x, NamedSharding(mesh(), SPECS[name])) for name, x in params.items()}

    program, args = traced(SPECS, placed)
    params, state = program.lower().compile()(*args)
    alone, args = traced(None)
    expected = alone.lower().compile()(*args)
    for ours, theirs in zip(*map(jax.tree.leaves, ((params, state), expected)), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=0, atol=2e-5)
    for name, x in params.items():
        assert x.sharding.is_equivalent_to(NamedSharding(mesh(), SPECS[name]), x.ndim)
    found = list(primitives(program.jaxpr))
    assert found.count(("averages", True)) == 1
    assert found.count(("add_scaled", True)) == 2  # weight decay and the sum
    assert not {"averages", "add_scaled"} & {name for name, inside in found if not inside}


def test_norms_are_those_of_the_averages():
    """All devices hold all arrays: the sums of squares come with the averages."""
    found = list(primitives(traced(WHOLE)[0].jaxpr))
    assert found.count(("averages", True)) == 1
    assert not any(name == "square_sums" for name, _ in found)


def test_large_arrays_are_left_to_xla(monkeypatch):
    monkeypatch.setattr(parts_module, "_MEAN_BYTES", 0)
    found = list(primitives(traced(WHOLE)[0].jaxpr))
    assert found.count(("averages", False)) == 1
    assert found.count(("add_scaled", False)) == 2


def test_on_an_explicit_mesh():
    """The types tell the shardings."""
    explicit = mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
        params = {name: jax.device_put(x, NamedSharding(explicit, SPECS[name])) for name, x in tree(0).items()}
        optimizer = muon(0.1, ns_steps=2, mesh_axis="x")
        with jax.numpy_dtype_promotion("standard"), vb.target("h200"):
            state = optimizer.init(params)
            found = list(primitives(jax.make_jaxpr(optimizer.update)(params, state, params).jaxpr))
    assert found.count(("averages", True)) == 1


def test_what_does_not_fit_is_named():
    params = {"a": jnp.ones((6, 4)), "b": jnp.ones(3)}
    add = functools.partial(apply_updates, params, params, mesh=mesh())
    with pytest.raises(ValueError, match=r"apply_updates: params\['a'\].*'z' is not an axis of the mesh"):
        add(shardings={"a": P("z"), "b": P()})
    with pytest.raises(ValueError, match=r"apply_updates: shardings don't fit the params"):
        add(shardings={"a": P()})
    with pytest.raises(ValueError, match=r"shardings without a mesh"):
        apply_updates(params, params, shardings=P())
    with pytest.raises(ValueError, match=r"apply_updates: params\['a'\].*names 'x' twice"):
        add(shardings={"a": P("x", "x"), "b": P()})


@pytest.mark.parametrize("spec", [P("x"), None], ids=["uneven", "unknown"])
def test_one_leaf_that_does_not_fit_is_left_to_xla(spec):
    """2 devices don't divide 3."""
    params = {"a": jnp.ones((6, 4)), "b": jnp.ones(3), "c": 2 * jnp.ones(4)}
    updates = {"a": 2 * jnp.ones((6, 4)), "b": 3 * jnp.ones(3), "c": 4 * jnp.ones(4)}
    add = functools.partial(apply_updates, mesh=mesh(), shardings={"a": P("x"), "b": spec, "c": P()})
    found = [inside for name, inside in primitives(jax.make_jaxpr(add)(params, updates).jaxpr) if name == "add_scaled"]
    assert sorted(found) == [False, True]
    sums = add(params, updates)
    for name, total in (("a", 3), ("b", 4), ("c", 6)):
        np.testing.assert_array_equal(sums[name], np.full(params[name].shape, total))
