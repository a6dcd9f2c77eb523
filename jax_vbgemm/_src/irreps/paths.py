"""The paths of a linear map from input to output irreps, with the shapes of their weights and their scales.

The order of paths, the shapes of weights and the normalisation are those of e3nn-jax's FunctionalLinear.
cuequivariance's `descriptors.linear` equals FunctionalLinear with default options and without biases.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jax_vbgemm._src.irreps.irreps import Irreps

NORMALIZATIONS = {"element": 0.0, "path": 1.0}


class Path(NamedTuple):
    """Input irrep number `i_in` times weights (mul_in, mul_out), added to output irrep number `i_out`. For a bias, i_in
    is None and the weights are (mul_out,)."""

    i_in: int | None
    i_out: int
    shape: tuple[int, ...]
    scale: float
    """The factor of the product."""
    std: float
    """The standard deviation of random weights with which results have variance 1."""

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)


def paths_of(
    where: str,
    irreps_in: Irreps,
    irreps_out: Irreps,
    instructions: Any,
    biases: Any,
    path_normalization: Any,
    gradient_normalization: Any,
) -> tuple[Path, ...]:
    """The paths of products, input by input, followed by those of biases."""
    by_path = _exponent(where, "path_normalization", path_normalization)
    by_gradient = _exponent(where, "gradient_normalization", gradient_normalization)
    pairs = _pairs(where, irreps_in, irreps_out, instructions)
    paths = []
    for i_in, i_out in pairs:
        fan_in = sum(irreps_in[other].mul ** (1.0 - by_path) for other, out in pairs if out == i_out)
        fan_in *= irreps_in[i_in].mul ** by_path
        norm = 1.0 / math.sqrt(fan_in) if fan_in > 0 else 1.0
        shape = (irreps_in[i_in].mul, irreps_out[i_out].mul)
        paths.append(Path(i_in, i_out, shape, norm**by_gradient, norm ** (1.0 - by_gradient)))
    for i_out in _outputs_with_bias(where, irreps_out, biases):
        paths.append(Path(None, i_out, (irreps_out[i_out].mul,), 1.0, 0.0))
    return tuple(paths)


def _exponent(where: str, option: str, value: Any) -> float:
    if isinstance(value, str) and value in NORMALIZATIONS:
        return NORMALIZATIONS[value]
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError(f"{where}: {option} must be 'element', 'path' or a number between (0 and 1), not {value!r}")


def _pairs(where: str, irreps_in: Irreps, irreps_out: Irreps, instructions: Any) -> list[tuple[int, int]]:
    if instructions is None:
        return [(i, o) for i, x in enumerate(irreps_in) for o, y in enumerate(irreps_out) if x.name == y.name]
    try:
        pairs = [(operator.index(i_in), operator.index(i_out)) for i_in, i_out in instructions]
    except (TypeError, ValueError):
        raise TypeError(
            f"{where}: instructions must be pairs of indices of an input and an output irrep, not {instructions!r}"
        ) from None
    for number, (i_in, i_out) in enumerate(pairs):
        for side, index, irreps in (("irreps_in", i_in, irreps_in), ("irreps_out", i_out, irreps_out)):
            if not 0 <= index < len(irreps):
                raise ValueError(
                    f"{where}: instructions[{number}] is {(i_in, i_out)}, but {side} has {len(irreps)} entries"
                )
        if irreps_in[i_in].name != irreps_out[i_out].name:
            raise ValueError(
                f"{where}: instructions[{number}] leads from {irreps_in[i_in]} to {irreps_out[i_out]}: a linear map "
                "between different irreps is not equivariant"
            )
    return pairs


def _outputs_with_bias(where: str, irreps_out: Irreps, biases: Any) -> Iterable[int]:
    if isinstance(biases, bool):
        return [index for index, x in enumerate(irreps_out) if biases and x.is_scalar]
    if not isinstance(biases, Sequence) or len(biases) != len(irreps_out):
        raise ValueError(f"{where}: biases must be a bool, or one for each of {len(irreps_out)} irreps, not {biases!r}")
    for index, (flag, x) in enumerate(zip(biases, irreps_out, strict=True)):
        if flag and not x.is_scalar:
            raise ValueError(
                f"{where}: biases[{index}] is set, but irreps_out[{index}] is {x}: only scalars have a bias"
            )
    return [index for index, flag in enumerate(biases) if flag]
