"""What computes a ragged product, and why: chosen for devices that need not be there."""

import jax
import jax.numpy as jnp
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import Epilogue
from jax_vbgemm._src.ragged.choice import FactorDtypes, LoweredProgram, choose
from jax_vbgemm._src.ragged.primitive import CALL, OPERANDS, REQUIRED, Ragged, sizes_of

M, K, N, G = 64, 32, 16, 4
SCALED_ROWS = Epilogue(row_scale="row_scale")
OPTIONS = {
    "gates": {"epilogue": Epilogue(gated=True, activation="silu")},
    "row_scale": {"epilogue": SCALED_ROWS},
    "gather": {"extras": ("gather",)},
}
LAYOUT = "has no pipelined kernel of this arithmetic and layout"
LINES = "the lines of operands and results are no multiples of 8 elements"


def chosen(device, platform, dtype=jnp.bfloat16, k=K, **options):
    ragged = Ragged(jnp.dtype(dtype), G, **options)
    columns = 2 * N if ragged.epilogue.gated else N
    of = {"lhs": (M, k), "rhs": (G, k, columns), "group_sizes": (G,), "row_scale": (M,), "gather": (M,)}
    with vb.target(device):
        # The programs of this test run elsewhere, for a device that is named.
        return choose(
            LoweredProgram(platform, exported=True),
            FactorDtypes(jnp.dtype(dtype), jnp.dtype(dtype)),
            [of[name] for name in ragged.names],
            ragged,
        )


@pytest.mark.parametrize("part", OPTIONS)
def test_the_pipelined_kernel_has_all_parts(part):
    choice = chosen("h100", "cuda", **OPTIONS[part])
    assert (choice.parts, choice.why) == ({}, None)
    assert choice.plan.only_pipelined


@pytest.mark.parametrize("part", OPTIONS)
@pytest.mark.parametrize(("device", "k", "why"), [("a100", K, LAYOUT), ("h100", K + 2, LINES)])
def test_xla_has_the_parts_that_tiles_lack(device, k, why, part):
    choice = chosen(device, "cuda", k=k, **OPTIONS[part])
    assert list(choice.parts) == [part]
    assert why in choice.parts[part]
    assert choice.why is None
    assert choice.plan.tile >= 0
    assert (choice.product.extras, choice.product.epilogue) == ((), Epilogue())
    assert choice.product.out_dtype == (jnp.float32 if part == "row_scale" else jnp.bfloat16)


def test_parts_are_taken_over_in_order():
    choice = chosen(
        "a100", "cuda", epilogue=Epilogue(activation="gelu", gated=True, row_scale="row_scale"), extras=("gather",)
    )
    assert list(choice.parts) == ["gather", "gates"]  # the form without gates scales the rows, too


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="on the CPU's own kernel")
def test_the_kernel_of_cpus_scales_rows_and_does_not_gather():
    choice = chosen("cpu", "cpu", jnp.float32, epilogue=SCALED_ROWS, extras=("gather",))
    assert choice.parts == {"gather": "the CPU's kernel does not"}
    assert (choice.product.extras, choice.product.epilogue) == ((), SCALED_ROWS)
    assert (choice.why, choice.plan) == (None, None)


def test_xla_is_chosen_with_a_reason():
    choice = chosen("h100", "cuda", jnp.bfloat16, implementation="xla", epilogue=SCALED_ROWS)
    assert (choice.parts, choice.why) == ({}, "XLA was asked for")
    with pytest.raises(NotImplementedError, match="implementation='kernel', but there is no kernel for int32"):
        chosen("h100", "cuda", jnp.int32, implementation="kernel")


def test_the_operands_of_a_call_and_their_shapes():
    assert REQUIRED == ("lhs", "rhs", "group_sizes")
    assert set(OPERANDS) - set(CALL) == {"slots"}
    ragged = Ragged(jnp.float32, G, transpose_rhs=True, epilogue=SCALED_ROWS, extras=("gather",))
    sizes = sizes_of([(3, 9, K), (G, N, K), (2, 1, G), (M,), (M,)], ragged)
    assert (sizes.batch, sizes.m, sizes.lhs_rows, sizes.columns, sizes.result(ragged)) == (
        (2, 3),
        M,
        9,
        N,
        (2, 3, M, N),
    )
    with pytest.raises(ValueError, match=r"\(63,\) must end in \(64,\)"):
        sizes_of([(9, K), (G, N, K), (G,), (M - 1,), (M,)], ragged)
