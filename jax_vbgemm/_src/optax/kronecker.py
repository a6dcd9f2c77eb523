"""Kronecker factors, shared by SOAP and Shampoo: a left and a right factor of each matrix, and products with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from optax.contrib import MuonDimensionNumbers

from jax_vbgemm._src.matmul.api import batched_matmul
from jax_vbgemm._src.matmul.gram import batched_gram
from jax_vbgemm._src.matmul.packed import RaggedArray
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.optax.matrices import Matrices
from jax_vbgemm._src.util import compat

Options = dict[str, Any]
"""The options of products: precision and implementation."""


class Factors(NamedTuple):
    """A left and a right factor, (*batch, rows, rows) and (*batch, columns, columns), None if there is no factor. For
    one parameter; an optimizer's state holds a tree of left and a tree of right factors.

    In a state, None or an array stands in the place of each parameter, since flax.nnx rebuilds the state from such
    leaves and keeps no other node there.
    """

    left: Any
    right: Any


class Leaf:
    """A parameter as a matrix or a batch of matrices; a parameter without factors keeps its shape.

    where: the path of x in messages. x: the parameter or its gradient. param: the parameter of a gradient, where it is
    known. moment: an array of the optimizer's state for this parameter, in `update`.
    """

    def __init__(
        self,
        name: str,
        where: str,
        x: jax.Array,
        numbers: MuonDimensionNumbers | None,
        most: int,
        param: Any = None,
        moment: Any = None,
    ) -> None:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"{name}: {where} is {x.dtype}: it must be floating")
        self.where = where
        self.x = x
        with jax.numpy_dtype_promotion("standard"):  # the updates' dtype, as in optax.adam
            self.dtype = x.dtype if param is None else jnp.result_type(x, param)
        self.wide = accumulator(x.dtype) if moment is None else moment.dtype
        self.matrices = None if numbers is None or x.ndim < 2 else Matrices(x, numbers)
        plain = jax.ShapeDtypeStruct(x.shape, x.dtype)
        self.shape: tuple[int, ...] = (
            x.shape if self.matrices is None else jax.eval_shape(self.matrices.of, plain).shape
        )
        sizes = self.shape[-2:] if self.matrices is not None and 0 not in self.shape else ()
        self.sides = [0 < size <= most for size in sizes] or [False, False]
        if moment is not None and moment.shape != self.shape:
            raise ValueError(
                f"{name}: {where} is {self.shape} where init's parameter was {moment.shape} (folded to matrices)"
            )

    def of(self, x: jax.Array) -> jax.Array:
        """x in the shape and dtype of the computation; replicated where the mesh has explicit axes."""
        x = compat.replicated(x)
        return (x if self.matrices is None else self.matrices.of(x)).astype(self.wide)

    def back(self, y: jax.Array) -> jax.Array:
        """The inverse of `of`, in the dtype of the updates and sharded like the leaf."""
        y = (y if self.matrices is None else self.matrices.back(y)).astype(self.dtype)
        return compat.placed_as(y, self.x)

    def factors(self, make: Callable[[tuple[int, ...], Any], jax.Array]) -> Factors:
        """The leaf's factors, each made by make(shape, dtype)."""
        shapes = [(*self.shape[:-2], size, size) for size in self.shape[-2:]] if any(self.sides) else [(), ()]
        return Factors(*(make(s, self.wide) if has else None for s, has in zip(shapes, self.sides, strict=True)))


def leaves_of(
    name: str, written: str, tree: Any, numbers: Any, most: int, *, params: Any = None, moments: Any = None
) -> list[Leaf]:
    """The leaves of a tree of parameters or gradients, which messages call `written`.

    `numbers`: a tree of dimension numbers or None, a callable that makes one, or None for the default: the last axis is
    the output, and all axes before it are reduced. `params`, `moments`: trees of the parameters and of arrays of the
    state, for gradients; None if they are not known.
    """
    if any(isinstance(x, RaggedArray) for x in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, RaggedArray))):
        raise TypeError(f"{name}: {written} are packed: it takes arrays of their own, as unpack gives them")
    if numbers is None:
        numbers = _default_numbers
    if callable(numbers):
        numbers = numbers(tree)
    structure: Any = jax.tree.structure(tree)
    paths = jax.tree.leaves_with_path(tree)
    others = [[None] * len(paths) if other is None else structure.flatten_up_to(other) for other in (params, moments)]
    return [
        Leaf(name, written + jax.tree_util.keystr(path), x, number, most, param, moment)
        for (path, x), number, param, moment in zip(paths, structure.flatten_up_to(numbers), *others, strict=True)
    ]


def tree_of(structure: Any, factors: Sequence[Factors]) -> Factors:
    """The factors of all parameters as two trees, for the state."""
    return Factors(*(structure.unflatten([pair[side] for pair in factors]) for side in (0, 1)))


def list_of(structure: Any, factors: Factors) -> list[Factors]:
    """The inverse of `tree_of`: a pair for each parameter."""
    return [Factors(*pair) for pair in zip(*map(structure.flatten_up_to, factors), strict=True)]


def _default_numbers(tree: Any) -> Any:
    def number(x: Any) -> MuonDimensionNumbers | None:
        return MuonDimensionNumbers(tuple(range(x.ndim - 1)), x.ndim - 1) if x.ndim > 1 else None

    return jax.tree.map(number, tree)


def grams(
    xs: Sequence[jax.Array], factors: Sequence[Factors], alpha: Any, beta: Any, options: Options
) -> list[Factors]:
    """alpha X X^T + beta F for every left factor F, and alpha X^T X + beta F for every right factor: one operation."""
    lefts, rights = _present(factors, 0), _present(factors, 1)
    new = batched_gram(
        [xs[index] for index in (*lefts, *rights)],
        transpose=[False] * len(lefts) + [True] * len(rights),
        alpha=alpha,
        beta=beta,
        Cs=flat(factors),
        **options,
    )
    return unflat(factors, new)


def multiply_both_sides(
    xs: Sequence[jax.Array], factors: Sequence[Factors], options: Options, *, transpose: bool = False
) -> list[jax.Array]:
    """L X R^T of every X, or L^T X R: two operations. A factor that is None is left out."""
    xs = list(xs)
    lefts, rights = _present(factors, 0), _present(factors, 1)
    products = batched_matmul(
        [factors[i].left for i in lefts], [xs[i] for i in lefts], transpose_a=transpose, **options
    )
    for index, product in zip(lefts, products, strict=True):
        xs[index] = product
    products = batched_matmul(
        [xs[i] for i in rights], [factors[i].right for i in rights], transpose_b=not transpose, **options
    )
    for index, product in zip(rights, products, strict=True):
        xs[index] = product
    return xs


def flat(factors: Sequence[Factors]) -> list[Any]:
    """All factors that are not None: first the left ones, then the right ones."""
    return [pair[side] for side in (0, 1) for pair in factors if pair[side] is not None]


def unflat(factors: Sequence[Factors], values: Sequence[Any]) -> list[Factors]:
    """The inverse of `flat`: `values` in place of the factors that are not None."""
    left, right = iter(values[: len(_present(factors, 0))]), iter(values[len(_present(factors, 0)) :])
    return [Factors(None if f.left is None else next(left), None if f.right is None else next(right)) for f in factors]


def by_shape(function: Callable[[jax.Array], jax.Array], matrices: Sequence[jax.Array]) -> list[jax.Array]:
    """A function of (batch, n, n) applied to all matrices, with one call for all matrices of one size and dtype,
    because XLA's decompositions only take stacks."""
    indices_by_key: dict[Any, list[int]] = {}
    for index, x in enumerate(matrices):
        indices_by_key.setdefault((x.shape[-1], x.dtype), []).append(index)
    results: list[Any] = [None] * len(matrices)
    for (size, _), members in indices_by_key.items():
        stacks = [matrices[index].reshape(-1, size, size) for index in members]
        found = function(jnp.concatenate(stacks))
        ends = [sum(len(stack) for stack in stacks[:place]) for place in range(1, len(stacks))]
        for index, part in zip(members, jnp.split(found, ends), strict=True):
            results[index] = part.reshape(matrices[index].shape)
    return results


def _present(factors: Sequence[Factors], side: int) -> list[int]:
    return [index for index, pair in enumerate(factors) if pair[side] is not None]
