"""`tensordot` and `einsum` of block-sparse tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jax_vbgemm._src.blocksparse import axes as of_tensordot
from jax_vbgemm._src.blocksparse import einsum as of_einsum
from jax_vbgemm._src.blocksparse.axes import Axes, contracted_axes
from jax_vbgemm._src.blocksparse.block_array import Block, BlockArray, pack, packed_again
from jax_vbgemm._src.blocksparse.blocks import Blocks, Modulus, checked_modulus, is_block_array
from jax_vbgemm._src.blocksparse.choice import left_to_xla
from jax_vbgemm._src.blocksparse.contraction import Contraction
from jax_vbgemm._src.blocksparse.symmray import contract_arrays
from jax_vbgemm._src.matmul.api import AnyPlanner
from jax_vbgemm._src.util.shown import shown


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
    modulus: Modulus = None,
    packed: bool | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """Contracts two block-sparse tensors, with all products of their blocks as one operation where that is predicted to
    be faster.

    A block-sparse tensor is a dict {sector: block}: a sector is a tuple with the charge of each axis, an int (U(1), Z2)
    or a tuple of ints (a product of groups), and a block is an array with as many axes. Missing blocks are zero. A
    block of a is multiplied with a block of b where the charges of their contracted axes are equal. All products with
    the same sector in the result are summed in the order of a's sectors, independently of the order of the dicts.

    The sectors and the shapes of blocks are static. A sector to which no pair of blocks contributes is absent from the
    result. Differentiable to any order, and supports vmap; gradients have the sectors of their tensor.

    Args:
      a, b: dicts of blocks, whose shapes agree wherever charges do, each of one dtype; float32, float64, complex64 and
        complex128 have kernels. Or BlockArrays, whose blocks are read in place, whatever the order of their axes. Or
        two arrays of symmray (0.4 and newer) with blocks of one symmetry, bosonic or fermionic, whose contracted
        indices match; the result is then an array of symmray that equals `symmray.tensordot`.
      axes: an integer n contracts the last n axes of a with the first n of b, in order; a pair of sequences names the
        axes of a and those of b. As in jnp.tensordot.
      modulus: of the charges: N for Z_N, None for integers (U(1)), and a tuple with one of both for each part of a
        charge. Sectors are taken, and given, modulo N. For dicts and BlockArrays; arrays of symmray know their group.
      packed: whether the blocks of the result are windows of one buffer: those of a BlockArray, or of an array of
        symmray. None: they are if a or b has such blocks.
      precision, preferred_element_type, planner, implementation: as for `batched_matmul`.

    Returns:
      A dict of blocks or a BlockArray, sorted by sector, whose axes are the free axes of a and then those of b: {(): x}
      if all axes are contracted, and {} if no pair of blocks contributes. For arrays of symmray, an array of symmray or
      a scalar; if it is packed, products that are left to XLA are arrays of their own.

    Raises:
      ValueError: the blocks of a tensor differ in dtype or number of axes, a charge has different sizes in one axis or
        in contracted axes, the charges of one axis or of contracted axes are of different kinds (an int and a tuple),
        two sectors of a tensor are one modulo N, an axis is out of range, named twice or without a partner, contracted
        indices of symmray have one direction (which bosonic Z2 and Z2Z2 arrays may have), or dtypes differ under strict
        promotion. The message names the sectors and the rule.
      TypeError: a or b is neither a dict nor one of symmray's arrays with blocks, both are not of one kind, a sector is
        not a tuple, or modulus is not a number.

    Examples:
      A matrix whose blocks conserve a charge, times a vector:

      >>> import jax.numpy as jnp
      >>> from jax_vbgemm import blocksparse
      >>> a = {(0, 0): jnp.ones((2, 3)), (1, 1): jnp.ones((4, 1))}
      >>> b = {(0,): jnp.ones(3), (2,): jnp.ones(5)}
      >>> {sector: block.tolist() for sector, block in blocksparse.tensordot(a, b, 1).items()}
      {(0,): [3.0, 3.0]}

      Two sectors of b add to one block; axes are named:

      >>> b = {(7, 0): jnp.ones((1, 3)), (7, 1): jnp.ones((1, 1))}
      >>> a = {(0, 5): jnp.ones((3, 2)), (1, 5): jnp.ones((1, 2))}
      >>> blocksparse.tensordot(a, b, ([0], [1]))
      {(5, 7): Array([[4.],
             [4.]], dtype=float32)}
    """
    name = of_tensordot.NAME
    _check_kinds(name, a, b)
    options = _options(precision, preferred_element_type, planner, implementation)

    def split(ndim_a: int, ndim_b: int) -> tuple[Axes, Axes]:
        return contracted_axes(axes, ndim_a, ndim_b)

    return _contracted(name, a, b, split, modulus, packed, options)


def einsum(
    equation: str,
    a: Any,
    b: Any,
    *,
    modulus: Modulus = None,
    packed: bool | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """Contracts two block-sparse tensors as an equation of labels says, with all products as one operation.

    `tensordot` over the axes with a label in common, followed by a permutation of the result's axes, which is free for
    BlockArrays.

    Args:
      equation: "ab,bc->ac": a letter for each axis of a, of b and of the result. A label of both tensors is contracted,
        each other label is one of the result. Without "->" the result has its labels in alphabetical order.
      a, b and the options: as for `tensordot`.

    Returns:
      As `tensordot`.

    Raises:
      ValueError: as `tensordot`; also if a tensor does not have as many axes as labels, if a label occurs twice
        in one tensor, in one tensor alone, or in both and in the result.
      TypeError: as `tensordot`; also if the equation is not a string.

    Examples:
      Charges of Z_3, of which 4 is 1:

      >>> import jax.numpy as jnp
      >>> from jax_vbgemm import blocksparse
      >>> a = {(0, 0): jnp.ones((2, 3)), (4, 1): jnp.ones((5, 1))}
      >>> b = {(1, 4): jnp.ones((6, 1))}
      >>> {sector: x.shape for sector, x in blocksparse.einsum("ab,cb->ca", a, b, modulus=3).items()}
      {(1, 1): (6, 5)}
    """
    name, labels = of_einsum.NAME, of_einsum.labels_of(equation)
    _check_kinds(name, a, b)
    options = _options(precision, preferred_element_type, planner, implementation)
    contracted, order = of_einsum.equation_of(labels)

    def split(ndim_a: int, ndim_b: int) -> tuple[Axes, Axes]:
        for tensor, ndim, axis_labels in (("a", ndim_a, labels.a), ("b", ndim_b, labels.b)):
            if ndim != len(axis_labels):
                raise ValueError(f"{name}: {equation!r} gives {tensor} {len(axis_labels)} axes, but it has {ndim}")
        return contracted

    result = _contracted(name, a, b, split, modulus, packed, options)
    if order == tuple(range(len(order))) or getattr(result, "ndim", 1) == 0:
        return result
    if isinstance(result, dict):
        moved = {tuple(sector[axis] for axis in order): block.transpose(order) for sector, block in result.items()}
        return {sector: moved[sector] for sector in sorted(moved)}
    return result.transpose(order)


def _options(precision: Any, preferred_element_type: Any, planner: Any, implementation: Any) -> dict[str, Any]:
    return {
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "planner": planner,
        "implementation": implementation,
    }


def _contracted(name: str, a: Any, b: Any, split: Any, modulus: Any, packed: bool | None, options: Any) -> Any:
    """The contraction of two tensors of one kind over the axes `split(number of axes of a, of b)`."""
    modulus = checked_modulus(name, modulus)
    if is_block_array(a):
        if modulus is not None:
            raise ValueError(f"{name}: modulus is {modulus}, but arrays of symmray know their group, {a.symmetry}")
        if packed is None:
            packed = any(isinstance(block, Block) for x in (a, b) for block in x.blocks.values())
        return contract_arrays(name, a, b, split(a.ndim, b.ndim), packed=packed, **options)
    packed = isinstance(a, BlockArray) or isinstance(b, BlockArray) if packed is None else packed
    blocks_a, blocks_b = Blocks(name, "a", a, modulus), Blocks(name, "b", b, modulus)
    is_empty = blocks_a.ndim is None or blocks_b.ndim is None
    work = Contraction(blocks_a, blocks_b, ((), ()) if is_empty else split(blocks_a.ndim, blocks_b.ndim), packed=packed)
    by_xla = left_to_xla(work, has_native=False, **options)
    assert by_xla is not None
    blocks = work.results(blocks_a, blocks_b, by_xla, **options)
    return as_block_array(work, blocks) if packed else blocks


def as_block_array(work: Contraction, blocks: dict[Any, Any]) -> BlockArray:
    """The result of a packed contraction as one BlockArray; blocks that XLA has computed go into its buffer."""
    if not blocks:
        empty: BlockArray = pack({})
        return empty
    first = next(iter(blocks.values()))
    dtype = first.dtype
    structure = work.structure({sector: tuple(block.shape) for sector, block in blocks.items()}, dtype)
    if isinstance(first, Block) and all(isinstance(block, Block) for block in blocks.values()):
        return BlockArray(first.buffer, structure)
    return packed_again(blocks, structure, dtype)


def _check_kinds(function: str, a: Any, b: Any) -> None:
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Mapping) and not is_block_array(x):
            raise TypeError(
                f"{function}: {name} must be a dict of blocks or an array of symmray that has blocks, not "
                f"{_described(x)}"
            )
    if isinstance(a, Mapping) != isinstance(b, Mapping):
        raise TypeError(f"{function}: a is {type(a).__name__} but b is {type(b).__name__}: both must be of one kind")


def _described(x: Any) -> str:
    if isinstance(x, jax.core.Tracer):
        return f"a traced {x.dtype}{x.shape}: jit makes a dense array of an array of symmray, so pass its blocks"
    return f"a dense array, {x.dtype}{x.shape}" if isinstance(x, jax.Array | np.ndarray) else shown(x)
