"""The custom call in programs for CUDA, checked without a GPU."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src import backends


def module_for(platform: str, k: int = 16, n: int = 8, contract: bool = False, **options: Any) -> str:
    lhs, rhs, sizes = jnp.zeros((64, k), jnp.bfloat16), jnp.zeros((4, k, n), jnp.bfloat16), jnp.zeros(4, jnp.int32)

    def product(lhs: Any, rhs: Any, sizes: Any) -> Any:
        def result(rhs: Any) -> Any:
            return vb.ragged_dot(lhs, rhs, sizes, **options)

        return jax.vjp(result, rhs)[1](jnp.ones((64, n), jnp.bfloat16)) if contract else result(rhs)

    program = export.export(jax.jit(product), platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
        lhs, rhs, sizes
    )
    return str(program.mlir_module())


def plans_of(text: str) -> list[list[int]]:
    """The plans of the ragged calls in a program."""
    found = re.findall(r"plan = dense<(\d*)> : tensor<[01]xi32>", text)
    return [[int(word)] if word else [] for word in found]


@pytest.mark.parametrize(("platform", "workspace"), [("cuda", True), ("cpu", False)])
def test_gpus_alone_get_a_workspace(platform, workspace):
    (call,) = re.findall(rf"custom_call @{backends.RAGGED_TARGET_NAME}\(.*->(.*)", module_for(platform))
    assert "64x8xbf16" in call
    assert (f"tensor<{_core.RAGGED_WORKSPACE_BYTES}xui8>" in call) == workspace


WIDE_PAIR, WIDE, NARROW = 1, 2, 3


@pytest.mark.parametrize(
    ("n", "contract", "hint", "plan"),
    [
        (512, False, None, []),
        (512, False, 16, [NARROW]),
        (512, False, 128, [WIDE_PAIR]),
        (256, False, 128, [WIDE]),
        (512, False, [127, 128, 129, 130], [WIDE_PAIR]),
        (512, False, [0, 0, 0, 508], [NARROW]),
        (128, False, 10**30, [NARROW]),
        (512, True, 383, [WIDE]),
        (512, True, 384, [WIDE_PAIR]),
        (512, True, None, []),
    ],
)
def test_the_hint_chooses_the_tile_shape(n, contract, hint, plan):
    assert plans_of(module_for("cuda", k=256, n=n, contract=contract, group_size_hint=hint)) == [plan]


def test_both_halves_of_a_gated_product_are_columns():
    text = module_for("cuda", n=256, group_size_hint=200, gated=True, activation="silu")
    assert plans_of(text) == [[WIDE]]  # the halves are 128 columns each, and 256 together


def test_the_handler_of_cpus_gets_no_plan():
    assert plans_of(module_for("cpu", group_size_hint=16)) == [[]]


def test_rocm_goes_through_xla():
    assert backends.RAGGED_TARGET_NAME not in module_for("rocm")
