"""Reads the linear layers of a network, in order, from the tree of parameters that another library made."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import Activation, resolve_activation
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.util.arguments import as_array, shown

# The names of a layer's weights: those of its bias, and whether the weights are (out, in).
NAMES: Mapping[str, tuple[str, bool]] = {
    "kernel": ("bias", False),  # Flax
    "w": ("b", False),  # Haiku
    "weight": ("bias", True),  # Equinox
}


class Layer(NamedTuple):
    """A linear layer: x @ kernel + bias, or x @ kernel^T + bias where `transposed`.

    The kernel is (..., in, out), or (..., out, in) where `transposed`; the bias is (..., out). Leading axes, of which a
    single network has none, are those of a stack of networks.
    """

    path: str
    kernel: jax.Array
    bias: jax.Array | None
    transposed: bool

    @property
    def in_features(self) -> int:
        return int(self.kernel.shape[-1 if self.transposed else -2])

    @property
    def features(self) -> int:
        return int(self.kernel.shape[-2 if self.transposed else -1])

    @property
    def stack(self) -> tuple[int, ...]:
        """The leading axes."""
        return tuple(self.kernel.shape[:-2])


class Reader(NamedTuple):
    """Reads networks for a function, which computes with these options whatever options a layer has."""

    function: str
    activation: Activation
    final_activation: Activation
    dtype: Any
    precision: Any

    def check(self) -> None:
        """Raises ValueError or TypeError where an option is unknown."""
        for activation in (self.activation, self.final_activation):
            resolve_activation(self.function, activation)
        try:
            jnp.dtype(self.dtype)
        except TypeError:
            raise TypeError(f"{self.function}: dtype is {shown(self.dtype)}: it must be None or a dtype") from None

    def layers(self, path: str, network: Any) -> list[Layer]:
        """The network's layers in the order in which they are applied, checked to fit each other."""
        layers = self._layers(path, network)
        if not layers:
            raise ValueError(f"{self.function}: {path} has no linear layer")
        first = layers[0]
        for before, layer in itertools.pairwise(layers):
            if layer.stack != first.stack or layer.in_features != before.features:
                rule = (
                    f"{before.features} features don't fit {layer.in_features} (where names don't have the order of "
                    "the layers, give a list)"
                    if layer.stack == first.stack
                    else f"the leading axes {first.stack} of a stack must be those of each of its layers"
                )
                raise ValueError(
                    f"{self.function}: {layer.path} is {layer.kernel.shape} after {before.path}, which is "
                    f"{before.kernel.shape}: {rule}"
                )
        return layers

    def _layers(self, path: str, node: Any) -> list[Layer]:
        if isinstance(node, list | tuple) and len(node) == 2 and hasattr(node[0], "shape"):
            kernel, bias = node
            return [self._layer(path, kernel, bias, transposed=False)]
        children = _children(node)
        for weights, (addend, transposed) in NAMES.items():
            if weights in children:
                others = [name for name in children if name not in (weights, addend)]
                if others:
                    raise self._unknown(f"{path} has {', '.join(map(repr, others))} beside {weights!r}")
                self._check_options(path, node)
                kernel, bias = (children.get(name, ("", None))[1] for name in (weights, addend))
                return [self._layer(path, kernel, bias, transposed)]
        children = {name: child for name, child in children.items() if not self._is_function(path, *child)}
        for where, leaf in [(path, node), *((path + key, child) for key, child in children.values())]:
            if _is_leaf(leaf):
                shape = getattr(leaf, "shape", None)
                raise self._unknown(f"{where} is {shown(leaf) if shape is None else f'an array {shape}'}")
        if not isinstance(node, list | tuple):
            children = {name: children[name] for name in self._in_order(path, list(children))}
        return [layer for key, child in children.values() for layer in self._layers(path + key, child)]

    def _layer(self, path: str, kernel: Any, bias: Any, transposed: bool) -> Layer:
        kernel, bias = (
            None if x is None else as_array(self.function, f"{path}: {name}", _value(x))
            for name, x in (("kernel", kernel), ("bias", bias))
        )
        if kernel is None or kernel.ndim < 2:
            raise self._unknown(f"{path} has the kernel {None if kernel is None else kernel.shape}, which is no matrix")
        layer = Layer(path, kernel, bias, transposed)
        if bias is not None and bias.shape != (*layer.stack, layer.features):
            raise self._unknown(
                f"{path} has the kernel {kernel.shape} and the bias {bias.shape}, which must be "
                f"{(*layer.stack, layer.features)}"
            )
        return layer

    def _check_options(self, path: str, layer: Any) -> None:
        """Refuses layers that would not compute the product of input and kernel with this call's options."""
        if hasattr(layer, "kernel_size"):
            raise self._unknown(f"{path} is a {type(layer).__name__}")
        if getattr(layer, "dot_general", None) not in (None, jax.lax.dot_general):
            raise self._unknown(f"{path} has a dot_general of its own")
        for name, canonical in (("dtype", jnp.dtype), ("precision", _precision)):
            own, value = getattr(layer, name, None), getattr(self, name)
            if own is not None and (value is None or canonical(own) != canonical(value)):
                raise ValueError(f"{self.function}: {path} has {name}={shown(own)}: the call must have it, too")

    def _is_function(self, path: str, key: str, child: Any) -> bool:
        """Whether a child is a function, which must be one that the call applies, or the identity."""
        if not callable(child) or not _is_leaf(child):
            return False
        known = [resolve_activation(self.function, given) for given in (self.activation, self.final_activation)]
        name, function = resolve_activation(self.function, child)
        if any(name == known_name if name else function == given for known_name, given in known):
            return True
        if not _is_identity(child):
            raise ValueError(
                f"{self.function}: {path}{key} is the function {getattr(child, '__name__', shown(child))}, but the "
                f"call has activation={shown(self.activation)} and final_activation={shown(self.final_activation)}: "
                "give the network's own"
            )
        return True

    def _in_order(self, path: str, names: list[str]) -> list[str]:
        """Names that differ in their number, in the order of the numbers; dicts and attributes have no other order."""
        parts = {name: re.fullmatch(r"(.*?)_?(\d*)", name, re.DOTALL) for name in names}
        prefixes = {match.group(1) for match in parts.values() if match}
        if len(prefixes) > 1:
            raise ValueError(
                f"{self.function}: {path} has {', '.join(map(repr, names))}, whose order is not known: give a list of "
                "its layers, in the order in which they are applied"
            )
        return sorted(names, key=lambda name: int(parts[name].group(2) or -1))  # type: ignore[union-attr]

    def _unknown(self, found: str) -> ValueError:
        return ValueError(
            f"{self.function}: {found}: a network is a tree of linear layers, each a pair (kernel, bias or None) or an "
            "object or a dict with kernel and bias (Flax), w and b (Haiku) or weight and bias (Equinox). For single "
            "Flax layers of any kind use `batched_linear` of jax_vbgemm.flax.nnx or jax_vbgemm.flax.linen, for "
            "products by other arrays batched_gemm"
        )


def _children(node: Any) -> dict[str, tuple[str, Any]]:
    """The children of a node that have leaves, by name, each with its key as in Python; a leaf has none."""
    found = {}
    for path, child in jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]:
        if path and jax.tree.leaves(child):
            (key,) = path
            name = next(getattr(key, field) for field in ("key", "name", "idx") if hasattr(key, field))
            found[str(name)] = jax.tree_util.keystr(path), child
    return found


def _is_leaf(node: Any) -> bool:
    return bool(jax.tree_util.all_leaves([node]))


def _value(node: Any) -> Any:
    """The array in a variable or a box of Flax, which hold one each."""
    leaves = jax.tree.leaves(node)
    return leaves[0] if len(leaves) == 1 else node


def _precision(given: Any) -> Any:
    """The precision in one of the forms in which it may be given."""
    precision = canonical_precision(given)
    is_algorithm = isinstance(precision, jax.lax.DotAlgorithm | jax.lax.DotAlgorithmPreset)
    return precision if is_algorithm else precision_name(precision)


def _is_identity(function: Callable[..., Any]) -> bool:
    x = np.ones((), np.float32)
    try:
        return function(x) is x
    except Exception:  # it takes something else than an array
        return False
