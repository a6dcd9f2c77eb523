"""A copy of the windows of one buffer into those of another one, as one operation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.util import compat


@dataclass(frozen=True)
class Rearrangement:
    """Copies window i of a buffer of `size_from` elements into window i of one of `size_to` elements, which is zero
    outside of its windows. The windows of each buffer are disjoint, so that the transpose copies them back."""

    windows_from: tuple[Layout, ...]
    size_from: int
    windows_to: tuple[Layout, ...]
    size_to: int

    def __call__(self, buffer: jax.Array) -> jax.Array:
        """The other buffer, by one gather; transposing each window would be a separate operation."""
        result: jax.Array = rearrange_p.bind(buffer, rearrangement=self)
        return result

    @property
    def transposed(self) -> Rearrangement:
        return Rearrangement(self.windows_to, self.size_to, self.windows_from, self.size_from)

    @functools.cached_property
    def indices(self) -> np.ndarray:
        """The element from which each element of the other buffer is copied; `size_from` if there is none."""
        found = np.full(self.size_to, self.size_from, np.int32 if self.size_from < 2**31 else np.int64)
        for window, to in zip(self.windows_from, self.windows_to, strict=True):
            found[_positions(to)] = _positions(window)
        return found


def _positions(layout: Layout) -> np.ndarray:
    return layout.positions().reshape(-1)


rearrange_p = jex_core.Primitive("rearrange")


def _form(buffer: jax.Array, *, rearrangement: Rearrangement) -> jax.Array:
    indices = rearrangement.indices
    if (indices < rearrangement.size_from).all():
        return buffer.at[..., jnp.asarray(indices)].get(mode="promise_in_bounds", unique_indices=True)
    return buffer.at[..., jnp.asarray(indices)].get(mode="fill", fill_value=0)


@rearrange_p.def_abstract_eval
def _abstract_eval(buffer: Any, *, rearrangement: Rearrangement) -> Any:
    return compat.shaped_array((*buffer.shape[:-1], rearrangement.size_to), buffer.dtype, [buffer])


def _batched(args: Sequence[Any], dims: Sequence[Any], *, rearrangement: Rearrangement) -> tuple[Any, int]:
    return rearrangement(jnp.moveaxis(args[0], dims[0], 0)), 0


rearrange_p.def_impl(functools.partial(compat.apply_primitive, rearrange_p))
mlir.register_lowering(rearrange_p, mlir.lower_fun(_form, multiple_results=False))
ad.deflinear2(rearrange_p, lambda cotangent, _, *, rearrangement: [rearrangement.transposed(cotangent)])
batching.primitive_batchers[rearrange_p] = _batched
