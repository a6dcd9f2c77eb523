"""Messages about two pytrees of different structure, in the notation of Python expressions."""

from __future__ import annotations

from typing import Any

import jax


def difference(name: str, tree: Any, other_name: str, other: Any, *, prefix: bool = False) -> str | None:
    """The first place at which the trees differ in structure ("As['w'] is a list but Bs['w'] is a tuple"), or None.

    prefix: a leaf of `tree` stands for any subtree of `other`.
    """
    children, definition = _one_level(tree)
    if prefix and _is_leaf(definition):
        return None
    others, other_definition = _one_level(other)
    if type(tree) is not type(other) and not (_is_leaf(definition) and _is_leaf(other_definition)):
        return f"{name} is {_described(tree)} but {other_name} is {_described(other)}"
    if isinstance(tree, dict):
        for left, left_name, right, right_name in (tree, name, other, other_name), (other, other_name, tree, name):
            missing = [key for key in left if key not in right]
            if missing:
                keys = f"key{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
                return f"{left_name} has the {keys} but {right_name} has not"
    if len(children) != len(others):
        return f"{name} has {_count(children)} but {other_name} has {_count(others)}"
    for (path, child), (_, other_child) in zip(children, others, strict=True):
        if not path:  # a leaf
            continue
        key = jax.tree_util.keystr(path)
        found = difference(name + key, child, other_name + key, other_child, prefix=prefix)
        if found:
            return found
    if definition != other_definition:
        return f"{name} and {other_name} are {type(tree).__name__} objects with different static fields"
    return None


def _one_level(tree: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children of a node with their keys, and the node's definition; for a leaf, the leaf itself."""
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)


def _is_leaf(definition: Any) -> bool:
    return bool(jax.tree_util.treedef_is_leaf(definition)) and definition.num_leaves == 1


def _described(tree: Any) -> str:
    if tree is None:
        return "None"
    if _is_leaf(_one_level(tree)[1]):
        return f"a leaf ({type(tree).__name__})" if not isinstance(tree, jax.Array) else "an array"
    name = type(tree).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _count(children: list[Any]) -> str:
    return "1 entry" if len(children) == 1 else f"{len(children)} entries"


def is_none(x: Any) -> bool:
    """The argument `is_leaf` of jax.tree's functions where None counts as a leaf."""
    return x is None


def path_of(structure: Any, index: int) -> str:
    """The path of leaf `index` in a tree of this structure, as in ['w'][3]."""
    tree = jax.tree.unflatten(structure, range(structure.num_leaves))
    return jax.tree_util.keystr(jax.tree.leaves_with_path(tree)[index][0])
