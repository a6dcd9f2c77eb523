"""Splits fused matrices, such as query, key and value in one parameter, before their orthogonalisation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.optax.packed import is_ragged
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.integers import is_integer


class MuonSplit(NamedTuple):
    """Along which axis a fused parameter is split into matrices, and into which sizes.

    sizes: the size of each part, or the number of equal parts. axis: an axis of the parameter.

    Examples:
      >>> from jax_vbgemm.optax import MuonSplit
      >>> MuonSplit((8, 4, 4)).axis
      -1
    """

    sizes: int | tuple[int, ...]
    axis: int = -1


class Part(NamedTuple):
    """The shape of a part, and where it begins along the axis."""

    shape: tuple[int, ...]
    start: int
    axis: int

    @property
    def ndim(self) -> int:
        return len(self.shape)


def parts_of(tree: Any, split: Any) -> list[list[Part] | None]:
    """The parts of each leaf (a RaggedArray counts as one leaf); None for a leaf that is not split.

    split: a mapping, or a function of the path and the shape, as for `muon`.

    Raises:
      ValueError: the parts don't fit the leaf, or parameters are packed. TypeError: split is neither, or it gives
        something else than sizes.
    """
    named, _ = jax.tree.flatten_with_path(tree, is_leaf=is_ragged)
    if split is None:
        return [None] * len(named)
    if not (callable(split) or isinstance(split, Mapping)):
        raise TypeError(f"muon: split is {split!r}: it must be a mapping or a function of the path and the shape")
    found: list[list[Part] | None] = []
    for path, x in named:
        if is_ragged(x):
            raise ValueError("muon: split cannot be used with packed parameters: it is of leaves")
        written = jax.tree_util.keystr(path, simple=True, separator="/")
        shape = tuple(jnp.shape(x))
        found.append(
            _parts(written, shape, split(written, shape) if callable(split) else _found(split, written, shape))
        )
    return found


def _found(split: Mapping[Any, Any], path: str, shape: tuple[int, ...]) -> Any:
    """The value of the first key that equals this shape, or is a regular expression that matches in the path."""
    for key, value in split.items():
        if not isinstance(key, str | re.Pattern | tuple | list):
            raise TypeError(f"muon: split has the key {key!r}: it must be a regular expression or a shape")
        if tuple(key) == shape if isinstance(key, tuple | list) else re.search(key, path):
            return value
    return None


def _parts(path: str, shape: tuple[int, ...], given: Any) -> list[Part] | None:
    if given is None:
        return None
    sizes, axis = given if isinstance(given, MuonSplit) else (given, -1)
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"muon: split of {path!r} names axis {axis} of a parameter of shape {shape}")
    axis %= len(shape)
    if is_integer(sizes):
        if sizes < 1 or shape[axis] % sizes:
            raise ValueError(f"muon: split of {path!r} into {sizes} equal parts does not fit axis {axis} of {shape}")
        sizes = (shape[axis] // sizes,) * sizes
    elif not (isinstance(sizes, Sequence) and len(sizes) > 0 and all(map(is_integer, sizes))):
        raise TypeError(f"muon: split of {path!r} is {given!r}: it must be a number of parts, sizes, or a MuonSplit")
    if min(sizes) < 1 or sum(sizes) != shape[axis]:
        raise ValueError(f"muon: split of {path!r} into {tuple(sizes)} does not fit axis {axis} of {shape}")
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [
        Part((*shape[:axis], size, *shape[axis + 1 :]), start, axis) for size, start in zip(sizes, starts, strict=True)
    ]


def windows(buffer: jax.Array, parts: Sequence[Part]) -> list[View]:
    """The parts as views of an array."""
    whole = buffer.shape
    strides = tuple(math.prod(whole[axis + 1 :]) for axis in range(len(whole)))
    return [View(buffer, part.shape, strides, part.start * strides[part.axis]) for part in parts]


def sliced(x: jax.Array, parts: Sequence[Part]) -> list[jax.Array]:
    """The parts as arrays."""
    axis = parts[0].axis
    return list(jax.lax.split(x, [part.shape[axis] for part in parts], axis))


def joined(arrays: Sequence[jax.Array], parts: Sequence[Part]) -> jax.Array:
    """The array that consists of these parts."""
    return jnp.concatenate(arrays, parts[0].axis)


def by_part(f: Callable[..., jax.Array], x: jax.Array, parts: Sequence[Part] | None, *rest: Any) -> jax.Array:
    """f of x and the rest, or of each part of x, joined again."""
    if parts is None:
        return f(x, *rest)
    found = joined([f(part, *rest) for part in sliced(compat.replicated(x), parts)], parts)
    return compat.placed_as(found, x)
