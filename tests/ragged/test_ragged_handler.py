"""The FFI handler of ragged products: hand-made calls that break a rule get an error that says which."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_vbgemm._src import backends
from jax_vbgemm._src.matmul.descriptors import KINDS

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="these calls are those of the CPU")

M, K, N, G = 6, 3, 4, 2
FLOAT32 = np.int64(KINDS.index("float32"))
ZERO = np.int64(0)
NONE = jnp.zeros(0, jnp.float32)
SIZES = jnp.array([4, 2], jnp.int32)

CONTRACTION = {"contraction": np.int64(1), "rhs": jnp.ones((M, N), jnp.float32), "result": ((G, K, N), "float32")}


def ragged(lhs=None, gather=None, accumulator=NONE, result=((M, N), "float32"), **changes):
    lhs = jnp.ones((M, K), jnp.float32) if lhs is None else lhs
    gathers = [jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32) if gather is None else gather]
    rhs = changes.pop("rhs", jnp.ones((G, K, N), jnp.float32))
    operands = [lhs, rhs, SIZES, NONE, NONE, *gathers, accumulator]
    attributes = {
        "kind": FLOAT32, "contraction": ZERO, "transpose_rhs": ZERO, "activation": ZERO, "gated": ZERO,
        "sizes": np.array([M, K, N, G, G, 1, 1, M], np.int64), "batch_strides": np.zeros(16, np.int64),
        "plan": np.zeros(0, np.int32),
        "catalogue": np.int64(0),
    } | changes  # fmt: skip
    call = jax.ffi.ffi_call(backends.RAGGED_TARGET_NAME, [jax.ShapeDtypeStruct(*result)])
    return call(*operands, **attributes)[0].block_until_ready()


def test_calls_that_keep_the_rules_are_right():
    np.testing.assert_array_equal(ragged(), np.full((M, N), K))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": np.int64(99)}, "arithmetic (kind) 99 does not exist, expected 0 to "),
        ({"kind": np.int64(KINDS.index("float64"))}, "arithmetic float64 does not multiply operands of float32"),
        ({"lhs": jnp.ones((M, K), jnp.int8)}, "no ragged product has kernels for operands of int8"),
        ({"result": ((M, N), "float64")}, "arithmetic float32 gives no results of float64"),
        ({"result": ((M, N + 1), "float32")}, "the result has 30 elements"),
        ({"activation": np.int64(9)}, "activation 9 does not exist, expected 0 to 5"),
        ({"sizes": np.array([M, K, N], np.int64)}, "the number of sizes is 3, expected 8 to 8"),
        ({"sizes": np.array([M, K, N, G, G, 0, 1, M], np.int64)}, "batch[0] is 0, expected 1 to 2147479551"),
        ({"batch_strides": np.zeros(4, np.int64)}, "the number of batch strides is 4, expected 16 to 16"),
        ({"sizes": np.array([M, K, N, G, G, 1, 1, M - 1], np.int64)}, "lhs must have m rows"),
        ({"gather": jnp.zeros(M - 1, jnp.int32)}, "gather has 5 elements, fewer"),
        ({"gather": jnp.zeros(M, jnp.int64 if jax.config.jax_enable_x64 else jnp.int16)}, "gather must be int32"),
        ({"gather": jnp.zeros(M, jnp.int32)}, "the CPU has neither gated nor gathered products nor accumulators"),
        ({"accumulator": jnp.zeros((M, N))}, "only a ragged contraction has an accumulator"),
        (CONTRACTION | {"accumulator": jnp.zeros((G, K, N - 1))}, "accumulator has 18 elements, fewer"),
        (
            CONTRACTION | {"accumulator": jnp.zeros((G, K, N), jnp.int32)},
            "an accumulator and its results must be float32",
        ),
        (
            CONTRACTION | {"accumulator": jnp.zeros((G, K, N), jnp.float32)},
            "the accumulator's memory must be",
        ),
        ({"lhs": jnp.ones((M - 1, K), jnp.float32)}, "lhs has 15 elements, fewer than the call's sizes need"),
    ],
)
def test_ragged_calls(changes, message):
    with pytest.raises(Exception, match=re.escape(message)):
        ragged(**changes)
