"""newton_schulz: approximates the orthogonal polar factor of every matrix of a pytree, with a few calls for all."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src import compat
from jax_vbgemm._src.arguments import as_array, refuse_explicit_axes
from jax_vbgemm._src.many_devices.divided import divided
from jax_vbgemm._src.matmul.api import AnyPlanner, batched_gemm
from jax_vbgemm._src.matmul.options import checked_implementation
from jax_vbgemm._src.matmul.packed import RaggedArray, pack_as
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.matmul.view import View, dense, is_view
from jax_vbgemm._src.mesh_axes import mesh_axes
from jax_vbgemm._src.newton_schulz_coefficients import MUON_COEFFS, coefficients
from jax_vbgemm._src.newton_schulz_cost import matrix_seconds, members_alone
from jax_vbgemm._src.newton_schulz_norms import (
    divisors_of,
    norm_of,
    norms_of,
    packed_norms,
    rescale_aol,
    rescale_schatten,
    small_size,
    times,
)
from jax_vbgemm._src.structure import path_of

PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")

Gemm = Callable[..., Any]


def newton_schulz(
    tree: Any,
    steps: int = 5,
    coeffs: Any = MUON_COEFFS,
    *,
    preconditioning: str = "frobenius",
    eps: Any = 1e-8,
    scale: Any = None,
    precision: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
    mesh_axis: Any = None,
    mesh: Any = None,
) -> Any:
    """The Newton-Schulz iteration X <- c0 X + (c1 A + c2 A A) X with A = X X^H, on all matrices of a pytree.

    Drives the singular values of each matrix towards 1, so that U S V^H becomes about U V^H. A step is three calls for
    all matrices together: A, then c2 A A + c1 A, then its product with X plus c0 X. Tall matrices are iterated as their
    transposes, by flags; Frobenius norms of small matrices are one more call on a GPU. The results are those of
    optax.contrib.muon (`orthogonalize_via_newton_schulz`, 0.2.8).

    Args:
      tree: pytree of arrays (..., m, n) of a floating or complex dtype, or a RaggedArray; leading dimensions are a
        batch, and a `View` is the array that it shows. A tree without leaves is returned as it is.
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
      precision, planner: as for `batched_matmul`.
      implementation: "kernel" (all in one batch), "xla" (one dot for each product), or None: the cost model decides
        at trace time which matrices are so large that XLA's dots are faster. All other matrices are one batch.
      mesh_axis: a mesh axis, or a tuple of axes: the matrices are divided among the devices by predicted time, each
        device treats its part, and one collective distributes the results. Batches are divided too. Results equal those
        of one device up to rounding, and are sharded like `tree` on meshes with explicit axes. Inside shard_map over
        the axis, all devices must hold the same tree. None: every device treats all matrices that it holds.
      mesh: the mesh of the axis; None: that of the enclosing jax.set_mesh or shard_map.

    Returns:
      A pytree of the structure, shapes and dtypes of `tree`.

    Raises:
      ValueError: a leaf has rank 0 or 1, coeffs are an unknown name or have a shape other than (3,) or (n, 3), scale has
        one that is neither () nor (leaves,), steps is negative, preconditioning is unknown, preconditioning is "aol"
        and symbolic sizes don't determine which is larger, mesh_axis is not an axis of the mesh, or mesh_axis is given
        and a size is symbolic.
      TypeError: a leaf is neither floating nor complex, coeffs are complex, or steps is no integer, or is traced where
        coeffs are a name.

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
    tree = jax.tree.map(dense, tree, is_leaf=is_view)
    packed = tree if isinstance(tree, RaggedArray) else None
    if packed is not None:
        tree = packed.unpack()
    leaves, structure = jax.tree.flatten(tree)

    def written(index: int) -> str:
        return "tree" + path_of(structure, index)

    leaves = [
        leaf if isinstance(leaf, jax.Array) else as_array("newton_schulz", written(index), leaf)
        for index, leaf in enumerate(leaves)
    ]
    for index, leaf in enumerate(leaves):
        if leaf.ndim < 2:
            raise ValueError(f"newton_schulz: {written(index)} is {leaf.shape}: a matrix has rank 2 or more")
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise TypeError(f"newton_schulz: {written(index)} is {leaf.dtype}: it must be floating or complex")
        if preconditioning == "aol" and not _sizes_tell(leaf.shape):  # only "aol" depends on which size is larger
            raise ValueError(
                f"newton_schulz: {written(index)} is {leaf.shape}, and 'aol' needs to know which size is larger: give "
                "the symbolic sizes a constraint, such as 'm <= n'"
            )

    scales = None if scale is None else _scales(scale, len(leaves))

    def all_of(leaves: Sequence[jax.Array], scales: Any, coeffs: Any, steps: Any, eps: Any, **places: Any) -> list[Any]:
        options = (precision, planner, implementation)
        return _orthogonalized(leaves, steps, coeffs, preconditioning, eps, scales, *options, **places)

    def finished(results: Sequence[Any]) -> Any:
        if packed is None:
            return jax.tree.unflatten(structure, results)
        if results and all(is_view(x) for x in results):  # views of one buffer with the members' layout
            return RaggedArray(results[0].buffer, packed.members)
        return pack_as(results, packed.members)

    axes = None if mesh_axis is None else mesh_axes("newton_schulz", mesh_axis, mesh)
    if axes is None or axes.size == 1 or not leaves:
        refuse_explicit_axes("newton_schulz", leaves, written)
        places = _places_of(packed, leaves, steps, preconditioning)
        return finished(all_of(leaves, scales, coeffs, steps, eps, **places))
    for index, leaf in enumerate(leaves):
        if not compat.is_static(leaf.shape):
            raise ValueError(f"newton_schulz: {written(index)} is {leaf.shape}: mesh_axis needs sizes that are numbers")

    options = {"scales": scales, "coeffs": coeffs, "steps": steps, "eps": eps}
    traced = {name: value for name, value in options.items() if isinstance(value, jax.Array)}

    def part_of(parts: Sequence[jax.Array], indices: Any, traced: Any, into: Sequence[View]) -> list[Any]:
        of_part = options | traced
        if scales is not None:
            of_all = of_part["scales"]
            of_part["scales"] = (jnp.asarray(of_all) if isinstance(indices, jax.Array) else of_all)[indices]
        return all_of(parts, **of_part, into=into)

    seconds = matrix_seconds(leaves, precision, planner)
    return finished(divided(part_of, leaves, traced, seconds, axes))


def _places_of(
    packed: RaggedArray | None, leaves: Sequence[jax.Array], steps: Any, preconditioning: str
) -> dict[str, Any]:
    """Where `_orthogonalized` reads the members of a RaggedArray in place, and a new buffer for the results."""
    # X must occur in products and norms only.
    simple = isinstance(steps, int) and steps > 0 and preconditioning == "frobenius"
    if packed is None or not simple or not all(x.ndim == 2 and not jnp.iscomplexobj(x) for x in leaves):
        return {}
    target = RaggedArray(jnp.zeros_like(packed.buffer), packed.members)
    return {"packed": packed, "into": [target.view(index) for index in range(len(leaves))]}


def _orthogonalized(
    leaves: Sequence[jax.Array],
    steps: Any,
    coeffs: Any,
    preconditioning: str,
    eps: Any,
    scales: Any,
    precision: Any,
    planner: AnyPlanner,
    implementation: str | None,
    packed: RaggedArray | None = None,
    into: Sequence[View] | None = None,
) -> list[Any]:
    """newton_schulz for checked arguments; `scales` has one entry for each leaf, or is None.

    packed: the RaggedArray whose members the leaves are, which is read in place, or None.
    into: a view for each leaf into which the last product writes; those of a dtype share a buffer. The results are then
    views of the new buffers with these layouts. Where there is no last product, the results are arrays.
    """
    results: list[Any] = [None] * len(leaves)
    views: list[Any] = list(leaves) if packed is None else [packed.view(index) for index in range(len(leaves))]
    if not (isinstance(steps, int) and steps > 0):
        into = None
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        of_dtype = [index for index, leaf in enumerate(leaves) if leaf.dtype == dtype]
        alone = members_alone([leaves[index] for index in of_dtype], precision, planner, implementation)
        numbers = _rounded(coeffs, dtype)
        per_step = list(numbers) if coeffs.ndim == 2 else [numbers] * (steps if isinstance(steps, int) else 1)
        buffer = None if into is None else into[of_dtype[0]].buffer
        for route in (False, True):
            members = [index for index, out in zip(of_dtype, alone, strict=True) if out == route]
            if not members:
                continue

            def gemm(*operands: Any, route: bool = route, **options: Any) -> Any:
                chosen = "xla" if route else implementation
                options = {"precision": precision, **options}
                return batched_gemm(*operands, planner=planner, implementation=chosen, **options)

            matrices = [(leaves if route else views)[index] for index in members]
            norms = packed_norms(packed, members) if packed is not None and not route else None
            by_kernel = preconditioning != "spectral" and not route and implementation != "xla"
            small = small_size() if by_kernel else 0
            factors = None
            if scales is not None:
                factors = _real(scales if len(members) == len(leaves) else scales[np.array(members)], dtype)
            if isinstance(steps, int):
                places = None if into is None else [View.with_layout(buffer, into[index].layout) for index in members]
                iterated = _iterate(matrices, per_step, preconditioning, eps, gemm, small, factors, norms, places)
                if into is not None:
                    buffer = iterated[0].buffer
            else:
                iterated = _loop(matrices, steps, numbers, preconditioning, eps, gemm, small, factors)
            for index, value in zip(members, iterated, strict=True):
                results[index] = value
        if into is not None:  # both routes have written into the last buffer
            for index in of_dtype:
                results[index] = View.with_layout(buffer, into[index].layout)
    return results


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


def _loop(
    xs: list[jax.Array],
    steps: jax.Array,
    numbers: Any,
    preconditioning: str,
    eps: Any,
    gemm: Gemm,
    small: int,
    factors: Any,
) -> list[jax.Array]:
    """The iteration with a traced number of steps, which all have the same coefficients."""

    def first(xs: list[jax.Array]) -> list[jax.Array]:
        return _iterate(xs, [numbers], preconditioning, eps, gemm, small, None)

    def none(xs: list[jax.Array]) -> list[jax.Array]:
        return _iterate(xs, [], preconditioning, eps, gemm, small, None)

    def further(_: Any, xs: list[jax.Array]) -> list[jax.Array]:
        return _iterate(xs, [numbers], None, eps, gemm, small, None)

    xs = jax.lax.fori_loop(1, steps, further, jax.lax.cond(steps > 0, first, none, xs))
    return xs if factors is None else _multiplied(xs, factors)


def _iterate(
    xs: list[jax.Array],
    coeffs: Sequence[Any],
    preconditioning: str | None,
    eps: Any,
    gemm: Gemm,
    small: int,
    factors: Any,
    norms: jax.Array | None = None,
    into: Sequence[View] | None = None,
) -> list[Any]:
    """The iteration on matrices of one dtype; coeffs: a triple for each step; `small` is as in `norms_of`.

    norms: the Frobenius norm of each matrix of rank 2, where it is known. into: the views into which the last product
    writes, or None. preconditioning: None where a first step has been done. factors: a factor of each result in the
    accumulator's real dtype, or None.
    """
    xs = list(xs)
    tall = [_is_tall(x.shape) for x in xs]
    wide = [not flag for flag in tall]
    # X is not divided by its divisor. Instead, 1 / divisor is a factor of the first step's A and of its result. But a
    # kernel takes one factor for each problem: a batch, which has several, is divided here. So is an X whose spectral
    # norm is finite although X X^H overflows.
    divisors: list[Any] = [1.0] * len(xs)
    late_divisors = None  # None stands for ones
    if preconditioning in ("frobenius", "spectral") or (preconditioning and coeffs):
        late = [i for i, x in enumerate(xs) if x.ndim == 2 and coeffs and preconditioning != "spectral"]
        for i in set(range(len(xs))) - set(late):
            divisors[i] = divisors_of(norm_of(xs[i], preconditioning), preconditioning, eps)
            root = 1 / jnp.sqrt(divisors[i])[..., None, None]  # multiplied by twice, as 1 / divisor may be subnormal
            xs[i] = times(xs[i], root, root)
        if late:
            if norms is None:
                norms = norms_of([xs[i] for i in late], small)
            of_late = divisors_of(norms, preconditioning, eps)
            all_late = len(late) == len(xs)
            late_divisors = of_late if all_late else jnp.ones(len(xs), of_late.dtype).at[np.array(late)].set(of_late)
            if preconditioning in ("aol", "schatten"):
                for place, i in enumerate(late):
                    divisors[i] = of_late[place]
    for step, (c0, c1, c2) in enumerate(coeffs):
        conjugate = step > 0 or preconditioning != "schatten"  # optax uses X X^T in the first step of "schatten"
        others = [x.conj() if conjugate and jnp.iscomplexobj(x) else x for x in xs]
        symmetric = not (conjugate and jnp.iscomplexobj(xs[0]))  # or Hermitian
        scale: jax.Array | None = None
        square: Any = 1
        unit = 1
        if step == 0 and late_divisors is not None:
            scale = 1 / late_divisors
            # The square of 1 / norm may be subnormal, but not four times the square: A is then held 4 times as large.
            # (XLA would reassociate (2 s) (2 s).)
            unit = 2 if preconditioning == "frobenius" else 1
            root = 1 / (late_divisors / unit)
            square = root * root
        grams = gemm(xs, others, alpha=square, transpose_a=tall, transpose_b=wide, symmetric=symmetric)
        if step == 0 and preconditioning in ("aol", "schatten"):
            rescale = rescale_aol if preconditioning == "aol" else rescale_schatten
            pairs = [rescale(*parts) for parts in zip(xs, grams, tall, divisors, strict=True)]
            xs, grams, scale = [x for x, _ in pairs], [a for _, a in pairs], None
        bs = gemm(grams, grams, grams, alpha=c2 / unit**4, beta=c1 / unit**2, symmetric=symmetric)
        # A tall X is iterated as its transpose: (B X^T)^T = X B^T.
        left = [x if flag else b for x, b, flag in zip(xs, bs, tall, strict=True)]
        right = [b if flag else x for x, b, flag in zip(xs, bs, tall, strict=True)]
        given = [scale, factors if step == len(coeffs) - 1 else None]
        alpha = functools.reduce(operator.mul, [value for value in given if value is not None] or [1])
        last = step == len(coeffs) - 1
        xs = gemm(left, right, xs, alpha=alpha, beta=c0 * alpha, transpose_b=tall, into=into if last else None)
    return _multiplied(xs, factors) if factors is not None and not coeffs else xs


def _multiplied(xs: list[jax.Array], factors: Any) -> list[jax.Array]:
    """The matrices times one number each, in the accumulator's dtype."""
    wide = accumulator(xs[0].dtype)
    return [(jnp.asarray(f, wide) * x.astype(wide)).astype(x.dtype) for f, x in zip(factors, xs, strict=True)]


def _scales(scale: Any, count: int) -> Any:
    """The scale as one number for each leaf."""
    if not isinstance(scale, jax.Array):
        scale = np.asarray(scale)
    if scale.shape not in ((), (count,)) or jnp.iscomplexobj(scale):
        what = f"{scale.dtype}{scale.shape}"
        raise ValueError(f"newton_schulz: scale is {what}: it must be a real number, or one for each of {count} leaves")
    return scale if scale.ndim else (jnp if isinstance(scale, jax.Array) else np).broadcast_to(scale, count)


def _is_tall(shape: Sequence[Any]) -> bool:
    """Whether a matrix has more rows than columns; False where symbolic sizes don't determine it."""
    return compat.certainly(lambda: shape[-2] > shape[-1])


def _sizes_tell(shape: Sequence[Any]) -> bool:
    """Whether symbolic sizes determine which one is larger."""
    return _is_tall(shape) or compat.certainly(lambda: shape[-2] <= shape[-1])


def _rounded(coeffs: Any, dtype: Any) -> Any:
    """Coefficients rounded to the leaves' real dtype, in the accumulator's dtype; Python floats where they are
    known."""
    coeffs = coeffs.astype(jnp.real(jnp.zeros((), dtype)).dtype)
    return _real(coeffs, dtype) if isinstance(coeffs, jax.Array) else coeffs.astype(np.float64).tolist()


def _real(values: Any, dtype: Any) -> Any:
    """Numbers in the real dtype of the accumulator."""
    return values.astype(accumulator(jnp.real(jnp.zeros((), dtype)).dtype))
