"""float32 at JAX's precisions: the plan on every device, and the error on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.matmul.precision import precision_name

SIZES = [(100, 64, 512), (33, 17, 1000), (256, 256, 300), (1, 5, 4096)]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (None, "default"), ("fastest", "default"), ("bfloat16", "default"), ("high", "high"), ("tensorfloat32", "high"),
        ("float32", "highest"), (jax.lax.Precision.HIGHEST, "highest"), (("default", "high"), "high"),
        (jax.lax.DotAlgorithmPreset.F32_F32_F32, "highest"),
    ],
)  # fmt: skip
def test_names_of_precisions(given, name):
    assert precision_name(given) == name


def test_an_unknown_precision_names_the_option():
    with pytest.raises(ValueError, match="precision: unknown name 'foo'"):
        vb.plan([(8, 8, 8)], device="h100", precision="foo")
    with pytest.raises(ValueError, match="unknown name 'tf32'; 'default' is TF32 on a GPU"):
        vb.batched_matmul([jnp.ones((2, 2))], [jnp.ones((2, 2))], precision="tf32")


def test_a_plan_says_how_products_are_formed():
    def kind(**options):
        return vb.plan([(64, 64, 64)], device="h100", **options).kind

    with jax.default_matmul_precision("default"):
        assert [kind(), kind(precision="high"), kind(precision="highest")] == ["tf32", "tf32x3", "float32"]
    with jax.default_matmul_precision("high"):
        assert kind() == "tf32x3"
    assert kind(dtype="bfloat16", precision="high") == "bfloat16"
    assert vb.plan([(64, 64, 64)], device="cpu", precision="default").kind == "float32"


def worst_error(precision, planner):
    As = [oracle.random((m, k), "float32", i) for i, (m, _, k) in enumerate(SIZES)]
    Bs = [oracle.random((k, n), "float32", 9 + i) for i, (_, n, k) in enumerate(SIZES)]
    Cs = jax.jit(lambda a, b: vb.batched_matmul(a, b, precision=precision, planner=planner))(As, Bs)
    truth = [oracle.matmul(a, b)[0] for a, b in zip(As, Bs, strict=True)]
    return max(np.abs(oracle.wide(c) - t).max() / np.abs(t).max() for c, t in zip(Cs, truth, strict=True))


TENSOR_TILES = [vb.Uniform(tile=tile.key) for tile in vb.plan([(1, 1, 1)], device="h100", precision="high").catalogue
                if tile.tensor]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("planner", ["auto", *TENSOR_TILES], ids=str)
def test_errors_of_the_precisions(planner):
    exact = worst_error("highest", "auto")
    assert exact < 2e-6
    assert worst_error("high", planner) < 2 * exact + 1e-6
    assert worst_error("default", planner) < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "planner"),
    [("high", "auto"), *(("high", tile) for tile in TENSOR_TILES[:2]), ("highest", "auto"), ("highest", "uniform")],
    ids=str,
)
def test_infinities_and_nans_are_those_of_float32(precision, planner):
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (40, 64)).astype(np.float32), rng.uniform(-1, 1, (64, 48)).astype(np.float32)
    a[3, 5], a[7, 9], b[11, 2], b[5, 4], a[20, 1] = np.inf, np.nan, -np.inf, 0.0, 3e38
    with np.errstate(invalid="ignore", over="ignore"):
        truth = a @ b
    f = jax.jit(lambda a, b: vb.batched_matmul([a], [b], precision=precision, planner=planner))
    (c,) = f(jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_array_equal(np.isnan(c), np.isnan(truth))
    np.testing.assert_array_equal(np.isinf(c), np.isinf(truth))
