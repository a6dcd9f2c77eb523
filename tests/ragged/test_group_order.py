"""Rows sorted by their group, by XLA's sort and, of few rows on a GPU, by counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.ragged.group_order import sorted_by_id


@pytest.mark.parametrize("rows", [0, 1, 50])
def test_counting_gives_the_order_of_the_sort(rows):
    ids = jnp.asarray(np.random.default_rng(0).integers(-1, 5, rows), jnp.int32)  # -1 is no group, and 4 has no rows
    ids = jnp.where(ids == 4, 3, ids)

    def found(device):
        with vb.target(device):
            sort = jax.make_jaxpr(lambda ids: sorted_by_id("f", "ids", ids, (rows,), 5))(ids)
        return "sort[" in str(sort), jax.core.eval_jaxpr(sort.jaxpr, sort.consts, ids)

    (sorts, expected), (counts, result) = found("cpu"), found("h100")
    assert sorts
    assert not counts
    for a, b in zip(result, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_many_rows_are_sorted():
    with vb.target("h100"):
        program = jax.make_jaxpr(lambda ids: sorted_by_id("f", "ids", ids, (20_000,), 5))(jnp.zeros(20_000, jnp.int32))
    assert "sort[" in str(program)
