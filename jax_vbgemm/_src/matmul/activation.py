"""Activations: by name or as a function. The kernel's epilogue applies those it knows, XLA applies any other one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from jax_vbgemm import _core
from jax_vbgemm._src.matmul.reference import FUNCTIONS
from jax_vbgemm._src.shown import shown

_NAMES: tuple[str, ...] = tuple(_core.activations())  # by number; number 0 means no activation

ACTIVATIONS: tuple[str, ...] = _NAMES[1:]
"""The activations that kernels apply, by name, as csrc/activations.def declares them. Each is the function of `jax.nn`
of this name with its default arguments; `jax.nn.gelu` then is the tanh approximation."""

Activation = str | Callable[[jax.Array], jax.Array] | None

# Functions of JAX that compute a named activation under another name.
_SAME = {jax.lax.tanh: "tanh", jax.lax.logistic: "sigmoid"}


def activation_number(activation: str | None) -> int:
    """The number by which a call of a kernel refers to an activation."""
    return _NAMES.index(activation or "none")


def resolve_activation(where: str, activation: Any) -> tuple[str | None, Callable[[jax.Array], jax.Array] | None]:
    """(its name in the kernel's epilogue, or None where the epilogue lacks it; the function, or None for no
    activation)."""
    if activation is None:
        return None, None
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            known = ", ".join(map(repr, ACTIVATIONS))
            raise ValueError(f"{where}: activation must be None, a function, or one of {known}, not {activation!r}")
        return activation, FUNCTIONS[activation]
    if not callable(activation):
        raise TypeError(f"{where}: activation must be None, a function or a name, not {shown(activation)}")
    meant = activation
    if isinstance(activation, functools.partial) and not activation.args and activation.func is jax.nn.gelu:
        # The kernel's gelu is the tanh approximation. gelu with approximate=False is another function, left to XLA.
        meant = jax.nn.gelu if activation.keywords == {"approximate": True} else activation
    for name, function in FUNCTIONS.items():
        if meant is function:
            return name, activation
    return next((name for function, name in _SAME.items() if meant is function), None), activation
