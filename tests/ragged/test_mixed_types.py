"""Products of dtypes that promote with no other one: values, dtypes and gradients of jax.lax.ragged_dot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except

import jax_vbgemm as vb

SIZES = jnp.array([3, 4])
FLOAT8, WIDE_FLOAT8 = "float8_e4m3fn", "float8_e5m2"
CASES = [
    ("bfloat16", FLOAT8, None),
    (FLOAT8, "float32", None),
    ("float16", WIDE_FLOAT8, None),
    (FLOAT8, WIDE_FLOAT8, None),
    (WIDE_FLOAT8, FLOAT8, "float32"),
    ("bfloat16", "int4", None),
    ("int8", "int4", "int32"),
    ("uint4", "int4", "int32"),
]
DEFAULT = [(FLOAT8, WIDE_FLOAT8, None), ("bfloat16", "int4", None), ("int8", "int4", "int32")]


def numbers(dtype, *shape):
    """Small integers, whose products and sums are exact in every dtype."""
    x = np.random.default_rng(len(shape)).integers(0 if dtype.startswith("u") else -2, 3, shape)
    return jnp.asarray(x).astype(dtype)


@pytest.mark.parametrize(("left", "right", "preferred"), slow_except(CASES, DEFAULT))
def test_products_and_gradients_are_those_of_jax(left, right, preferred):
    operands = numbers(left, 8, 5), numbers(right, 2, 5, 3)
    floating = [index for index, x in enumerate(operands) if jnp.issubdtype(x.dtype, jnp.floating)]

    def value_and_gradients(product):
        def f(*moving):
            both = list(operands)
            for index, x in zip(floating, moving, strict=True):
                both[index] = x
            return product(*both, SIZES, None, preferred)

        y, transpose = jax.vjp(f, *(operands[index] for index in floating))
        return y, transpose(jnp.ones_like(y)) if floating else ()

    ours, theirs = (jax.jit(lambda f=f: value_and_gradients(f))() for f in (vb.ragged_dot, jax.lax.ragged_dot))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.astype(jnp.float32), other.astype(jnp.float32))


def test_other_dtypes_still_follow_the_promotion_mode():
    x, w = numbers("bfloat16", 8, 5), numbers("float32", 2, 5, 3)
    with pytest.raises(ValueError, match=r"ragged_dot: lhs is bfloat16.* but rhs is float32"):
        vb.ragged_dot(x, w, SIZES)
    with jax.numpy_dtype_promotion("standard"):
        assert vb.ragged_dot(x, w, SIZES).dtype == jnp.float32


def test_the_general_product_takes_them_too():
    numbers_of_dimensions = jax.lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
    operands = numbers(WIDE_FLOAT8, 8, 5), numbers(FLOAT8, 8, 3), SIZES, numbers_of_dimensions, None, jnp.float32
    np.testing.assert_array_equal(vb.ragged_dot_general(*operands), jax.lax.ragged_dot_general(*operands))


def test_the_positional_arguments_of_jax():
    x, w = numbers("float32", 8, 5), numbers("float32", 2, 5, 3)
    ours = vb.ragged_dot(x, w[1:], SIZES, jax.lax.Precision.HIGHEST, jnp.float32, jnp.array([1]))
    np.testing.assert_array_equal(ours, vb.ragged_dot(x, w, SIZES).at[:3].set(0))
