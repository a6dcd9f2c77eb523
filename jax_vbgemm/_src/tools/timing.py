"""Times functions inside a jitted program, by the time of one iteration of a loop."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

_SAMPLE_SECONDS = 0.01  # the number of iterations of a timing is chosen for this expected duration


def looped(function: Callable[..., Any] | None, iterations: int) -> Any:
    """A jitted function that calls `function` this many times and returns the last results; None: an empty loop.

    Each iteration's operands pass an optimisation barrier together with the loop's counter, and its results are
    carried, so that nothing is hoisted or dropped and no kernel is added.
    """

    def run(*operands: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            count, results = carry
            held, count = jax.lax.optimization_barrier((operands, count))
            return count + 1, results if function is None else function(*held)

        shapes = () if function is None else jax.eval_shape(function, *operands)
        zeros = jax.tree.map(lambda c: jnp.zeros(c.shape, c.dtype), shapes)
        count, results = jax.lax.fori_loop(0, iterations, body, (jnp.int32(0), zeros))
        return count if function is None else results  # XLA would drop a loop whose results are not returned

    return jax.jit(run)


def seconds_in_loop(
    functions: Sequence[Callable[..., Any]], operands: Sequence[Any], expected_seconds: float, rounds: int
) -> list[float]:
    """The seconds of one call of each function: the median over interleaved rounds, minus the time of an empty loop.

    `expected_seconds` of one call decides how many are timed together.
    """
    iterations = int(min(500, max(3, _SAMPLE_SECONDS / expected_seconds)))
    programs = [looped(function, iterations).lower(*operands).compile() for function in (*functions, None)]
    for program in programs:
        jax.block_until_ready(program(*operands))  # warm-up, as the first call is slower
    samples = [[seconds_of(program, operands) / iterations for program in programs] for _ in range(rounds)]
    *medians, empty = (statistics.median(column) for column in zip(*samples, strict=True))
    return [max(seconds - empty, math.ulp(seconds)) for seconds in medians]


def seconds_of(program: Callable[..., Any], operands: Sequence[Any]) -> float:
    """The seconds of one call, until its results are ready."""
    start = time.perf_counter()
    jax.block_until_ready(program(*operands))
    return time.perf_counter() - start
