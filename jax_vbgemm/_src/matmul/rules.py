"""Registers the primitive's rules for derivatives and vmap, and its rule for dead-code elimination, which is here.

Each rule produces terms again and binds the primitive once, so that transformations compose.
"""

from __future__ import annotations

from typing import Any

from jax.interpreters import ad, batching

from jax_vbgemm._src.matmul.derivatives import jvp
from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.matmul.primitive import Batched, Window, batched_matmul_p, compact
from jax_vbgemm._src.matmul.transpose import transpose
from jax_vbgemm._src.matmul.vmap import batch
from jax_vbgemm._src.util import compat


def _dce(used: list[bool], eqn: Any) -> tuple[list[bool], Any]:
    """The dead-code elimination rule: drops products whose results are unused, as XLA cannot look into a custom
    call."""
    if all(used):
        return [True] * len(eqn.invars), eqn
    if not any(used):
        return [False] * len(eqn.invars), None
    old: Batched = eqn.params["batched"]
    reads, writes = old.reads, old.writes
    is_used = [used[window.array] for window in writes] if writes else used
    operands, outs, terms, epilogues = compact([term for term in old.terms if is_used[term.out]], old.epilogues)
    kept = operands
    if writes and not reads:
        reads = tuple(Window(index, Layout.row_major(var.aval.shape)) for index, var in enumerate(eqn.invars))
    targets = [target for target, yes in zip(old.targets, used, strict=bool(old.targets)) if yes]
    if reads:
        bases = [target.base for target in targets if target.base is not None]
        kept = sorted({reads[index].array for index in operands} | set(bases))
        reads = tuple(reads[index]._replace(array=kept.index(reads[index].array)) for index in operands)
    target_at = [sum(used[:index]) for index in range(len(used))]
    new = old._replace(
        terms=tuple(terms),
        out_dtypes=tuple(old.out_dtypes[out] for out in outs),
        epilogues=tuple(epilogues),
        reads=reads,
        writes=tuple(writes[out]._replace(array=target_at[writes[out].array]) for out in outs) if writes else (),
        targets=tuple(t if t.base is None else t._replace(base=kept.index(t.base)) for t in targets),
    )
    outvars = [var for var, yes in zip(eqn.outvars, used, strict=True) if yes]
    invars = [eqn.invars[index] for index in kept]
    alive = set(kept)
    live = [index in alive for index in range(len(eqn.invars))]
    return live, eqn.replace(invars=invars, outvars=outvars, params={"batched": new})


ad.primitive_jvps[batched_matmul_p] = jvp
ad.primitive_transposes[batched_matmul_p] = transpose
batching.primitive_batchers[batched_matmul_p] = batch
compat.register_dce_rule(batched_matmul_p, _dce)
compat.register_nan_check(batched_matmul_p)
