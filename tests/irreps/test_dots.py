"""`LinearMap` as dots of XLA: where it is left to them, and the same results."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.irreps import linear_map
from jax_vbgemm._src.matmul.primitive import batched_matmul_p
from jax_vbgemm.irreps import LinearMap

IRREPS = "128x0e+64x1o+32x2e"


def calls(rows, device, **options):
    linear = LinearMap(IRREPS, IRREPS)
    with vb.target(device):
        program = jax.make_jaxpr(lambda w, x: linear(w, x, **options))(
            jnp.ones(linear.num_weights, jnp.float32), jnp.ones((rows, linear.dim_in), jnp.float32)
        )
    return [eqn.primitive for eqn in program.eqns].count(batched_matmul_p)


@pytest.mark.parametrize(
    ("rows", "device", "options", "expected"),
    [
        (100, "h100", {}, 1),  # the launches of dots take longest
        (20_000, "h100", {}, 0),
        (20_000, "h100", {"implementation": "kernel"}, 1),
        (20_000, "h100", {"planner": "uniform"}, 1),
        (20_000, "h100", {"precision": "high"}, 1),  # more accurate than XLA's
        (20_000, "h100", {"precision": ["highest", "highest"]}, 0),
        (20_000, "cpu", {}, 1),
    ],
)
def test_maps_of_many_rows_are_left_to_dots_on_a_gpu(rows, device, options, expected):
    assert calls(rows, device, **options) == expected


def test_an_unknown_precision_is_named():
    with pytest.raises(ValueError, match="LinearMap: precision: unknown name 'nonsense'"):
        calls(20_000, "h100", precision="nonsense")


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_same_results(layout, dtype, monkeypatch):
    """With biases, several paths to an irrep, an irrep without a path, and features in one array and in a list."""
    linear = LinearMap("3x0e+2x1o+4x0e", "5x0e+3x1o+2x3o", biases=True, layout=layout)
    weights = [oracle.random(path.shape, dtype, i) for i, path in enumerate(linear.paths)]
    x = oracle.random((2, 3, linear.dim_in), dtype, 9)
    shapes = [(of.mul, of.irrep_dim) if layout == "mul_ir" else (of.irrep_dim, of.mul) for of in linear.irreps_in]
    parts = jnp.split(x, np.cumsum([of.dim for of in linear.irreps_in])[:-1].tolist(), axis=-1)
    parts = [part.reshape(2, 3, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def both(weights, x, parts):
        flat = jnp.concatenate([w.reshape(-1) for w in weights])
        return (
            linear(weights, x),
            linear(flat, x),
            linear(weights, parts),
            jax.grad(lambda x: linear(weights, x).sum())(x),
        )

    expected = jax.jit(both)(weights, x, parts)
    monkeypatch.setattr(linear_map, "left_to_xla", lambda *_, **__: True)
    found = jax.jit(lambda *given: both(*given))(weights, x, parts)
    assert "custom_call" not in jax.jit(lambda *given: both(*given)).lower(weights, x, parts).as_text()
    tolerance = 1e-12 if dtype == "float64" else 2e-2
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert f.dtype == e.dtype
        np.testing.assert_allclose(oracle.wide(f), oracle.wide(e), rtol=tolerance, atol=tolerance)


def test_no_rows(monkeypatch):
    monkeypatch.setattr(linear_map, "left_to_xla", lambda *_, **__: True)
    linear = LinearMap("3x0e+0x1o", "2x0e+1x1o")
    assert linear(jnp.ones(linear.num_weights), jnp.ones((0, 3))).shape == (0, 5)
