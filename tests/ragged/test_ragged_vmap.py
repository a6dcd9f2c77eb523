"""vmap of vb.ragged_dot: any subset of operands, any axis, any depth, and of derivatives."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.ragged import composed
from jax_vbgemm._src.ragged.primitive import Ragged

B, M, K, N, G = 3, 11, 4, 5, 3
SHAPES = {"lhs": (M, K), "rhs": (G, K, N), "group_sizes": (G,), "bias": (G, N), "row_scale": (M,), "group_offset": ()}


def operand(name: str, batch: tuple[int, ...], axis: int) -> jax.Array:
    shape = (*batch, *SHAPES[name])
    rng = np.random.default_rng([len(name), *shape])
    if name == "group_sizes":
        x = jnp.asarray(rng.integers(-1, 6, shape))
    elif name == "group_offset":
        x = jnp.asarray(rng.integers(-1, 2, shape))
    else:
        x = oracle.random(shape, "float64", len(name))
    return jnp.moveaxis(x, 0, axis) if batch else x


def call(x: dict[str, Any], **options: Any) -> jax.Array:
    return vb.ragged_dot(**x, activation="silu" if "bias" in x else None, **options)


def one_by_one(f: Any, x: dict[str, Any], axes: dict[str, Any]) -> Any:
    """The definition of vmap: a loop over the mapped axis."""

    def entry(i: int) -> dict[str, Any]:
        return {name: v if axes[name] is None else jnp.take(v, i, axes[name]) for name, v in x.items()}

    compiled = jax.jit(f)
    return jax.tree.map(lambda *rows: jnp.stack(rows), *(compiled(entry(i)) for i in range(B)))


def assert_same(x: Any, y: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11), x, y)


SUBSETS = [s for count in (1, 2, 3) for s in itertools.combinations(("lhs", "rhs", "group_sizes"), count)]
MAPPED = [pytest.param(s, marks=pytest.mark.slow if len(s) == 2 else ()) for s in SUBSETS]


@pytest.mark.parametrize("implementation", slow_except([None, "xla"], [None]))
@pytest.mark.parametrize("mapped", MAPPED, ids="-".join)
def test_any_subset_at_any_axis(mapped, implementation):
    for shift in (0, 2):
        axes = {
            name: (min(shift, len(SHAPES[name])) if name in mapped else None) for name in ("lhs", "rhs", "group_sizes")
        }
        x = {name: operand(name, (B,) if name in mapped else (), axis or 0) for name, axis in axes.items()}

        def f(x: Any) -> Any:
            return call(x, implementation=implementation)

        assert_same(jax.jit(jax.vmap(f, in_axes=(axes,)))(x), one_by_one(f, x, axes))


@pytest.mark.parametrize("mapped", [("bias",), ("row_scale", "rhs"), ("group_offset",), tuple(SHAPES)], ids="-".join)
def test_subsets_of_the_epilogue(mapped):
    axes = {name: 0 if name in mapped else None for name in SHAPES}
    x = {name: operand(name, (B,) if name in mapped else (), 0) for name in SHAPES}
    assert_same(jax.jit(jax.vmap(call, in_axes=(axes,)))(x), one_by_one(call, x, axes))


@pytest.mark.parametrize("implementation", [None, "xla"])
def test_nested_maps_over_different_operands(implementation):
    """Three levels with different mapped operands: rhs does not repeat from entry to entry."""
    lhs = oracle.random((2, M, K), "float64")
    rhs = oracle.random((3, G, K, N), "float64", 1)
    sizes = jnp.array([[3, 4, 2], [0, 11, 0]])

    def f(lhs: Any, rhs: Any, sizes: Any) -> Any:
        return vb.ragged_dot(lhs, rhs, sizes, implementation=implementation)

    mapped = f
    for axes in ((0, None, None), (None, 0, None), (None, None, 0)):
        mapped = jax.vmap(mapped, in_axes=axes)
    result, alone = np.asarray(jax.jit(mapped)(lhs, rhs, sizes)), jax.jit(f)
    assert result.shape == (2, 3, 2, M, N)
    for s, w, x in itertools.product(range(2), range(3), range(2)):
        assert_same(result[s, w, x], alone(lhs[x], rhs[w], sizes[s]))


@pytest.mark.parametrize("mapped", SUBSETS, ids="-".join)
def test_gradients_of_a_map_and_maps_of_a_gradient(mapped):
    axes = {name: 0 if name in mapped else None for name in ("lhs", "rhs", "group_sizes")}
    x = {name: operand(name, (B,) if name in mapped else (), 0) for name in axes}
    sizes = x.pop("group_sizes")
    float_axes = {name: axes[name] for name in x}

    def loss(x: Any, sizes: Any) -> Any:
        return jnp.sum(jnp.sin(vb.ragged_dot(**x, group_sizes=sizes)))

    def looped_loss(x: Any, sizes: Any) -> Any:
        entries = one_by_one(lambda e: loss({k: e[k] for k in x}, e["group_sizes"]), {**x, "group_sizes": sizes}, axes)
        return jnp.sum(entries)

    mapped_loss = jax.vmap(loss, in_axes=(float_axes, axes["group_sizes"]))
    of_map = jax.jit(jax.grad(lambda x: mapped_loss(x, sizes).sum()))
    assert_same(of_map(x), jax.jit(jax.grad(looped_loss))(x, sizes))
    per_entry = jax.jit(jax.vmap(jax.grad(loss), in_axes=(float_axes, axes["group_sizes"])))(x, sizes)
    truth = one_by_one(
        lambda e: jax.grad(loss)({k: e[k] for k in x}, e["group_sizes"]), {**x, "group_sizes": sizes}, axes
    )
    assert_same(per_entry, truth)


def test_map_of_a_hessian():
    lhs, rhs = operand("lhs", (B,), 0), operand("rhs", (), 0)
    sizes = operand("group_sizes", (B,), 0)

    def f(lhs: Any, sizes: Any) -> Any:
        return jnp.sum(jnp.sin(vb.ragged_dot(lhs, rhs, sizes)))

    mapped = jax.jit(jax.vmap(jax.hessian(f)))(lhs, sizes)
    alone = jax.jit(jax.hessian(f))
    for i in range(B):
        assert_same(mapped[i], alone(lhs[i], sizes[i]))


@pytest.mark.parametrize("gated", [False, True])
def test_a_composed_scale_of_batches(gated):
    """The form for kernels without a row scale, with a batch of rhs alone. The last row has no group."""
    lhs, rhs = oracle.random((6, 4), "float32", 1), oracle.random((3, 2, 4, 10), "float32", 2)
    sizes, scale = jnp.array([2, 3]), jnp.array([1, -2, 3, 0.5, 2, jnp.nan], "float32")
    options = {"activation": "silu", "gated": gated}
    ragged = Ragged(jnp.float32, 2, epilogue=Epilogue(row_scale="row_scale", **options))
    got = (composed.gated if gated else composed.scaled)(lhs, rhs, sizes, scale, ragged=ragged)
    for i in range(3):
        expected = vb.ragged_dot(lhs, rhs[i], sizes, row_scale=scale, implementation="xla", **options)
        np.testing.assert_allclose(got[i], expected, rtol=1e-5, atol=1e-5)


def test_no_groups_and_a_row_scale():
    out = vb.ragged_dot(jnp.ones((6, 4)), jnp.ones((0, 4, 3)), jnp.zeros(0, int), row_scale=jnp.ones(6))
    np.testing.assert_array_equal(out, jnp.zeros((6, 3)))
