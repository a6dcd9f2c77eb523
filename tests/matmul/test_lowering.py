"""Lowered programs: one custom call for each dtype with constant descriptors, or XLA's dots without a kernel."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.native import backends


def pairs(dtype="float32", count=3):
    As = [oracle.random((5 + i, 7), dtype, i) for i in range(count)]
    Bs = [oracle.random((7, 3 + 2 * i), dtype, i) for i in range(count)]
    return As, Bs


def text(As, Bs, **options):
    return jax.jit(lambda As, Bs: vb.batched_matmul(As, Bs, **options)).lower(As, Bs).as_text()


def counts(program):
    return program.count("custom_call @vbgemm_v2"), program.count("stablehlo.dot_general")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_call_and_no_dot(dtype):
    assert counts(text(*pairs(dtype))) == (1, 0)
    assert counts(text(*pairs(dtype), implementation="kernel")) == (1, 0)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a rule of CPUs")
def test_outer_products_alone_are_left_to_xla():
    outer = [jnp.ones((5, 1)), jnp.ones((300, 1))], [jnp.ones((1, 3)), jnp.ones((1, 700))]
    assert counts(text(*outer)) == (0, 2)
    assert counts(text(*outer, implementation="kernel")) == counts(text(*outer, planner="uniform")) == (1, 0)
    assert counts(text([*outer[0], jnp.ones((2, 2))], [*outer[1], jnp.ones((2, 2))])) == (1, 0)  # stays one operation
    assert counts(text(outer[0] * 9, outer[1] * 9)) == (1, 0)  # XLA would compile each by itself


def test_explicit_xla_is_one_dot_a_product():
    assert counts(text(*pairs(), implementation="xla")) == (0, 3)


def test_one_call_a_dtype():
    (A32, B32), (A64, B64) = pairs("float32"), pairs("float64")
    assert counts(text(A32 + A64, B32 + B64)) == (2, 0)


def test_dtypes_without_a_kernel_go_through_xla_or_are_refused():
    As, Bs = [np.ones((2, 3), np.int32)], [np.ones((3, 2), np.int32)]
    assert counts(text(As, Bs)) == (0, 1)
    with pytest.raises(NotImplementedError, match=r"implementation='kernel'.*int32"):
        text(As, Bs, implementation="kernel")


def test_a_dot_algorithm_goes_through_xla():
    preset = jax.lax.DotAlgorithmPreset.F32_F32_F32
    assert counts(text(*pairs(), precision=preset)) == (0, 3)
    with pytest.raises(NotImplementedError, match="dot algorithm"):
        text(*pairs(), precision=preset, implementation="kernel")


def test_empty_products_need_no_call():
    assert counts(text([jnp.ones((0, 3))], [jnp.ones((3, 4))])) == (0, 0)
    assert counts(text([jnp.ones((2, 0))], [jnp.ones((0, 4))])) == (0, 0)


def test_descriptors_are_a_constant_of_the_program():
    program = text(*pairs())
    (call,) = re.findall(r"custom_call @vbgemm_v2\(([^)]*)\)", program)
    first = call.split(",")[0].strip()
    assert re.search(re.escape(first) + r" = stablehlo\.constant dense<", program)


def test_default_matmul_precision_counts():
    As, Bs = pairs()
    with jax.default_matmul_precision("F32_F32_F32"):
        assert counts(text(As, Bs)) == (0, 3)


def exported(function, args, platforms):
    return export.export(jax.jit(function), platforms=platforms, disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*args)


@pytest.mark.parametrize("platforms", [["cpu"], ["cuda"], ["rocm"], ["cpu", "cuda", "rocm"], ["cpu", "tpu"]])
def test_export_lowers_for_platforms_that_are_not_here(platforms):
    module = exported(vb.batched_matmul, pairs(), platforms).mlir_module()
    assert module.count("custom_call @vbgemm_v2") == sum(platform != "tpu" for platform in platforms)


def test_export_round_trip():
    As, Bs = pairs()
    blob = exported(vb.batched_matmul, (As, Bs), ["cpu", "cuda", "rocm"]).serialize()
    if jax.default_backend() in ("cpu", "gpu"):
        oracle.check(export.deserialize(blob).call(As, Bs), As, Bs)


def test_symbolic_shapes_go_through_xla():
    (size,) = export.symbolic_shape("b")
    args = [jax.ShapeDtypeStruct((size, 3), jnp.float32)], [jax.ShapeDtypeStruct((3, 4), jnp.float32)]
    program = exported(vb.batched_matmul, args, [backends.platform_of(jax.devices()[0])])
    assert counts(program.mlir_module()) == (0, 1)
    (c,) = program.call([jnp.ones((5, 3), jnp.float32)], [jnp.ones((3, 4), jnp.float32)])
    assert c.shape == (5, 4)
    with pytest.raises(NotImplementedError, match="kernels need static shapes"):
        exported(lambda As, Bs: vb.batched_matmul(As, Bs, implementation="kernel"), args, ["cpu"])


@pytest.mark.parametrize("in_axes", [(0, None), (0, 0)])
def test_a_symbolic_vmap_goes_through_xla(in_axes):
    """The call inside the vmap has static shapes; only the mapped axis is symbolic."""
    (size,) = export.symbolic_shape("b")
    a, b = (2, 3), (3, 4)
    args = [
        jax.ShapeDtypeStruct((size, *a), "float32"),
        jax.ShapeDtypeStruct((size, *b) if in_axes[1] == 0 else b, "float32"),
    ]
    function = jax.vmap(lambda a, b: vb.batched_gemm([a], [b], alpha=2.0)[0], in_axes)
    program = exported(function, args, [backends.platform_of(jax.devices()[0])])
    given = [jnp.ones((5, *a), "float32"), jnp.ones((5, *b) if in_axes[1] == 0 else b, "float32")]
    np.testing.assert_array_equal(program.call(*given), np.full((5, 2, 4), 6))


def planned_tiles(platform, device):
    """The number of tiles in the program of a call whose plan aims at as many blocks as the device has units."""
    args = [jnp.ones((128, 64), jnp.float32)] * 30, [jnp.ones((64, 128), jnp.float32)] * 30
    with vb.target(device) if device else contextlib.nullcontext():
        module = exported(
            lambda As, Bs: vb.batched_matmul(As, Bs, planner="sort_split"), args, [platform]
        ).mlir_module()
    return int(re.search(r"num_tiles = (\d+)", module).group(1))


@pytest.mark.parametrize(
    ("platform", "default", "other"),
    slow_except([("cuda", "h100", "a100"), ("rocm", "mi210", "mi300x")], [("rocm", "mi210", "mi300x")]),
)
def test_target_chooses_the_device_that_is_planned_for(platform, default, other):
    assert planned_tiles(platform, default) != planned_tiles(platform, other)
    if not backends.BACKENDS[platform].live_devices():
        assert planned_tiles(platform, None) == planned_tiles(platform, default)
    assert planned_tiles(platform, "cpu") == planned_tiles(platform, None)  # a target for another platform


@pytest.mark.parametrize(
    ("device", "precision", "kind"),
    [("mi210", "default", "float32"), ("mi300x", "default", "tf32"), ("mi300x", "high", "float32")],
)
def test_precision_on_amd(device, precision, kind):
    with vb.target(device):
        module = exported(
            lambda As, Bs: vb.batched_matmul(As, Bs, precision=precision), pairs(), ["rocm"]
        ).mlir_module()
    assert int(re.search(r"kind = (\d+)", module).group(1)) == KINDS.index(kind)


@pytest.mark.parametrize(
    ("platform", "most"), slow_except([("cuda", 1008), ("rocm", 240), ("cpu", 10**9)], [("rocm", 240)])
)
def test_a_workspace_where_a_launch_cannot_hold_the_buffers(platform, most):
    for count in (240 // 3, 240 // 3 + 1, 1008 // 3, 1008 // 3 + 1):
        args = [jnp.ones((2, 3), jnp.float32)] * count, [jnp.ones((3, 2), jnp.float32)] * count
        module = exported(vb.batched_matmul, args, [platform]).mlir_module()
        (results,) = re.findall(r"custom_call @vbgemm_v2.*-> (?:\()?(.*?)\)?$", module, re.MULTILINE)
        buffers = 3 * count
        assert results.count("tensor<") == count + (buffers > most)
        assert (f"tensor<{4 * buffers}xi32>" in results) == (buffers > most)


def test_target_leaves_other_platforms_alone():
    As, Bs = pairs()
    f = jax.jit(vb.batched_matmul)
    expected = f(As, Bs)
    with vb.target("a100"):
        for c, e in zip(f(As, Bs), expected, strict=True):
            np.testing.assert_array_equal(c, e)
    with pytest.raises(ValueError, match="a1000"):
        vb.target("a1000")


def test_a_missing_backend_is_named():
    for name, backend in backends.BACKENDS.items():
        assert (backend.module is None) == bool(backend.absent)
        if backend.module is None:
            assert name not in vb.available_backends()


def test_plan_is_what_the_call_uses():
    """The tiles in the call's descriptors are those that vb.plan prints."""
    As, Bs = pairs()
    plan = vb.plan([(5 + i, 3 + 2 * i, 7) for i in range(3)])
    tiles = re.search(r"num_tiles = (\d+)", text(As, Bs)).group(1)
    assert int(tiles) == plan.num_tiles


def test_users_own_planner():
    seen = []

    def mine(problems, device, catalogue):
        seen.append((len(problems), device.name))
        return vb.Uniform(tile="small")(problems, device, catalogue)

    As, Bs = pairs()
    oracle.check(vb.batched_matmul(As, Bs, planner=mine), As, Bs)
    assert seen == [(3, vb.plan([(1, 1, 1)]).device.name)]


def test_a_planner_that_leaves_a_hole_is_refused():
    def holey(problems, device, catalogue):
        tile = catalogue.find("small")
        blocks = [[vb.Tile(0, 0, 0, 0, 0, problems[0].k, "small")]]
        assert problems[0].m <= tile.m
        return vb.Plan.from_blocks(problems, device, catalogue, planner="holey", blocks=blocks)

    As, Bs = pairs()
    with pytest.raises(ValueError, match=r"problem.*1"):
        vb.batched_matmul(As, Bs, planner=holey)


def test_a_plan_that_splits_k():
    def split(problems, device, catalogue):
        k = problems[0].k
        blocks = [[vb.Tile(0, 0, 0, 0, 0, 2, "small")], [vb.Tile(0, 0, 0, 0, 2, k, "small")]]
        return vb.Plan.from_blocks(problems, device, catalogue, planner="split", blocks=blocks)

    As, Bs = pairs(count=1)
    oracle.check(vb.batched_matmul(As, Bs, planner=split, precision="highest"), As, Bs)


@pytest.mark.parametrize("wrong", [lambda *_: None, lambda p, d, c: vb.Uniform()(p[:1], d, c)])
def test_a_planner_that_returns_something_else_is_refused(wrong):
    with pytest.raises((TypeError, ValueError), match="planner"):
        vb.batched_matmul(*pairs(), planner=wrong)
