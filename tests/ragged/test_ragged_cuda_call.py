"""The custom call in programs for CUDA, checked without a GPU."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src import backends


def module_for(platform: str) -> str:
    lhs, rhs, sizes = jnp.zeros((64, 16), jnp.bfloat16), jnp.zeros((4, 16, 8), jnp.bfloat16), jnp.zeros(4, jnp.int32)
    program = export.export(jax.jit(vb.ragged_dot), platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
        lhs, rhs, sizes
    )
    return str(program.mlir_module())


@pytest.mark.parametrize(("platform", "workspace"), [("cuda", True), ("cpu", False)])
def test_gpus_alone_get_a_workspace(platform, workspace):
    (call,) = re.findall(rf"custom_call @{backends.RAGGED_TARGET_NAME}\(.*->(.*)", module_for(platform))
    assert "64x8xbf16" in call
    assert (f"tensor<{_core.RAGGED_WORKSPACE_BYTES}xui8>" in call) == workspace


def test_rocm_goes_through_xla():
    assert backends.RAGGED_TARGET_NAME not in module_for("rocm")
