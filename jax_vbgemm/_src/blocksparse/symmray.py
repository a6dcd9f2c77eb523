"""Arrays of symmray: fermionic signs, and the result's attributes beside its blocks (indices, charge, label, modes).

symmray is not imported here: the public methods of its arrays suffice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.blocksparse.axes import Axes, contracted_axes, free_axes
from jax_vbgemm._src.blocksparse.blocks import NAME, Blocks
from jax_vbgemm._src.blocksparse.choice import left_to_xla
from jax_vbgemm._src.blocksparse.contraction import Contraction
from jax_vbgemm._src.elementwise.addition import negated


def is_block_array(x: Any) -> bool:
    """Whether x is an array of symmray with blocks by sector (symmray's flat arrays have one stacked array instead)."""
    return isinstance(getattr(x, "blocks", None), Mapping) and all(
        hasattr(x, name) for name in ("indices", "symmetry", "copy_with", "tensordot")
    )


def contract_arrays(a: Any, b: Any, axes: Any, **options: Any) -> Any:
    """The contraction as symmray defines it, with the blocks' products as one operation; by symmray itself where that
    is predicted to be faster."""
    if a.symmetry != b.symmetry or _is_fermionic(a) != _is_fermionic(b):
        raise TypeError(f"{NAME}: a is a {_kind(a)} but b is a {_kind(b)}: both must have one symmetry and statistics")
    axes_a, axes_b = contracted_axes(axes, a.ndim, b.ndim)
    for axis, other in zip(axes_a, axes_b, strict=True):
        if a.indices[axis].dual == b.indices[other].dual and not _is_undirected(a, axis):
            raise ValueError(
                f"{NAME}: axis {axis} of a and axis {other} of b are contracted, but both are "
                f"{'dual' if a.indices[axis].dual else 'not dual'}: one of the two must be"
            )
    of_a, of_b = Blocks("a", a.blocks), Blocks("b", b.blocks)
    work = Contraction(of_a, of_b, (axes_a, axes_b))
    by_xla = left_to_xla(work, has_own_way=True, signed=_is_fermionic(a), **options)
    if by_xla is None:
        return a.copy_with(blocks=of_a.blocks).tensordot(b.copy_with(blocks=of_b.blocks), (axes_a, axes_b))
    signed = _signed(a, b, axes_a, axes_b) if _is_fermionic(a) else (a.blocks, b.blocks)
    blocks_a, blocks_b = Blocks("a", signed[0]), Blocks("b", signed[1])
    blocks = work.results(blocks_a, blocks_b, by_xla, **options)
    # symmray itself determines the result's other attributes, by contracting arrays whose blocks have one element.
    small_a, small_b = (x.copy_with(blocks={sector: np.ones((1,) * x.ndim) for sector in x.blocks}) for x in (a, b))
    result = small_a.tensordot(small_b, (axes_a, axes_b), mode="blockwise", preserve_array=True)
    result = result.copy_with(blocks=blocks)
    if result.ndim:
        return result
    if blocks:
        return result.phase_sync().blocks[()] if _is_fermionic(a) else blocks[()]
    known = [x.dtype for x in (blocks_a, blocks_b) if x.dtype is not None]
    return jnp.zeros((), jnp.result_type(*known) if known else float)


def _is_fermionic(x: Any) -> bool:
    return bool(getattr(x, "fermionic", False))


def _is_undirected(x: Any, axis: int) -> bool:
    """Whether the direction of an axis does not matter, as each charge is its own opposite (Z2, Z2Z2). Directions of
    fermionic axes always decide signs."""
    return not _is_fermionic(x) and all(x.symmetry.sign(charge, True) == charge for charge in x.indices[axis].charges)


def _kind(x: Any) -> str:
    return f"{type(x).__name__} of {x.symmetry}"


def _signed(a: Any, b: Any, axes_a: Axes, axes_b: Axes) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
    """The blocks of both arrays times the signs that contracting their fermionic modes requires; no axis is moved.

    The sign is that of the permutation which brings the contracted modes to the end of a and, in opposite order, to the
    begin of b, so that partners are neighbours. In each pair the first mode has to be dual, <x|x>; a pair |x><x| has a
    sign where its charge is odd.
    """
    a = a.phase_transpose((*free_axes(axes_a, a.ndim), *axes_a))
    b = b.phase_transpose((*axes_b[::-1], *free_axes(axes_b, b.ndim)))
    flipped = [(axis, other) for axis, other in zip(axes_a, axes_b, strict=True) if not a.indices[axis].dual]
    if a.size <= b.size:  # the signs go to the smaller tensor, as a sign costs a copy of a block
        a = a.phase_flip(*(axis for axis, _ in flipped))
    else:
        b = b.phase_flip(*(other for _, other in flipped))
    return _with_phases(a), _with_phases(b)


def _with_phases(x: Any) -> Mapping[Any, Any]:
    """The blocks that `x.phase_sync()` has. That negates them one by one, which on a GPU is a kernel for each."""
    sectors = [sector for sector, phase in x.phases.items() if phase == -1 and sector in x.blocks]
    blocks = [jnp.asarray(x.blocks[sector]) for sector in sectors]
    if not all(jnp.issubdtype(block.dtype, jnp.inexact) for block in blocks):
        return dict(x.phase_sync().blocks)
    return {**x.blocks, **dict(zip(sectors, negated(blocks), strict=True))}
