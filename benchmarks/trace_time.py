"""Trace + lower and compile time of ragged batches, beside XLA's loop of dots.

The median of 5, minus that of an identity jit of the same arguments; no cache is warm, that of plans included.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm.planner import entry


def loop(As, Bs):
    return [jnp.matmul(a, b) for a, b in zip(As, Bs, strict=True)]


def seconds(function, args, compile_too):
    """Of tracing and lowering a fresh jit, and of compiling it, caches cleared."""
    jax.clear_caches()
    entry._plan.cache_clear()
    start = time.perf_counter()
    lowered = jax.jit(lambda *a: function(*a)).lower(*args)
    middle = time.perf_counter()
    if compile_too:
        lowered.compile()
    return middle - start, time.perf_counter() - middle


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--gradient", action="store_true", help="value and gradient instead of the forward pass")
    parser.add_argument("--loop", action="store_true", help="compile XLA's loop too (a minute and more on a GPU)")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}\nproblems  program   trace+lower s   compile s")
    for count in options.problems:
        sizes = rng.integers(16, 129, (count, 3))
        args = [jnp.ones((m, k)) for m, _, k in sizes], [jnp.ones((k, n)) for _, n, k in sizes]
        programs = {"identity": lambda As, Bs: (As, Bs), "ours": vb.batched_matmul}
        if options.loop:
            programs["XLA loop"] = loop
        if options.gradient:
            programs = {
                name: f
                if name == "identity"
                else jax.value_and_grad(lambda As, Bs, f=f: sum(map(jnp.sum, f(As, Bs))), (0, 1))
                for name, f in programs.items()
            }
        base = (0.0, 0.0)
        for name, function in programs.items():
            samples = [seconds(function, args, compile_too=True) for _ in range(5 if name != "XLA loop" else 1)]
            medians = [statistics.median(column) for column in zip(*samples, strict=True)]
            if name == "identity":
                base = medians
            print(f"{count:8}  {name:9} {medians[0] - base[0]:12.3f} {medians[1] - base[1]:12.3f}", flush=True)


if __name__ == "__main__":
    main()
