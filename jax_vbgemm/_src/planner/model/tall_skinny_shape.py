"""Which problems are tall and skinny: TSM2's, ISM2's, their mirror images and the transposed reduction."""

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jax_vbgemm._src.problem import ProblemSizes

# The largest small dimension. In one pass over A a thread keeps a whole row of C: 32 columns of float64 take 196
# registers beside those of its setup, and 64 columns don't fit. 32 is also below t2_threshold, so that memory is the
# limit, on every GPU of the device table in float32 and float64 (the least threshold is 38), except for float64 on GPUs
# with few float64 units (down to 6).
SKINNY = 32

# The smallest large dimension. If both sides of A are large, B and C each have at most 1/32 of its elements, so that
# Algorithm 5 may count A alone; and with one row for each thread, a problem has at least eight blocks of 128 threads.
TALL = 1024


class Shape(IntEnum):
    """The tall-and-skinny class of C = A B, where A is m x k, B is k x n and C is m x n.

    A mirrored problem is computed as C^T = B^T A^T: m and n change places, B^T is the tall operand.
    """

    ORDINARY = 0
    TSM2 = 1  # n small, m large, k more than small: a tall A against a skinny B
    TSM2_MIRRORED = 2  # m small, n large, k more than small
    ISM2 = 3  # k and n small, m large: a tall, skinny A against a small B
    ISM2_MIRRORED = 4  # k and m small, n large
    REDUCTION = 5  # m and n small, k large: C has too few rows to fill a device, so K is split


def classify(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> NDArray[np.int8]:
    """The Shape of each problem; m, n and k are integers or arrays of one shape, which is the shape of the result.

    The shapes exclude each other. They do not depend on how an operand is stored or on the size of the batch. A problem
    without products (m, n or k = 0) is ORDINARY.
    """
    m, n, k = np.asarray(m), np.asarray(n), np.asarray(k)
    skinny_n, skinny_m, skinny_k = n <= SKINNY, m <= SKINNY, k <= SKINNY
    tall, wide, deep = m >= TALL, n >= TALL, k >= TALL
    shape = np.select(
        [
            (m <= 0) | (n <= 0) | (k <= 0),
            tall & skinny_n & skinny_k,
            wide & skinny_m & skinny_k,
            tall & skinny_n,
            wide & skinny_m,
            deep & skinny_m & skinny_n,
        ],
        [
            Shape.ORDINARY,
            Shape.ISM2,
            Shape.ISM2_MIRRORED,
            Shape.TSM2,
            Shape.TSM2_MIRRORED,
            Shape.REDUCTION,
        ],
        Shape.ORDINARY,
    )
    return shape.astype(np.int8)


def shapes_of(sizes: ProblemSizes) -> NDArray[np.int8]:
    """The Shape of each problem of a list."""
    return classify(sizes.m, sizes.n, sizes.k)


def is_tall_skinny(m: ArrayLike, n: ArrayLike, k: ArrayLike) -> NDArray[np.bool_]:
    """Whether the Shape of each problem is not ORDINARY."""
    answer: NDArray[np.bool_] = classify(m, n, k) != Shape.ORDINARY
    return answer
