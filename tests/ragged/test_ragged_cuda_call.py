"""The custom call in programs for GPUs, checked without one."""

import contextlib
import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.ragged.plan import NONE, SHAPES


def module_for(
    platform: str,
    m: int = 64,
    k: int = 16,
    n: int = 8,
    contract: bool = False,
    dtype: Any = jnp.bfloat16,
    **options: Any,
) -> str:
    lhs, rhs = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((4, k, n), dtype)
    sizes = jax.ShapeDtypeStruct((4,), jnp.int32)

    def product(lhs: Any, rhs: Any, sizes: Any) -> Any:
        def result(rhs: Any) -> Any:
            return vb.ragged_dot(lhs, rhs, sizes, **options)

        return jax.vjp(result, rhs)[1](jnp.ones((m, n), dtype)) if contract else result(rhs)

    program = export.export(jax.jit(product), platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
        lhs, rhs, sizes
    )
    return str(program.mlir_module())


def plans_of(text: str) -> list[list[int]]:
    """The plans of the ragged calls in a program."""
    calls = [line for line in text.splitlines() if f"custom_call @{backends.RAGGED_TARGET_NAME}(" in line]
    plans = []
    for call in calls:
        (shape,), (counted,), (tile,) = (
            re.findall(rf"\b{name} = (-?\w+)", call) for name in ("shape", "counted", "tile")
        )
        plans.append([int(shape), int(counted == "true"), int(tile)])
    return plans


def workspace_of(text: str) -> int:
    (call,) = re.findall(rf"custom_call @{backends.RAGGED_TARGET_NAME}\(.*->(.*)", text)
    return int((re.findall(r"tensor<(\d+)xui8>", call) or [0])[0])


@pytest.mark.parametrize(
    ("platform", "m", "workspace"),
    [
        ("cuda", 47_684, _core.RAGGED_COUNTER_BYTES),  # 2 m k n is just above 5e10
        ("cuda", 47_683, 0),
        ("cpu", 47_684, 0),
    ],
)
def test_the_h100_gets_a_counter_for_much_work(platform, m, workspace):
    with vb.target("h100"):
        text = module_for(platform, m, k=1024, n=512)
    assert workspace_of(text) == workspace


LISTED = {
    "no pipelined kernel on this device": ("cuda", "a100", {}),
    "none for this type": ("cuda", "h100", {"dtype": jnp.float32}),
    "lines that are no multiples of 16 bytes": ("cuda", "h100", {"k": 12}),
    "AMD": ("rocm", "mi210", {}),
}


@pytest.mark.parametrize("case", LISTED)
@pytest.mark.parametrize("contract", [False, True])
def test_other_calls_get_a_list_of_tiles(case, contract):
    platform, device, options = LISTED[case]
    with vb.target(device):
        text = module_for(platform, contract=contract, **options)
    ((shape, counted, tile),) = plans_of(text)
    assert (SHAPES[shape], counted) == ("none", 0)
    product = {"m": 64, "k": options.get("k", 16), "columns": 8, "groups": 4, "total_groups": 4}
    assert workspace_of(text) == _core.ragged_list(**product, contraction=contract, tile=tile)[1]


@pytest.mark.parametrize(
    ("options", "pipelined"),
    [
        ({"transpose_rhs": True}, True),
        ({"transpose_rhs": True, "k": 20, "n": 20}, True),  # multiples of 16 bytes
        ({"transpose_rhs": True, "k": 18, "n": 18}, False),
        ({}, False),
        ({"contract": True}, False),
        ({"transpose_rhs": True, "precision": "high"}, False),
        ({"transpose_rhs": True, "precision": "highest"}, False),
    ],
)
def test_tf32_is_pipelined_where_matrices_are_contiguous_along_k(options, pipelined):
    with vb.target("h100"):
        text = module_for("cuda", **{"k": 16, "n": 16, "dtype": jnp.float32, "precision": "default"} | options)
    ((shape, _, tile),) = plans_of(text)
    assert (SHAPES[shape] != "none") == pipelined
    assert (tile < 0) == pipelined


def test_the_gradient_of_the_rows_is_pipelined_in_tf32():
    lhs, rhs = jax.ShapeDtypeStruct((64, 16), jnp.float32), jax.ShapeDtypeStruct((4, 16, 24), jnp.float32)

    def gradient(lhs, rhs, sizes):
        result = functools.partial(vb.ragged_dot, rhs=rhs, group_sizes=sizes, precision="default")
        return jax.vjp(result, lhs)[1](jnp.ones((64, 24), jnp.float32))

    with vb.target("h100"):
        program = export.export(jax.jit(gradient), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            lhs, rhs, jax.ShapeDtypeStruct((4,), jnp.int32)
        )
    ((shape, _, tile),) = plans_of(str(program.mlir_module()))
    assert SHAPES[shape] != "none"
    assert tile < 0


@pytest.mark.parametrize("options", [{"gated": True, "activation": "silu"}, {"row_scale": jnp.ones(64, jnp.float32)}])
def test_tf32_by_the_pipelined_kernel_has_its_epilogues(options):
    with vb.target("h100"):
        text = module_for("cuda", k=16, n=16, dtype=jnp.float32, precision="default", transpose_rhs=True, **options)
    assert "stablehlo.multiply" not in text


@pytest.mark.parametrize(("dtype", "gathers"), [(jnp.bfloat16, True), (jnp.float32, False)])
def test_pipelined_kernels_of_16_bit_types_alone_read_rows_by_index(dtype, gathers):
    lhs, rhs = jax.ShapeDtypeStruct((16, 16), dtype), jax.ShapeDtypeStruct((4, 16, 16), dtype)

    def product(lhs, rhs, sizes, rows):
        return vb.ragged_dot(lhs, rhs, sizes, gather=rows, transpose_rhs=True, precision="default")

    rows = jax.ShapeDtypeStruct((64,), jnp.int32)
    with vb.target("h100"):
        program = export.export(jax.jit(product), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            lhs, rhs, jax.ShapeDtypeStruct((4,), jnp.int32), rows
        )
    text = str(program.mlir_module())
    ((shape, _, tile),) = plans_of(text)
    assert SHAPES[shape] != "none"
    assert tile < 0
    assert ("stablehlo.gather" not in text) == gathers


def test_a_list_of_tiles_takes_tensor_cores():
    """Also on a device that was never measured."""
    with vb.target("l40s"):
        ((_, _, tile),) = plans_of(module_for("cuda", m=8192, k=1024, n=512))
    assert COMPILED_TILES[tile].tensor


@pytest.mark.parametrize("target", [None, "mi210", "cpu"])
def test_an_exported_program_runs_on_other_devices_too(target):
    """Without a named target for its platform, both ways are planned."""
    with vb.target(target) if target else contextlib.nullcontext():
        ((shape, _, tile),) = plans_of(module_for("cuda"))
    assert SHAPES[shape] != "none"
    assert tile >= 0


@pytest.mark.parametrize("options", [{"gated": True, "activation": "silu"}, {"row_scale": jnp.ones(64, jnp.float32)}])
def test_only_the_pipelined_kernel_has_scales_and_gates(options):
    with vb.target("h100"):
        pipelined = module_for("cuda", n=16, **options)
    with vb.target("a100"):
        listed = module_for("cuda", n=16, **options)
    unknown = module_for("cuda", n=16, **options)
    multiplications = [text.count("stablehlo.multiply") for text in (pipelined, listed, unknown)]
    assert multiplications[0] == 0 < multiplications[1] == multiplications[2]


def test_a_call_with_too_many_tiles_goes_through_xla():
    text = module_for("cuda", m=2**27, n=2**20)
    assert backends.RAGGED_TARGET_NAME not in text


def shapes_of(text: str) -> list[int]:
    return [plan[0] for plan in plans_of(text)]


WIDE_PAIR, WIDE, NARROW = map(SHAPES.index, ("wide_pair", "wide", "narrow"))


@pytest.mark.parametrize(
    ("k", "n", "contract", "hint", "plan"),
    [
        (4096, 512, False, None, NARROW),  # 16 rows a group
        (4096, 512, False, 127, NARROW),
        (4096, 512, False, 128, WIDE_PAIR),
        (4096, 256, False, 128, WIDE),
        (4088, 512, False, 128, WIDE),
        (4096, 512, False, [127, 128, 129, 130], WIDE_PAIR),
        (4096, 512, False, [0, 0, 0, 508], NARROW),
        (4096, 128, False, 10**30, NARROW),
        (4096, 512, True, 4096, WIDE),
        (4096, 512, True, None, WIDE),
    ],
)
def test_the_hint_chooses_the_tile_shape(k, n, contract, hint, plan):
    with vb.target("h100"):
        assert shapes_of(module_for("cuda", k=k, n=n, contract=contract, group_size_hint=hint)) == [plan]


def test_an_h200_has_no_pairs():
    with vb.target("h200"):
        assert shapes_of(module_for("cuda", k=4096, n=512, group_size_hint=128)) == [WIDE]


def test_tf32_has_no_pairs():
    options = {"dtype": jnp.float32, "precision": "default", "transpose_rhs": True, "group_size_hint": 200}
    with vb.target("h100"):
        assert shapes_of(module_for("cuda", k=4096, n=4096, **options)) == [WIDE]
        assert shapes_of(module_for("cuda", k=4096, n=4096, **options | {"dtype": jnp.bfloat16})) == [WIDE_PAIR]


@pytest.mark.parametrize(("m", "plan"), [(511, NARROW), (512, WIDE)])
def test_without_a_hint_the_average_chooses(m, plan):
    assert shapes_of(module_for("cuda", m, k=256, n=512)) == [plan]


@pytest.mark.parametrize(("n", "plan"), [(128, NARROW), (136, WIDE), (512, WIDE)])
def test_a_device_without_rules_gets_the_narrowest_shape_that_holds_the_columns(n, plan):
    with vb.target(dataclasses.replace(device_spec("h100"), ragged_rules=None)):
        assert shapes_of(module_for("cuda", k=256, n=n, group_size_hint=16)) == [plan]


def test_both_halves_of_a_gated_product_are_columns():
    with vb.target("h100"):
        text = module_for("cuda", n=256, group_size_hint=200, gated=True, activation="silu")
    assert shapes_of(text) == [WIDE]  # the halves are 128 columns each, and 256 together


def test_the_handler_of_cpus_gets_no_plan():
    assert plans_of(module_for("cpu", group_size_hint=16)) == [NONE.words]


@pytest.mark.parametrize(("platform", "device"), [("cuda", "h100"), ("cuda", "a100"), ("rocm", "mi210")])
def test_weights_of_different_shapes_are_calls_too(platform, device):
    """The product, and the gradients by rows and by weights."""

    def both(x: Any, Bs: Any, sizes: Any) -> Any:
        y, pull = jax.vjp(lambda x, Bs: vb.ragged_matmul(x, Bs, sizes, implementation="kernel"), x, Bs)
        return y, pull(y)

    Bs = [jax.ShapeDtypeStruct((64, n), jnp.float32) for n in (4, 8, 64)]
    operands = jax.ShapeDtypeStruct((100, 64), jnp.float32), Bs, jax.ShapeDtypeStruct((3,), jnp.int32)
    with vb.target(device):
        program = export.export(jax.jit(both), platforms=[platform], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            *operands
        )
    assert str(program.mlir_module()).count(f"custom_call @{backends.RAGGED_TARGET_NAME}(") == 3
