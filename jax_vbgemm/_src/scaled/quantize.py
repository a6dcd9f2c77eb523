"""quantize: floating-point values to 8-bit or 4-bit values with scales."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.scaled import blocks
from jax_vbgemm._src.scaled.scaled import DTYPES, Scaled, blocks_in
from jax_vbgemm._src.util.arguments import as_array, shown
from jax_vbgemm._src.util.integers import is_integer


def quantize(x: Any, dtype: Any = "float8_e4m3fn", block: tuple[int, ...] = (1, 128), *, scales: Any = None) -> Scaled:
    """Rounds x to 8 or 4 bits with a scale for each block, such that its largest magnitude is the dtype's largest.

    Rounding is to nearest, ties to even. A block of zeros, or of subnormal numbers,
    has the scale 1. A block with a NaN or an infinity is NaN as
    a whole (in int8 and int4, which have no NaN, it is 0 times NaN). On a GPU one kernel computes
    8-bit floats of blocks (1, 128) and (128, 128), in one pass over x; otherwise XLA computes this, in two.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> x = vb.quantize(jnp.array([[1.0, -448.0, 0.5, 0.25]]), block=(1, 2))
    >>> x.scales.tolist(), x.values.astype(jnp.float32).tolist()
    ([[1.0, 0.0011160714784637094]], [[1.0, -448.0, 448.0, 224.0]])

    Args:
      x: a floating-point array.
      dtype: "float8_e4m3fn" (largest 448), "float8_e5m2" (57344), "int8" (127, and -127) or "int4" (7, and -7).
      block: the sizes of a block in the last dimensions of x; in the others it is 1. -1 stands for a whole dimension.
        (1, 128) is that of DeepSeek-V3's activations, (128, 128) that of its weights (arXiv 2412.19437, section 3.3.2),
        (-1, -1) one scale for each matrix.
      scales: float32, of the shape of the blocks, in place of those by the largest magnitude; greater numbers than they
        allow saturate. (Delayed scaling, for example.)

    Returns:
      A `Scaled`.

    Raises:
      ValueError: dtype is none of these, block has more dimensions than x, or scales have another shape.
      TypeError: x is not floating, or block no tuple of positive integers and -1.
    """
    name = "quantize"
    x = as_array(name, "x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{name}: x is {x.dtype}{x.shape}: it must be floating")
    dtype = np.dtype(dtype).name
    if dtype not in DTYPES:
        raise ValueError(f"{name}: dtype is {dtype}: it must be one of {', '.join(DTYPES)}")
    if not isinstance(block, tuple) or not all(is_integer(size) and (size > 0 or size == -1) for size in block):
        raise TypeError(f"{name}: block must be a tuple of positive integers and -1, not {shown(block)}")
    if len(block) > x.ndim:
        raise ValueError(f"{name}: block is {block} but x is {x.shape}: it has more dimensions than x")
    whole = (1,) * (x.ndim - len(block)) + tuple(block)
    whole = tuple(max(size, 1) if each == -1 else int(each) for size, each in zip(x.shape, whole, strict=True))
    short = whole[x.ndim - len(block) :]
    if scales is None:
        if blocks.has_kernel(x, dtype, whole):
            of_rows = whole[-2:-1] in ((), (1,))
            matrices = x.reshape((1, -1, x.shape[-1]) if of_rows else (-1, *x.shape[-2:]))
            found = blocks.quantized(dtype, x=matrices, of_rows=of_rows)
            scales = found.row_scales if of_rows else found.block_scales
            return Scaled(found.values.reshape(x.shape), scales.reshape(blocks_in(x.shape, whole)), short)
        scales = blocks.scales_of(x, dtype, whole)
    else:
        scales = as_array(name, "scales", scales)
        expected = blocks_in(x.shape, whole)
        if (scales.shape, scales.dtype) != (expected, np.float32):
            raise ValueError(f"{name}: scales is {scales.dtype}{scales.shape} but must be float32{expected}")
    return Scaled(blocks.values_of(x, dtype, whole, scales), scales, short)
