"""jax_vbgemm.optax.muon beside optax.contrib.muon: the same arguments, state, updates and errors."""

import functools
import inspect
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb

optax = pytest.importorskip("optax")
contrib = pytest.importorskip("optax.contrib")

from jax_vbgemm.optax import muon, scale_by_muon  # noqa: E402

pytestmark = pytest.mark.usefixtures("standard_promotion")


Numbers = contrib.MuonDimensionNumbers
# Relative to a leaf's largest entry. Five steps amplify rounding errors along small singular values by up to 3.4^5.
TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "complex64": 3e-5, "bfloat16": 0.15}


def tree(dtype="float32", seed=0):
    """Wide, tall, square, a row, a bias, a convolution, a scalar, a missing leaf."""
    shapes = {"wide": (12, 40), "tall": (37, 9), "square": (16, 16), "row": (1, 8), "bias": (8,), "scale": ()}
    made = {name: oracle.random(shape, dtype, seed) for name, shape in shapes.items()}
    return made | {"block": [{"kernel": oracle.random((3, 3, 4, 6), dtype, seed)}, None]}


def small(dtype="float32"):
    """A tree that optax compiles in a second."""
    return {name: leaf for name, leaf in tree(dtype).items() if name in ("wide", "tall", "bias")}


def assert_close(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    tolerance = max((TOLERANCE.get(x.dtype.name, 0) for x in jax.tree.leaves(theirs)), default=0)
    for (path, a), (_, b) in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves_with_path(theirs), strict=True):
        assert (jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b)), path
        a, b = oracle.wide(a), oracle.wide(b)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=0), err_msg=str(path))


def assert_same_steps(ours, theirs, params, steps=3, seed=1):
    """Asserts equal updates and states, where each optimizer continues from the other's state."""

    @jax.jit
    def step_of_both(grads, state, other, params):
        updates, expected = ours.update(grads, state, params), theirs.update(grads, other, params)
        return updates, expected, optax.apply_updates(params, expected[0])

    state, other = jax.jit(lambda params: (ours.init(params), theirs.init(params)))(params)
    assert_close(state, other)
    for step in range(steps):
        grads = jax.tree.map(lambda x, s=step: oracle.random(x.shape, x.dtype, seed + s), params)
        (updates, state), (expected, other), params = step_of_both(grads, state, other, params)
        assert_close(updates, expected)
        assert_close(jax.tree.leaves(state), jax.tree.leaves(other))
        assert jax.tree.structure(state) == jax.tree.structure(other)
        state, other = other, state


def update(make, params, **options):
    """One step on gradients that are the parameters."""
    optimizer = make(**options)
    return jax.jit(lambda params: optimizer.update(params, optimizer.init(params), params))(params)


OPTIONS = [
    {},
    {"nesterov": False},
    {"adaptive": True},
    {"preconditioning": "spectral"},
    {"preconditioning": "aol", "ns_coeffs": "dion", "ns_steps": 5},
    {"preconditioning": "schatten", "ns_steps": 3},
    {"ns_coeffs": ((3.0, -3.2, 1.2), (2.0, -1.5, 0.5))},
    {"ns_steps": 0},
    {"consistent_rms": 0.2, "beta": 0.8, "eps": 1e-3},
    {"weight_decay": 0.1, "adam_weight_decay": 0.2, "adam_learning_rate": 0.5, "adam_b1": 0.7},
    {"mu_dtype": "bfloat16"},
]


def pair(**options):
    """Ours and optax's; few steps, since optax compiles each dot."""
    options = {"learning_rate": 0.1, "ns_steps": 2} | options
    return muon(**options), contrib.muon(**options)


DEFAULT = [{}, {"adaptive": True}, {"nesterov": False}, {"ns_steps": 0}, *OPTIONS[4:5], *OPTIONS[8:10]]


@pytest.mark.parametrize("options", slow_except(OPTIONS, DEFAULT), ids=str)
def test_options(options):
    assert_same_steps(*pair(**options), small(), steps=2)


def test_all_kinds_of_leaves():
    assert_same_steps(muon(0.1), contrib.muon(0.1), tree())


@pytest.mark.parametrize("dtype", slow_except(["float64", "bfloat16", "complex64"], ["float64"]))
@pytest.mark.parametrize("preconditioning", slow_except(["frobenius", "aol"], ["frobenius"]))
def test_dtypes(dtype, preconditioning):
    assert_same_steps(*pair(preconditioning=preconditioning), small(dtype), steps=2)


def test_mixed_dtypes_in_one_tree():
    params = {"a": small("float32"), "b": small("bfloat16")["wide"]}
    updates, expected = (update(make, params, learning_rate=0.1)[0] for make in (muon, contrib.muon))
    assert_close(updates["a"], expected["a"])
    assert_close(updates["b"], expected["b"])


def test_bfloat16_is_nearer_to_the_truth_than_optax():
    """Sums stay in float32 until they are stored once."""
    params = {"w": oracle.random((24, 60), "bfloat16")}
    wide = jax.tree.map(lambda x: x.astype("float64"), params)
    truth = update(contrib.muon, wide, learning_rate=1.0)[0]["w"]
    ours, theirs = (update(make, params, learning_rate=1.0)[0]["w"] for make in (muon, contrib.muon))
    assert np.abs(oracle.wide(ours) - truth).mean() < np.abs(oracle.wide(theirs) - truth).mean()


def by_rank(params):
    def number(x):
        return {2: Numbers(), 4: Numbers((0, 1, 2), 3)}.get(x.ndim)

    return jax.tree.map(number, params)


BLOCK = {"a": (5, 3, 4), "b": (2, 3, 4, 5)}
NUMBERS = [
    by_rank,
    by_rank(tree()),
    {"wide": Numbers(1, 0), "tall": None, "square": Numbers(), "row": None, "bias": None, "scale": None, "block": None},
]


@pytest.mark.parametrize("numbers", NUMBERS, ids=["callable", "constant", "prefix"])
def test_weight_dimension_numbers(numbers):
    assert_same_steps(*pair(muon_weight_dimension_numbers=numbers), tree(), steps=2)


@pytest.mark.parametrize("preconditioning", slow_except(["frobenius", "spectral", "aol", "schatten"], ["frobenius"]))
def test_axes_and_batches(preconditioning):
    """Axes in any order, several of a kind, negative, and left over as a batch; tall and wide."""
    params = {name: oracle.random(shape, "float64") for name, shape in BLOCK.items()}
    for numbers in (
        {"a": Numbers(1, 2), "b": Numbers((0, 3), 1)},
        {"a": Numbers(-1, 0), "b": Numbers(2, (0, 3))},
        {"a": Numbers((0, 1), 2), "b": Numbers((3, 0), (2, 1))},
    ):
        optimizers = pair(muon_weight_dimension_numbers=numbers, preconditioning=preconditioning)
        assert_same_steps(*optimizers, params, steps=1)


def test_scale_by_muon_alone():
    params = {"a": oracle.random((6, 9), "float32"), "b": [oracle.random((2, 5, 3), "float32")]}
    numbers = {"a": None, "b": [Numbers(1, 2)]}
    assert_same_steps(
        *(make(weight_dimension_numbers=numbers) for make in (scale_by_muon, contrib.scale_by_muon)), params
    )
    # Without numbers all leaves are matrices, as optax documents it (0.2.8 itself takes a lone array only).
    matrices = {"a": params["a"]}
    assert_close(update(scale_by_muon, matrices)[0]["a"], update(contrib.scale_by_muon, matrices["a"])[0])


def regression(dtype):
    """Gradients of a small network that is being trained, for trajectories."""
    x = oracle.random((64, 10), dtype, 5)
    y = jnp.sin(3 * x[:, :4])

    def loss(params):
        hidden = jnp.tanh(x @ params["first"] + jnp.broadcast_to(params["bias"], (64, 24)))
        hidden = jnp.tanh(hidden @ params["second"])
        return jnp.mean(jnp.square(hidden @ params["third"] - y))

    shapes = {"first": (10, 24), "bias": (24,), "second": (24, 24), "third": (24, 4)}
    return loss, {name: 0.3 * oracle.random(shape, dtype, 6) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", slow_except(["float64", "float32"], []))
def test_trajectories_over_200_steps(dtype):
    loss, params = regression(dtype)

    @functools.partial(jax.jit, static_argnums=0)
    def train(make, params):
        optimizer = make(optax.cosine_decay_schedule(0.02, 200), weight_decay=0.01)

        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        return jax.lax.scan(step, (params, optimizer.init(params)), length=200)

    (ours, state), losses = train(muon, params)
    (theirs, other), expected = train(contrib.muon, params)
    assert losses[-1] < 0.2 * losses[0]
    tolerance = 1e-9 if dtype == "float64" else 2e-2
    np.testing.assert_allclose(losses, expected, rtol=tolerance)
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(theirs))
    for a, b in zip(jax.tree.leaves((ours, state)), jax.tree.leaves((theirs, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def test_an_iteration_is_three_calls_and_nothing_is_transposed():
    params = {"a": oracle.random((12, 40), "float32"), "b": oracle.random((37, 9), "float32"), "c": jnp.ones(3)}
    optimizer = muon(0.1)
    text = jax.jit(optimizer.update).lower(params, jax.eval_shape(optimizer.init, params), params).as_text()
    assert text.count("custom_call @vbgemm_v2") == 15
    assert text.count("custom_call @vbgemm_averages_v1") == (jax.default_backend() == "gpu")
    assert "custom_call @vbgemm_square_sums_v1" not in text
    assert "dot_general" not in text
    assert "stablehlo.transpose" not in text


@pytest.mark.slow
def test_donated_state_and_memory():
    """No more temporary memory than optax takes, and the state is updated in place."""
    params = [oracle.random(shape, "float32") for shape in [(48, 160), (160, 48), (64, 64), (30, 200)] * 3]
    sizes = []
    for make in (muon, contrib.muon):
        optimizer = make(0.1)
        state = jax.eval_shape(optimizer.init, params)
        compiled = jax.jit(optimizer.update, donate_argnums=(0, 1)).lower(params, state, params).compile()
        analysis = compiled.memory_analysis()
        sizes.append(analysis.temp_size_in_bytes)
        momentum = sum(x.nbytes for x in params)
        assert analysis.alias_size_in_bytes >= 2 * momentum
    assert sizes[0] <= sizes[1]


def test_a_tree_without_matrices():
    for params in ({}, [], {"bias": jnp.ones(5), "scale": jnp.ones(())}):
        assert_same_steps(muon(0.1), contrib.muon(0.1), params, steps=1)


def test_odd_sizes_and_zeros():
    params = [oracle.random(shape, "float32") for shape in [(1, 1), (1, 300), (300, 1)]] + [
        jnp.zeros((5, 3), "float32")
    ]
    updates, expected = (update(make, params, learning_rate=0.1)[0] for make in (muon, contrib.muon))
    assert_close(updates, expected)
    assert not np.asarray(updates[-1]).any()
    empty = [jnp.zeros(shape, "float32") for shape in [(0, 4), (4, 0), (0, 0)]]
    updates, _ = update(scale_by_muon, empty)
    assert [x.shape for x in updates] == [x.shape for x in empty]


def test_a_leaf_without_elements_and_an_unknown_option():
    params = {"w": jnp.zeros((0, 3))}
    updates, _ = update(muon, params, learning_rate=0.1)
    assert updates["w"].shape == (0, 3)
    with pytest.raises(ValueError, match=r"names axis 5 of a parameter of shape \(2, 3, 4\)"):
        update(muon, CUBE, learning_rate=0.1, muon_weight_dimension_numbers={"w": Numbers(5, -1)})
    with pytest.raises(ValueError, match="Unknown preconditioning q"):
        update(muon, params, learning_rate=0.1, preconditioning="q")


MATRIX, CUBE = {"w": jnp.ones((2, 3))}, {"w": jnp.ones((2, 3, 4))}
ERRORS = [
    ("muon", MATRIX, {"ns_coeffs": "best"}),
    ("muon", MATRIX, {"ns_coeffs": (1.0, 2.0)}),
    ("muon", MATRIX, {"ns_coeffs": ((1.0, 2.0, 3.0),) * 6}),
    ("muon", MATRIX, {"preconditioning": "none"}),
    ("muon", CUBE, {"muon_weight_dimension_numbers": {"w": Numbers(0, 0)}}),
    ("muon", {"w": jnp.ones(3)}, {"muon_weight_dimension_numbers": {"w": Numbers(0, 1)}}),
    ("muon", CUBE, {"muon_weight_dimension_numbers": {"v": Numbers()}}),
    ("scale_by_muon", CUBE["w"], {}),
    ("scale_by_muon", CUBE, {"weight_dimension_numbers": {"w": None}}),
]


@pytest.mark.parametrize(("name", "params", "options"), ERRORS, ids=range(len(ERRORS)))
def test_bad_input_is_answered_as_optax_does(name, params, options):
    options = options | ({"learning_rate": 0.1} if name == "muon" else {})
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        update(getattr(contrib, name), params, **options)
    with pytest.raises(theirs.type) as ours:
        update({"muon": muon, "scale_by_muon": scale_by_muon}[name], params, **options)
    assert str(theirs.value).split()[:3] == str(ours.value).split()[:3]


@pytest.mark.parametrize(("ours", "theirs"), [(muon, contrib.muon), (scale_by_muon, contrib.scale_by_muon)])
def test_the_arguments_are_those_of_optax(ours, theirs):
    """The arguments are those of optax, followed by this package's own."""

    def arguments(function):
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    own = {"split": None, "ns_dtype": None, "ns_gram": False, "mesh_axis": None, "mesh": None, "shardings": None}
    if ours is muon:
        own = {"normuon_beta2": None, "cautious": False} | own
    added = [(name, inspect.Parameter.KEYWORD_ONLY, default) for name, default in own.items()]
    assert arguments(ours) == arguments(theirs) + added


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["muon", "frobenius or newton_schulz or complex_mixed", "newton_schulz"])
@pytest.mark.slow
def test_optaxs_own_tests_pass_with_ours_in_its_place(chosen, tmp_path):
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(vb.__file__).parents[1]), *sys.path])
    command = f"-q -p swap_muon -p no:cacheprovider --noconftest -c {os.devnull} --rootdir {tmp_path}"
    files = "--pyargs optax.contrib._muon_test optax.contrib._common_test"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *command.split(), *files.split(), "-k", chosen], cwd=tmp_path,
        # Its tolerances are not for TF32, a GPU's default.
        env=os.environ | {"PYTHONPATH": path, "XLA_FLAGS": "", "JAX_DEFAULT_MATMUL_PRECISION": "highest"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.slow
def test_hyperparameters_may_be_injected():
    """Injection makes every number an array, including the number of steps."""
    params = tree()
    assert_close(
        *(update(optax.inject_hyperparams(make), params, learning_rate=1e-2)[0] for make in (muon, contrib.muon))
    )
