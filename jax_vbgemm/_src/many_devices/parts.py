"""on_parts: elementwise work on many arrays, where each device computes the parts that it holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.mesh_axes import MeshAxes, names_of

# With a larger mean size of arrays, XLA's kernels are as fast: it fuses the work on an array with what comes before and
# after it, such as the selection of a device's own matrices (H200, 7 MB and 1.8 MB: docs/design/jax.md, J10).
_MEAN_BYTES = 2**22


def on_parts(
    function: Callable[..., Any],
    arrays: Sequence[Sequence[jax.Array]],
    numbers: Any,
    specs: Sequence[Any],
    axes: MeshAxes | None,
    *,
    results: int = 1,
) -> Any:
    """function(*arrays, numbers), inside a shard_map over all axes of the mesh where arrays are small, for those arrays
    of which it is known how they are held.

    XLA cannot partition a kernel for many arrays. Outside of shard_map it computes each array by itself; inside, a
    device calls the kernel for what it holds.

    Args:
      function: elementwise. It returns a tuple of `results` lists like those of `arrays` and of sums over each array,
        (arrays,), or None.
      arrays: lists of equal lengths, whose i-th arrays have one shape and are sharded in the same way.
      numbers: a pytree of numbers for all arrays, known or traced.
      specs: how the i-th arrays are sharded (a PartitionSpec), or None where this is not known. Arrays that their spec
        does not divide evenly count as unknown.
      axes: axes of the mesh, or None.

    Returns:
      The function's results; None in place of the sums where devices hold parts of arrays, and where XLA would have to
      compute the sums by a pass of their own.
    """
    specs = [_spec(x, spec) for x, spec in zip(arrays[0], specs, strict=True)]
    if axes is None or axes.mesh.size == 1 or not specs:
        return function(*arrays, numbers)
    whole = not any(names_of(entry) for spec in specs if spec is not None for entry in spec)
    inside = axes.free != frozenset(axes.mesh.axis_names)  # a shard_map
    is_large = sum(x.nbytes for x in arrays[0]) > _MEAN_BYTES * len(specs)
    fits = [_fits(x, spec, axes.mesh) for x, spec in zip(arrays[0], specs, strict=True)]
    if inside or is_large or not any(fits):
        *lists, sums = function(*arrays, numbers)
        return *lists, sums if inside and whole else None
    if not all(fits):
        order = sorted(range(len(specs)), key=lambda index: not fits[index])
        known, others = order[: sum(fits)], order[sum(fits) :]
        known_arrays, other_arrays = ([[column[i] for i in those] for column in arrays] for those in (known, others))
        *ours, _ = on_parts(function, known_arrays, numbers, [specs[i] for i in known], axes, results=results)
        *theirs, _ = function(*other_arrays, numbers)
        found = [dict(zip(order, (*mine, *rest), strict=True)) for mine, rest in zip(ours, theirs, strict=True)]
        return *([column[i] for i in range(len(specs))] for column in found), None

    leaves = jax.tree.leaves(numbers)
    structure: Any = jax.tree.structure(numbers)
    traced = {place: compat.replicated(x) for place, x in enumerate(leaves) if isinstance(x, jax.Array)}

    def on_device(*operands: Any) -> Any:
        *parts, traced = operands
        values = [traced.get(place, x) for place, x in enumerate(leaves)]
        *lists, sums = function(*parts, structure.unflatten(values))
        return *lists, sums if whole else None

    placed = [[compat.resharded(x, spec) for x, spec in zip(column, specs, strict=True)] for column in arrays]
    spread = jax.shard_map(
        on_device, mesh=axes.mesh,
        in_specs=(*(specs for _ in arrays), jax.P()), out_specs=(*(specs for _ in range(results)), jax.P()),
    )  # fmt: skip
    return spread(*placed, traced)


def _spec(x: jax.Array, spec: Any) -> Any:
    """The PartitionSpec of an array: by its type, where all axes of its mesh are explicit."""
    sharding = jax.typeof(x).sharding
    return sharding.spec if not sharding.mesh.empty and sharding.mesh.are_all_axes_explicit else spec


def _fits(x: jax.Array, spec: Any, mesh: Any) -> bool:
    """Whether the spec divides the array evenly among devices of the mesh."""
    if spec is None or len(spec) > x.ndim:
        return False
    names = [names_of(entry) for entry in spec]
    if not all(name in mesh.axis_names for entry in names for name in entry):
        return False
    counts = [math.prod(mesh.shape[name] for name in entry) for entry in names]
    return all(size % count == 0 for size, count in zip(x.shape, counts, strict=False))
