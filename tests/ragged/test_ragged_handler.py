"""The FFI handler of ragged products: hand-made calls that break a rule get an error that says which."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.ragged.plan import NONE
from jax_vbgemm._src.ragged.primitive import CALL, OPERANDS

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="these calls are those of the CPU")

M, K, N, G = 6, 3, 4, 2
FLOAT32 = np.int64(KINDS.index("float32"))
ZERO = np.int64(0)
NO = np.bool_(False)
SIZES = jnp.array([4, 2], jnp.int32)

CONTRACTION = {"contraction": np.bool_(True), "rhs": jnp.ones((M, N), jnp.float32), "result": ((G, K, N), "float32")}

BATCH = {"entries": np.int64(2), "group_sizes": jnp.array([0, 1, 2, 0, 0, 3, 0, 0], jnp.int32)}


def ragged(result=((M, N), "float32"), **changes):
    types = {
        "lhs": jnp.float32,
        "rhs": jnp.float32,
        "result": jnp.float32,
        "accumulator": jnp.float32,
        "index": jnp.int32,
    }
    given = {"lhs": jnp.ones((M, K), jnp.float32), "rhs": jnp.ones((G, K, N), jnp.float32), "group_sizes": SIZES}
    given |= {name: changes.pop(name) for name in CALL if name in changes}
    operands = [given[name] if name in given else jnp.zeros(0, types[OPERANDS[name].type]) for name in CALL]
    attributes = {
        "kind": FLOAT32, "contraction": NO, "transpose_rhs": NO, "activation": ZERO, "gated": NO, "halves": ZERO,
        "fast_accumulation": NO,
        "undefined_rest": NO,
        "entries": np.int64(1),
        **NONE.attributes(), "catalogue": ZERO,
    } | changes  # fmt: skip
    call = jax.ffi.ffi_call(backends.RAGGED_TARGET_NAME, [jax.ShapeDtypeStruct(*result)])
    return call(*operands, **attributes)[0].block_until_ready()


def int8(k):
    """The factors of a product of int8."""
    return {
        "kind": np.int64(KINDS.index("int8")),
        "lhs": jnp.ones((M, k), jnp.int8),
        "rhs": jnp.ones((G, k, N), jnp.int8),
    }


def test_calls_that_keep_the_rules_are_right():
    np.testing.assert_array_equal(ragged(), np.full((M, N), K))
    np.testing.assert_array_equal(ragged(**BATCH), np.full((M, N), K))


@pytest.mark.parametrize(
    ("sizes", "known"),
    [
        ([0, 6, 0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]),
        ([-1, 2**31 - 1, 5, 0, 9, 0, 0, 0], [1, 1, 1, 0, 0, 0]),
        ([0, 1, 0, 0, 0, 1, 2**31 - 1, 0], [1, 0, 0, 1, 1, 1]),
    ],
)
def test_sizes_of_an_entry_do_not_reach_another(sizes, known):
    """Both entries have the same rows of lhs, which a size beyond its entry would leave."""
    changes = {"lhs": jnp.ones((M // 2, K), jnp.float32), "group_sizes": jnp.array(sizes, jnp.int32)}
    np.testing.assert_array_equal(ragged(**BATCH | changes), np.outer(np.array(known) * K, np.ones(N)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": np.int64(99)}, "arithmetic (kind) 99 does not exist, expected 0 to "),
        ({"kind": np.int64(KINDS.index("float64"))}, "arithmetic float64 does not multiply operands of float32"),
        ({"lhs": jnp.ones((M, K), jnp.int16)}, "no ragged product has kernels for operands of"),
        ({"lhs": jnp.ones((M, K), jnp.int8)}, "arithmetic float32 does not multiply operands of int8"),
        (int8(K) | {"result": ((M, N), "int32")}, "arithmetic int8 gives no results of int32"),
        (int8(K), "the CPU has neither gated nor gathered products nor accumulators nor 8-bit factors"),
        (
            int8(K) | {"lhs_scale": jnp.ones((M, 2), jnp.float32)},
            "a scale must have one block, or one for each 128 K elements",
        ),
        (int8(200) | {"rhs_scale": jnp.ones((G, 2, N), jnp.float32)}, "a scale of a single column must have all of K"),
        ({"result": ((M, N), "float64")}, "arithmetic float32 gives no results of float64"),
        ({"result": ((M, N + 1), "float32")}, "rhs_columns is 4, expected 5"),
        ({"result": ((M + 1, N), "float32")}, "lhs must have m rows, as the call has no gather"),
        (
            {"result": ((N,), "float32")},
            "out is (4): it must have 2 dimensions",
        ),
        ({"result": ((1, M, N), "float32")}, "out is (1, 6, 4): it must have 2 dimensions"),
        ({"activation": np.int64(9)}, "activation 9 does not exist, expected 0 to 5"),
        ({"lhs": jnp.ones((M, 0), jnp.float32)}, "lhs is (6, 0): k must be 1 to 2147479551"),
        ({"entries": ZERO}, "a batch must have at least one entry"),
        ({"entries": np.int64(2)}, "must have equally many rows, and equally many matrices, in each entry"),
        (BATCH | {"group_offset": jnp.array(0, jnp.int32)}, "a batch of 2 entries has no group_offset"),
        (BATCH | {"lhs": jnp.ones((2, K), jnp.float32)}, "must have rows of lhs for some number of entries"),
        (
            BATCH | int8(K) | {"lhs": jnp.ones((M // 2, K), jnp.int8), "lhs_scale": jnp.ones((M // 2, 1), jnp.float32)},
            "must have scaled rows of lhs for each entry",
        ),
        (BATCH | {"rhs": jnp.ones((3, K, N), jnp.float32)}, "must have matrices of rhs for some number of entries"),
        (BATCH | {"bias": jnp.ones((G, N), jnp.float32)}, "groups is 2, expected 4"),
        ({"lhs": jnp.ones((M, K + 1), jnp.float32)}, "rhs_k is 3, expected 4"),
        ({"lhs": jnp.ones(M, jnp.float32)}, "lhs is (6): it must have 2 dimensions"),
        (
            {"rhs": jnp.ones((G + 1, K, N), jnp.float32), "bias": jnp.ones((G, N), jnp.float32)},
            "groups is 2, expected 3",
        ),
        ({"bias": jnp.ones((G, N), jnp.int32)}, "bias must have the result's dtype"),
        ({"rhs": jnp.ones((G, K, N), jnp.int32)}, "rhs must have the dtype that the arithmetic multiplies on its side"),
        ({"gated": np.bool_(True)}, "rhs_columns is 4, expected 8"),
        ({"halves": np.int64(7)}, "halves are 7, which does not exist"),
        ({"halves": np.int64(3)}, "halves of lhs_first are not for this form"),
        ({"second": jnp.ones((G, K, N), jnp.float32)}, "second must be given with halves of columns or of k"),
        ({"halves": np.int64(1)}, "rhs_columns is 4, expected 2"),
        (CONTRACTION | {"halves": np.int64(2)}, "halves of k are not for this form"),
        (CONTRACTION | {"undefined_rest": np.bool_(True)}, "a contraction has no rows without weights"),
        ({"lhs_scale": jnp.ones((M, 1), jnp.float32)}, "lhs_scale is for 8-bit factors"),
        ({"rhs_scale": jnp.ones((G, 1, 1), jnp.float32)}, "rhs_scale is for 8-bit factors and for narrower weights"),
        (
            CONTRACTION
            | {
                "transpose_rhs": np.bool_(True),
                "lhs": jnp.ones((K, M), jnp.float32),
                "rhs": jnp.ones((N, M), jnp.float32),
            },
            "has transpose_rhs for 8-bit factors only",
        ),
        ({"shape": np.int64(4)}, "the plan's shape is 4, which does not exist"),
        ({"shape": np.int64(1)}, "this call was planned for a GPU"),
        ({"lhs": jnp.ones((M - 1, K), jnp.float32)}, "lhs must have m rows"),
        ({"gather": jnp.zeros(M - 1, jnp.int32)}, "gather is (5): m is 6 elsewhere"),
        ({"gather": jnp.zeros(M, jnp.int64 if jax.config.jax_enable_x64 else jnp.int16)}, "gather must be int32"),
        ({"gather": jnp.zeros(M, jnp.int32)}, "the CPU has neither gated nor gathered products nor accumulators"),
        ({"accumulator": jnp.zeros((M, N))}, "only a ragged contraction has an accumulator"),
        (CONTRACTION | {"accumulator": jnp.zeros((G, K, N - 1))}, "accumulator is (2, 3, 3): n is 4 elsewhere"),
        (CONTRACTION | {"bias": jnp.ones((G, N))}, "a ragged contraction has no bias"),
        (
            CONTRACTION | {"accumulator": jnp.zeros((G, K, N), jnp.int32)},
            "accumulator must have the result's dtype",
        ),
        (
            CONTRACTION | {"accumulator": jnp.zeros((G, K, N), jnp.float32)},
            "the accumulator's memory must be",
        ),
    ],
)
def test_ragged_calls(changes, message):
    with pytest.raises(Exception, match=re.escape(message)):
        ragged(**changes)
