"""The flax.serialization state of a RaggedArray: its members by their paths in the tree, without the padding.

A buffer alone would be restored into other members of the same total size without an error.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_registered: set[type] = set()


def register_with_flax(cls: type) -> None:
    """Registers the class with flax.serialization, if the program has imported that module."""
    serialization = sys.modules.get("flax.serialization")
    if cls in _registered or not hasattr(serialization, "register_serialization_state"):
        return
    _registered.add(cls)
    serialization.register_serialization_state(cls, _state_of, _restored, override=True)  # type: ignore[union-attr]


def _names(x: Any) -> list[str]:
    """The path of each member."""
    numbers = jax.tree.unflatten(x.structure, range(len(x)))
    return [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(numbers)]


def _state_of(x: Any) -> dict[str, Any]:
    if not jax.tree.leaves(x.buffer):  # optax.masked has put a node without leaves in place of the buffer
        return {}
    x.check_buffer()
    windows = _windows(x, np.asarray(x.buffer))
    return {name: np.array(window) for name, window in zip(_names(x), windows, strict=True)}


def _restored(x: Any, state: Any) -> Any:
    names = _names(x)
    if not jax.tree.leaves(x.buffer):
        return x
    found = {name: np.shape(value) for name, value in state.items()}
    wanted = dict(zip(names, x.shapes, strict=True))
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"RaggedArray: the state has {_shown(name, found)} where the target has {_shown(name, wanted)}"
            )
    return type(x)(jnp.asarray(_buffer(x, [np.asarray(state[name]) for name in names])), x.members)


def _buffer(x: Any, members: list[np.ndarray]) -> np.ndarray:
    """The buffer of these members, with zeros in the padding."""
    buffer = np.zeros(x.members.elements, members[0].dtype if members else x.dtype)
    for window, member in zip(_windows(x, buffer), members, strict=True):
        window[...] = member
    return buffer


def _windows(x: Any, buffer: np.ndarray) -> list[np.ndarray]:
    """The members' windows of a buffer, without a copy: XLA would compile a program for all of them."""
    size = buffer.itemsize
    return [
        np.lib.stride_tricks.as_strided(
            buffer[layout.offset :],
            layout.shape,
            [stride * size for dimension in layout.dimensions for _, stride in dimension],
        )
        for layout in x.members.layouts
    ]


def _shown(name: str, shapes: dict[str, Any]) -> str:
    return f"{name} of shape {shapes[name]}" if name in shapes else f"no member {name}"
