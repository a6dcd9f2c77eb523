"""Reads the linear layers of a network, in order, from the tree of parameters that another library made."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import Activation, resolve_activation
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.util.arguments import as_array, shown

# For each name of a layer's weights: the name of its bias, and whether the weights are (out, in).
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
        """The leading axes of the kernel: () for a single network."""
        return tuple(self.kernel.shape[:-2])


class Function(NamedTuple):
    """A function that a network applies after the layer before it; None if it applies none."""

    path: str
    function: Callable[..., Any] | None


class NetworkReader(NamedTuple):
    """Reads networks for a public function, whose options apply regardless of the layers' own options."""

    function: str
    activation: Activation
    final_activation: Activation
    dtype: Any
    precision: Any

    def check_options(self) -> None:
        """Raises ValueError or TypeError if an option is unknown."""
        for activation in (self.activation, self.final_activation):
            resolve_activation(self.function, activation)
        try:
            jnp.dtype(self.dtype)
        except TypeError:
            raise TypeError(f"{self.function}: dtype is {shown(self.dtype)}: it must be None or a dtype") from None

    def layers(self, path: str, network: Any) -> list[Layer]:
        """The network's layers in the order in which they are applied, checked to fit each other and the call."""
        layers: list[Layer] = []
        functions: list[list[Function]] = [[]]  # functions before the first layer, and after each layer
        for item in self._items(path, network):
            if isinstance(item, Layer):
                layers.append(item)
                functions.append([])
            else:
                functions[-1].append(item)
        if not layers:
            raise ValueError(f"{self.function}: {path} has no linear layer")
        for i, found in enumerate(functions):
            self._check_functions(layers, i, found)
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

    def _items(self, path: str, node: Any) -> list[Layer | Function]:
        """Layers in the order in which they are applied, and the functions among them where the tree has them there."""
        if _is_function(node):
            return [Function(path, node)]
        self._check_node(path, node)
        if isinstance(node, list | tuple):
            if len(node) == 2 and hasattr(node[0], "shape"):
                kernel, bias = node
                return [self._layer(path, kernel, bias, transposed=False)]
            return self._in_sequence(path, node)
        if _is_a(node, "equinox.nn", "Sequential") or _is_a(node, "flax.nnx", "Sequential"):
            return [*self._in_sequence(f"{path}.layers", node.layers, has_all=True), Function(path, None)]
        children = _children(node)
        for weights, (addend, transposed) in NAMES.items():
            if weights in children:
                others = [name for name in children if name not in (weights, addend)]
                if others:
                    raise self._unknown(f"{path} has {', '.join(map(repr, others))} beside {weights!r}")
                self._check_layer_options(path, node)
                kernel, bias = (children.get(name, ("", None))[1] for name in (weights, addend))
                return [self._layer(path, kernel, bias, transposed)]
        functions = {name: Function(path + key, f) for name, (key, f) in children.items() if _is_function(f)}
        children = {name: child for name, child in children.items() if name not in functions}
        for key, child in children.values():
            self._check_node(path + key, child)
        in_order = [children[name] for name in self._in_order(path, list(children))]
        items = [item for key, child in in_order for item in self._items(path + key, child)]
        if not items:  # a wrapper of a function, such as eqx.nn.Lambda
            return list(functions.values())
        if {"activation", "final_activation"} <= functions.keys():  # eqx.nn.MLP
            after = [functions["activation"]] * (len(items) - 1) + [functions["final_activation"]]
            return [each for pair in zip(items, after, strict=True) for each in pair]
        fields = {"activation": [self.activation], "final_activation": [self.final_activation]}
        for name, each in functions.items():  # it is unknown where functions with other names are applied
            allowed = fields.get(name, [self.activation, self.final_activation, None])
            if not any(self._same(each.function, given) for given in allowed):
                raise self._other_function(each)
        return items

    def _in_sequence(self, path: str, nodes: Sequence[Any], has_all: bool = False) -> list[Layer | Function]:
        """The items of nodes that are applied one after another.

        If a node is a function, or with `has_all`, the nodes list all functions between layers. Then consecutive nodes
        are separated by the entry of no function, so that no activation is added there.
        """
        parts = [self._items(f"{path}[{i}]", node) for i, node in enumerate(nodes)]
        has_all = has_all or any(isinstance(part[0], Function) for part in parts if part)
        nothing: list[Layer | Function] = [Function(path, None)] if has_all else []
        return [item for i, part in enumerate(parts) for item in (nothing if i else []) + part]

    def _check_functions(self, layers: Sequence[Layer], count: int, functions: Sequence[Function]) -> None:
        """ValueError unless the functions after `count` of the layers, if the tree has any, are those that the call
        applies there."""
        last = count == len(layers)
        given = None if count == 0 else self.final_activation if last else self.activation
        found = [each for each in functions if not self._same(each.function, None)]
        if not functions or (len(found) == 1 and self._same(found[0].function, given)):
            return
        if not found and self._same(given, None):
            return
        if count and not found:
            raise ValueError(
                f"{self.function}: {layers[count - 1].path} has no activation after it, but the call has "
                f"{'final_activation' if last else 'activation'}={shown(given)}: give the network's own"
            )
        wrong = next((each for each in found if not self._same(each.function, given)), found[-1])
        raise self._other_function(wrong)

    def _same(self, own: Any, given: Any) -> bool:
        """Whether two activations are the same function, where None is the identity."""
        (name, function), (given_name, given_function) = (resolve_activation(self.function, f) for f in (own, given))
        if function is None or given_function is None:
            return not (name or given_name) and all(f is None or _is_identity(f) for f in (function, given_function))
        return name == given_name if name or given_name else bool(function == given_function)

    def _other_function(self, found: Function) -> ValueError:
        name = getattr(found.function, "__name__", None) or type(found.function).__name__
        return ValueError(
            f"{self.function}: {found.path} is the function {name}, but the call has "
            f"activation={shown(self.activation)} after each layer and final_activation={shown(self.final_activation)} "
            "after the last one: give the network's own"
        )

    def _check_node(self, path: str, node: Any) -> None:
        """ValueError for a leaf, which is not a network."""
        if _is_leaf(node):
            shape = getattr(node, "shape", None)
            raise self._unknown(f"{path} is {shown(node) if shape is None else f'an array {shape}'}")

    def _layer(self, path: str, kernel: Any, bias: Any, transposed: bool) -> Layer:
        kernel, bias = (
            None if x is None else as_array(self.function, f"{path}: {name}", x)
            for name, x in (("kernel", _value(kernel)), ("bias", _value(bias)))
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

    def _check_layer_options(self, path: str, layer: Any) -> None:
        """Refuses layers that would not compute the product of input and kernel with this call's options."""
        if callable(layer) and not (_is_a(layer, "flax.nnx", "Linear") or _is_a(layer, "equinox.nn", "Linear")):
            raise self._unknown(f"{path} is a {type(layer).__name__}")
        if getattr(layer, "dot_general", None) not in (None, jax.lax.dot_general):
            raise self._unknown(f"{path} has a dot_general of its own")
        if getattr(layer, "preferred_element_type", None) is not None:
            raise self._unknown(f"{path} has a preferred_element_type")
        for name, canonical in (("dtype", jnp.dtype), ("precision", _precision)):
            own, value = getattr(layer, name, None), getattr(self, name)
            if own is not None and (value is None or canonical(own) != canonical(value)):
                raise ValueError(f"{self.function}: {path} has {name}={shown(own)}: the call must have it, too")

    def _in_order(self, path: str, names: list[str]) -> list[str]:
        """Sorts names that differ in a number by this number; dicts and attributes have no other order."""
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
            f"{self.function}: {found}: a network is a tree of linear layers, each a pair (kernel, bias or None), an "
            "nnx.Linear, an eqx.nn.Linear, or a dict with kernel and bias (Flax), w and b (Haiku) or weight and bias "
            "(Equinox). For single Flax layers of any kind use `batched_linear` of jax_vbgemm.flax.nnx or "
            "jax_vbgemm.flax.linen, for products by other arrays batched_gemm"
        )


def _children(node: Any) -> dict[str, tuple[str, Any]]:
    """The functions among the children of a node and those that have leaves, by name, each with its key as in Python; a
    leaf has none."""
    found = {}
    for path, child in jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]:
        if path and (jax.tree.leaves(child) or _is_function(child)):
            (key,) = path
            name = next(getattr(key, field) for field in ("key", "name", "idx") if hasattr(key, field))
            found[str(name)] = jax.tree_util.keystr(path), child
    return found


def _is_leaf(node: Any) -> bool:
    return bool(jax.tree_util.all_leaves([node]))


def _is_function(node: Any) -> bool:
    """Whether a node is a function, or a module without arrays, which can only be called."""
    return callable(node) and (_is_leaf(node) or not jax.tree.leaves(node))


def _is_a(node: Any, module: str, name: str) -> bool:
    """Whether a node's type is this class of a library that may not be installed."""
    return type(node) is getattr(sys.modules.get(module), name, None)


def _value(node: Any) -> Any:
    """The array in a variable or a box of Flax, which hold one each, or None."""
    leaves = jax.tree.leaves(node)
    return leaves[0] if len(leaves) == 1 else node if leaves else None


def _precision(given: Any) -> Any:
    """The precision in one of the forms in which it may be given."""
    precision = canonical_precision(given)
    is_algorithm = isinstance(precision, jax.lax.DotAlgorithm | jax.lax.DotAlgorithmPreset)
    return precision if is_algorithm else precision_name(precision)


def _is_identity(function: Callable[..., Any]) -> bool:
    x = np.ones((), np.float32)
    try:
        return function(x) is x
    except Exception:  # it takes something other than an array
        return False
