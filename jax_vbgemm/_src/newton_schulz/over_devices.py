"""over_devices: Newton-Schulz with the matrices divided among the devices of mesh axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm._src.many_devices.divided import divided
from jax_vbgemm._src.many_devices.stack import refuse_varying, sharded_axis, whole_shape
from jax_vbgemm._src.matmul.api import AnyPlanner
from jax_vbgemm._src.matmul.view import View
from jax_vbgemm._src.newton_schulz.cost import least_saved_seconds, matrix_seconds
from jax_vbgemm._src.newton_schulz.steps import multiplied
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.mesh_axes import MeshAxes

_USUAL_STEPS = 5  # where their number is traced


def over_devices(
    orthogonalized: Callable[..., list[Any]],
    leaves: Sequence[jax.Array],
    options: dict[str, Any],
    specs: Sequence[Any],
    written: Callable[[int], str],
    axes: MeshAxes,
    dtype: Any,
    precision: Any,
    planner: AnyPlanner,
) -> list[jax.Array]:
    """The results for the leaves, each matrix treated by one device.

    orthogonalized: (leaves, scales, norms, coeffs, steps, eps, into, results) -> results, of which `options` has the
    second to the sixth; scales and norms have one entry for each leaf, or are None. specs: the PartitionSpec of each
    leaf, or None. written: the name of a leaf in messages. dtype: that of the iterates, or None.
    """
    for index, leaf in enumerate(leaves):
        if not compat.is_static(leaf.shape):
            raise ValueError(f"newton_schulz: {written(index)} is {leaf.shape}: mesh_axis needs sizes that are numbers")
    steps, scales = options["steps"], options["scales"]
    traced = {name: value for name, value in options.items() if isinstance(value, jax.Array)}

    def part_of(
        parts: Sequence[jax.Array], indices: Any, traced: Any, into: Sequence[View | None], dtypes: Sequence[Any]
    ) -> list[Any]:
        part_options = options | traced
        for name in ("scales", "norms"):
            values = part_options[name]
            if values is not None:
                part_options[name] = (jnp.asarray(values) if isinstance(indices, jax.Array) else values)[indices]
        return orthogonalized(parts, **part_options, into=into, results=dtypes)

    held = [
        sharded_axis(f"newton_schulz: {written(index)}", leaf.shape, _explicit(leaf) or spec, axes)
        for index, (leaf, spec) in enumerate(zip(leaves, specs, strict=True))
    ]
    for index, (leaf, axis) in enumerate(zip(leaves, held, strict=True)):
        if axes.manual and axis is None:
            slices = "slices of matrices need their PartitionSpecs in shardings"
            refuse_varying(f"newton_schulz: {written(index)}", leaf, axes, slices)
    replicated_leaves = [
        jax.ShapeDtypeStruct(whole_shape(leaf.shape, axis, axes), leaf.dtype)
        for leaf, axis in zip(leaves, held, strict=True)
    ]
    count = steps if isinstance(steps, int) else _USUAL_STEPS
    results = divided(
        part_of, leaves, traced, matrix_seconds(replicated_leaves, precision, planner, dtype), axes,
        held=held, sent=dtype if isinstance(steps, int) and steps > 0 else None,
        least_saved=least_saved_seconds() / max(count, 1),
    )  # fmt: skip
    # A result that was sent in a narrower dtype is scaled afterwards: times a learning rate, float16 would not hold it.
    results = [
        y if y.dtype == x.dtype else multiplied([y], None if scales is None else scales[index : index + 1], x.dtype)[0]
        for index, (x, y) in enumerate(zip(leaves, results, strict=True))
    ]
    if axes.manual:
        return results
    return [compat.constrained(y, spec, axes.mesh) for y, spec in zip(results, specs, strict=True)]


def _explicit(leaf: jax.Array) -> Any:
    """The sharding of a leaf's type, where it is sharded over explicit mesh axes."""
    return jax.typeof(leaf).sharding.spec if compat.explicit_axes(leaf) else None
