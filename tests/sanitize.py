"""One small program for compute-sanitizer, which slows each kernel a hundredfold and cannot follow a whole test run.

    for dtype in float32 float64 complex64 complex128 bfloat16 float16; do
        XLA_PYTHON_CLIENT_ALLOCATOR=platform compute-sanitizer --tool memcheck python tests/sanitize.py $dtype; done

A second argument names float32's precision (highest, high, default). Shapes end just before and after a tile does.
"""

import sys

import jax
import numpy as np

import jax_vbgemm as vb

SIZES = [(1, 1, 1), (17, 33, 65), (0, 4, 3), (31, 63, 0), (64, 16, 32), (129, 127, 37)]


def worst_error(dtype_name: str, precision: str = "highest") -> float:
    """The largest error of 2 A B - C in both layouts of A and B, relative to K."""
    dtype, rng = jax.numpy.dtype(dtype_name), np.random.default_rng(0)
    wide = np.complex128 if dtype.kind == "c" else np.float64

    def random(*shape: int) -> np.ndarray:
        x = rng.uniform(-1, 1, shape)
        return (x + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else x).astype(dtype)

    # Operands are made on the host, so that only this package's kernels run on the device.
    As = [random(m, k) for m, _, k in SIZES] + [random(k, m) for m, _, k in SIZES]
    Bs = [random(k, n) for _, n, k in SIZES] + [random(n, k) for _, n, k in SIZES]
    Cs = 2 * [random(m, n) for m, n, _ in SIZES]
    flips = len(SIZES) * [False] + len(SIZES) * [True]
    on_device = jax.device_put((As, Bs, Cs))

    @jax.jit
    def f(As: list[jax.Array], Bs: list[jax.Array], Cs: list[jax.Array]) -> list[jax.Array]:
        options = {"alpha": 2, "beta": -1, "precision": precision}
        result: list[jax.Array] = vb.batched_gemm(As, Bs, Cs, transpose_a=flips, transpose_b=flips, **options)
        return result

    worst = 0.0
    for a, b, c, found, flip in zip(As, Bs, Cs, f(*on_device), flips, strict=True):
        x, y = (z.astype(wide).T if flip else z.astype(wide) for z in (a, b))
        error = np.abs(np.asarray(found).astype(wide) - (2 * x @ y - c.astype(wide)))
        worst = max(worst, float(error.max(initial=0)) / max(x.shape[1], 1))
    return worst


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(*sys.argv[1:], f"error {worst_error(*sys.argv[1:]):.1e}")
