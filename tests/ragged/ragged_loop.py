"""The definition of ragged_dot by a loop of jnp.matmul over sizes known to the host; and operands for it."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import FUNCTIONS

# In NumPy nothing is compiled for each shape.
NUMPY_FUNCTIONS = {
    **FUNCTIONS,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def group_rows(sizes: Sequence[int], m: int) -> list[tuple[int, int]]:
    """Begin and end of each group's rows."""
    ends = [0]
    for size in sizes:
        ends.append(min(m, ends[-1] + max(int(size), 0)))
    return list(itertools.pairwise(ends))


def loop(
    lhs: Any,
    rhs: Any,
    sizes: Sequence[int],
    *,
    transpose_rhs: bool = False,
    bias: Any = None,
    activation: str | None = None,
    row_scale: Any = None,
    group_offset: int = 0,
    xp: Any = jnp,
) -> Any:
    """One matmul for each group: differentiable, or in NumPy where xp=np."""
    m, n = lhs.shape[0], rhs.shape[1 if transpose_rhs else 2]
    activations = FUNCTIONS if xp is jnp else NUMPY_FUNCTIONS
    parts, done = [], 0
    for group, (begin, end) in enumerate(group_rows(sizes, m)):
        w = group - group_offset
        if begin == end or not 0 <= w < rhs.shape[0]:
            continue
        value = lhs[begin:end] @ (rhs[w].T if transpose_rhs else rhs[w])
        if bias is not None:
            value = value + xp.broadcast_to(bias[w], value.shape)
        if activation:
            value = activations[activation](value)
        if row_scale is not None:
            value = value * row_scale[begin:end, None]
        parts += [xp.zeros((begin - done, n), lhs.dtype), value]
        done = end
    return xp.concatenate([*parts, xp.zeros((m - done, n), lhs.dtype)])


def truth(lhs: Any, rhs: Any, sizes: Any, **options: Any) -> np.ndarray:
    """The loop in float64."""
    given = {name: np.asarray(value) if isinstance(value, jax.Array) else value for name, value in options.items()}
    result: np.ndarray = loop(np.asarray(lhs), np.asarray(rhs), np.asarray(sizes), **given, xp=np)
    return result


def random_sizes(rng: np.random.Generator, m: int, groups: int) -> np.ndarray:
    """Uneven sizes whose sum is at most m, some of them 0."""
    cuts = np.sort(rng.integers(0, m + 1, groups))
    sizes = np.diff(cuts, prepend=0)
    sizes[rng.random(groups) < 0.3] = 0
    return sizes
