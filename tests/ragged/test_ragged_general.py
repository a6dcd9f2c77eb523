"""vb.ragged_dot_general against jax.lax.ragged_dot_general in all three modes, and its derivatives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.lax import RaggedDotDimensionNumbers
from slow_cases import slow_except

import jax_vbgemm as vb

SIZES = jnp.array([3, 0, 4])
CASES = {
    "basic": ((8, 4), (3, 4, 5), SIZES, ((1,), (1,)), ((), ()), 0, (0,)),
    "batch": ((8, 2, 4), (4, 3, 2, 5), SIZES, ((2,), (0,)), ((1,), (2,)), 0, (1,)),
    "batched sizes": ((2, 8, 4), (3, 2, 4, 5), jnp.array([[1, 2, 3], [4, 4, 0]]), ((2,), (2,)), ((0,), (1,)), 1, (0,)),
    "free before and behind": ((6, 8, 2, 4), (3, 4, 5), SIZES, ((3,), (1,)), ((), ()), 1, (0,)),
    "sizes of those before": (
        (2, 8, 3, 4), (3, 4, 5), jnp.array([[1, 2, 3], [4, 4, 0]]), ((3,), (1,)), ((), ()), 1, (0,),
    ),
    "two contracting, two free": ((8, 2, 4), (5, 4, 3, 2, 6), SIZES, ((1, 2), (3, 1)), ((), ()), 0, (2,)),
    "contraction": ((8, 4), (8, 5), SIZES, ((0,), (0,)), ((), ()), 0, ()),
    "batched contraction": ((2, 4, 8), (8, 2, 5), SIZES, ((2,), (0,)), ((0,), (1,)), 2, ()),
    "sizes of batched contraction": (
        (2, 4, 8), (8, 2, 5), jnp.array([[1, 2, 3], [4, 4, 0]]), ((2,), (0,)), ((0,), (1,)), 2, (),
    ),
    "contracting behind": ((8, 3, 4), (3, 8, 5), SIZES, ((0, 1), (1, 0)), ((), ()), 0, ()),
    "contracting before": ((3, 8, 4), (3, 8, 5), jnp.array([[3, 0, 4], [1, 1, 1], [8, 0, 0]]), ((0, 1), (0, 1)), ((), ()), 1, ()),  # noqa: E501
    "ragged batch": ((8, 3, 4), (8, 4, 5), SIZES, ((2,), (1,)), ((0,), (0,)), 0, ()),
}  # fmt: skip


def arguments(case: str) -> tuple[jax.Array, jax.Array, jax.Array, RaggedDotDimensionNumbers]:
    lhs, rhs, sizes, contract, batch, ragged, group = CASES[case]
    numbers = RaggedDotDimensionNumbers((contract, batch), [ragged], group)
    return oracle.random(lhs, "float64"), oracle.random(rhs, "float64", 1), sizes, numbers


def assert_close(x: Any, y: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), x, y)


@pytest.mark.parametrize("implementation", slow_except([None, "xla"], [None]))
@pytest.mark.parametrize("case", slow_except(CASES, list(CASES)[::2]))
def test_values(case, implementation):
    lhs, rhs, sizes, numbers = arguments(case)
    ours = vb.ragged_dot_general(lhs, rhs, sizes, numbers, implementation=implementation)
    # By the CPU: XLA's form for GPUs does not compile some of these, and is wrong where sizes have leading dimensions.
    on_cpu = jax.device_put((lhs, rhs, sizes), jax.local_devices(backend="cpu")[0])
    theirs = jax.lax.ragged_dot_general(*on_cpu, numbers)
    assert ours.shape == theirs.shape
    assert_close(ours, theirs)


@pytest.mark.parametrize("case", slow_except(CASES, list(CASES)[::6]))
def test_first_and_second_derivatives(case):
    lhs, rhs, sizes, numbers = arguments(case)

    def f(lhs, rhs):
        return jnp.sum(jnp.sin(vb.ragged_dot_general(lhs, rhs, sizes, numbers)))

    oracle.check_grads(f, (lhs, rhs), order=2, modes=["rev"])


def test_a_window_of_the_groups_of_a_contraction():
    lhs, rhs, sizes, numbers = arguments("contraction")
    whole = vb.ragged_dot_general(lhs, rhs, sizes, numbers)
    part = vb.ragged_dot_general(lhs, rhs, sizes, numbers, group_offset=1, groups=3)
    assert_close(part[:2], whole[1:])
    assert not np.asarray(part[2]).any()


def test_bad_dimension_numbers_are_jaxs_errors():
    lhs, rhs, sizes, _ = arguments("basic")
    numbers = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [], [0])
    with pytest.raises(TypeError, match="exactly one lhs ragged dimension"):
        vb.ragged_dot_general(lhs, rhs, sizes, numbers)
    with pytest.raises(TypeError, match="ragged_dot_general: group_sizes is float64"):
        vb.ragged_dot_general(lhs, rhs, jnp.ones(3), arguments("basic")[3])


@pytest.mark.parametrize(
    ("case", "options", "error", "message"),
    [
        (
            "contraction",
            {"groups": -1, "group_offset": 0},
            ValueError,
            "groups is -1: it must be a non-negative integer",
        ),
        (
            "contraction",
            {"groups": 2.0, "group_offset": 0},
            ValueError,
            "groups is 2.0: it must be a non-negative integer",
        ),
        ("contraction", {"groups": True, "group_offset": 0}, ValueError, "groups is True"),
        ("contraction", {"groups": 2}, ValueError, "groups is 2: it is for ragged contractions with a group_offset"),
        ("basic", {"groups": 2, "group_offset": 0}, ValueError, "groups is 2: it is for ragged contractions with a"),
        (
            "basic",
            {"ragged_dot_dimension_numbers": None},
            TypeError,
            "must be jax.lax.RaggedDotDimensionNumbers, not None",
        ),
    ],
)
def test_bad_options_are_named(case, options, error, message):
    names = ("lhs", "rhs", "group_sizes", "ragged_dot_dimension_numbers")
    given = dict(zip(names, arguments(case), strict=True)) | options
    with pytest.raises(error, match=f"ragged_dot_general: .*{message}"):
        vb.ragged_dot_general(**given)
