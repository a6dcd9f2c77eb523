"""Coefficients of Newton-Schulz steps by name: tables of their authors, and those that an algorithm computes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

MUON_COEFFS = (3.4445, -4.7750, 2.0315)
"""Keller Jordan's quintic. It is steep at 0, and singular values end in about [0.7, 1.2] instead of at 1."""

_QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
_TABLES = {
    # kellerjordan.github.io/posts/muon: one triple for all steps. "standard" is optax's name.
    "simple": MUON_COEFFS,
    "standard": MUON_COEFFS,
    # You Jiacheng's, in modded-nanogpt and in leloykun.github.io/ponder/muon-opt-coeffs. "dion" is optax's name.
    "quintic": _QUINTIC,
    "dion": _QUINTIC,
    # Turbo-Muon (arXiv 2512.04632): preconditioning "aol" saves the first of five steps. The authors' code
    # (thib-s/flash-newton-schulz, NS_ours) takes these rows. An earlier table of theirs that Emerging-Optimizers calls
    # "aol" begins with (4.0098, -7.0585, 2.4635), which maps singular values above 0.884 to negative numbers.
    "aol": _QUINTIC[1:],
}

LOWER = 1e-3
"""The least singular value, relative to the norm, for which "polar_express" and "cans" are optimal."""

_SAFETY_MARGIN = 0.02407327424182761
_SAFETY = 1.01
_LIMIT = 1 - 5e-6  # above this ratio of the interval's ends, the optimum in float64 equals the limit of the optima

NAMES = (*_TABLES, "polar_express", "cans")


def coefficients(name: str, steps: int) -> np.ndarray:
    """The coefficients (c0, c1, c2) of x <- c0 x + c1 x^3 + c2 x^5 that go by a name.

    "polar_express": Amsel et al., arXiv 2505.16932, Algorithm 1: the composition of odd quintics that is closest to 1
    on [LOWER, 1], each computed with a safety margin (section 3.4) and, but for the limit, with x / 1.01 for x, so that
    rounding cannot leave the interval in which it converges.
    "cans": Grishina et al., arXiv 2506.10935: the same composition without safety margin and without safety factor.

    Args:
      name: one of `NAMES`.
      steps: the number of rows of computed coefficients; tables have a fixed number.

    Returns:
      An array (3,), for every step, or (rows, 3), in float64.

    Raises:
      ValueError: the name is unknown.
    """
    if name == "polar_express":
        return _greedy(steps, _SAFETY_MARGIN, _SAFETY)
    if name == "cans":
        return _greedy(steps, 0.0, 1.0)
    if name not in _TABLES:
        # optax.contrib.muon's words, which callers know.
        raise ValueError(f"Unknown ns_coeff preset string: {name} (known are {', '.join(NAMES)})")
    return np.array(_TABLES[name])


@functools.cache
def _greedy(steps: int, safety_margin: float, safety: float) -> np.ndarray:
    """A sequence of quintics: each one is optimal for the interval into which its predecessors map [LOWER, 1].

    A safety margin keeps the lower end of a quintic's interval above a fraction of the upper end; otherwise small
    singular values would grow at the expense of those in between.
    """
    rows = np.zeros((steps, 3))
    lower, upper = LOWER, 1.0
    for row in rows:
        row[:] = _minimax(max(lower, safety_margin * upper), upper)
        if lower < safety_margin * upper:  # around 1 on the whole interval
            row *= 2 / (_value(row, lower) + _value(row, upper))
        is_limit = lower > _LIMIT * upper
        lower = _value(row, lower)
        upper = 2 - lower
        if not is_limit:
            row /= safety ** np.array([1, 3, 5])
    rows.flags.writeable = False
    return rows


def _minimax(lower: float, upper: float) -> Any:
    """The odd quintic that minimizes the maximum distance from 1 on [lower, upper], by the Remez exchange algorithm.

    The error of the optimum takes its extreme value with changing signs in four points: both ends and the two places
    between where the derivative is 0, which are found in turns with the coefficients.
    """
    if lower > _LIMIT * upper:
        return np.array([15 / upper, -10 / upper**3, 3 / upper**5]) / 8  # the limit, for which the system is singular
    inner = np.array([3 * lower + upper, lower + 3 * upper]) / 4
    signs = np.array([1, -1, 1, -1])
    error = np.inf
    for _ in range(100):
        points = np.array([lower, *inner, upper])
        *row, new_error = np.linalg.solve(np.stack([points, points**3, points**5, signs], 1), np.ones(4))
        if abs(new_error - error) <= 1e-15:
            break
        error = new_error
        c0, c1, c2 = row
        inner = np.sqrt((-3 * c1 + np.array([-1, 1]) * np.sqrt(9 * c1**2 - 20 * c0 * c2)) / (10 * c2))
    return np.array(row)


def _value(row: np.ndarray, x: float) -> float:
    return float(row @ np.array([x, x**3, x**5]))
