"""`ragged_dot` with a pair of arrays in place of rhs: one product, which equals that of both side by side."""

import re
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import export

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.ragged.primitive import HALVES, OPERANDS

M, K, N, GROUPS = 11, 5, 3, 4
SIZES = jnp.array([3, 0, 6, 1])
LHS, FIRST, SECOND = (oracle.random(shape, "float64", i) for i, shape in enumerate([(M, K), *[(GROUPS, K, N)] * 2]))
BIAS, SCALE = oracle.random((GROUPS, 2 * N), "float64", 5), oracle.random((M,), "float64", 6)


def in_pair(lhs, first, second, *, transposed=False, **options):
    rhs = (first.mT, second.mT) if transposed else (first, second)
    return vb.ragged_dot(lhs, rhs, SIZES, transpose_rhs=transposed, **options)


def side_by_side(lhs, first, second, *, transposed=False, **options):
    del transposed
    return vb.ragged_dot(lhs, jnp.concatenate([first, second], 2), SIZES, **options)


OPTIONS = {
    "plain": {},
    "epilogue": {"bias": BIAS, "activation": "silu", "row_scale": SCALE},
    "gated": {"gated": True, "bias": BIAS, "activation": "gelu", "row_scale": SCALE},
    "window": {"group_offset": 1},
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_values_and_derivatives_are_those_of_both_side_by_side(options, transposed):
    def results(product):
        def loss(*operands):
            return jnp.sum(jnp.sin(product(*operands, transposed=transposed, **options)))

        def second(*operands):
            return sum(jnp.sum(x**3) for x in jax.grad(loss, (0, 1, 2))(*operands))

        value = partial(product, transposed=transposed, **options)
        return value, jax.grad(loss, (0, 1, 2)), jax.grad(second, (0, 1, 2))

    both = [jax.tree.leaves(jax.jit(lambda *x, fs=fs: [f(*x) for f in fs])(LHS, FIRST, SECOND)) for fs in map(
        results, (in_pair, side_by_side)
    )]  # fmt: skip
    for given, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-11, atol=1e-11)


def test_only_one_of_the_pair_may_move():
    gradient = jax.grad(lambda second: jnp.sum(in_pair(LHS, FIRST, second) ** 2))(SECOND)
    wanted = jax.grad(lambda second: jnp.sum(side_by_side(LHS, FIRST, second) ** 2))(SECOND)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-12)


def test_vmap_over_one_of_the_pair():
    many = jnp.stack([SECOND, 2 * SECOND])
    given = jax.vmap(partial(in_pair, LHS, FIRST))(many)
    np.testing.assert_allclose(given, jnp.stack([side_by_side(LHS, FIRST, x) for x in many]), rtol=1e-12)


def test_matrices_of_groups_without_rows_are_not_read():
    hidden = [x.at[1].set(jnp.nan) for x in (FIRST, SECOND)]
    assert jnp.all(jnp.isfinite(in_pair(LHS, *hidden)))


def calls_of(f, *shapes, gpu="h100"):
    """The halves of each ragged call in a program for a GPU, and the operands of the call that are not empty."""
    with vb.target(gpu):
        program = export.export(jax.jit(f), platforms=["cuda"], disabled_checks=vb.DISABLE_JAX_EXPORT_CHECKS)(*shapes)
    lines = [line for line in program.mlir_module().splitlines() if f"@{backends.RAGGED_TARGET_NAME}(" in line]
    return [HALVES[int(re.findall(r"halves = (\d+)", line)[0])] for line in lines], program.mlir_module()


def shapes_of(n, dtype=jnp.bfloat16):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in ((64, 128), (GROUPS, 128, n), (GROUPS, 128, n))]


def test_a_gpu_copies_neither_weights_nor_cotangents():
    def loss(lhs, first, second):
        return vb.ragged_dot(lhs, (first, second), SIZES, gated=True, activation="silu").astype(jnp.float32).sum()

    forward, _ = calls_of(loss, *shapes_of(64))
    assert forward == ["columns"]
    halves, text = calls_of(jax.grad(loss, (0, 1, 2)), *shapes_of(64))
    assert halves == ["columns", "rhs_first", "rhs_second", "k"]
    assert not re.findall(rf"concatenate.*tensor<{GROUPS}x", text)  # of weights


@pytest.mark.parametrize(("n", "gated", "calls"), [(64, False, 1), (72, False, 2), (72, True, 1)])
def test_halves_that_share_a_box_are_two_products(n, gated, calls):
    options = {"gated": True, "activation": "silu"} if gated else {}
    halves, _ = calls_of(lambda x, a, b: vb.ragged_dot(x, (a, b), SIZES, **options), *shapes_of(n))
    assert len(halves) == calls


def test_an_a100_computes_two_products():
    halves, _ = calls_of(lambda x, a, b: vb.ragged_dot(x, (a, b), SIZES), *shapes_of(64), gpu="a100")
    assert halves == ["none", "none"]


def test_the_second_array_follows_the_required_operands():
    names = list(OPERANDS)
    assert names[: names.index("second")] == ["lhs", "rhs", "group_sizes"]
    assert all(a != b for a, b in pairwise(names))


@pytest.mark.parametrize(
    ("rhs", "options", "message"),
    [
        ((FIRST,), {}, "rhs has 1 arrays: it must be one array or a pair"),
        ((FIRST, SECOND[:, :, :2]), {}, r"rhs\[0\] is float64\(4, 5, 3\) but rhs\[1\] is float64\(4, 5, 2\)"),
        (
            (FIRST, SECOND.astype(jnp.float32)),
            {},
            r"rhs\[1\] is float32\(4, 5, 3\): they must have one shape and dtype",
        ),
        ((FIRST, SECOND), {"bias": BIAS[:, :N]}, r"bias is \(4, 3\) but must be \(g, n\), \(4, 6\)"),
    ],
)
def test_pairs_that_do_not_fit(rhs, options, message):
    with pytest.raises(ValueError, match=message):
        vb.ragged_dot(LHS, rhs, SIZES, **options)


def test_a_pair_has_no_sums_of_gradients():
    with pytest.raises(ValueError, match="rhs_gradient is for one array rhs, but rhs is a pair"):
        vb.ragged_dot(LHS, (FIRST, SECOND), SIZES, rhs_gradient=jax.new_ref(jnp.zeros(FIRST.shape)))
