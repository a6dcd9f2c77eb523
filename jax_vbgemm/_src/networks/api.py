"""`apply`: whole networks of different width and depth, one call for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Activation
from jax_vbgemm._src.matmul.api import AnyPlanner, batched_gemm
from jax_vbgemm._src.networks.layers import Layer, NetworkReader
from jax_vbgemm._src.util.arguments import inputs_of, shown
from jax_vbgemm._src.util.distinct import distinct

NAME = "networks.apply"


def apply(
    networks: Any,
    inputs: Any,
    activation: Activation,
    *,
    final_activation: Activation = None,
    dtype: Any = None,
    precision: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """Applies networks of linear layers (MLPs) of any width and depth to their inputs, one operation for each depth.

    Network i computes `x = activation(x @ kernel + bias)` for each of its layers, the last one with final_activation.
    The same as a loop over the networks, under every transformation. Networks end together: the last layers of all
    networks are one operation, so are those before them, and a network of fewer layers begins later.

    Parameters are read where other libraries keep them; nothing is copied or converted. A network is a tree of linear
    layers:

    - a list or tuple of layers, each a pair (kernel, bias) with kernel (in, out) and bias (out,) or None;
    - parameters of Linen, with or without "params" around them, or of Haiku, or an nnx.State: dicts of layers, whose
      names differ in their number only ("Dense_0", "Dense_1", ...) and are numbered in the order of application: Linen
      numbers layers as they are created, and in `nn.Dense(2)(nn.Dense(3)(x))` the last one is created first;
    - a module of NNX or of Equinox that holds nnx.Linear or eqx.nn.Linear (nnx.Sequential, nnx.List, eqx.nn.MLP), in a
      list or in attributes of numbered names. An Equinox layer's weight is (out, in).
    - A network whose arrays all have one more axis in front is a stack of networks of one shape, as `nn.vmap`,
      `nnx.vmap` and `eqx.filter_vmap` make them: an ensemble.

    Parameters alone don't show of which layer they are: the kernel (3, in, out) of a convolution without a bias reads
    as a stack of three. Functions in a tree are not applied. Those of a Sequential, of eqx.nn.MLP and of lists must
    stand where this call applies its own; those of other modules of NNX and of Linen are not seen.

    Args:
      networks: a list, tuple or dict of networks. One network or one stack is a list of one: the layers of a network
        that stands in no list are taken for networks of one layer each.
      inputs: one array for all networks, or a list, tuple or dict with one for each: (in,), (rows, in), or more axes in
        front. The axes of a stack broadcast with those before rows as in jnp.matmul: (rows, in) is the input of each
        network of the stack, (stack, rows, in) has one for each.
      activation: between layers: None, one of `jax_vbgemm.ACTIVATIONS`, or a function. The kernel applies the named
        ones, and the functions of jax.nn that they stand for; XLA applies other functions, which get the result of a
        layer (..., width) and must keep its shape.
      final_activation: after the last layer of each network.
      dtype: of the computation, to which inputs and parameters are cast as in nn.Dense; None: that to which they
        promote.
      precision, planner, implementation: as for `batched_gemm`.

    Returns:
      A list (or a dict with the keys of networks) of results (..., out), for a stack (stack, ..., out).

    Raises:
      ValueError: a tree holds something that is no linear layer, the order of layers is not known, layers don't fit
        each other or the input, or a tree has another dtype or precision than the call or other functions between its
        layers; the message names the network, the layer and the shapes.
      TypeError: networks is not a list or dict, or a leaf is not an array.

    Examples:
      Networks of different width and depth on one input, and their gradient:

      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm import networks
      >>> def network(*widths):
      ...     return [(jnp.ones((m, n)), jnp.zeros(n)) for m, n in zip(widths, widths[1:])]
      >>> heads = {"energy": network(4, 8, 1), "charges": network(4, 16, 5, 3)}
      >>> {name: y.shape for name, y in networks.apply(heads, jnp.ones((10, 4)), "silu").items()}
      {'energy': (10, 1), 'charges': (10, 3)}

      Parameters that nn.vmap stacked, 5 members with an input of 10 rows:

      >>> members = {"Dense_0": {"kernel": jnp.ones((5, 4, 8)), "bias": jnp.zeros((5, 8))},
      ...            "Dense_1": {"kernel": jnp.ones((5, 8, 1)), "bias": jnp.zeros((5, 1))}}
      >>> networks.apply([members], jnp.ones((10, 4)), jnp.tanh)[0].shape
      (5, 10, 1)
    """
    names, layers = networks_of(NetworkReader(NAME, activation, final_activation, dtype, precision), networks)
    xs = _inputs(names, layers, inputs)
    vectors = [x.ndim == 1 for x in xs]
    arrays, index = distinct(xs)
    arrays = [jnp.atleast_2d(x) for x in arrays]
    xs = [arrays[i] for i in index]
    depth = max(map(len, layers), default=0)
    for left in range(depth, 0, -1):
        here = [i for i, each in enumerate(layers) if len(each) >= left]
        step = [layers[i][-left] for i in here]
        operands = cast(NAME, [xs[i] for i in here], step, dtype)
        results = batched_gemm(
            [x for x, _, _ in operands],
            [kernel for _, kernel, _ in operands],
            bias=[bias if bias is None or bias.ndim == 1 else bias[..., None, :] for _, _, bias in operands],
            activation=final_activation if left == 1 else activation,
            transpose_b=[layer.transposed for layer in step],
            precision=precision,
            planner=planner,
            implementation=implementation,
        )
        for i, y in zip(here, results, strict=True):
            xs[i] = y
    xs = [y[..., 0, :] if vector else y for y, vector in zip(xs, vectors, strict=True)]
    return dict(zip(networks, xs, strict=True)) if isinstance(networks, Mapping) else xs


def networks_of(reader: NetworkReader, networks: Any) -> tuple[list[str], list[list[Layer]]]:
    """The networks' names in messages, and the layers of each."""
    if not isinstance(networks, Sequence | Mapping) or isinstance(networks, str):
        raise TypeError(
            f"{reader.function}: networks is {shown(networks)}: it must be a list or a dict of networks; one network, "
            "or one stack of them, is a list of one"
        )
    reader.check_options()
    keys = networks if isinstance(networks, Mapping) else range(len(networks))
    names = [f"networks[{key!r}]" for key in keys]
    return names, [reader.layers(name, networks[key]) for name, key in zip(names, keys, strict=True)]


def if_one_network(layers: Sequence[Sequence[Layer]]) -> str:
    """The end of an error message for several one-layer networks that don't fit: perhaps they are the layers of one
    network, which must be in a list."""
    several = len(layers) > 1 and all(len(each) == 1 for each in layers)
    return " (one network is a list of one)" if several else ""


def _inputs(names: Sequence[str], layers: Sequence[Sequence[Layer]], inputs: Any) -> list[jax.Array]:
    """An input for each network, checked against its first layer; an object that occurs several times becomes one
    array."""
    if isinstance(inputs, Mapping):
        known = {f"networks[{key!r}]": value for key, value in inputs.items()}
        if known.keys() != set(names):
            raise ValueError(f"{NAME}: inputs has the keys {list(inputs)}, but the networks are {', '.join(names)}")
        inputs = [known[name] for name in names]
    arrays = inputs_of(NAME, inputs, len(names), "networks")
    for name, each, x in zip(names, layers, arrays, strict=True):
        first = each[0]
        rule = f"the last axis must be {first.in_features}" if x.shape[-1:] != (first.in_features,) else ""
        try:
            jnp.broadcast_shapes(x.shape[:-2], first.stack)
        except ValueError:
            rule = rule or f"the axes {x.shape[:-2]} before rows must broadcast with those of the stack, {first.stack}"
        if rule:
            raise ValueError(
                f"{NAME}: {name} has the input {x.shape}, but {first.path} is {first.kernel.shape}: {rule}"
                f"{if_one_network(layers)}"
            )
    return arrays


def cast(
    function: str, xs: Sequence[jax.Array], layers: Sequence[Layer], dtype: Any
) -> list[tuple[jax.Array, jax.Array, jax.Array | None]]:
    """Input, kernel and bias of each layer in one dtype: `dtype`, or the dtype to which they promote."""
    converted: dict[Any, jax.Array] = {}

    def converted_to(array: jax.Array, target: Any) -> jax.Array:
        key = id(array), target
        if key not in converted:  # an input of several networks stays one array
            converted[key] = array if array.dtype == target else array.astype(target)
        return converted[key]

    operands = []
    for x, layer in zip(xs, layers, strict=True):
        arrays = [array for array in (x, layer.kernel, layer.bias) if array is not None]
        try:
            target = jnp.result_type(*arrays) if dtype is None else jnp.dtype(dtype)
        except ValueError as error:
            found = ", ".join(str(array.dtype) for array in arrays)
            raise ValueError(f"{function}: the input, kernel and bias of {layer.path} are {found}: {error}") from None
        kernel, bias = (None if array is None else converted_to(array, target) for array in (layer.kernel, layer.bias))
        assert kernel is not None
        operands.append((converted_to(x, target), kernel, bias))
    return operands
