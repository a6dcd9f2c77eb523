"""All uses of JAX's private names, and of names that differ between versions. Tried with 0.10.2, 0.11.2 and 0.12.0."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax._src import checkify, core, source_info_util
from jax._src.dispatch import apply_primitive as apply_primitive
from jax._src.interpreters.partial_eval import dce_rules
from jax._src.lax import parallel
from jax._src.named_sharding import UNSPECIFIED


def shaped_array(shape: tuple[int, ...], dtype: Any, factors: Iterable[Any]) -> Any:
    """The abstract value of a product of `factors`: inside shard_map it varies over the union of their mesh axes."""
    sharding = core.get_cur_mesh_sharding()
    if sharding.mesh.empty:
        return core.ShapedArray(shape, dtype)
    varying = frozenset[str]().union(*(factor.mat.varying for factor in factors))
    axes = core.ManualAxisType(varying=varying)
    return core.ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=axes)


def register_dce_rule(primitive: Any, rule: Callable[[list[bool], Any], tuple[list[bool], Any]]) -> None:
    """Registers a rule (used results, equation) -> (used operands, new equation). JAX 0.12 passes the live operands as
    a further argument between the two."""
    dce_rules[primitive] = lambda used, *rest: rule(used, rest[-1])


def register_nan_check(primitive: Any) -> None:
    """Makes checkify's NaN checks check the primitive's results, as they do for JAX's own primitives."""
    checkify.error_checks[primitive] = functools.partial(checkify.nan_error_check, primitive)


def register_user_check(primitive: Any) -> None:
    """For a primitive with operands (value, wrong) and a parameter `message`: under checkify's user checks, a `wrong`
    other than 0 raises the message, in which {wrong} stands for its value."""

    def check(*arguments: Any, message: str) -> tuple[Any, Any]:
        *context, error, enabled_errors, value, wrong = arguments  # JAX 0.11 and later pass a context
        if checkify.FailedCheckError in enabled_errors:
            failed = checkify.FailedCheckError(checkify.get_traceback(), message, wrong=wrong)
            assert_func: Any = checkify.assert_func
            error = assert_func(*context, error, wrong != 0, failed)
        return error, primitive.bind(value, wrong, message=message)

    checkify.error_checks[primitive] = check


def unite_varying(operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Inside shard_map, makes operands of one product vary over the union of their mesh axes; elsewhere the operands.

    If only the output's type claimed the union, gradients would be wrong: the cotangent of an operand that varies over
    fewer axes must be summed over the remaining axes, which the transpose of this cast does.
    """
    return list(core.auto_insert_reshard(*operands) if any(map(varies, operands)) else operands)


def varies(operand: jax.Array) -> bool:
    """Whether the operand's type varies over manual mesh axes, as inside shard_map."""
    return not jax.typeof(operand).mat.empty


def explicit_axes(operand: jax.Array) -> tuple[str, ...]:
    """The explicit mesh axes over which the operand is sharded, by its type."""
    return explicit_axes_of_type(jax.typeof(operand))


def explicit_axes_of_type(type_: Any) -> tuple[str, ...]:
    """The explicit mesh axes over which operands of a type are sharded."""
    sharding = type_.sharding
    if sharding.mesh.empty:
        return ()
    named = [axis for entry in sharding.spec if entry for axis in (entry if isinstance(entry, tuple) else (entry,))]
    return tuple(axis for axis in named if axis in sharding.mesh.explicit_axes)


def replicated(operand: jax.Array) -> jax.Array:
    """The operand replicated on an explicit mesh. Needed where vmap maps over a sharded axis, which the call inside
    never sees."""
    return resharded(operand, jax.P())


def resharded(operand: jax.Array, spec: Any) -> jax.Array:
    """The operand with this sharding if it is sharded over explicit mesh axes, and else as it is."""
    if not explicit_axes(operand):
        return operand
    mesh = jax.typeof(operand).sharding.mesh
    result: jax.Array = jax.sharding.reshard(operand, jax.NamedSharding(mesh, spec))
    return result


BODIES = {
    "scan": ("jaxpr",),
    "while": ("cond_jaxpr", "body_jaxpr"),
    "cond": ("branches",),
    "jit": ("jaxpr",),
    "pjit": ("jaxpr",),
    "custom_jvp_call": ("call_jaxpr",),
    "custom_vjp_call": ("call_jaxpr",),
    "checkpoint": ("jaxpr",),
    "remat2": ("jaxpr",),
}
"""For primitives that hold functions, the parameters that are jaxprs: closed ones, tuples of closed ones, or open
ones."""


def called_jaxpr(eqn: Any) -> Any:
    """The closed jaxpr of an equation that only calls it: a jit without shardings, layouts and options."""
    params = eqn.params
    if eqn.primitive.name == "closed_call":
        return params["call_jaxpr"]
    if eqn.primitive.name not in ("jit", "pjit"):
        return None
    constrained = any(x is not UNSPECIFIED for x in (*params["in_shardings"], *params["out_shardings"]))
    constrained |= any(x is not None for x in (*params["in_layouts"], *params["out_layouts"]))
    return None if constrained or params["compiler_options_kvs"] else params["jaxpr"]


def scan_counts(eqn: Any) -> tuple[int, int]:
    """The number of a scan's constants and of its carried values; JAX 0.12 has trees instead of these numbers."""
    if "num_consts" in eqn.params:
        return eqn.params["num_consts"], eqn.params["num_carry"]
    constants, carry, _ = eqn.params["ft_in"].unpack()
    return len(constants), len(carry)


def run_equation(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of one equation of a jaxpr, evaluated in the equation's name scope and context."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack), eqn.ctx.manager:
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return results if eqn.primitive.multiple_results else [results]


def is_static(shape: Sequence[Any]) -> bool:
    """Whether all dimensions are numbers; in jax.export they may be symbolic."""
    return core.is_constant_shape(shape)


def is_symbolic(size: Any) -> bool:
    """Whether a size is symbolic, as in jax.export; it is at least 1 there."""
    return bool(core.is_symbolic_dim(size))


InconclusiveSizes: type[Exception] = core.InconclusiveDimensionOperation
"""Raised by comparisons of symbolic sizes whose answer depends on their values."""


def certainly(comparison: Callable[[], Any]) -> bool:
    """Whether a comparison of sizes holds; False if the answer depends on the values of symbolic sizes."""
    try:
        return bool(comparison())
    except InconclusiveSizes:
        return False


def is_export(ctx: Any) -> bool:
    """Whether this lowering is for jax.export, so that the program may run on another machine."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def is_for_one_device(ctx: Any) -> bool:
    """Whether the code being lowered runs on the shards of one device, so that no partitioner will divide it."""
    axes = ctx.module_context.axis_context
    if hasattr(axes, "manual_axes"):  # inside shard_map
        return frozenset(axes.manual_axes) == frozenset(axes.mesh.axis_names)
    return bool(axes.num_devices == 1)


def varying(operand: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The operand with a type that may vary along these manual axes; unchanged if shard_map checks no types."""
    missing = tuple(axis for axis in axes if axis not in jax.typeof(operand).mat.varying)
    result: jax.Array = jax.lax.pcast(operand, missing, to="varying") if missing else operand
    return result


def all_gather(operand: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The operands of all devices, (devices, ...), with a type that says that all devices hold the same array.

    If shard_map checks no types, the result counts as varying and its cotangents are summed over the devices; an
    all-gather with an invariant type would give 1 / devices of the gradient there.
    """
    if not set(axes) <= jax.typeof(operand).mat.varying:
        gathered: jax.Array = jax.lax.all_gather(operand, axes)
        return gathered
    # Public from JAX 0.12 on.
    private = getattr(parallel, "all_gather_invariant", None)
    result: jax.Array = private(operand, axes) if private else jax.lax.all_gather(operand, axes, to="invarying")
    return result


def placed_as(result: jax.Array, operand: jax.Array) -> jax.Array:
    """The result with the sharding of the operand's type, where the mesh has explicit axes."""
    if not explicit_axes(operand):
        return result
    placed: jax.Array = jax.sharding.reshard(result, jax.typeof(operand).sharding)
    return placed


def constrained(result: jax.Array, spec: Any, mesh: Any) -> jax.Array:
    """The result with this sharding, where all axes of the mesh are automatic and spec is not None."""
    if spec is None or not all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types):
        return result
    placed: jax.Array = jax.lax.with_sharding_constraint(result, jax.NamedSharding(mesh, spec))
    return placed
