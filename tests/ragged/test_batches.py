"""A batch of ragged products as one product, as kernels receive it."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.ragged.batches import as_one, operands_as_one
from jax_vbgemm._src.ragged.primitive import SCALED, Ragged, sizes_of

M, K, N, G = 12, 16, 24, 3
BATCHES = {
    "all mapped": {"lhs": (2,), "rhs": (2,), "group_sizes": (2,)},
    "one rhs": {"lhs": (2,), "rhs": (), "group_sizes": (2,)},
    "one lhs": {"lhs": (1, 1), "rhs": (2,), "group_sizes": (1,)},
    "rhs of the inner dimension": {"lhs": (3, 2), "rhs": (2,), "group_sizes": (3, 1)},
    "rhs of the outer dimension": {"lhs": (2,), "rhs": (3, 1), "group_sizes": (2,)},
}
SHAPES = {"lhs": (M, K), "rhs": (G, K, N), "group_sizes": (G,), "gather": (M + 1,), "group_offset": ()}


def operands(batches: dict[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    rng = np.random.default_rng(5)
    bounds = {"group_sizes": (-1, 7), "gather": (-2, M + 2), "group_offset": (-1, 2)}
    return {
        name: jnp.asarray(rng.integers(*bounds[name], (*batch, *SHAPES[name])), "int32")
        if name in bounds
        else oracle.random((*batch, *SHAPES[name]), "float32", len(name))
        for name, batch in batches.items()
    }


def whole(x: dict[str, jax.Array], ragged: Ragged) -> tuple[dict[str, np.ndarray], int]:
    """The operands as one product, of whose sizes the plan is made, and the number of entries."""
    sizes = sizes_of([v.shape for v in x.values()], ragged)
    one = {name: np.asarray(v) for name, v in operands_as_one(x, sizes, ragged).items()}
    entries = int(np.prod(sizes.batch))
    assert one["group_sizes"].shape == (as_one(sizes).total_groups,)
    assert one["group_sizes"].min() >= 0
    np.testing.assert_array_equal(one["group_sizes"].reshape(entries, -1).sum(1), sizes.m)
    return one, entries


def matrices_of_rows(one: dict[str, np.ndarray], entries: int) -> np.ndarray:
    """The matrix of each row; -1 if it has none (csrc/ragged_call.h)."""
    each = len(one["group_sizes"]) // entries
    matrices = np.arange(entries * (each - 2)).reshape(entries, -1)
    return np.repeat(np.pad(matrices, ((0, 0), (1, 1)), constant_values=-1).reshape(-1), one["group_sizes"])


def one_by_one(x: dict[str, jax.Array]) -> np.ndarray:
    """The definition: a product for each entry."""
    batch = np.broadcast_shapes(*(v.shape[: v.ndim - len(SHAPES[name])] for name, v in x.items()))
    full = {name: np.broadcast_to(v, (*batch, *v.shape[v.ndim - len(SHAPES[name]) :])) for name, v in x.items()}
    entries = [vb.ragged_dot(**{n: v[i] for n, v in full.items()}, implementation="xla") for i in np.ndindex(*batch)]
    return np.stack(entries).reshape(*batch, *entries[0].shape)


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_rows(batch, gathers):
    x = operands({**BATCHES[batch], **({"gather": (2,)} if gathers else {}), "group_offset": ()})
    extras = (*(["gather"] if gathers else []), "group_offset")
    one, entries = whole(x, Ragged(jnp.float32, G, extras=extras))
    matrices = matrices_of_rows(one, entries)
    rows = one["gather"] if gathers else np.arange(len(matrices)) % len(one["lhs"])
    got = np.einsum("mk,mkn->mn", one["lhs"][rows], one["rhs"][matrices % len(one["rhs"])])
    got[matrices < 0] = 0
    gather = jnp.clip(x.pop("gather"), 0, M - 1) if gathers else None
    expected = one_by_one(x if gather is None else {**x, "gather": gather})
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("blocks", [1, 2])
def test_contraction_with_scales(blocks):
    """The rows of both factors, and the blocks of them, are the last dimension, and sizes are rounded up."""
    b, m = 3, 2 * SCALED
    lhs, rhs = (np.asarray(oracle.random((b, size, m), "float32", size)) for size in (K, N))
    scales = [jnp.asarray(np.random.default_rng(i).uniform(1, 2, (b, 1, blocks)), "float32") for i in range(2)]
    x = {
        "lhs": jnp.asarray(lhs),
        "rhs": jnp.asarray(rhs),
        "group_sizes": jnp.array([[5, 0, 100], [0, 0, 200], [128, 1, 7]], "int32"),
    }
    x |= dict(zip(("lhs_scale", "rhs_scale"), scales, strict=True))
    one, entries = whole(
        x, Ragged(jnp.float32, G, contraction=True, transpose_rhs=True, extras=("lhs_scale", "rhs_scale"))
    )
    matrices = matrices_of_rows(one, entries)
    got = np.zeros((b * G, K, N))
    for row, matrix in enumerate(matrices):
        scale = one["lhs_scale"][0, row // SCALED] * one["rhs_scale"][0, row // SCALED]
        if matrix >= 0:
            got[matrix] += scale * np.outer(one["lhs"][:, row], one["rhs"][:, row])
    for i in range(b):
        end = np.minimum(np.cumsum(-(-np.asarray(x["group_sizes"][i]) // SCALED) * SCALED), m)
        for g, (first, last) in enumerate(zip([0, *end[:-1]], end, strict=True)):
            scale = np.repeat(np.asarray(scales[0] * scales[1])[i, 0], m // blocks)[first:last]
            expected = (lhs[i, :, first:last] * scale) @ rhs[i, :, first:last].T
            np.testing.assert_allclose(got[i * G + g], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shared", ["lhs", "rhs"])
def test_a_batch_is_one_call_that_copies_neither_factor(shared):
    axes = [None if name == shared else 0 for name in ("lhs", "rhs")]
    shapes = [(64, 16), (4, 16, 8)]
    given = [
        jax.ShapeDtypeStruct(s if ax is None else (5, *s), jnp.bfloat16) for s, ax in zip(shapes, axes, strict=True)
    ]
    mapped = jax.jit(jax.vmap(vb.ragged_dot, in_axes=(*axes, 0)))
    with vb.target("h100"):
        program = export.export(mapped, platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            *given, jax.ShapeDtypeStruct((5, 4), jnp.int32)
        )
    text = str(program.mlir_module())
    (call,) = re.findall(rf"custom_call @{backends.RAGGED_TARGET_NAME}\(.*", text)
    assert "entries = 5" in call
    rows, matrices = (64 if shared == "lhs" else 320), (4 if shared == "rhs" else 20)
    assert f"(tensor<{rows}x16xbf16>, tensor<{matrices}x16x8xbf16>, tensor<30xi32>" in call
    assert "tensor<320x8xbf16>" in call


@pytest.mark.parametrize("mapped", ["rhs", "second"])
def test_both_halves_of_weights_have_equally_many_matrices(mapped):
    batches = {name: (3,) if name == mapped else () for name in ("rhs", "second")}
    x = operands({"lhs": (), "rhs": batches["rhs"], "group_sizes": ()})
    x["second"] = oracle.random((*batches["second"], *SHAPES["rhs"]), "float32", 9)
    ragged = Ragged(jnp.float32, G, halves="columns", extras=("second",))
    one, _ = whole(x, ragged)
    for name in ("rhs", "second"):
        np.testing.assert_array_equal(
            one[name].reshape(3, *SHAPES["rhs"]), np.broadcast_to(x[name], (3, *SHAPES["rhs"]))
        )


def test_matrices_of_an_outer_dimension_are_not_copied():
    """For each of the inner dimension's entries, which then are the outer ones; the results are in their places."""
    mapped = jax.vmap(jax.vmap(vb.ragged_dot, (0, None, 0)), (0, 0, 0))
    x = operands({"lhs": (3, 2), "rhs": (3,), "group_sizes": (3, 2)})
    x["lhs"] = x["lhs"][..., :2, :]  # fewer elements than the matrices have
    expected = one_by_one({**x, "rhs": x["rhs"][:, None]})
    np.testing.assert_allclose(jax.jit(mapped)(*x.values()), expected, rtol=1e-5, atol=1e-5)
    with vb.target("h100"):
        program = export.export(jax.jit(mapped), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(
            *x.values()
        )
    assert f"(tensor<12x{K}xf32>, tensor<{3 * G}x{K}x{N}xf32>" in str(program.mlir_module())
