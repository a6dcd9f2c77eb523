"""Random operands and the float64 truth that every test compares with."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads as check_grads_of

from jax_vbgemm._src.native.arithmetic import DTYPES as TABLE
from jax_vbgemm._src.native.arithmetic import OPERANDS

# The dtypes of all tests of values; dtypes of one byte have separate tests (matmul/test_short_types.py).
DTYPES = tuple(dtype for dtype in OPERANDS if TABLE[dtype].bytes > 1)


def unit_roundoff(dtype: str) -> float:
    """The largest relative error of rounding to a dtype; 0 for integers."""
    bits = TABLE[dtype].fraction_bits
    return 2.0 ** -(bits + 1) if bits else 0.0


# The largest error, as a fraction of sum |a||b|, that rounding explains: a multiple of the accumulator's unit roundoff,
# plus the result's.
ROUNDING = {
    name: 80 * unit_roundoff(row.accumulator) + 1.01 * unit_roundoff(name) * (name != row.accumulator)
    for name, row in TABLE.items()
}


def random(shape: Sequence[int], dtype: Any, seed: int = 0) -> jax.Array:
    """Uniform in [-1, 1]; both parts for complex dtypes."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.uniform(-1, 1, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = x + 1j * rng.uniform(-1, 1, shape)
    return jax.device_put(x.astype(dtype))  # not jnp.asarray, which compiles a program for each shape and dtype


def wide(x: Any) -> np.ndarray:
    """x as NumPy float64 or complex128."""
    x = jnp.asarray(x)
    return np.asarray(x).astype(np.complex128 if jnp.issubdtype(x.dtype, jnp.complexfloating) else np.float64)


def matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """op(a) op(b) in float64, and sum |a||b| as the scale of its rounding error."""
    a, b = wide(a), wide(b)
    a = np.swapaxes(a, -1, -2) if transpose_a else a
    b = np.swapaxes(b, -1, -2) if transpose_b else b
    return a @ b, np.abs(a) @ np.abs(b)


def check(results: Sequence[Any], As: Sequence[Any], Bs: Sequence[Any], transposes: Any = None) -> None:
    """Asserts that results equal the products up to rounding."""
    transposes = transposes or [(False, False)] * len(As)
    for index, (c, a, b, flags) in enumerate(zip(results, As, Bs, transposes, strict=True)):
        truth, scale = matmul(a, b, *flags)
        assert c.shape == truth.shape, f"leaf {index}"
        info = jnp.finfo(c.dtype)
        allowed = ROUNDING[c.dtype.name] * scale
        error = np.abs(wide(c) - truth)
        excess = error - allowed - float(info.smallest_subnormal)
        assert (excess <= 0).all(), f"leaf {index}: wrong by {(error / (scale + 1e-300)).max():.2e} of sum |a||b|"


def check_grads(f: Callable[..., Any], args: Sequence[Any], **options: Any) -> None:
    """`jax.test_util.check_grads` of the jitted function: a program for each derivative, not for each operation, and
    arrays of NumPy, of which difference quotients take no programs."""
    check_grads_of(jax.jit(f), jax.device_get(args), **options)


def assert_same(ours: Any, theirs: Any, rtol: float = 2e-5) -> None:
    """Asserts that two trees have one structure, the same shapes and dtypes, and nearly the same numbers."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        truth = wide(b)
        np.testing.assert_allclose(wide(a), truth, rtol=rtol, atol=rtol * max(1, np.abs(truth).max(initial=0)))
