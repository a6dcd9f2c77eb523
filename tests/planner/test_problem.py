import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.problem import problems_of


def test_plain_tuples_stand_for_problems():
    assert problems_of([(1, 2, 3), [4, 5, 6, 7], vb.Problem(1, 1, 1, transpose_b=True)]) == (
        vb.Problem(1, 2, 3),
        vb.Problem(4, 5, 6, batch=7),
        vb.Problem(1, 1, 1, 1, False, True),
    )


def test_numpy_integers_become_plain_ones():
    problem = vb.Problem(np.int32(3), np.uint8(4), np.int64(5))
    assert problem == vb.Problem(3, 4, 5)
    assert all(type(size) is int for size in (problem.m, problem.n, problem.k))
    assert hash(problem) == hash(vb.Problem(3, 4, 5))


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ((1, -1, 2), ValueError, "plan: problems[1] has n = -1: sizes must be non-negative integers"),
        ((1, 2, 2.0), TypeError, "plan: problems[1] has k = 2.0: sizes must be non-negative integers"),
        ((True, 2, 2), TypeError, "plan: problems[1] has m = True: sizes must be non-negative integers"),
        (
            (1, 2, 2, np.bool_(1)),
            TypeError,
            "plan: problems[1] has batch = np.True_: sizes must be non-negative integers",
        ),
        ((1, 2, 2**31), ValueError, "plan: problems[1] has k = 2147483648: sizes must be at most 2**31 - 1"),
        ((1, 2), TypeError, "plan: problems[1] is (1, 2): expected a Problem or a tuple (m, n, k) or (m, n, k, batch)"),
        (7, TypeError, "plan: problems[1] is 7: expected a Problem or a tuple (m, n, k) or (m, n, k, batch)"),
    ],
)
def test_an_error_names_the_index_and_the_field(shape, error, message):
    with pytest.raises(error) as caught:
        problems_of([(1, 2, 3), shape])
    assert str(caught.value) == message


def test_the_largest_size_is_legal():
    assert vb.Problem(2**31 - 1, 0, 0).m == 2**31 - 1


def test_transpose_flags_must_be_bools():
    with pytest.raises(TypeError, match="transpose_a = 1: transpose flags must be bools"):
        vb.Problem(1, 2, 3, transpose_a=1)
