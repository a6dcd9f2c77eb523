"""The public functions: they check what the user gave, name what is wrong with it, and bind the primitive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm import backends, compat, reference
from jax_vbgemm.planner import DeviceSpec, Plan, Planner, device_spec, plan_problems, resolve_planner
from jax_vbgemm.primitive import Term, contract, sizes_of
from jax_vbgemm.problem import Problem, problems_of

AnyPlanner = str | Planner


def batched_matmul(
    As: Any,
    Bs: Any,
    *,
    transpose_a: Any = False,
    transpose_b: Any = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """Multiplies many matrices of different sizes, pair by pair, as one operation.

    The same as `jax.tree.map(jnp.matmul, As, Bs)` for operands of rank 2 and more, under every transformation
    (jit, grad, jvp, vmap, shard_map, remat, in any composition).

    Args:
      As, Bs: pytrees of arrays with the same structure, usually lists. Leaf i is a product (..., m_i, k_i) x
        (..., k_i, n_i) whose leading dimensions broadcast. Any size is legal, 0 and 1 included. Each pair's dtypes
        promote as in jnp.matmul; different pairs may have different dtypes.
      transpose_a, transpose_b: swap the last two axes of the operand; a bool or a prefix pytree of bools.
      precision: as in jax.lax.dot; `jax.default_matmul_precision` counts.
      preferred_element_type: the results' dtype, as in jax.lax.dot.
      planner: a planner's name, an options object (`Coordinated(theta=128)`), or a callable
        (problems, device, catalogue) -> Plan.
      implementation: "kernel", "xla" (one dot a product), or None for the best available. An explicit choice is never
        replaced.

    Returns:
      A pytree with the structure of As; leaf i is (..., m_i, n_i).

    Raises:
      ValueError: the structures differ, shapes don't fit, dtypes differ under strict promotion, or an option is
        unknown; the message names the leaf and the rule.
      TypeError: a leaf is not an array, or a flag not a bool.
      NotImplementedError: implementation="kernel" where there is no kernel.
    """
    name = "batched_matmul"
    lhs, rhs, structure = _paired_leaves(name, As, Bs)
    transposes = zip(
        _flags(name, "transpose_a", transpose_a, As, len(lhs)),
        _flags(name, "transpose_b", transpose_b, Bs, len(rhs)),
        strict=True,
    )
    if implementation not in (None, "kernel", "xla"):
        raise ValueError(f"{name}: implementation must be None, 'kernel' or 'xla', not {implementation!r}")
    planner = resolve_planner(planner)
    precision = _canonical_precision(precision)

    operands: list[jax.Array] = []
    terms: list[Term] = []
    out_dtypes: list[Any] = []
    for index, (a, b, flags) in enumerate(zip(lhs, rhs, transposes, strict=True)):
        term = Term(2 * index, 2 * index + 1, index, *flags)
        try:
            if a.ndim < 2 or b.ndim < 2:
                raise ValueError("both need rank 2 or more")
            sizes_of(a.shape, b.shape, term)
            if a.dtype != b.dtype:
                dtype = jnp.result_type(a, b)
                a, b = a.astype(dtype), b.astype(dtype)
            out_dtypes.append(
                _result_dtype(a.dtype, precision, preferred_element_type, jax.dtypes.canonicalize_dtype(float))
            )
        except (ValueError, TypeError) as error:
            a_name, b_name = _leaf_names(("As", As), ("Bs", Bs), index=index)
            transposed = "".join(f", {x} transposed" for x, flag in zip((a_name, b_name), flags, strict=True) if flag)
            raise type(error)(
                f"{name}: {a_name} is {_describe(a, b)} but {b_name} is {_describe(b, a)}{transposed}: {error}"
            ) from None
        operands += [a, b]
        terms.append(term)

    if implementation != "kernel" and not all(compat.is_static(x.shape) for x in operands):
        # Nothing can be planned for symbolic dimensions (jax.export).
        return jax.tree.unflatten(structure, reference.products(operands, terms, out_dtypes, precision))
    results = contract(operands, terms, out_dtypes, precision=precision, planner=planner, implementation=implementation)
    return jax.tree.unflatten(structure, results)


def plan(
    problems: Sequence[Problem | tuple[int, ...]],
    *,
    dtype: Any = "float32",
    precision: Any = None,
    device: DeviceSpec | str | None = None,
    planner: AnyPlanner = "auto",
) -> Plan:
    """The plan that a call with these sizes gets: `print` it to see tiles, blocks, waves, occupancy and predicted time.

    Args:
      problems: Problem objects or plain (m, n, k) tuples.
      dtype: of the operands.
      precision: as for `batched_matmul`; no planner depends on it yet.
      device: a DeviceSpec, a name such as "h100", or None for the device JAX would use.
      planner: as for `batched_matmul`.

    Raises:
      ValueError: a size is negative, or a name or an option is unknown, or a planner returned an incomplete plan.
      TypeError: a size is not an integer.
    """
    del precision
    spec = backends.default_device() if device is None else device_spec(device)
    return plan_problems(problems_of(problems), jnp.dtype(dtype).name, spec, resolve_planner(planner))


def _canonical_precision(precision: Any) -> Any:
    """A hashable precision that the lowering understands without the context that it was given in."""
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    if isinstance(precision, list):
        return tuple(precision)
    if isinstance(precision, str) and precision in jax.lax.DotAlgorithmPreset.__members__:
        return jax.lax.DotAlgorithmPreset[precision]
    return precision


def _paired_leaves(name: str, As: Any, Bs: Any) -> tuple[list[jax.Array], list[jax.Array], Any]:
    lhs, rhs = jax.tree.leaves(As), jax.tree.leaves(Bs)
    structure: Any = jax.tree.structure(As)
    other: Any = jax.tree.structure(Bs)
    if structure != other:
        if isinstance(As, list | tuple) and isinstance(Bs, list | tuple) and len(As) != len(Bs):
            raise ValueError(
                f"{name}: As has {len(As)} entries but Bs has {len(Bs)}: one right factor for each left one"
            )
        raise ValueError(f"{name}: As and Bs must have the same structure: As is {structure} but Bs is {other}")

    def array(tree_name: str, tree: Any, index: int, leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array):
            return leaf
        try:
            return jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            (leaf_name,) = _leaf_names((tree_name, tree), index=index)
            raise TypeError(f"{name}: {leaf_name} must be an array, but is {leaf!r}: {error}") from None

    return (
        [array("As", As, i, leaf) for i, leaf in enumerate(lhs)],
        [array("Bs", Bs, i, leaf) for i, leaf in enumerate(rhs)],
        structure,
    )


def _flags(name: str, option: str, flags: Any, tree: Any, count: int) -> list[bool]:
    """A bool or a prefix pytree of bools, one bool a leaf."""
    if isinstance(flags, bool | np.bool_):
        return [bool(flags)] * count
    try:
        leaves = jax.tree.leaves(jax.tree.map(lambda flag, part: jax.tree.map(lambda _: flag, part), flags, tree))
    except ValueError as error:
        raise ValueError(f"{name}: {option} must be a bool or a prefix of the operands' tree: {error}") from None
    for leaf in leaves:
        if not isinstance(leaf, bool | np.bool_):
            raise TypeError(f"{name}: {option} must hold Python bools, not {leaf!r}")
    return [bool(leaf) for leaf in leaves]


def _leaf_names(*trees: tuple[str, Any], index: int) -> list[str]:
    """As[3], Bs['w']: how the user would write leaf `index`."""
    return [name + jax.tree_util.keystr(jax.tree.leaves_with_path(tree)[index][0]) for name, tree in trees]


def _describe(x: jax.Array, other: jax.Array) -> str:
    return str(tuple(x.shape)) if x.dtype == other.dtype else f"{x.dtype}{tuple(x.shape)}"


@lru_cache(maxsize=1024)
def _result_dtype(dtype: Any, precision: Any, preferred_element_type: Any, default_float: Any) -> Any:
    """What jnp.matmul makes of these options; it also raises its errors for bad ones."""
    del default_float  # whether x64 is on decides what preferred_element_type means
    one = jax.ShapeDtypeStruct((1, 1), dtype)

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=precision, preferred_element_type=preferred_element_type)

    return jax.eval_shape(matmul, one, one).dtype
