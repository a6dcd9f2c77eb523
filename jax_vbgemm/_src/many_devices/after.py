"""after: an identity whose result is available only once other values have been computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.util import compat

# jax.lax.optimization_barrier would give `x` a type that varies over the mesh axes over which the others vary.
after_p = jex_core.Primitive("after")
after_p.def_impl(partial(compat.apply_primitive, after_p))
after_p.def_abstract_eval(lambda x, *_: x)


def after(x: jax.Array, others: Sequence[jax.Array]) -> jax.Array:
    """x, which XLA makes available once it has computed the other values."""
    result: jax.Array = after_p.bind(x, *others)
    return result


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return after_p.bind(*primals), tangents[0]


def _batch(operands: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
    return after_p.bind(*operands), dims[0]


def _lower(_: Any, *operands: Any) -> Any:
    return stablehlo.OptimizationBarrierOp(operands).results[:1]


ad.primitive_jvps[after_p] = _jvp
batching.primitive_batchers[after_p] = _batch
mlir.register_lowering(after_p, _lower)
