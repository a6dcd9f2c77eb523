"""`LinearMap`: an equivariant linear map of arrays, as one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.irreps.choice import left_to_xla
from jax_vbgemm._src.irreps.dots import dots
from jax_vbgemm._src.irreps.features import PATTERNS, Features, features_of
from jax_vbgemm._src.irreps.indexed import chosen, indexed_products
from jax_vbgemm._src.irreps.irreps import Irreps, dim, parsed, shown
from jax_vbgemm._src.irreps.paths import Path, paths_of
from jax_vbgemm._src.matmul.api import AnyPlanner, batched_matmul_sum
from jax_vbgemm._src.matmul.options import check_options
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.view import View, dense
from jax_vbgemm._src.util.arguments import as_array

NAME = "LinearMap"


@dataclass(frozen=True, init=False)
class LinearMap:
    """A linear map between irreps, equivariant by Schur's lemma: it mixes the channels of equal irreps.

    Equals e3nn-jax's FunctionalLinear and cuequivariance's `descriptors.linear`, weights included. The products of all
    paths are one operation, which reads each irrep of the features in place, sums the paths that lead to one output
    irrep, and writes it in place. Differentiable to any order, and supports vmap. The object itself is static and
    hashable.

    Args:
      irreps_in, irreps_out: "128x0e + 128x1o", pairs (mul, irrep), or the Irreps of e3nn or cuequivariance. An irrep
        may occur several times. Output irreps to which no path leads are zeros.
      instructions: pairs (index in irreps_in, index in irreps_out); None: all pairs of equal irreps.
      biases: whether scalars have a bias; a bool, or one bool for each of irreps_out.
      path_normalization: "element": all input elements of an output irrep have equal weight. "path": all paths to an
        output irrep have equal weight. Or a number between them (0 and 1).
      gradient_normalization: "path": products are scaled, and weights are drawn with standard deviation 1. "element":
        weights are drawn with a standard deviation that makes scaling unnecessary. Or a number between them.
      layout: of features and results: "mul_ir", (..., mul, 2l + 1) as in e3nn, or "ir_mul", (..., 2l + 1, mul) as in
        cuequivariance. Kernels are faster with "ir_mul", where channels are contiguous.

    Attributes:
      paths: one entry for each array of weights: i_in (None: a bias), i_out, shape, scale, std.
      num_weights, dim_in, dim_out: the sizes of the flat vector of weights, and of the last axis of x and of the
        result.

    Raises:
      ValueError: an irrep cannot be read, an instruction leads between different irreps or out of range, a bias is for
        no scalar, or an option is unknown; the message names the irrep and the rule.
      TypeError: irreps are neither a string nor pairs (mul, irrep).

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_vbgemm.irreps import LinearMap
      >>> linear = LinearMap("16x0e + 8x1o", "4x0e + 2x1o + 1x2e")
      >>> [path.shape for path in linear.paths], linear.num_weights
      ([(16, 4), (8, 2)], 80)
      >>> weights = jax.random.normal(jax.random.key(0), (linear.num_weights,))
      >>> y = linear(weights, jnp.ones((5, linear.dim_in)))
      >>> y.shape, y[:, -5:].any().item()
      ((5, 15), False)
    """

    irreps_in: Irreps
    irreps_out: Irreps
    paths: tuple[Path, ...]
    layout: str

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        *,
        instructions: Any = None,
        biases: Any = False,
        path_normalization: Any = "element",
        gradient_normalization: Any = "path",
        layout: str = "mul_ir",
    ) -> None:
        if layout not in PATTERNS:
            raise ValueError(f"{NAME}: layout must be 'mul_ir' or 'ir_mul', not {layout!r}")
        found = parsed(f"{NAME}: irreps_in", irreps_in), parsed(f"{NAME}: irreps_out", irreps_out)
        paths = paths_of(NAME, *found, instructions, biases, path_normalization, gradient_normalization)
        for field, value in zip(("irreps_in", "irreps_out", "paths", "layout"), (*found, paths, layout), strict=True):
            object.__setattr__(self, field, value)

    @property
    def num_weights(self) -> int:
        """The length of the flat vector of all weights."""
        return sum(path.size for path in self.paths)

    @property
    def dim_in(self) -> int:
        """The length of the last axis of the features."""
        return dim(self.irreps_in)

    @property
    def dim_out(self) -> int:
        """The length of the last axis of the results."""
        return dim(self.irreps_out)

    def __repr__(self) -> str:
        return f"{NAME}({shown(self.irreps_in)} -> {shown(self.irreps_out)}, {self.layout}, {len(self.paths)} paths)"

    def __call__(
        self,
        weights: Any,
        x: Any,
        *,
        indices: Any = None,
        counts: Any = None,
        precision: Any = None,
        planner: AnyPlanner = "auto",
        implementation: str | None = None,
    ) -> Any:
        """The map of each row of x.

        Args:
          weights: a list with an array for each of `paths`, or one vector (num_weights,) of all these arrays flattened
            and concatenated. With `indices` or `counts`, arrays have one more axis in front, with an entry for each
            index.
          x: (..., dim_in), or a list with an array (..., mul, 2l + 1) (in `layout`'s order) for each irrep.
          indices: integers that broadcast against x's leading axes: the index of the weights of each row (its species).
            Negative indices count from the end; indices out of range are clamped, as in JAX's own indexing.
          counts: (number of weights,) integers, an alternative to `indices`: the first counts[0] rows take the first
            weights, and so on; the results of rows after these are zeros. x has one leading axis.
          precision, planner, implementation: as for `batched_matmul`. The planner has no effect where rows
            choose their weights.

        Returns:
          (..., dim_out), or a list with an array for each irrep if x is one.

        Raises:
          ValueError: x or weights don't have the shapes of the irreps and paths, which the message names, or the
            precision is unknown.
          TypeError: an argument is not an array, weights and x are both integers, or indices or counts are none.
        """
        precision = canonical_precision(precision)
        check_options(NAME, precision, None)
        features = features_of(NAME, self.irreps_in, self.layout, x)
        arrays, groups = self._weights(weights, indices is not None or counts is not None)
        dtype = jnp.result_type(*features.arrays, *arrays)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(f"{NAME}: weights and x are {dtype}: one of them must be floating-point or complex")
        arrays = [array.astype(dtype) for array in arrays]
        features = features.map(lambda array: array.astype(dtype))
        options = {"precision": precision, "implementation": implementation}
        if groups is None:
            results = features.zeros(self.irreps_out, dtype)
            if left_to_xla(features, self.paths, dtype, planner=planner, **options):
                return dots(features, results, self.paths, arrays, precision).value()
            return self._sums(features, results, arrays, planner=planner, **options).value()
        choice, leading = chosen(NAME, indices, counts, groups, features.leading)
        features = features.broadcast(leading)
        results = features.zeros(self.irreps_out, dtype)
        return indexed_products(features, results, self.paths, arrays, choice, **options).value()

    def _sums(self, x: Features, y: Features, weights: Sequence[jax.Array | View], **options: Any) -> Features:
        """The map of x, written into y, which is zeros: one call, and the biases of irreps to which no product
        leads."""
        matrices, windows = x.matrices(), y.matrices()
        lhs, rhs, out = [], [], []
        outs: dict[int, int] = {}  # for each output irrep to which a product leads, its index among the results
        biases = {path.i_out: weight for path, weight in zip(self.paths, weights, strict=True) if path.i_in is None}
        scales = _scales(self.paths)
        for path, weight in zip(self.paths, weights, strict=True):
            if path.i_in is None:
                continue
            rest = path.scale / scales[path.i_out]
            lhs.append(matrices[path.i_in])
            rhs.append(weight if rest == 1 else dense(weight) * weight.dtype.type(rest))
            out.append(outs.setdefault(path.i_out, len(outs)))
        arrays = list(y.arrays)
        if lhs:
            results = batched_matmul_sum(
                lhs,
                rhs,
                out,
                alpha=[scales[index] for index in outs],
                bias=[dense(biases[index]) if index in biases else None for index in outs],
                into=[windows[index] for index in outs],
                **options,
            )
            for index, view in zip(outs, results, strict=True):
                arrays[index if y.is_list else 0] = view.buffer
        for index, bias in biases.items():
            if index not in outs:
                at = index if y.is_list else 0
                value = jnp.broadcast_to(dense(bias)[None, :], windows[index].shape)
                arrays[at] = windows[index].layout.put(arrays[at], value)
        return y._replace(arrays=arrays)

    def _weights(self, given: Any, is_indexed: bool) -> tuple[list[Any], int | None]:
        """The weights of each path, and the number of weight sets if rows choose among them, otherwise None."""
        if isinstance(given, list | tuple):
            if len(given) != len(self.paths):
                raise ValueError(f"{NAME}: there are {len(given)} weights, but {len(self.paths)} paths: one for each")
            arrays: list[Any] = [as_array(NAME, f"weights[{i}]", array) for i, array in enumerate(given)]
            groups = arrays[0].shape[0] if is_indexed and arrays and arrays[0].ndim else 0
            for index, (path, array) in enumerate(zip(self.paths, arrays, strict=True)):
                wanted = (groups, *path.shape) if is_indexed else path.shape
                if array.shape != wanted:
                    raise ValueError(
                        f"{NAME}: weights[{index}], of {self._shown(path)}, are {array.shape}, not {wanted}"
                    )
            return arrays, groups if is_indexed else None
        array = as_array(NAME, "weights", given)
        if array.ndim != 1 + is_indexed or array.shape[-1] != self.num_weights:
            what = f"(number of weights, {self.num_weights})" if is_indexed else f"({self.num_weights},)"
            raise ValueError(f"{NAME}: weights are {array.shape}: they must be {what}, or a list")
        arrays, first = [], 0
        for path in self.paths:
            if is_indexed:
                arrays.append(array[:, first : first + path.size].reshape(array.shape[0], *path.shape))
            else:
                arrays.append(View(array, path.shape, offset=first))
            first += path.size
        return arrays, array.shape[0] if is_indexed else None

    def _shown(self, path: Path) -> str:
        to = self.irreps_out[path.i_out]
        return f"the bias of {to}" if path.i_in is None else f"the path {self.irreps_in[path.i_in]} -> {to}"


def _scales(paths: Sequence[Path]) -> dict[int, float]:
    """The factor of each output's sum, which is the scale of its first product."""
    scales: dict[int, float] = {}
    for path in paths:
        if path.i_in is not None:
            scales.setdefault(path.i_out, path.scale)
    return scales
