"""The factors of products: As and Bs are paired leaf by leaf, and each pair is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.matmul.call import Argument, Call, merged
from jax_vbgemm._src.matmul.layout import Shape
from jax_vbgemm._src.matmul.options import check_options, result_dtype
from jax_vbgemm._src.matmul.packed import RaggedArray, unpacked
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.primitive import Term, TermSizes, sizes_of
from jax_vbgemm._src.matmul.view import Operand, View, as_operand, is_view
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import refuse_explicit_axes, shown
from jax_vbgemm._src.util.structure import difference, path_of


class FactorTree(NamedTuple):
    """The left or the right factors, one for each product."""

    argument: str
    tree: Any
    arrays: list[Operand]  # the leaves of the tree
    written: Callable[[int], str]  # leaf i in the user's notation
    is_packed: bool  # whether As or Bs was a RaggedArray


def paired(
    name: str, As: Any, Bs: Any, arguments: tuple[str, str] = ("As", "Bs"), written: Any = (None, None)
) -> tuple[FactorTree, FactorTree]:
    """The left and the right factors. If one argument is an array and the other a tree, it is a factor of every
    product.

    `arguments`: the names of both arguments in messages. `written`: the names of leaf i of each argument in messages,
    where it is not the argument's name followed by the path.
    """
    is_packed = any(isinstance(tree, RaggedArray) for tree in (As, Bs))
    As, Bs, shared = _with_shared_operand(name, unpacked(As), unpacked(Bs))
    structure: Any = jax.tree.structure(As, is_leaf=is_view)
    if structure != jax.tree.structure(Bs, is_leaf=is_view):
        found = difference("As", _without_views(As), "Bs", _without_views(Bs))
        raise ValueError(f"{name}: As and Bs must have the same structure: {found}")

    def factors(argument: str, tree: Any, written: Callable[[int], str] | None, *, is_shared: bool) -> FactorTree:
        def by_path(index: int) -> str:
            return argument if is_shared else argument + path_of(structure, index)

        written = written or by_path
        leaves = jax.tree.leaves(tree, is_leaf=is_view)
        if not all(isinstance(leaf, jax.Array) for leaf in leaves):
            leaves = [as_operand(name, written(index), leaf) for index, leaf in enumerate(leaves)]
        return FactorTree(argument, tree, leaves, written, is_packed)

    return (
        factors(arguments[0], As, written[0], is_shared=shared == "As"),
        factors(arguments[1], Bs, written[1], is_shared=shared == "Bs"),
    )


def _with_shared_operand(name: str, As: Any, Bs: Any) -> tuple[Any, Any, str | None]:
    """As and Bs as trees, and the name of the argument that was an array shared by all leaves of the other, or None."""
    is_single_a, is_single_b = (is_view(tree) or jax.tree_util.all_leaves([tree]) for tree in (As, Bs))
    if is_single_a == is_single_b:
        return As, Bs, None
    which, array, other, tree = ("As", As, "Bs", Bs) if is_single_a else ("Bs", Bs, "As", As)
    if tree is None:
        raise ValueError(f"{name}: {other} is None, but {which} is an array")
    array, leaves = as_operand(name, which, array), jax.tree.leaves(tree, is_leaf=is_view)
    if array.ndim > 2 and array.shape[0] == len(leaves) > 1:
        raise ValueError(
            f"{name}: {which} is one array of shape {tuple(array.shape)} against the {len(leaves)} leaves of {other}: "
            f"give a tree of the same structure, of {len(leaves)} times the array if all of it belongs to each leaf "
            "([x] * n), of its entries if entry i belongs to leaf i (list(x))"
        )
    repeated = jax.tree.unflatten(jax.tree.structure(tree, is_leaf=is_view), [array] * len(leaves))
    return (repeated, tree, which) if is_single_a else (tree, repeated, which)


def products(
    name: str,
    lhs: FactorTree,
    rhs: FactorTree,
    *,
    transpose_a: Any,
    transpose_b: Any,
    symmetric: Any,
    precision: Any,
    preferred: Any,
    decided: Sequence[Any] = (),
) -> Call:
    """A call with one product for each result; ValueError or TypeError name the pair that cannot be multiplied.

    `decided`: the dtype of each result whose factors are multiplied as they are; None where the ordinary rules hold.
    """
    precision = canonical_precision(precision)
    check_options(name, precision, preferred)
    flags = flags_of(name, lhs, rhs, transpose_a, transpose_b, symmetric)
    operands: list[Argument] = []
    shapes: list[Shape] = []
    dtypes = []
    for index, (a, b, term_flags) in enumerate(zip(lhs.arrays, rhs.arrays, flags, strict=True)):
        with naming(name, lhs, rhs, index, term_flags):
            sizes = checked_sizes(a, b, term_flags)
            a_dtype, b_dtype = a.dtype, b.dtype
            if decided and decided[index] is not None:
                dtype = decided[index]
            else:
                if a_dtype != b_dtype and not (preferred is not None and is_float8(a, b)):
                    a_dtype = b_dtype = jnp.result_type(*(x.dtype if isinstance(x, View) else x for x in (a, b)))
                dtype = result_dtype(a_dtype, b_dtype, precision, preferred)
        dtypes.append(dtype)
        operands += [Argument(a, a.shape, a_dtype), Argument(b, b.shape, b_dtype)]
        shapes.append((*sizes.batch, sizes.m, sizes.n))
    refuse_explicit_axes(name, lhs.arrays, lhs.written)
    refuse_explicit_axes(name, rhs.arrays, rhs.written)
    different, position = merged(operands)
    pairs = zip(position[::2], position[1::2], range(len(shapes)), flags, strict=True)
    return Call(
        name=name,
        argument=lhs.argument,
        structure=jax.tree.structure(lhs.tree, is_leaf=is_view),
        is_packed=lhs.is_packed,
        operands=different,
        terms=tuple(Term(left, right, out, *term_flags) for left, right, out, term_flags in pairs),
        shapes=tuple(shapes),
        dtypes=tuple(dtypes),
        precision=precision,
    )


def _without_views(tree: Any) -> Any:
    """The tree with an array in place of each view, so that messages about structures do not show a view's fields."""
    return jax.tree.map(lambda x: x.buffer if isinstance(x, View) else x, tree, is_leaf=is_view)


class Flags(NamedTuple):
    """The options of one product, after trees of flags have been divided among the products."""

    transpose_a: bool
    transpose_b: bool
    symmetric: bool


def flags_of(
    name: str, lhs: FactorTree, rhs: FactorTree, transpose_a: Any, transpose_b: Any, symmetric: Any
) -> list[Flags]:
    """The flags of each product."""
    return list(
        map(
            Flags,
            _flags(name, "transpose_a", transpose_a, lhs),
            _flags(name, "transpose_b", transpose_b, rhs),
            _flags(name, "symmetric", symmetric, lhs),
        )
    )


def checked_sizes(a: Operand, b: Operand, flags: Flags) -> TermSizes:
    """The sizes of a product; ValueError where its factors don't fit each other."""
    if a.ndim < 2 or b.ndim < 2:
        raise ValueError("both need rank 2 or more")
    sizes = sizes_of(a.shape, b.shape, Term(0, 1, 0, *flags))
    if flags.symmetric and compat.is_static((sizes.m, sizes.n)) and sizes.m != sizes.n:
        raise ValueError(f"a symmetric result must be square, but this one is {sizes.m} x {sizes.n}")
    return sizes


@contextmanager
def naming(name: str, lhs: FactorTree, rhs: FactorTree, index: int, flags: Flags) -> Iterator[None]:
    """A context in which errors about pair `index` get the names and shapes of its factors."""
    try:
        yield
    except (ValueError, TypeError) as error:
        a, b, names = lhs.arrays[index], rhs.arrays[index], (lhs.written(index), rhs.written(index))
        if names[0] == names[1]:  # a matrix times its own transpose
            raise type(error)(f"{name}: {names[0]} is {_describe(a, b)}: {error}") from None
        transposed = "".join(f", {x} transposed" for x, flag in zip(names, flags, strict=False) if flag)
        raise type(error)(
            f"{name}: {names[0]} is {_describe(a, b)} but {names[1]} is {_describe(b, a)}{transposed}: {error}"
        ) from None


def _flags(name: str, option: str, flags: Any, of: FactorTree) -> list[bool]:
    """The flags as one bool for each leaf, from a bool or a prefix pytree of bools."""
    if isinstance(flags, bool | np.bool_):
        return [bool(flags)] * len(of.arrays)
    try:
        leaves = jax.tree.leaves(jax.tree.map(lambda flag, part: jax.tree.map(lambda _: flag, part), flags, of.tree))
    except ValueError:
        found = difference(option, flags, of.argument, of.tree, prefix=True)
        raise ValueError(f"{name}: {option} must be a bool or a prefix of {of.argument}: {found}") from None
    for leaf in leaves:
        if not isinstance(leaf, bool | np.bool_):
            raise TypeError(f"{name}: {option} must hold Python bools, not {shown(leaf)}")
    return [bool(leaf) for leaf in leaves]


def is_float8(*operands: Operand) -> bool:
    """Whether an operand is an 8-bit float. It promotes with no other dtype, and is multiplied without conversion if
    the caller names the result's dtype."""
    return any(jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1 for x in operands)


def _describe(x: Operand, other: Operand) -> str:
    return str(tuple(x.shape)) if x.dtype == other.dtype else f"{x.dtype}{tuple(x.shape)}"
