"""`apply_typed`: each row has a network of its own, chosen by its type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Activation, resolve_activation
from jax_vbgemm._src.networks.api import cast, if_one_network, networks_of
from jax_vbgemm._src.networks.layers import Layer, NetworkReader
from jax_vbgemm._src.ragged.api import ragged_dot, sizes_argument
from jax_vbgemm._src.ragged.flat_rows import only_own_columns, stacked, width_of_rows
from jax_vbgemm._src.ragged.group_order import inverse_permutation, sorted_by_id
from jax_vbgemm._src.ragged.reference import rows_with_weights
from jax_vbgemm._src.ragged.select_rows import select_rows
from jax_vbgemm._src.util.arguments import as_array

NAME = "networks.apply_typed"


def apply_typed(
    networks: Any,
    x: Any,
    activation: Activation,
    *,
    types: Any = None,
    group_sizes: Any = None,
    final_activation: Activation = None,
    dtype: Any = None,
    precision: Any = None,
    implementation: str | None = None,
) -> jax.Array:
    """Applies to each row the network of its type (an atom's species), one `ragged_dot` for each layer.

    How many rows a type has is data: one compiled program serves all, and no row meets another network than its own.

    Args:
      networks: a list of networks, as for `apply`, of one depth and with inputs and results of one width: network t is
        that of type t. One network is a list of one. A stack in the list is as many networks as it holds. A list of one
        stack is read as it is. Other networks are stacked in each call, with hidden layers padded to the widest.
      x: (..., in) with `types`, (rows, in) with `group_sizes`.
      types: integers (...), the type of each row in any order, -1 for none: the row's result is zeros. Rows are sorted
        on the device. Another entry out of range is clamped to the nearest type;
        `jax.experimental.checkify.checkify` (with `user_checks`) reports it.
      group_sizes: in place of `types`, where rows are sorted by type: (types,) integers, the number of rows of each.
        Rows after the last group are zeros in the result.
      activation, final_activation, dtype: as for `apply`. A function that is none of the named ones gets rows (rows,
        width) and must treat each by itself; where networks differ in a hidden width, it is called once for each width.
      precision, implementation: as for `ragged_dot`.

    Returns:
      (..., out).

    Raises:
      ValueError: as `apply`; also if networks differ in depth or in the width of inputs or results, and where types
        or group_sizes don't fit x, or not exactly one of them is given.
      TypeError: networks is not a list (of a dict, `jax.jit` sorts the keys), or types or group_sizes are not integers.

    Examples:
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm import networks
      >>> hydrogen = [(jnp.ones((4, 8)), None), (jnp.ones((8, 1)), None)]
      >>> carbon = [(jnp.ones((4, 6)), None), (jnp.ones((6, 1)), None)]
      >>> species = jnp.array([1, 0, -1, 1])
      >>> networks.apply_typed([hydrogen, carbon], jnp.ones((4, 4)), "relu", types=species)[:, 0]
      Array([24., 32.,  0., 24.], dtype=float32)
    """
    if isinstance(networks, Mapping):
        raise TypeError(
            f"{NAME}: networks is a dict: it must be a list, in which network t is that of type t; jax.jit sorts the "
            "keys of a dict"
        )
    names, layers = networks_of(NetworkReader(NAME, activation, final_activation, dtype, precision), networks)
    _check_alike(names, layers)
    x = as_array(NAME, "x", x)
    first = layers[0][0]
    if x.ndim < 1 or x.shape[-1] != first.in_features:
        raise ValueError(f"{NAME}: x is {x.shape}, but {first.path} is {first.kernel.shape}: its last axis must be "
                         f"{first.in_features}")  # fmt: skip
    count = sum(each[0].kernel.shape[0] if each[0].stack else 1 for each in layers)
    if (types is None) == (group_sizes is None):
        raise ValueError(f"{NAME}: give either types (of each row) or group_sizes (rows of each type)")
    rows, leading = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), x.shape[:-1]
    order = slots = None
    if types is None:
        sizes = sizes_argument(NAME, group_sizes)
        if x.ndim != 2 or sizes.shape != (count,):
            raise ValueError(
                f"{NAME}: x is {x.shape} and group_sizes {sizes.shape}: with group_sizes x must be (rows, in), with a "
                f"size for each of {count} networks"
            )
    else:
        sizes, order = sorted_by_id(NAME, "types", types, leading, count)
        slots = inverse_permutation(order)
    depth = len(layers[0])
    for step in range(depth):
        here = [each[step] for each in layers]
        kernel, bias, transposed, widths = _one_stack(here)
        ((rows, kernel, bias),) = cast(NAME, [rows], [Layer(here[0].path, kernel, bias, transposed)], dtype)
        function = final_activation if step == depth - 1 else activation
        if len(set(widths)) > 1:
            function = _on_own_columns(function, sizes, widths)
        rows = typed_layer(
            NAME, rows, kernel, sizes, bias=bias, activation=function,
            transpose_rhs=transposed, precision=precision, implementation=implementation,
            gather=None if order is None or slots is None or step else (order, slots[:, None]),
        )  # fmt: skip
        if len(set(widths)) > 1:  # infinity times the zeros of the padding is NaN, which must not reach the result
            rows = only_own_columns(rows, sizes, widths)
    if order is not None and slots is not None:
        rows = select_rows(rows, slots[:, None], order[:, None])
    result: jax.Array = rows.reshape(*leading, rows.shape[-1])
    return result


def typed_layer(
    where: str, x: jax.Array, kernel: jax.Array, sizes: jax.Array, *, activation: Activation, **options: Any
) -> jax.Array:
    """activation(x kernel[i] + bias[i]) for the rows of group i, and zeros for rows after the last group; options as
    for `ragged_dot`."""
    name, function = resolve_activation(where, activation)
    y: jax.Array = ragged_dot(x, kernel, sizes, activation=name, **options)
    if function is None or name is not None:
        return y
    known = rows_with_weights(sizes, None, y.shape[0], kernel.shape[0])
    return jnp.where(known[:, None], function(y), jnp.zeros((), y.dtype))


def _on_own_columns(activation: Activation, sizes: jax.Array, widths: Sequence[int]) -> Activation:
    """An activation for rows that are padded to the widest network. Named activations are elementwise and finite at the
    padding's zeros. Any other function may combine columns (softmax) or have an infinite slope at zero (sqrt), so it is
    called once for each width, on columns of that width only."""
    name, function = resolve_activation(NAME, activation)
    if function is None or name is not None:
        return activation

    def applied(y: jax.Array) -> jax.Array:
        width_of_row = width_of_rows(y, sizes, widths)[:, None]
        result = jnp.zeros_like(y)
        for width in sorted(set(widths)):
            own = width_of_row == width
            # Rows of other widths are filled with a value from the function's domain, which gets no gradient.
            z = function(jnp.where(own, y[:, :width], jax.lax.stop_gradient(y[:, :1])))
            result = jnp.where(own, jnp.pad(z, ((0, 0), (0, y.shape[1] - width))), result)
        return result

    return applied


def _check_alike(names: Sequence[str], layers: Sequence[Sequence[Layer]]) -> None:
    """ValueError unless all networks have the same depth, and results and inputs of the same width."""
    if not layers:
        raise ValueError(f"{NAME}: networks is empty: there must be a network for each type")
    first = layers[0]
    for name, each in zip(names, layers, strict=True):
        ours, theirs = ((len(x), x[0].in_features, x[-1].features) for x in (each, first))
        if ours != theirs:
            described = "{} layers from {} to {} features".format
            raise ValueError(
                f"{NAME}: {name} has {described(*ours)}, but {names[0]} has {described(*theirs)}: networks among which "
                "rows choose must agree in these; networks.apply takes any, with an input for each"
                f"{if_one_network(layers)}"
            )
        if len(each[0].stack) > 1:
            raise ValueError(f"{NAME}: {each[0].path} is {each[0].kernel.shape}: a stack of types has one leading axis")


def _one_stack(layers: Sequence[Layer]) -> tuple[jax.Array, jax.Array | None, bool, list[int]]:
    """The layers of all types as one kernel and one bias, whether the kernel is transposed, and the width of each."""
    if len(layers) == 1 and layers[0].stack:
        (layer,) = layers
        return layer.kernel, layer.bias, layer.transposed, [layer.features] * layer.stack[0]
    kernels: list[jax.Array] = []
    biases: list[jax.Array | None] = []
    for layer in layers:
        kernel = layer.kernel.mT if layer.transposed else layer.kernel
        kernels += list(kernel) if layer.stack else [kernel]
        type_biases = [None] * (layer.stack[0] if layer.stack else 1) if layer.bias is None else layer.bias
        biases += list(type_biases) if layer.stack or layer.bias is None else [layer.bias]
    widths = [kernel.shape[1] for kernel in kernels]
    bias = None
    if any(each is not None for each in biases):
        rows = [
            jnp.zeros((1, width), kernel.dtype) if each is None else each[None]
            for each, width, kernel in zip(biases, widths, kernels, strict=True)
        ]
        bias = stacked(rows)[:, 0]
    return stacked(kernels), bias, False, widths
