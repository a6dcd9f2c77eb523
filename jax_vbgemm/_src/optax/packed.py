"""Packs parameters into a few buffers, so that a jitted step has a few arguments instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_vbgemm._src.matmul.packed import RaggedArray, pack, pack_as, packable
from jax_vbgemm._src.matmul.view import is_view
from jax_vbgemm._src.util.structure import is_none


class PackedTree(NamedTuple):
    """A tree whose leaves lie in a few buffers; `pack_tree` makes one, and `unpack` gives the tree back.

    buffers: RaggedArrays of the tree's structure, each with None in place of the leaves that lie in another buffer.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> packed = jax_vbgemm.optax.pack_tree({"w": jnp.ones((4, 6)), "b": jnp.zeros(6)})
      >>> [buffer.shapes for buffer in packed.buffers]
      [((4, 6),), ((6,),)]
      >>> packed.unpack()["b"].shape
      (6,)
    """

    buffers: tuple[RaggedArray, ...]

    def unpack(self) -> Any:
        """The tree with each leaf as an array of its own."""
        trees = [_members(buffer) for buffer in self.buffers]
        structure = jax.tree.structure(trees[0], is_leaf=_is_missing)
        columns = zip(*(jax.tree.leaves(tree, is_leaf=_is_missing) for tree in trees), strict=True)
        return jax.tree.unflatten(structure, [next((x for x in xs if x is not None), None) for xs in columns])


def pack_tree(tree: Any) -> PackedTree:
    """A tree of arrays, such as parameters, as a `PackedTree`: matrices in one buffer and the other leaves in another,
    for each dtype.

    To optax a buffer is one leaf: an optimizer's moments of it are one array, and one operation updates them. That is
    correct for transformations that treat each element by itself or all elements as one vector (Adam, SGD, Lion,
    clipping by the global norm), and for `muon`, which knows the members of buffers of matrices.

    Raises:
      TypeError: a leaf is not an array of numbers.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> params = jax_vbgemm.optax.pack_tree({"up": jnp.ones((4, 6)), "down": jnp.ones((6, 2)), "bias": jnp.zeros(6)})
      >>> optimizer = jax_vbgemm.optax.muon(learning_rate=0.1)
      >>> state = optimizer.init(params)
      >>> def loss(params):
      ...     layers = params.unpack()
      ...     return jnp.sum((jnp.ones(4) @ layers["up"] + layers["bias"]) @ layers["down"])
      >>> updates, state = optimizer.update(jax.grad(loss)(params), state, params)
      >>> params = jax_vbgemm.optax.apply_updates(params, updates)
      >>> [x.shape for x in jax.tree.leaves(params)], params.unpack()["up"].shape
      ([(56,), (8,)], (4, 6))
    """
    named, structure = jax.tree.flatten_with_path(tree, is_leaf=lambda x: x is None or is_view(x))
    leaves = [None if x is None else packable("pack_tree", "tree" + jax.tree_util.keystr(path), x) for path, x in named]
    groups = [None if x is None else (x.ndim != 2, x.dtype.name) for x in leaves]

    def part(group: Any) -> Any:
        return jax.tree.unflatten(structure, [x if of == group else None for x, of in zip(leaves, groups, strict=True)])

    # A tree without leaves still needs a buffer, which keeps its structure.
    present: list[Any] = sorted({group for group in groups if group is not None})
    return PackedTree(tuple(pack(part(group)) for group in present or [None]))


def unpack_state(state: Any) -> Any:
    """Turns an optimizer's state for packed parameters into its state for the tree that was packed.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import optax
      >>> import jax_vbgemm.optax
      >>> params = {"w": jnp.ones((4, 6)), "b": jnp.zeros(6)}
      >>> state = jax_vbgemm.optax.muon(0.1).init(jax_vbgemm.optax.pack_tree(params))
      >>> theirs = optax.contrib.muon(0.1).init(params)
      >>> jax.tree.structure(jax_vbgemm.optax.unpack_state(state)) == jax.tree.structure(theirs)
      True
    """

    def unpacked(x: Any) -> Any:
        return x.unpack() if isinstance(x, PackedTree) else _members(x) if isinstance(x, RaggedArray) else x

    return jax.tree.map(unpacked, state, is_leaf=_is_packed)


def pack_state(state: Any, like: Any) -> Any:
    """The inverse of `unpack_state`: packs a state of optax, from a checkpoint for example.

    Args:
      state: an optimizer's state for a tree of parameters.
      like: the same optimizer's state for the packed parameters, as `init` gives it; its values are not used.

    Raises:
      ValueError: the states differ in structure, or an array of `state` differs in shape from that of `like`.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import optax
      >>> import jax_vbgemm.optax
      >>> params = {"w": jnp.ones((4, 6)), "b": jnp.zeros(6)}
      >>> theirs = optax.contrib.muon(0.1).init(params)
      >>> ours = jax_vbgemm.optax.muon(0.1).init(jax_vbgemm.optax.pack_tree(params))
      >>> len(jax.tree.leaves(jax_vbgemm.optax.pack_state(theirs, like=ours))) == len(jax.tree.leaves(ours))
      True
    """

    def packed(x: Any, part: Any) -> Any:
        if isinstance(x, PackedTree):
            return PackedTree(tuple(_packed_as(buffer, part) for buffer in x.buffers))
        return _packed_as(x, part) if isinstance(x, RaggedArray) else part

    places = jax.tree.leaves(like, is_leaf=_is_packed)
    structure: Any = jax.tree.structure(like, is_leaf=_is_packed)
    try:
        parts = structure.flatten_up_to(state)
    except ValueError as error:
        raise ValueError(f"pack_state: the state is not one of the optimizer that made `like`: {error}") from None
    return structure.unflatten(map(packed, places, parts))


def by_member(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """jax.tree.map in which the members of a RaggedArray are leaves; any other value in `rest` is passed for each
    member."""

    def mapped(x: Any, *others: Any) -> Any:
        if not is_ragged(x):
            return f(x, *others)
        columns = [list(y) if is_ragged(y) else [y] * len(x) for y in (x, *others)]
        return pack_as([f(*members) for members in zip(*columns, strict=True)], x.members)

    return jax.tree.map(mapped, tree, *rest, is_leaf=is_ragged)


def is_ragged(x: Any) -> bool:
    """Whether x is a RaggedArray with a buffer; optax.masked may have replaced the buffer by a node without leaves."""
    return isinstance(x, RaggedArray) and bool(jax.tree.leaves(x.buffer))


def _members(x: RaggedArray) -> Any:
    """The tree of the members. A node that optax put in place of the buffer stands for each member."""
    if is_ragged(x):
        return x.unpack()
    return jax.tree.unflatten(x.structure, [x.buffer] * len(x))


def _packed_as(x: RaggedArray, tree: Any) -> RaggedArray:
    """The leaves of a tree as a RaggedArray with the layout of x."""
    if not is_ragged(x):
        return x
    numbers = jax.tree.unflatten(x.structure, range(len(x)))
    part = jax.tree.map(lambda number, leaf: None if number is None else leaf, numbers, tree, is_leaf=is_none)
    shapes = tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(part))
    if shapes != x.shapes:
        raise ValueError(f"pack_state: the state has members {shapes} where the packed one has {x.shapes}")
    return pack_as(part, x.members)


def _is_packed(x: Any) -> bool:
    return isinstance(x, PackedTree | RaggedArray)


def _is_missing(x: Any) -> bool:
    return x is None or isinstance(x, optax.MaskedNode)
