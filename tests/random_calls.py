"""Random calls of the public functions against float64, until the time is up: on a GPU, and under compute-sanitizer.

    python tests/random_calls.py [--seed N] [--seconds S] [--count N] [--families NAME ...] [--dtypes NAME ...]

Each call draws its shapes (0, 1, primes, a tile's size and its neighbours), dtypes, options, and planner. What no
operand contains is NaN: the rest of a buffer around a window, and rows of no group. What no result contains is a
pattern that must stay as it is. Each call runs twice and must give the same bits. Where a call fails, its seed is
printed; `--seed` with it, and `--count 1`, repeats that call alone.

compute-sanitizer slows each kernel a hundredfold and cannot follow a whole test run, but some of these calls:

    XLA_PYTHON_CLIENT_ALLOCATOR=platform compute-sanitizer --tool memcheck --kernel-name kns=vbgemm \\
        python tests/random_calls.py --count 40
"""

from __future__ import annotations

import argparse
import sys
import time

import jax
import numpy as np
from random_draw import DTYPES, Call, Draw, wide
from random_families import FAMILIES

from jax_vbgemm._src.ragged import select_rows


def fault(draw: Draw, call: Call) -> str | None:
    """Runs a call; what is wrong with it, or None."""
    found, again = call.run(), call.run()
    for first, second in zip(jax.tree.leaves(found), jax.tree.leaves(again), strict=True):
        if np.asarray(first).tobytes() != np.asarray(second).tobytes():
            return "other bits in a second run"
    for index, (y, expected, size) in enumerate(call.compare(found)):
        info = jax.numpy.finfo(np.asarray(y).dtype)
        tolerance = size * draw.rounding() + np.abs(expected) * float(info.eps) + float(info.smallest_subnormal)
        if np.shape(y) != expected.shape:
            return f"result {index} is {np.shape(y)}, right: {expected.shape}"
        wrong = ~(np.abs(wide(y) - expected) <= tolerance)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            where = f"{int(wrong.sum())} of {wrong.size} wrong, the first at {at}"
            return f"result {index}: {where}: {wide(y)[at]}, right: {expected[at]}"
    return None


def run(seed: int, seconds: float, count: int, families: tuple[str, ...], dtypes: tuple[str, ...]) -> tuple[int, int]:
    """Runs calls until the time is up; returns how many ran and how many failed."""
    begin, done, failed = time.monotonic(), 0, 0
    while done < count and time.monotonic() - begin < seconds and failed < 5:
        draw = Draw(seed + done, dtypes)
        family = draw.one_of(families)
        text = ""
        try:
            call = FAMILIES[family](draw)
            text = call.text
            wrong = fault(draw, call)
        except Exception as error:  # one call that fails must not hide those after it
            wrong = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if wrong:
            failed += 1
            print(
                f"FAILED: {family}, seed {seed + done}, {draw.dtype.name}, {draw.precision}: {wrong}: {text}",
                flush=True,
            )
        done += 1
    return done, failed


def main() -> int:
    select_rows.LEAST_BYTES = 0  # copies of any size are the kernel's, in all families
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9, help="default: drawn from the time")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], choices=[*FAMILIES])
    parser.add_argument("--dtypes", nargs="+", default=[*DTYPES], choices=[*DTYPES])
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    done, failed = run(options.seed, options.seconds, options.count, tuple(options.families), tuple(options.dtypes))
    print(f"{done} random calls from seed {options.seed}: {failed} failed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
