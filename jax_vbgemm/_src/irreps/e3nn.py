"""The common part of e3nn-jax's Linear for Flax, Haiku and Equinox: it sorts and filters irreps around a LinearMap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from jax_vbgemm._src.irreps.linear_map import LinearMap

GetParameter = Callable[[str, tuple[int, ...], float, Any], jax.Array]
"""Makes a parameter from (name, shape, standard deviation, dtype)."""


def is_mixed(weights: Any) -> bool:
    """Whether each row has weights that mix the parameters: each row then has its own matrix, and no product is
    shared."""
    array = weights.array if isinstance(weights, e3nn.IrrepsArray) else weights
    return array is not None and not jnp.issubdtype(jnp.asarray(array).dtype, jnp.integer)


def apply_linear(layer: Any, indices: Any, given: Any, get_parameter: GetParameter) -> Any:
    """The layer's result; `layer` has the options of e3nn's Linear as attributes."""
    if indices is not None and layer.num_indexed_weights is None:
        raise ValueError("Linear: indices of weights are given, but num_indexed_weights is not set")
    x = as_floats(given)
    irreps_out = e3nn.Irreps(layer.irreps_out)
    if layer.simplify_irreps_internally:
        x, irreps_out = regrouped(x), irreps_out.simplify()
    if not layer.force_irreps_out:
        irreps_out = irreps_out.filter(keep=x.irreps)
    if layer.channel_out is not None:
        x, irreps_out = x.axis_to_mul(), layer.channel_out * irreps_out
    _check_irreps(layer, x)

    linear = linear_map_of(layer, x.irreps, irreps_out)
    leading = () if indices is None else (layer.num_indexed_weights,)
    weights = [
        get_parameter(parameter_name(linear, path), (*leading, *path.shape), path.std, x.dtype) for path in linear.paths
    ]
    y = mapped(linear, irreps_out, weights, x, indices)
    if layer.channel_out is not None:
        y = y.mul_to_axis(layer.channel_out)
    return y.rechunk(layer.irreps_out) if layer.force_irreps_out else y


def as_floats(given: Any) -> Any:
    """The input as an IrrepsArray; integers become float32."""
    x = e3nn.as_irreps_array(given)
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.integer) else x


def mapped(linear: LinearMap, irreps_out: Any, weights: list[jax.Array], x: Any, indices: Any) -> Any:
    """The map of an IrrepsArray, with a flag for each irrep of the result that no number other than zero reaches."""
    used = [path.i_in is None or not x.zero_flags[path.i_in] for path in linear.paths]
    reached = {path.i_out for path, yes in zip(linear.paths, used, strict=True) if yes and 0 not in path.shape}
    return e3nn.IrrepsArray(
        irreps_out,
        linear(weights, x.array, indices=indices),
        zero_flags=[index not in reached for index in range(len(irreps_out))],
    )


def regrouped(x: Any) -> Any:
    """x without irreps of multiplicity 0 and with its irreps sorted; unchanged x is returned itself and read in
    place."""
    if not any(x.zero_flags) and x.irreps == x.irreps.regroup():
        return x
    return x.remove_zero_chunks().regroup()


def linear_map_of(layer: Any, irreps_in: Any, irreps_out: Any) -> LinearMap:
    normalizations = {
        option: e3nn.config(option) if getattr(layer, option) is None else getattr(layer, option)
        for option in ("path_normalization", "gradient_normalization")
    }
    return LinearMap(irreps_in, irreps_out, instructions=layer.instructions, biases=layer.biases, **normalizations)


def parameter_name(linear: LinearMap, path: Any) -> str:
    """The name that e3nn gives the parameter."""
    to = linear.irreps_out[path.i_out]
    if path.i_in is None:
        return f"b[{path.i_out}] {to}"
    return f"w[{path.i_in},{path.i_out}] {linear.irreps_in[path.i_in]},{to}"


def _check_irreps(layer: Any, x: Any) -> None:
    if layer.instructions is None:
        if layer.irreps_in is not None and x.irreps.regroup() != e3nn.Irreps(layer.irreps_in).regroup():
            raise ValueError(f"Linear: x has the irreps {x.irreps}, but irreps_in is {layer.irreps_in}")
        return
    if layer.simplify_irreps_internally or layer.channel_out is not None:
        raise ValueError("Linear: instructions need simplify_irreps_internally=False, and no channel_out")
    if layer.irreps_in is None or x.irreps != e3nn.Irreps(layer.irreps_in):
        raise ValueError(f"Linear: with instructions x must have irreps_in, {layer.irreps_in}, but has {x.irreps}")
