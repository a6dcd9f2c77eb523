"""Times `ragged_dot` of two int8 factors in one jitted program each, beside float8 and bfloat16, in turns.

    python benchmarks/ragged_w8a8.py

Random data, groups of equal size; medians in TFLOP/s, and whether a sum of int8 products is exact. "rows": scales of
rows of lhs and single columns of rhs; "blocks": of 128 values of a row and of 128 x 128 weights.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_vbgemm as vb

CASES = [  # rows, groups, K, N
    (32768, 4, 7168, 4096), (32768, 8, 3072, 7168), (32768, 128, 2048, 1536), (32768, 128, 768, 2048),
    (131072, 64, 2048, 2048), (8192, 1, 8192, 8192),
]  # fmt: skip
BLOCKS = {"rows": ((1, -1), (1, -1)), "blocks": ((1, 128), (128, 128))}


def times(peers, calls=8, rounds=7):
    """Seconds of a call of each peer, in turns."""
    taken = {name: [] for name in peers}
    for call in peers.values():
        jax.block_until_ready(call())
    for _ in range(rounds):
        for name, call in peers.items():
            begin = time.perf_counter()
            results = [call() for _ in range(calls)]
            jax.block_until_ready(results)
            taken[name].append((time.perf_counter() - begin) / calls)
            del results
    return {name: statistics.median(values) for name, values in taken.items()}


def peers_of(rows, groups, k, n):
    of_x, of_w = jax.random.split(jax.random.key(0))
    x = jax.random.normal(of_x, (rows, k), jnp.bfloat16)
    w = jax.random.normal(of_w, (groups, n, k), jnp.bfloat16) * k**-0.5
    sizes = jnp.full((groups,), rows // groups, jnp.int32)
    product = jax.jit(lambda x, w: vb.ragged_dot(x, w, sizes, transpose_rhs=True))
    factors = {"bfloat16": (x, w)}
    for kind in ("int8", "float8_e4m3fn"):
        for name, blocks in BLOCKS.items():
            factors[f"{kind}, {name}"] = tuple(
                vb.quantize(part, kind, block) for part, block in zip((x, w), blocks, strict=True)
            )
    return {name: lambda pair=pair: product(*pair) for name, pair in factors.items()}


def is_exact():
    """Whether products of int8 are those of integers, where float32 represents the sums."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((300, 992), (3, 272, 992)))
    sizes = np.array([100, 0, 200])
    lhs = vb.Scaled(jnp.asarray(x), jnp.ones((300, 1), jnp.float32), (1, 992))
    rhs = vb.Scaled(jnp.asarray(w), jnp.ones((3, 272, 1), jnp.float32), (1, 992))
    found = jax.jit(
        lambda lhs, rhs: vb.ragged_dot(
            lhs, rhs, jnp.asarray(sizes), transpose_rhs=True, preferred_element_type=jnp.float32
        )
    )(lhs, rhs)
    matrices = np.repeat(np.arange(3), sizes)
    expected = np.einsum("mk,mnk->mn", x.astype(np.float64), w[matrices].astype(np.float64))
    return bool((np.asarray(found) == expected).all())


def main():
    print("int8 is exact:", is_exact())
    for case in CASES:
        rows, _, k, n = case
        rates = {name: 2e-12 * rows * k * n / seconds for name, seconds in times(peers_of(*case)).items()}
        print(*case, {name: round(rate) for name, rate in rates.items()}, flush=True)


if __name__ == "__main__":
    main()
