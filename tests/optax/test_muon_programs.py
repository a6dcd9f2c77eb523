"""The guide's programs run as they stand there, and do what they say."""

import contextlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

optax = pytest.importorskip("optax")
pytest.importorskip("flax")
pytest.importorskip("equinox")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "muon_programs.md"


def as_in_a_program():
    """float32, and JAX's own promotion in place of this suite's strict one."""
    stack = contextlib.ExitStack()
    for context in (jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")):
        stack.enter_context(context)
    return stack


@pytest.fixture(autouse=True)
def _():
    with as_in_a_program():
        yield


@pytest.fixture(scope="module")
def names():
    """What the page's cells define."""
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(cells) == 8
    defined: dict[str, object] = {}
    with as_in_a_program():
        for cell in cells:
            exec(compile(cell, PAGE.name, "exec"), defined)
    return defined


def test_each_program_trains(names):
    assert float(names["value"]) < 1


def test_the_checkpoint_is_that_of_optax(names):
    ours, theirs, params = names["ours"], names["theirs"], names["params"]
    assert jax.tree.structure(names["checkpoint"]) == jax.tree.structure(theirs.init(params))
    assert jax.tree.structure(ours.init(params)) == jax.tree.structure(theirs.init(params))
    assert type(names["neurons"]).__name__ == "NorMuonState"


def test_groups(names):
    params, optimizer = names["params"], names["grouped"]
    updates, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
    assert jnp.abs(updates["embed"]).max() < 2e-3  # AdamW's step
    np.testing.assert_allclose(jnp.linalg.norm(updates["out"], 2), 0.02, rtol=0.4)


def test_each_layer_of_a_stack_is_a_matrix(names):
    keys = iter(jax.random.split(jax.random.key(3), 3))
    tree = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape, x.dtype), names["tree"])
    optimizer = names["scanned"]
    updates, _ = jax.jit(optimizer.update)(tree, optimizer.init(tree), tree)
    for layer in range(4):
        for head in range(2):
            update = updates["layers"]["query"][:, layer, head]
            values = jnp.linalg.svd(update, compute_uv=False) / 0.02
            assert 0.6 < values.min() <= values.max() < 1.3
