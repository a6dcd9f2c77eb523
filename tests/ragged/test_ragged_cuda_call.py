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
from jax_vbgemm._src.ragged.tile_shape import SHAPES


def module_for(platform: str, m: int = 64, k: int = 16, n: int = 8, contract: bool = False, **options: Any) -> str:
    lhs, rhs = jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((4, k, n), jnp.bfloat16)
    sizes = jax.ShapeDtypeStruct((4,), jnp.int32)

    def product(lhs: Any, rhs: Any, sizes: Any) -> Any:
        def result(rhs: Any) -> Any:
            return vb.ragged_dot(lhs, rhs, sizes, **options)

        return jax.vjp(result, rhs)[1](jnp.ones((m, n), jnp.bfloat16)) if contract else result(rhs)

    program = export.export(jax.jit(product), platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
        lhs, rhs, sizes
    )
    return str(program.mlir_module())


def plans_of(text: str) -> list[list[int]]:
    """The plans of the ragged calls in a program."""
    found = re.findall(r"plan = dense<(\d*)> : tensor<[01]xi32>", text)
    return [[int(word)] if word else [] for word in found]


@pytest.mark.parametrize(
    ("platform", "device", "m", "workspace"),
    [
        ("cuda", "h100", 47_684, True),  # 2 m k n is just above 5e10
        ("cuda", "h100", 47_683, False),
        ("cuda", "a100", 47_684, False),  # for which nothing was measured
        ("cpu", "h100", 47_684, False),
    ],
)
def test_gpus_get_a_workspace_for_much_work(platform, device, m, workspace):
    with vb.target(device):
        text = module_for(platform, m, k=1024, n=512)
    (call,) = re.findall(rf"custom_call @{backends.RAGGED_TARGET_NAME}\(.*->(.*)", text)
    assert f"{m}x512xbf16" in call
    assert (f"tensor<{_core.RAGGED_WORKSPACE_BYTES}xui8>" in call) == workspace


WIDE_PAIR, WIDE, NARROW = map(SHAPES.index, ("wide_pair", "wide", "narrow"))


@pytest.mark.parametrize(
    ("k", "n", "contract", "hint", "plan"),
    [
        (4096, 512, False, None, NARROW),  # 16 rows a group
        (4096, 512, False, 127, NARROW),
        (4096, 512, False, 128, WIDE_PAIR),
        (4096, 256, False, 128, WIDE),
        (4095, 512, False, 128, WIDE),
        (4096, 512, False, [127, 128, 129, 130], WIDE_PAIR),
        (4096, 512, False, [0, 0, 0, 508], NARROW),
        (4096, 128, False, 10**30, NARROW),
        (4096, 512, True, 4096, WIDE),
        (4096, 512, True, None, WIDE),
    ],
)
def test_the_hint_chooses_the_tile_shape(k, n, contract, hint, plan):
    assert plans_of(module_for("cuda", k=k, n=n, contract=contract, group_size_hint=hint)) == [[plan]]


@pytest.mark.parametrize(("m", "plan"), [(511, NARROW), (512, WIDE)])
def test_without_a_hint_the_average_chooses(m, plan):
    assert plans_of(module_for("cuda", m, k=256, n=512)) == [[plan]]


@pytest.mark.parametrize(("n", "plan"), [(128, NARROW), (129, WIDE), (512, WIDE)])
def test_a_device_without_rules_gets_the_narrowest_shape_that_holds_the_columns(n, plan):
    with vb.target("a100"):
        assert plans_of(module_for("cuda", k=256, n=n, group_size_hint=16)) == [[plan]]


def test_both_halves_of_a_gated_product_are_columns():
    text = module_for("cuda", n=256, group_size_hint=200, gated=True, activation="silu")
    assert plans_of(text) == [[WIDE]]  # the halves are 128 columns each, and 256 together


def test_the_handler_of_cpus_gets_no_plan():
    assert plans_of(module_for("cpu", group_size_hint=16)) == [[]]


def test_rocm_goes_through_xla():
    assert backends.RAGGED_TARGET_NAME not in module_for("rocm")
