"""Muon and Adam of packed parameters beside the same optimizers of plain ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb

optax = pytest.importorskip("optax")
contrib = pytest.importorskip("optax.contrib")

from jax_vbgemm.optax import apply_updates, muon, pack_state, pack_tree, unpack_state  # noqa: E402

pytestmark = pytest.mark.usefixtures("standard_promotion")


SHAPES = {"wide": (6, 17), "tall": (13, 5), "bias": (5,), "scale": (), "conv": (3, 2, 4)}


def tree(seed=0, dtype="float64"):
    return {name: oracle.random(shape, dtype, seed) for name, shape in SHAPES.items()} | {"missing": None}


def assert_close(ours, theirs, tolerance=1e-10):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def steps(optimizer, params, state, count=2):
    update = jax.jit(optimizer.update)
    for seed in range(1, count + 1):
        grads = tree(seed)
        if isinstance(params, tuple):
            grads = pack_tree(grads)
        updates, state = update(grads, state, params)
        params = apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"weight_decay": 0.1}, marks=pytest.mark.slow),
        {"adaptive": True},
        pytest.param({"preconditioning": "aol", "mu_dtype": "bfloat16"}, marks=pytest.mark.slow),
        {"ns_steps": 0},
    ],
    ids=str,
)
def test_the_numbers_are_those_of_plain_parameters(options):
    optimizer = muon(0.1, **{"ns_steps": 2} | options)
    params, packed = tree(), pack_tree(tree())
    expected = steps(optimizer, params, optimizer.init(params))
    found = steps(optimizer, packed, optimizer.init(packed))
    assert_close(found[0].unpack(), expected[0])
    assert_close(unpack_state(found[1]), expected[1])
    for buffer in found[0].buffers:  # what lies between rows stays zero
        assert_close(buffer.buffer, vb.pack(buffer.unpack()).buffer)


def test_a_state_goes_to_optax_and_back():
    theirs, ours = contrib.muon(0.1, ns_steps=2), muon(0.1, ns_steps=2)
    params, packed = tree(), pack_tree(tree())
    expected, state = steps(theirs, params, theirs.init(params), 1)
    fresh = ours.init(packed)
    ours_state = pack_state(state, like=fresh)
    assert jax.tree.structure(ours_state) == jax.tree.structure(fresh)
    assert_close(unpack_state(ours_state), state)
    grads = tree(5)
    updates, _ = jax.jit(ours.update)(pack_tree(grads), ours_state, pack_tree(expected))
    assert_close(updates.unpack(), jax.jit(theirs.update)(grads, state, expected)[0], 1e-8)
    with pytest.raises(ValueError, match="pack_state: the state has members"):
        pack_state(
            optax.adam(0.1).init({"w": jnp.ones((2, 3))}), like=optax.adam(0.1).init({"w": vb.pack(jnp.ones(4))})
        )


def test_every_buffer_of_a_donated_step_is_updated_in_place():
    optimizer, packed = muon(0.1, ns_steps=1), pack_tree(tree())

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return apply_updates(params, updates), state

    state = optimizer.init(packed)
    arrays = jax.tree.leaves((packed, state))
    assert len(arrays) < 12  # of two buffers, their moments and counts, however many leaves there are
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(packed, state, packed).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= sum(x.nbytes for x in arrays if x.ndim)


def test_the_gradient_of_packed_parameters_is_packed():
    packed = pack_tree(tree())
    x = oracle.random((4, 6), "float64")

    def loss(layers):
        return jnp.sum(jnp.square(x @ layers["wide"])) + jnp.sum(layers["bias"]) * layers["scale"]

    found = jax.grad(lambda packed: loss(packed.unpack()))(packed)
    assert_close(found.unpack(), jax.grad(loss)(tree()))


def test_dtypes_have_buffers_of_their_own_and_a_tree_may_be_empty():
    mixed = {"a": jnp.ones((2, 3), "float32"), "b": jnp.ones((2, 3), "bfloat16"), "c": jnp.ones(3, "float32")}
    packed = pack_tree(mixed)
    assert [x.dtype.name for x in packed.buffers] == ["bfloat16", "float32", "float32"]
    assert_close(packed.unpack(), mixed)
    assert pack_tree({"a": None}).unpack() == {"a": None}


def test_matrices_and_other_leaves_in_one_buffer_are_refused():
    with pytest.raises(ValueError, match=r"muon: member 0 of a RaggedArray is \(3,\), but member 1 is a matrix"):
        muon(0.1).init(vb.pack([jnp.ones(3), jnp.ones((2, 3))]))
    with pytest.raises(ValueError, match="weight_decay_mask cannot be used with packed parameters"):
        muon(0.1, weight_decay_mask=lambda params: params).init(pack_tree(tree()))
    with pytest.raises(ValueError, match="muon_weight_dimension_numbers cannot be used with packed parameters"):
        muon(0.1, muon_weight_dimension_numbers=lambda params: params).init(pack_tree(tree()))
    with pytest.raises(TypeError, match=r"pack_tree: tree\['k'\] is key<fry>: a buffer holds numbers"):
        pack_tree({"k": jax.random.key(0)})
    with pytest.raises(TypeError, match=r"pack_tree: tree\[1\] must be an array, but is 'x'"):
        pack_tree([jnp.ones(2), "x"])


def test_padding_does_not_reach_muon():
    """A function with f(0) != 0 leaves numbers in the padding of gradients."""
    optimizer, params = muon(0.1, ns_steps=2, weight_decay=0.1), tree()
    for f in (lambda x: x + 1, lambda x: jnp.where(x == 0, jnp.nan, x)):
        gradients = jax.tree.map(f, tree(1))
        packed = pack_tree(params)
        updates, _ = jax.jit(optimizer.update)(jax.tree.map(f, pack_tree(tree(1))), optimizer.init(packed), packed)
        expected, _ = jax.jit(optimizer.update)(gradients, optimizer.init(params), params)
        assert_close(updates.unpack(), expected)


def test_flax_serializes_members_by_name():
    """Not the buffer, which would fit other members of the same total size."""
    serialization = pytest.importorskip("flax.serialization")
    packed = pack_tree(tree())
    optimizer = muon(0.1)
    state = optimizer.init(packed)
    for value in (packed, state, pack_tree(jax.tree.map(lambda x: x.astype("bfloat16"), tree()))):
        target = jax.tree.map(jnp.zeros_like, value)
        restored = serialization.from_bytes(target, serialization.to_bytes(value))
        assert_close(restored, value)
    saved = serialization.to_bytes(vb.pack({"up": jnp.ones((3, 5)), "down": jnp.ones((5, 3))}))
    for other, message in (
        (
            {"up": (5, 3), "down": (3, 5)},
            r"the state has \['down'\] of shape \(5, 3\) where the target has \['down'\] of",
        ),
        ({"up": (3, 5), "out": (5, 3)}, r"the state has no member \['out'\] where the target has \['out'\] of shape"),
        ({"up": (3, 5)}, r"the state has \['down'\] of shape \(5, 3\) where the target has no member \['down'\]"),
    ):
        with pytest.raises(ValueError, match=f"RaggedArray: {message}"):
            serialization.from_bytes(vb.pack({name: jnp.ones(shape) for name, shape in other.items()}), saved)


two_steps = jax.jit(functools.partial(vb.newton_schulz, steps=2))


@pytest.mark.parametrize("extreme", [1e-30, 1e18, np.inf, np.nan, 0.0])
def test_extremes(extreme):
    """Norms of packed matrices have the range of those of a list."""
    matrices = [extreme * oracle.random((3, 5), "float32"), oracle.random((4, 4), "float32")]
    assert_close(two_steps(vb.pack(matrices)).unpack(), two_steps(matrices), 1e-5)


def test_another_optimizers_state_is_refused():
    params = {"w": jnp.ones((4, 6)), "b": jnp.zeros(6)}
    ours = muon(0.1).init(pack_tree(params))
    with pytest.raises(ValueError, match="pack_state: the state is not one of the optimizer that made `like`"):
        pack_state(optax.adam(0.1).init(params), like=ours)


def test_updates_that_do_not_fit_are_named():
    params = {"w": jnp.ones((4, 6)), "b": jnp.zeros(6)}
    with pytest.raises(ValueError, match="apply_updates: params has the key 'b' but updates has not"):
        apply_updates(params, {"w": params["w"]})
    with pytest.raises(TypeError, match=r"apply_updates: params\['b'\] and its update: .* incompatible shapes"):
        apply_updates(params, {"w": params["w"], "b": jnp.ones(5)})
