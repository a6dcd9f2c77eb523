"""Muon with sharded parameters: the same numbers under plain jit (replicated) and with stacks split by shard_map."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from slow_cases import slow_except

pytest.importorskip("optax")
from optax.contrib import MuonDimensionNumbers

from jax_vbgemm.optax import muon

pytestmark = [pytest.mark.multidevice(4), pytest.mark.usefixtures("standard_promotion")]


def numbers(params):
    return jax.tree.map(lambda x: MuonDimensionNumbers(-2, -1) if x.ndim > 1 else None, params)


OPTIMIZER = muon(0.1, muon_weight_dimension_numbers=numbers)


def step(params, state, grads):
    updates, state = OPTIMIZER.update(grads, state, params)
    return jax.tree.map(jnp.add, params, updates), state


@pytest.fixture
def case():
    params = {name: oracle.random(s, "float64") for name, s in {"stack": (8, 6, 10), "w": (12, 4), "b": (8,)}.items()}
    grads = jax.tree.map(lambda x: oracle.random(x.shape, "float64", 1), params)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    return mesh, params, jax.jit(OPTIMIZER.init)(params), grads


def assert_close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), ours, theirs)


@pytest.mark.slow
def test_sharded_parameters_under_plain_jit(case):
    mesh, params, state, grads = case
    expected = jax.jit(step)(params, state, grads)

    def placed(tree):
        return jax.tree.map(
            lambda x: jax.device_put(x, NamedSharding(mesh, P("x") if x.ndim and x.shape[0] % 4 == 0 else P())), tree
        )

    assert_close(jax.jit(step)(placed(params), placed(state), placed(grads)), expected)


@pytest.mark.parametrize("check_vma", slow_except([True, False], [True]))
def test_a_stack_of_layers_is_split_by_shard_map(case, check_vma):
    """Each device orthogonalises its own layers, and nothing is sent."""
    mesh, params, state, grads = case
    specs = jax.tree.map(lambda x: P("x") if x.ndim == 3 else P(), (params, state, grads))
    split = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs[:2], check_vma=check_vma))
    compiled = split.lower(params, state, grads).compile()
    assert_close(compiled(params, state, grads), jax.jit(step)(params, state, grads))
    assert "all-gather" not in compiled.as_text()
