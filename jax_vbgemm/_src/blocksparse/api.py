"""`tensordot` of block-sparse tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jax_vbgemm._src.blocksparse.blocks import NAME, Blocks
from jax_vbgemm._src.blocksparse.choice import left_to_xla
from jax_vbgemm._src.blocksparse.contraction import Contraction
from jax_vbgemm._src.blocksparse.symmray import contract_arrays, is_block_array
from jax_vbgemm._src.matmul.api import AnyPlanner
from jax_vbgemm._src.util.shown import shown


def tensordot(
    a: Any,
    b: Any,
    axes: Any = 2,
    *,
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
        complex128 have kernels. Or two arrays of symmray (0.4 and newer) with blocks of one symmetry, bosonic or
        fermionic, whose contracted indices match; the result is then an array of symmray that equals
        `symmray.tensordot`.
      axes: an integer n contracts the last n axes of a with the first n of b, in order; a pair of sequences names the
        axes of a and those of b. As in jnp.tensordot.
      precision, preferred_element_type, planner, implementation: as for `batched_matmul`.

    Returns:
      A dict of blocks, sorted by sector, whose axes are the free axes of a and then those of b: {(): x} where all axes
      are contracted, and {} where no blocks meet. For arrays of symmray, an array of symmray or a scalar.

    Raises:
      ValueError: the blocks of a tensor differ in dtype or number of axes, a charge has different sizes in one axis or
        in contracted axes, the charges of one axis or of contracted axes are of different kinds (an int and a tuple),
        an axis is out of range, named twice or without a partner, contracted indices of symmray have one direction
        (which bosonic Z2 and Z2Z2 arrays may have), or dtypes differ under strict promotion. The message names the
        sectors and the rule.
      TypeError: a or b is neither a dict nor one of symmray's arrays with blocks, both are not of one kind, or a sector
        is not a tuple.

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
    options = {
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "planner": planner,
        "implementation": implementation,
    }
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        blocks_a, blocks_b = Blocks("a", a), Blocks("b", b)
        work = Contraction(blocks_a, blocks_b, axes)
        by_xla = left_to_xla(work, has_own_way=False, **options)
        assert by_xla is not None
        return work.results(blocks_a, blocks_b, by_xla, **options)
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Mapping) and not is_block_array(x):
            raise TypeError(
                f"{NAME}: {name} must be a dict of blocks or an array of symmray that has blocks, not {_described(x)}"
            )
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        raise TypeError(f"{NAME}: a is {type(a).__name__} but b is {type(b).__name__}: both must be of one kind")
    return contract_arrays(a, b, axes, **options)


def _described(x: Any) -> str:
    if isinstance(x, jax.core.Tracer):
        return f"a traced {x.dtype}{x.shape}: jit makes a dense array of an array of symmray, so pass its blocks"
    return f"a dense array, {x.dtype}{x.shape}" if isinstance(x, jax.Array | np.ndarray) else shown(x)
