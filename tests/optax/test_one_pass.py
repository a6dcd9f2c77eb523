"""Elementwise work in few passes: apply_updates, and the program of a muon step on a GPU."""

import itertools
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export
from slow_cases import slow_except

import jax_vbgemm as vb

optax = pytest.importorskip("optax")
contrib = pytest.importorskip("optax.contrib")

from jax_vbgemm.optax import apply_updates, muon, scale_by_muon  # noqa: E402

pytestmark = pytest.mark.usefixtures("standard_promotion")


def assert_equal(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(oracle.wide(a), oracle.wide(b))


def tree(seed):
    dtypes = ["float32", "float64", "bfloat16", "float16", "complex64", "float32"]
    return [oracle.random((3, 4 + i), dtype, seed + i) for i, dtype in enumerate(dtypes)]


def test_apply_updates():
    params, updates = tree(0), tree(50)
    assert_equal(apply_updates(params, updates), optax.apply_updates(params, updates))
    assert_equal(jax.jit(apply_updates)(params, updates), optax.apply_updates(params, updates))
    nested = {"a": params[:3], "b": (None, {"c": params[3]}), "d": optax.MaskedNode()}
    moving = {"a": updates[:3], "b": (None, {"c": updates[3]}), "d": optax.MaskedNode()}
    assert_equal(apply_updates(nested, moving), optax.apply_updates(nested, moving))
    moving["b"] = (updates[0], {"c": updates[3]})  # an update of no parameter
    assert_equal(apply_updates(nested, moving), optax.apply_updates(nested, moving))


@pytest.mark.parametrize(
    ("p", "u"),
    [
        (jnp.ones((2, 3), "bfloat16"), jnp.full((2, 3), 0.3, "float32")),
        (jnp.ones((2, 3), "float32"), jnp.full((2, 3), 0.3, "bfloat16")),
        (np.ones((2, 3), "float32"), np.full((2, 3), 0.3, "float32")),
        (jnp.arange(6), jnp.arange(6)),
        (jnp.ones((2, 3)), 0.5),
        (1.0, 0.5),
        (jnp.ones((2, 3)), jnp.ones(3)),
        (jnp.ones((0, 3)), jnp.ones((0, 3))),
    ],
    ids=range(8),
)
def test_what_apply_updates_converts(p, u):
    with jax.numpy_rank_promotion("allow"):
        assert_equal(apply_updates([p, p], [u, u]), optax.apply_updates([p, p], [u, u]))


@pytest.mark.parametrize(("params", "updates"), [([1.0], [1.0, 2.0]), ({"a": 1.0}, {"b": 1.0}), ([1.0], [None])])
def test_apply_updates_answers_bad_input_as_optax_does(params, updates):
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        optax.apply_updates(params, updates)
    with pytest.raises(theirs.type):
        apply_updates(params, updates)


SHAPES = [(12, 40), (48, 9), (64, 64), (128, 27)]  # whose norms are parts of one product
RATES = [0.1, optax.cosine_decay_schedule(0.1, 10), None]


def program(make, apply, **options):
    """One step with given gradients, as it is exported for a GPU."""
    params = [oracle.random(shape, "float32") for shape in SHAPES]
    optimizer = make(**options)

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return apply(params, updates), state

    args = (params, optimizer.init(params), params)
    exported = export.export(jax.jit(step), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)
    return exported(*args).mlir_module()


def elementwise(text):
    """Operations along whole matrices."""
    shapes = "|".join(f"{m}x{n}" for m, n in SHAPES)
    return re.findall(rf"stablehlo\.(\w+) .*tensor<(?:{shapes})xf32>", text)


STEPS = [{}, {"weight_decay": 0.1}, {"nesterov": False}, {"consistent_rms": 0.2}]


@pytest.mark.parametrize(
    ("rate", "options"),
    slow_except(itertools.product(RATES, STEPS), [(RATES[0], STEPS[3]), (RATES[1], STEPS[1])]),
    ids=lambda value: "schedule" if callable(value) else str(value),  # the same in all processes
)
def test_a_step_of_muon_does_no_work_by_leaf(options, rate):
    with vb.target("h100"):
        text = program(muon, apply_updates, learning_rate=rate, adam_learning_rate=0.1, **options)
    assert text.count("custom_call @vbgemm_v2") == 15
    assert text.count("custom_call @vbgemm_averages_v1") == 1
    assert text.count("custom_call @vbgemm_square_sums_v1") == 0
    assert text.count("custom_call @vbgemm_add_v2") == 1 + ("weight_decay" in options)
    assert set(elementwise(text)) <= {"custom_call"}
    theirs = program(contrib.muon, optax.apply_updates, learning_rate=rate, adam_learning_rate=0.1, **options)
    assert elementwise(theirs).count("multiply") > 8  # so that the pattern does find some


@pytest.mark.parametrize("options", [{}, {"ns_dtype": "float16", "ns_gram": True}], ids=["default", "float16_gram"])
def test_xla_has_as_many_operations_for_any_number_of_matrices(options):
    """Each is a kernel on a GPU: factors are elements of one vector, and matrices are rounded together."""
    counts = []
    for count in (8, 11):  # fewer would be dots of XLA's
        params = [jnp.ones((12, 16 * (index + 2)), "float32") for index in range(count)]
        optimizer = muon(0.1, **options)
        state = optimizer.init(params)

        def step(grads, state, params, optimizer=optimizer):
            updates, state = optimizer.update(grads, state, params)
            return apply_updates(params, updates), state

        program = export.export(jax.jit(step), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)
        with vb.target("h100"):
            text = program(params, state, params).mlir_module()
        counts.append(Counter(re.findall(r"= \"?(stablehlo\.\w+)", text)))
        assert text.count("custom_call @vbgemm_v2") == (17 if options else 15)
    assert counts[0] == counts[1]
    assert counts[0]["stablehlo.custom_call"] == (22 if options else 17)
    # The scales of the averages and of the products, and those of one rounding and two additions of identities.
    assert counts[0]["stablehlo.concatenate"] == (5 if options else 2)


@pytest.mark.parametrize("dtype", slow_except(["float32", "float64", "bfloat16"], ["float64"]))
def test_a_learning_rate_with_a_dtype_changes_those_of_updates_as_in_optax(dtype):
    params = [oracle.random((4, 6), "bfloat16"), oracle.random((6, 4), "float32"), jnp.ones(3, "float32")]
    for options in ({}, {"consistent_rms": jnp.asarray(0.2, dtype)}, {"weight_decay": 0.1}):
        updates = []
        for make in (muon, contrib.muon):
            optimizer = make(jnp.asarray(0.1, dtype), ns_steps=2, **options)
            updates.append(jax.jit(optimizer.update)(params, optimizer.init(params), params)[0])
        assert [x.dtype for x in updates[0]] == [x.dtype for x in updates[1]]
        for ours, theirs in zip(*updates, strict=True):
            np.testing.assert_allclose(oracle.wide(ours), oracle.wide(theirs), atol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "options"),
    slow_except(
        [(dtype, options) for dtype in ("float32", "complex64", "bfloat16") for options in ({}, {"nesterov": False})]
        + [("float32", {"mu_dtype": "bfloat16"}), ("bfloat16", {"mu_dtype": "float32"})],
        [("complex64", {}), ("bfloat16", {"mu_dtype": "float32"})],
    ),
    ids=str,
)
def test_steps_traced_for_a_gpu(options, dtype):
    """The results equal optax's where the moments are summed as in a program for a GPU."""
    params = [oracle.random(shape, dtype) for shape in [(12, 40), (37, 9)]]
    results = []
    for make in (muon, contrib.muon):
        optimizer = make(0.1, ns_steps=2, **options)
        state = optimizer.init(params)
        for seed in range(2):
            grads = [oracle.random(x.shape, dtype, seed) for x in params]
            with vb.target("h100"):
                updates, state = jax.jit(optimizer.update)(grads, state, params)
        results.append((updates, state))
    assert jax.tree.structure(results[0]) == jax.tree.structure(results[1])
    for ours, theirs in zip(*map(jax.tree.leaves, results), strict=True):
        assert ours.dtype == theirs.dtype
        tolerance = 3e-5 if dtype != "bfloat16" and "mu_dtype" not in options else 0.02
        np.testing.assert_allclose(oracle.wide(ours), oracle.wide(theirs), rtol=0, atol=tolerance)


def test_none_among_updates():
    """A gradient that is missing: its moment goes too, as in optax."""
    params = {"a": oracle.random((4, 6), "float32"), "b": oracle.random((6, 4), "float32")}
    optimizer = scale_by_muon()
    for target in ("h100", "cpu"):
        with vb.target(target):
            grads = {"a": params["a"], "b": None}
            updates, state = jax.jit(lambda params, grads: optimizer.update(grads, optimizer.init(params)))(
                params, grads
            )
        assert updates["b"] is None
        assert state.mu["b"] is None


def test_missing_params_are_an_error_as_in_optax():
    params = [oracle.random((4, 6), "float32")]
    for make in (muon, contrib.muon):
        optimizer = make(0.1)
        with pytest.raises(ValueError, match="params"):
            optimizer.update(params, jax.jit(optimizer.init)(params))
