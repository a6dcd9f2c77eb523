"""newton_schulz: approximates the orthogonal polar factor of every matrix of a pytree, with a few calls for all."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.many_devices.specs import specs_of
from jax_vbgemm._src.matmul.api import AnyPlanner, batched_gemm
from jax_vbgemm._src.matmul.into import check_windows
from jax_vbgemm._src.matmul.options import checked_implementation
from jax_vbgemm._src.matmul.packed import RaggedArray, pack_as
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import View, dense, is_view
from jax_vbgemm._src.newton_schulz.coefficients import MUON_COEFFS, coefficients
from jax_vbgemm._src.newton_schulz.cost import members_alone, members_by_gram
from jax_vbgemm._src.newton_schulz.norms import packed_norms, small_size
from jax_vbgemm._src.newton_schulz.over_devices import over_devices
from jax_vbgemm._src.newton_schulz.steps import Iteration, is_tall, iterated, looped, result_dtype
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array, refuse_explicit_axes
from jax_vbgemm._src.util.mesh_axes import mesh_axes
from jax_vbgemm._src.util.structure import path_of

PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")


def newton_schulz(
    tree: Any,
    steps: int = 5,
    coeffs: Any = MUON_COEFFS,
    *,
    preconditioning: str = "frobenius",
    eps: Any = 1e-8,
    scale: Any = None,
    norms: Any = None,
    dtype: Any = None,
    gram: bool | str = False,
    into: Any = None,
    precision: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
    mesh_axis: Any = None,
    mesh: Any = None,
    shardings: Any = None,
) -> Any:
    """The Newton-Schulz iteration X <- c0 X + (c1 A + c2 A A) X with A = X X^H, on all matrices of a pytree.

    Drives the singular values of each matrix towards 1, so that U S V^H becomes about U V^H. A step is three calls for
    all matrices together: A, then c2 A A + c1 A, then its product with X plus c0 X. Tall matrices are iterated as their
    transposes, by flags; Frobenius norms of small matrices are one more call on a GPU. The results are those of
    optax.contrib.muon (`orthogonalize_via_newton_schulz`, 0.2.8).

    Args:
      tree: pytree of arrays (..., m, n) of a floating or complex dtype, or a RaggedArray; leading dimensions are a
        batch, and a `View` is the array that it shows, which the first step reads in place where it is a real matrix
        and preconditioning is "frobenius". A tree without leaves is returned as it is.
      steps: number of steps, an integer of at least 0; ignored where `coeffs` has a row for each step. It may be traced
        (as by optax.inject_hyperparams): the steps are then a loop of XLA.
      coeffs: (c0, c1, c2), or an array (steps, 3); numbers or traced. They are rounded to each leaf's dtype first. Or a
        name: "simple" (Keller Jordan's, the default), "quintic" (You Jiacheng's five), "polar_express" (arXiv
        2505.16932, with its safety factor) and "cans" (arXiv 2506.10935), both computed for the number of steps, and
        "aol", the four rows for preconditioning "aol" (arXiv 2512.04632). optax's names "standard" and "dion" are
        "simple" and "quintic".
      preconditioning: the method that bounds the singular values before the first step. "frobenius" and "spectral"
        divide by that norm + eps; "aol" (arXiv 2512.04632) and "schatten" (arXiv 2506.10935) rescale by the first A.
        Results are those of X / ||X|| as long as ||X||^2 can be held in the accumulator's dtype (up to 1.8e19 in
        float32; for "spectral" in the whole range). Beyond that a finite X gives zeros, as in optax; for "aol" and
        "schatten" too, where optax gives NaN. NaN and Inf in X give NaN.
      eps: added to the norm.
      scale: a factor of the results, applied in the last product: a number, or a 1-D array with one entry for each
        leaf; real, known or traced.
      norms: the Frobenius norm of each leaf, a 1-D array with one entry for each leaf, where a program knows them: they
        are not computed again. They must be NaN if a leaf holds NaN or Inf. Used for leaves of rank 2, unless
        preconditioning is "spectral". Inside shard_map, those of whole leaves. None: they are computed.
      dtype: the real dtype of the iterates, of any leaf's dtype; None: that of each leaf. "float16" and "bfloat16" are
        the fastest on tensor cores. Norms are computed in the leaf's accumulator, the matrices are divided by them and
        then rounded, products are summed in float32, and the last product is stored in the leaf's dtype. (A last step
        of float32 products would lower errors by a tenth at most. If `steps` is traced, the last product is rounded
        to dtype.) float16 has 8 times smaller errors than bfloat16, and its range suffices. With mesh_axis, devices
        send each other results in this dtype where it is narrower than the leaf's: an entry is rounded by at most 2^-11
        of itself in float16, 2^-9 in bfloat16, before it is scaled in the leaf's accumulator.
      gram: whether steps are taken with the Gram matrix X X^H alone, so that four products of five steps have X as an
        operand in place of ten (Zhang, Amsel, Chen and Dao, Gram Newton-Schulz, 2026). True: for all matrices; "auto":
        where it is predicted to be faster, which needs matrices that are far from square. The Gram matrix is computed
        anew after the second step and then after every third at the latest, as rounding errors grow with the steps
        between. Not for iterates in bfloat16, in which they would grow too much; a traced number of steps is iterated
        without.
      into: a tree of `View` with the structure of `tree`, as for `batched_matmul`. Result i is written into view i and
        returned as that view of the updated buffer. If a leaf is None, the result is an array.
      precision, planner: as for `batched_matmul`.
      implementation: "kernel" (all in one batch), "xla" (one dot for each product), or None: the cost model decides
        at trace time which matrices are so large that XLA's dots are faster. All other matrices are one batch.
      mesh_axis: a mesh axis, or a tuple of axes: the matrices are divided among the devices by predicted time, each
        device treats its part, and one collective distributes the results. Batches are divided too. Results equal those
        of one device up to rounding, and are sharded like `tree` on meshes with explicit axes. If all devices hold
        all matrices and dividing them would save too little time on this type of GPU, each device treats all of them.
        None: every device treats all matrices that it holds.
      mesh: the mesh of the axis; None: that of the enclosing jax.set_mesh or shard_map.
      shardings: how leaves are sharded over mesh_axis: a PartitionSpec, a NamedSharding or None for each leaf, or for
        each subtree; or a function of `tree` that returns that. For leaves with explicit axes, their types tell it. A
        SingleDeviceSharding is None on a mesh of one device. An array whose rows, columns or batch are divided along
        mesh_axis is not gathered: the slices of each matrix are sent to the device that treats it, and the slices of
        its result back. Results are sharded in the same way. Inside shard_map, leaves are what the device holds. None:
        leaves are replicated, or gathered; inside shard_map all devices along mesh_axis must then hold the same leaf.
        A leaf whose type says that it varies over mesh_axis is refused; jax.lax.pmean of equal leaves gives a type that
        does not vary. With check_vma=False types don't tell it, and slices without shardings give wrong results.

    Returns:
      A pytree of the structure, shapes and dtypes of `tree`; its leaves are arrays, or views where `into` has them.

    Raises:
      ValueError: a leaf has rank 0 or 1, coeffs are an unknown name or have a shape other than (3,) or (n, 3), scale or
        norms have one that is neither () nor (leaves,), steps is negative, preconditioning is unknown, preconditioning
        is "aol" and symbolic sizes don't determine which is larger, gram is none of its values, or True for iterates in
        bfloat16, into does not fit the tree or is given for a RaggedArray, mesh_axis is not an axis of the mesh,
        mesh_axis is given and a size is symbolic, shardings don't fit the tree or the mesh, or come without mesh_axis,
        or, inside shard_map with check_vma=True, a leaf varies over mesh_axis and shardings don't say that it is a
        slice.
      TypeError: a leaf is neither floating nor complex, coeffs are complex, dtype is not a real floating one, or is
        given and a leaf is complex, or steps is not an integer, or is traced where coeffs are a name.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> weights = {"up": jnp.eye(3, 4), "down": 5 * jnp.eye(2)}
      >>> near = vb.newton_schulz(weights, steps=10, coeffs=(1.5, -0.5, 0.0))
      >>> near["down"].round(3).tolist()
      [[1.0, 0.0], [0.0, 1.0]]
    """
    # This message and that about the shape of coeffs begin with the words of optax.contrib.muon, which callers know.
    if preconditioning not in PRECONDITIONINGS:
        raise ValueError(f"Unknown preconditioning {preconditioning} (known are {', '.join(PRECONDITIONINGS)})")
    if isinstance(coeffs, str):
        steps = _steps(steps)
        if not isinstance(steps, int):
            raise TypeError(f"newton_schulz: steps is traced, and coeffs = {coeffs!r} need to know it")
        coeffs = coefficients(coeffs, steps)
    elif not isinstance(coeffs, jax.Array):
        coeffs = np.asarray(coeffs)
    if jnp.iscomplexobj(coeffs):
        raise TypeError(f"newton_schulz: coeffs are {coeffs.dtype}: they must be real")
    if coeffs.ndim not in (1, 2) or coeffs.shape[-1] != 3:
        raise ValueError(f"Newton-Schulz coefficients must have shape (3,) or (n, 3), got {coeffs.shape}")
    steps = coeffs.shape[0] if coeffs.ndim == 2 else _steps(steps)
    implementation = checked_implementation("newton_schulz", implementation)
    dtype = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)  # float64 is float32 without the x64 mode
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"newton_schulz: dtype is {dtype}: it must be a real floating one")
    if gram not in (False, True, "auto"):
        raise ValueError(f"newton_schulz: gram must be False, True or 'auto', not {gram!r}")
    packed = tree if isinstance(tree, RaggedArray) else None
    if packed is not None:
        tree = packed.unpack()
    given, structure = jax.tree.flatten(tree, is_leaf=is_view)

    def written(index: int) -> str:
        return "tree" + path_of(structure, index)

    leaves = [
        leaf if isinstance(leaf, jax.Array) else as_array("newton_schulz", written(index), leaf)
        for index, leaf in enumerate(map(dense, given))
    ]
    for index, leaf in enumerate(leaves):
        if leaf.ndim < 2:
            raise ValueError(f"newton_schulz: {written(index)} is {leaf.shape}: a matrix has rank 2 or more")
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(f"newton_schulz: {written(index)} is {leaf.dtype}: it must be floating or complex")
        if dtype is not None and jnp.iscomplexobj(leaf):
            raise TypeError(f"newton_schulz: {written(index)} is {leaf.dtype}, but dtype is {dtype}: it must be real")
        if gram is True and (dtype or leaf.dtype) == jnp.bfloat16:
            raise ValueError(
                f"newton_schulz: {written(index)} would be iterated in bfloat16, in which Gram matrices are not exact "
                "enough: use dtype='float16' with gram=True"
            )
        if preconditioning == "aol" and not _sizes_tell(leaf.shape):  # "aol" alone depends on which size is larger
            raise ValueError(
                f"newton_schulz: {written(index)} is {leaf.shape}, and 'aol' needs to know which size is larger: give "
                "the symbolic sizes a constraint, such as 'm <= n'"
            )

    scales = None if scale is None else _scales("scale", scale, len(leaves))
    norms = None if norms is None else _scales("norms", norms, len(leaves))

    def all_of(
        leaves: Sequence[jax.Array], scales: Any, norms: Any, coeffs: Any, steps: Any, eps: Any, **places: Any
    ) -> list[Any]:
        options = (dtype, gram, precision, planner, implementation)
        return _orthogonalized(leaves, steps, coeffs, preconditioning, eps, scales, *options, norms=norms, **places)

    targets = _targets(into, packed, structure, leaves)

    def finished(results: Sequence[Any]) -> Any:
        if packed is None:
            return jax.tree.unflatten(structure, _put(results, targets))
        if results and all(is_view(x) for x in results):  # views of one buffer with the members' layout
            return RaggedArray(results[0].buffer, packed.members)
        return pack_as(results, packed.members)

    axes = None if mesh_axis is None else mesh_axes("newton_schulz", mesh_axis, mesh)
    specs = specs_of("newton_schulz", shardings, tree, axes, is_leaf=is_view)
    if axes is None or axes.size == 1 or not leaves:
        refuse_explicit_axes("newton_schulz", leaves, written)
        places = _places_of(packed, given, leaves, targets, steps, preconditioning)
        return finished(all_of(leaves, scales, norms, coeffs, steps, eps, **places))
    options = {"scales": scales, "norms": norms, "coeffs": coeffs, "steps": steps, "eps": eps}
    return finished(over_devices(all_of, leaves, options, specs, written, axes, dtype, precision, planner))


def _targets(into: Any, packed: Any, structure: Any, leaves: Sequence[jax.Array]) -> list[View | None] | None:
    """The views of `into`, one for each leaf or None."""
    if into is None:
        return None
    if packed is not None:
        raise ValueError("newton_schulz: into is given for a RaggedArray, whose results are a new one")
    try:
        views = structure.flatten_up_to(into)
    except ValueError as error:
        raise ValueError(f"newton_schulz: into has another structure than tree: {error}") from None

    def written(name: str, index: int) -> str:
        return name + path_of(structure, index)

    check_windows(
        "newton_schulz", views, functools.partial(written, "into"), functools.partial(written, "tree"),
        [x.shape for x in leaves], [x.dtype for x in leaves],
    )  # fmt: skip
    return list(views)


def _put(results: Sequence[Any], targets: Sequence[View | None] | None) -> list[Any]:
    """The results; those that are still arrays are written into their views. Views of one buffer share its newest
    form."""
    if targets is None:
        return list(results)
    last: dict[int, Any] = {}
    for result, target in zip(results, targets, strict=True):
        if target is not None and is_view(result):
            last[id(target.buffer)] = result.buffer
    for result, target in zip(results, targets, strict=True):
        if target is not None and not is_view(result):
            key = id(target.buffer)
            last[key] = target.layout.put(last.get(key, target.buffer), result)
    return [
        result if target is None else View.with_layout(last[id(target.buffer)], target.layout)
        for result, target in zip(results, targets, strict=True)
    ]


def _places_of(
    packed: RaggedArray | None,
    given: Sequence[Any],
    leaves: Sequence[jax.Array],
    targets: Sequence[View | None] | None,
    steps: Any,
    preconditioning: str,
) -> dict[str, Any]:
    """Where `_orthogonalized` reads matrices in place, and where it writes the results."""
    # X must occur in products and norms only.
    simple = isinstance(steps, int) and steps > 0 and preconditioning == "frobenius"
    in_place = [simple and x.ndim == 2 and not jnp.iscomplexobj(x) for x in leaves]
    if packed is None:
        views: list[Any] = [
            x if is_view(x) and flag else leaf for x, leaf, flag in zip(given, leaves, in_place, strict=True)
        ]
        return {"views": views, "into": targets}
    if not all(in_place):
        return {}
    target = RaggedArray(jnp.zeros_like(packed.buffer), packed.members)
    members, into = ([x.view(index) for index in range(len(leaves))] for x in (packed, target))
    return {"packed": packed, "views": members, "into": into}


def _orthogonalized(
    leaves: Sequence[jax.Array],
    steps: Any,
    coeffs: Any,
    preconditioning: str,
    eps: Any,
    scales: Any,
    dtype: Any,
    gram: bool | str,
    precision: Any,
    planner: AnyPlanner,
    implementation: str | None,
    packed: RaggedArray | None = None,
    views: Sequence[Any] | None = None,
    into: Sequence[View | None] | None = None,
    results: Sequence[Any] | None = None,
    norms: Any = None,
) -> list[Any]:
    """newton_schulz for checked arguments; `scales` and `norms` have one entry for each leaf, or are None.

    packed: the RaggedArray whose members the leaves are, or None.
    views: the leaves as they are read in place.
    into: a view or None for each leaf, into which the last product writes. The results are then views of the new
    buffers with these layouts. If there is no last product, or it has another dtype, the results are arrays.
    results: the dtype of each result, the leaf's or that of the iterates, in which it is not scaled; None: the leaves'.
    """
    found: list[Any] = [None] * len(leaves)
    views = leaves if views is None else views
    rows = list(coeffs) if coeffs.ndim == 2 else [coeffs] * (steps if isinstance(steps, int) else 1)
    dtypes = [(x.dtype, x.dtype if results is None else results[index]) for index, x in enumerate(leaves)]
    for leaf_dtype, target_dtype in dict.fromkeys(dtypes):
        dtype_indices = [index for index, pair in enumerate(dtypes) if pair == (leaf_dtype, target_dtype)]
        narrow = target_dtype != leaf_dtype
        groups = _groups(leaves, dtype_indices, steps, dtype or leaf_dtype, gram, precision, planner, implementation)
        rounded = {id(row): _rounded(row, leaf_dtype) for row in rows}  # the steps may share one row
        per_step = [rounded[id(row)] for row in rows]
        places = into if isinstance(steps, int) and steps > 0 else None
        if dtype is not None and not narrow and result_dtype(dtype, leaf_dtype) != leaf_dtype:
            places = None
        last: dict[int, Any] = {}  # the newest form of each buffer that is written to
        for (alone, by_gram), members in groups.items():

            def gemm(*operands: Any, alone: bool = alone, **options: Any) -> Any:
                chosen = "xla" if alone else implementation
                options = {"precision": precision, **options}
                return batched_gemm(*operands, planner=planner, implementation=chosen, **options)

            matrices = [(leaves if alone else views)[index] for index in members]
            known = None  # the norms of the matrices of rank 2
            if norms is not None and preconditioning != "spectral":
                matrix_indices = [index for index in members if leaves[index].ndim == 2]
                known = _real(
                    norms if len(matrix_indices) == len(leaves) else norms[np.array(matrix_indices, int)], leaf_dtype
                )
            elif packed is not None and not alone:
                known = packed_norms(packed, members)
            by_kernel = preconditioning != "spectral" and not alone and implementation != "xla"
            iteration = Iteration(gemm, preconditioning, eps, small_size() if by_kernel else 0, dtype, by_gram)
            iteration = replace(iteration, result=target_dtype if narrow else None)
            factors = None
            if scales is not None and not narrow:
                factors = _real(scales if len(members) == len(leaves) else scales[np.array(members)], leaf_dtype)
            if isinstance(steps, int):
                member_targets = None
                if places is not None:
                    member_targets = [_moved(places[index], last) for index in members]
                values = iterated(matrices, per_step, iteration, factors, known, member_targets)
                for index, value in zip(members, values, strict=True):
                    place = None if places is None else places[index]
                    if place is not None:
                        last[id(place.buffer)] = value.buffer
            else:
                values = looped(matrices, steps, per_step[0], iteration, factors, known)
            for index, value in zip(members, values, strict=True):
                found[index] = value
        for index in dtype_indices:  # all groups have written into the last buffers
            if places is not None and places[index] is not None:
                found[index] = _moved(places[index], last)
    return found


def _moved(view: View | None, last: Mapping[int, Any]) -> View | None:
    """The view of the newest form of its buffer."""
    return None if view is None else View.with_layout(last.get(id(view.buffer), view.buffer), view.layout)


def _groups(
    leaves: Sequence[jax.Array],
    members: Sequence[int],
    steps: Any,
    dtype: Any,
    gram: bool | str,
    precision: Any,
    planner: AnyPlanner,
    implementation: str | None,
) -> dict[tuple[bool, bool], list[int]]:
    """The members, leaves of one dtype, by whether they are single dots and whether they are iterated by their Gram
    matrices; dtype: that of the iterates."""
    options = (precision, planner, implementation, dtype)
    by_gram: Sequence[bool] = [False] * len(members)
    if isinstance(steps, int) and steps > 0 and gram is not False and dtype != jnp.bfloat16:
        by_gram = [True] * len(members)
        if gram == "auto":
            by_gram = members_by_gram([leaves[index] for index in members], steps, *options)
    groups: dict[tuple[bool, bool], list[int]] = {}
    for chosen in (False, True):
        indices = [index for index, is_gram in zip(members, by_gram, strict=True) if is_gram == chosen]
        matrices = [leaves[index] for index in indices]
        alone = members_alone(matrices, *options, steps if chosen else None) if matrices else ()
        for index, out in zip(indices, alone, strict=True):
            groups.setdefault((out, chosen), []).append(index)
    return dict(sorted(groups.items()))


def _steps(steps: Any) -> Any:
    """The number of steps as a Python integer where it is known, else traced."""
    if isinstance(steps, jax.core.Tracer):
        if steps.shape or not jnp.issubdtype(steps.dtype, jnp.integer):
            raise TypeError(f"newton_schulz: steps is {steps.dtype}{steps.shape}: it must be an integer")
        return steps
    try:
        steps = operator.index(steps)
    except TypeError:
        raise TypeError(f"newton_schulz: steps = {steps!r} must be an integer") from None
    if steps < 0:
        raise ValueError(f"newton_schulz: steps = {steps} must not be negative")
    return steps


def _scales(name: str, scale: Any, count: int) -> Any:
    """The scale, or the norm, as one number for each leaf."""
    if not isinstance(scale, jax.Array):
        scale = np.asarray(scale)
    if scale.shape not in ((), (count,)) or jnp.iscomplexobj(scale):
        what = f"{scale.dtype}{scale.shape}"
        raise ValueError(
            f"newton_schulz: {name} is {what}: it must be a real number, or one for each of {count} leaves"
        )
    return scale if scale.ndim else (jnp if isinstance(scale, jax.Array) else np).broadcast_to(scale, count)


def _sizes_tell(shape: Sequence[Any]) -> bool:
    """Whether symbolic sizes determine which one is larger."""
    return is_tall(shape) or compat.certainly(lambda: shape[-2] <= shape[-1])


def _rounded(coeffs: Any, dtype: Any) -> Any:
    """Coefficients rounded to the leaves' real dtype, each in the accumulator's dtype; Python floats where they are
    known."""
    coeffs = coeffs.astype(jnp.real(jnp.zeros((), dtype)).dtype)
    return list(_real(coeffs, dtype)) if isinstance(coeffs, jax.Array) else coeffs.astype(np.float64).tolist()


def _real(values: Any, dtype: Any) -> Any:
    """Numbers in the real dtype of the accumulator."""
    return values.astype(accumulator(jnp.real(jnp.zeros((), dtype)).dtype))
