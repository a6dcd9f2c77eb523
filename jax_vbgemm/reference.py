"""What the operation means, in jnp: the fallback where no kernel exists, and the oracle of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_vbgemm.primitive import Term


def multiply(lhs: jax.Array, rhs: jax.Array, term: Term, dtype: Any, precision: Any) -> jax.Array:
    """One product op(lhs) @ op(rhs) in `dtype`."""
    a = jnp.swapaxes(lhs, -1, -2) if term.transpose_a else lhs
    b = jnp.swapaxes(rhs, -1, -2) if term.transpose_b else rhs
    return jnp.matmul(a, b, precision=precision, preferred_element_type=dtype)


def products(
    operands: Sequence[jax.Array], terms: Sequence[Term], out_dtypes: Sequence[Any], precision: Any
) -> list[jax.Array]:
    """All results, one jnp.matmul a term; terms with the same `out` are added in order."""
    results: list[Any] = [None] * len(out_dtypes)
    for term in terms:
        value = multiply(operands[term.lhs], operands[term.rhs], term, out_dtypes[term.out], precision)
        results[term.out] = value if results[term.out] is None else results[term.out] + value
    return results
