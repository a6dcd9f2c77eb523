"""Checks ragged products under one compiled program whose group sizes change at every call: a million random vectors.

    python benchmarks/ragged_sizes.py [--count 1000000] [--dtype float32 ...] [--seed N]

lhs and rhs stay the same, so that the float64 results of every row with every group are known before and each call
costs a comparison. Sizes hold empty groups, negative ones, and sums below and above the rows. On a GPU, the default
runs a million vectors for each of forward, transposed and weights' products in some minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jax_vbgemm as vb

M, K, N, GROUPS = 96, 40, 48, 7
CALLS = 50  # in a step of the loop, so that random sizes and expected results cost little beside them


def random_sizes(key, count):
    """Vectors of three kinds: around a group's share of the rows; mostly negative; and of both signs, up to twice the
    rows."""
    kinds, share, sparse, both = jax.random.split(key, 4)
    kind = jax.random.randint(kinds, (count, 1), 0, 3)
    around = jax.random.randint(share, (count, GROUPS), 0, 2 * M // GROUPS + 3)
    rarely = jax.random.randint(sparse, (count, GROUPS), -3 * M, M)
    signed = jax.random.randint(both, (count, GROUPS), -2 * M, 2 * M)
    return jnp.select([kind == 0, kind == 1], [around, rarely], signed).astype(jnp.int32)


def groups_of_rows(sizes):
    """Each row's group, as a one-hot vector of float64: zeros for a row without one."""
    ends = jnp.minimum(jnp.cumsum(jnp.maximum(sizes, 0)), M)
    rows = jnp.arange(M)[:, None]
    return ((rows < ends) & (rows >= jnp.pad(ends, (1, 0))[:-1])).astype(jnp.float64)


DIMENSIONS = jax.lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
"""Those of the weights' gradient: the ragged dimension is contracted."""


def products(dtype):
    """Names, and functions from sizes to a result beside its float64 value and the bound of its error."""
    rng = np.random.default_rng(1)
    lhs, rhs, dy = (jnp.array(rng.normal(size=s), dtype) for s in ((M, K), (GROUPS, K, N), (M, N)))
    wide = [x.astype(jnp.float64) for x in (lhs, rhs, dy)]
    every = jnp.einsum("mk,gkn->mgn", wide[0], wide[1], precision="highest")
    outer = jnp.einsum("mk,mn->mkn", wide[0], wide[2], precision="highest")
    of_rows = partial(vb.ragged_dot, lhs, precision="highest")

    def rows(one_hot):
        return jnp.einsum("mg,mgn->mn", one_hot, every, precision="highest")

    def weights(one_hot):
        return jnp.einsum("mg,mkn->gkn", one_hot, outer, precision="highest")

    return {
        "forward": (lambda sizes: of_rows(rhs, sizes), rows),
        "transposed": (lambda sizes: of_rows(rhs.mT.copy(), sizes, transpose_rhs=True), rows),
        "weights": (
            lambda sizes: vb.ragged_dot_general(lhs, dy, sizes, DIMENSIONS, precision="highest"),
            weights,
        ),
    }


def check(name, product, reference, dtype, count, seed):
    """Runs `count` vectors in one compiled loop; the largest error in units of its bound, and where it was."""
    eps = max(float(jnp.finfo(dtype).eps), 2.0**-21 if dtype == jnp.float32 else 0.0)

    def step(worst, key):
        sizes = random_sizes(key, CALLS)
        expected = jax.vmap(lambda one: reference(groups_of_rows(one)))(sizes)
        results = jnp.stack([product(one) for one in sizes])
        error = jnp.abs(results.astype(jnp.float64) - expected)
        bound = eps * (jnp.abs(expected) + 16)  # sums of some 100 products of normal numbers
        error = jnp.where(error >= 0, error / bound, jnp.inf).reshape(CALLS, -1).max(1)  # NaN is an error
        largest = jnp.argmax(error)
        return jax.lax.cond(error[largest] > worst[0], lambda: (error[largest], sizes[largest]), lambda: worst), None

    @jax.jit
    def run(key):
        start = jnp.float64(0), jnp.zeros(GROUPS, jnp.int32)
        return jax.lax.scan(step, start, jax.random.split(key, count // CALLS))[0]

    begin = time.time()
    worst, sizes = jax.block_until_ready(run(jax.random.key(seed)))
    good = bool(worst <= 1)
    print(
        f"{jnp.dtype(dtype).name:9} {name:11} {count} vectors, {time.time() - begin:.0f} s: largest error {worst:.2f} "
        f"of its bound" + ("" if good else f", FAILED at {sizes.tolist()}"),
        flush=True,
    )
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10**6)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    good = True
    for name in options.dtype:
        dtype = jnp.dtype(name)
        for product, (run, reference) in products(dtype).items():
            good &= check(product, run, reference, dtype, options.count, options.seed)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
