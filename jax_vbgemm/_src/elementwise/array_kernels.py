"""Operations on many arrays of different sizes that are one launch on a GPU, and a jnp expression everywhere else.

XLA launches a kernel for each array, as it fuses elementwise work along an array but not across arrays. On the CPU, for
several devices and in derivatives, the operation is the jnp expression, which also defines it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.native import backends
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.distinct import distinct

KERNEL_DTYPES = ("float32", "float64", "bfloat16", "float16")

Form = Callable[..., list[jax.Array]]


def define(primitive: Any, xla_form: Form, kernel_form: Form, checks_nans: bool = True) -> None:
    """Defines a primitive with derivatives and vmap, but without a transpose. Its last operand has its arrays' dtype.

    Both forms are functions of its operands and parameters; `kernel_form` becomes a custom call. checks_nans: whether
    checkify's NaN checks look at the results, all of which the kernel must define.
    """
    primitive.multiple_results = True
    primitive.def_impl(partial(compat.apply_primitive, primitive))
    if checks_nans:
        compat.register_nan_check(primitive)
    ad.primitive_jvps[primitive] = partial(jvp, xla_form)
    batching.primitive_batchers[primitive] = partial(_batch, xla_form)
    mlir.register_lowering(primitive, mlir.lower_fun(xla_form, multiple_results=True))
    for platform in backends.GPU_PLATFORMS:
        mlir.register_lowering(primitive, partial(lower, platform, xla_form, kernel_form), platform=platform)


def read_once(operands: Sequence[Any]) -> tuple[bool, ...]:
    """For each operand, whether it occurs only once: the call must not overwrite an array that it reads again. Call
    this where the primitive is bound, since a lowering gets a separate value for each operand."""
    _, places = distinct(operands)
    uses = Counter(places)
    return tuple(uses[place] == 1 for place in places)


def form_of(form: Form, given: Sequence[Any], free: Sequence[bool], params: Any) -> Form:
    """`form` as a function of its free operands, with the other operands from `given`."""

    def with_free(*values: Any) -> list[jax.Array]:
        free_values = iter(values)
        return form(*(next(free_values) if yes else x for x, yes in zip(given, free, strict=True)), **params)

    return with_free


def jvp(form: Form, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    moves = [not isinstance(tangent, ad.Zero) for tangent in tangents]
    values, directions = ([x for x, yes in zip(given, moves, strict=True) if yes] for given in (primals, tangents))
    return jax.jvp(form_of(form, primals, moves, params), values, directions)


def _batch(form: Form, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[list[Any], list[int]]:
    results = jax.vmap(partial(form, **params), in_axes=tuple(dims))(*operands)
    return results, [0] * len(results)


def lower(platform: str, xla_form: Form, kernel_form: Form, ctx: Any, *operands: Any, **params: Any) -> Any:
    """The lowering for a platform that has the kernel."""
    backend = backends.BACKENDS[platform]
    here = backend.module is not None or compat.is_export(ctx)
    static = all(compat.is_static(aval.shape) for aval in ctx.avals_in)
    # A program for several devices would have to gather sharded arrays for the kernel; XLA's form works on the shards.
    kernel = here and static and ctx.avals_in[-1].dtype.name in KERNEL_DTYPES and compat.is_for_one_device(ctx)
    form = partial(kernel_form if kernel else xla_form, **params)
    return mlir.lower_fun(form, multiple_results=True)(ctx, *operands)
