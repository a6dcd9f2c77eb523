"""Arrays of symmray: fermionic signs, and the result's attributes beside its blocks (indices, charge, label, modes).

symmray is not imported here: the public methods of its arrays suffice.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.blocksparse.axes import Axes, free_axes
from jax_vbgemm._src.blocksparse.block_array import Block, pack
from jax_vbgemm._src.blocksparse.blocks import Blocks
from jax_vbgemm._src.blocksparse.choice import left_to_xla
from jax_vbgemm._src.blocksparse.contraction import Contraction
from jax_vbgemm._src.blocksparse.signs import Signs, fewest_negations, with_signs
from jax_vbgemm._src.matmul.view import dense


def check_arrays(function: str, a: Any, b: Any, axes_a: Axes, axes_b: Axes) -> None:
    """Raises if these axes of two arrays of symmray cannot be contracted."""
    if a.symmetry != b.symmetry or _is_fermionic(a) != _is_fermionic(b):
        raise TypeError(
            f"{function}: a is a {_shown_symmetry(a)} but b is a {_shown_symmetry(b)}: "
            "both must have one symmetry and statistics"
        )
    for axis, other in zip(axes_a, axes_b, strict=True):
        if a.indices[axis].dual == b.indices[other].dual and not _is_undirected(a, axis):
            raise ValueError(
                f"{function}: axis {axis} of a and axis {other} of b are contracted, but both are "
                f"{'dual' if a.indices[axis].dual else 'not dual'}: one of the two must be"
            )


def contract_arrays(function: str, a: Any, b: Any, axes: tuple[Axes, Axes], *, packed: bool, **options: Any) -> Any:
    """The contraction as symmray defines it, with the blocks' products as one operation; by symmray itself where that
    is predicted to be faster."""
    axes_a, axes_b = axes
    check_arrays(function, a, b, axes_a, axes_b)
    blocks_a, blocks_b = Blocks(function, "a", a.blocks), Blocks(function, "b", b.blocks)
    given = blocks_a, blocks_b
    if packed:
        blocks_a, blocks_b = (_in_one_buffer(x) for x in given)
    work = Contraction(blocks_a, blocks_b, axes, packed=packed)
    # symmray's default method copies blocks out of their buffer: thousands of operations, which take a minute to
    # compile.
    by_xla = left_to_xla(work, has_native=not packed, signed=_is_fermionic(a), **options)
    if by_xla is None:
        a, b = (x.copy_with(blocks=blocks.blocks) for x, blocks in zip((a, b), given, strict=True))
        return a.tensordot(b, axes)
    if packed and len(by_xla) == len(work.segments):  # without a call, no buffer is needed
        blocks_a, blocks_b = given
        work = Contraction(blocks_a, blocks_b, axes)
    signs = None
    if _is_fermionic(a) and work.segments:
        signs = fewest_negations(work, blocks_a, blocks_b, _signs(a, b, axes_a, axes_b), by_result=packed)
        blocks_a.blocks, blocks_b.blocks = with_signs(blocks_a.blocks, signs.a), with_signs(blocks_b.blocks, signs.b)
    blocks = work.results(blocks_a, blocks_b, by_xla, **options)
    if packed:
        _register_blocks()
    # symmray itself determines the result's other attributes, by contracting arrays whose blocks have one element.
    small_a, small_b = (x.copy_with(blocks={sector: np.ones((1,) * x.ndim) for sector in x.blocks}) for x in (a, b))
    result = small_a.tensordot(small_b, axes, mode="blockwise", preserve_array=True)
    result = result.copy_with(blocks=blocks)
    if signs is not None:
        for sector in signs.result:
            result.phase_sector(sector, inplace=True)
    if result.ndim:
        return result
    if blocks:
        value = dense(blocks[()])
        return result.copy_with(blocks={(): value}).phase_sync().blocks[()] if _is_fermionic(a) else value
    known = [x.dtype for x in (blocks_a, blocks_b) if x.dtype is not None]
    return jnp.zeros((), jnp.result_type(*known) if known else float)


def _in_one_buffer(x: Blocks) -> Blocks:
    """The tensor with its blocks in one buffer; unchanged if they already are."""
    if x.blocks and all(isinstance(block, Block) for block in x.blocks.values()):
        return x
    return Blocks(x.function, x.name, pack(x.blocks))


def _is_fermionic(x: Any) -> bool:
    return bool(getattr(x, "fermionic", False))


def _is_undirected(x: Any, axis: int) -> bool:
    """Whether the direction of an axis does not matter, as each charge is its own opposite (Z2, Z2Z2). Directions of
    fermionic axes always decide signs."""
    return not _is_fermionic(x) and all(x.symmetry.sign(charge, True) == charge for charge in x.indices[axis].charges)


def _shown_symmetry(x: Any) -> str:
    return f"{type(x).__name__} of {x.symmetry}"


def _signs(a: Any, b: Any, axes_a: Axes, axes_b: Axes) -> Signs:
    """The signs that contracting the fermionic modes of both arrays requires, beside those that they have already.

    The sign is that of the permutation which brings the contracted modes to the end of a and, in opposite order, to the
    begin of b, so that partners are neighbours. In each pair the first mode has to be dual, <x|x>; a pair |x><x| has a
    sign where its charge is odd.
    """
    flipped = [axis for axis in axes_a if not a.indices[axis].dual]
    a = a.phase_transpose((*free_axes(axes_a, a.ndim), *axes_a)).phase_flip(*flipped)
    b = b.phase_transpose((*axes_b[::-1], *free_axes(axes_b, b.ndim)))
    blocks_a, blocks_b = (frozenset(sector for sector, phase in x.phases.items() if phase == -1) for x in (a, b))
    return Signs(blocks_a, blocks_b, frozenset())


@functools.cache
def _register_blocks() -> None:
    """Tells autoray, by which symmray calls functions of blocks, those of `Block`: the functions of jax.numpy, except
    that axes are permuted in place."""
    import autoray  # symmray needs it

    autoray.register_backend(Block, "vbgemm_blocks")
    for prefix, module in (("", jnp), ("linalg.", jnp.linalg)):
        for name in dir(module):
            if callable(getattr(module, name)):
                autoray.register_function("vbgemm_blocks", prefix + name, getattr(module, name))
    autoray.register_function("vbgemm_blocks", "transpose", Block.transpose)
