"""Scaled: an array of narrow numbers, each block of which has a scale."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.util.arguments import shown
from jax_vbgemm._src.util.integers import is_integer

DTYPES: tuple[str, ...] = ("float8_e4m3fn", "float8_e5m2", "int8", "int4")
"""The dtypes that values may have."""


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Scaled:
    """An array of numbers of 8 or 4 bits, each block of which is multiplied by a scale. `quantize` makes one.

    A factor of `batched_matmul`, `batched_gemm`, `ragged_dot` and `moe.expert_mlp`. A pytree with the leaves values and
    scales: jit, vmap, scan and `jax.tree.map` go through it.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> x = vb.Scaled(jnp.array([[1, 2, 3, 4]], jnp.int8), jnp.array([[10.0, 0.5]]), block=(1, 2))
    >>> x.dequantized()
    Array([[10. , 20. ,  1.5,  2. ]], dtype=float32)

    Args:
      values: float8_e4m3fn, float8_e5m2, int8 or int4, of any shape. (On a device two int4 share a byte.)
      scales: float32, of the same rank: in each dimension as many as there are blocks.
      block: the sizes of a block in the last dimensions of values; in the others it is 1. A last block may be shorter.

    Raises:
      ValueError: the dtypes or shapes don't fit.
      TypeError: block is not a tuple of positive integers, at most one for each dimension.
    """

    values: Any
    scales: Any
    block: tuple[int, ...]

    def __post_init__(self) -> None:
        values, scales = self.values, self.scales
        ok = isinstance(self.block, tuple) and all(is_integer(size) and size > 0 for size in self.block)
        if not ok or len(self.block) > values.ndim:
            raise TypeError(
                f"Scaled: block is {shown(self.block)} but values is {values.shape}: block must be a tuple of at most "
                f"{values.ndim} positive integers"
            )
        if values.dtype.name not in DTYPES:
            raise ValueError(f"Scaled: values is {values.dtype}: it must be one of {', '.join(DTYPES)}")
        if scales.dtype != np.float32 or scales.shape != self.blocks:
            raise ValueError(
                f"Scaled: scales is {scales.dtype}{scales.shape} but values is {values.shape} in blocks of "
                f"{self.block}: scales must be float32{self.blocks}"
            )

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        keys = map(jax.tree_util.GetAttrKey, ("values", "scales"))
        return tuple(zip(keys, (self.values, self.scales), strict=True)), self.block

    @classmethod
    def tree_unflatten(cls, block: tuple[int, ...], leaves: Any) -> Scaled:
        scaled = object.__new__(cls)  # without checks: the leaves may be anything in transformations
        for name, leaf in zip(("values", "scales", "block"), (*leaves, block), strict=True):
            object.__setattr__(scaled, name, leaf)
        return scaled

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        return len(self.values.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of `values`."""
        return self.values.dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of a block in each dimension."""
        return (1,) * (self.ndim - len(self.block)) + self.block

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of blocks in each dimension."""
        return blocks_in(self.shape, self.sizes)

    @property
    def mT(self) -> Scaled:
        """The transpose of the last two dimensions."""
        *leading, rows, columns = self.sizes if len(self.block) < 2 else self.block
        return Scaled(self.values.mT, self.scales.mT, (*leading, columns, rows))

    def dequantized(self, dtype: Any = np.float32) -> jax.Array:
        """The values times their scales, computed in float32 and converted to a floating-point dtype."""
        wide: jax.Array = self.values.astype(np.float32) * spread(self.scales, self.shape, self.sizes)
        return wide.astype(dtype)


def blocks_in(shape: tuple[Any, ...], block: tuple[int, ...]) -> tuple[Any, ...]:
    """The number of blocks in each dimension of an array."""
    return tuple(-(-size // each) for size, each in zip(shape, block, strict=True))


def spread(scales: jax.Array, shape: tuple[Any, ...], block: tuple[int, ...]) -> jax.Array:
    """The scale of each element of an array in blocks; if there is one block, of any size."""
    block = tuple(size if count == 1 else each for size, count, each in zip(shape, scales.shape, block, strict=True))
    blocked = jnp.expand_dims(scales, tuple(range(1, 2 * scales.ndim, 2)))
    return merged(jnp.broadcast_to(blocked, [x for pair in zip(scales.shape, block, strict=True) for x in pair]), shape)


def split(x: jax.Array, block: tuple[int, ...]) -> jax.Array:
    """x with two dimensions for each of its own: the number of blocks and their size. Last blocks end in zeros."""
    blocks = blocks_in(x.shape, block)
    padding = [(0, count * each - size) for count, each, size in zip(blocks, block, x.shape, strict=True)]
    padded = jnp.pad(x, padding) if any(behind for _, behind in padding) else x
    return padded.reshape([size for pair in zip(blocks, block, strict=True) for size in pair])


def merged(x: jax.Array, shape: tuple[Any, ...]) -> jax.Array:
    """The inverse of `split`, for an array of a shape."""
    whole = x.reshape([x.shape[i] * x.shape[i + 1] for i in range(0, x.ndim, 2)])
    return whole if whole.shape == shape else whole[tuple(map(slice, shape))]
