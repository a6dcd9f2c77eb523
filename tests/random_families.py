"""The families of random calls that random_calls.py makes: a call of a public function, and its result in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from random_draw import PATTERN, PLANNERS, Call, Compared, Draw, activate, wide
from random_ragged import copies, mixtures, ragged, ragged_lists, ragged_scaled, ragged_wgrad

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import ACTIVATIONS


def batches(draw: Draw) -> Call:
    """batched_gemm with an epilogue, all layouts, any planner."""
    shapes = [draw.shape() for _ in range(int(draw.rng.integers(1, 7)))]
    batch = [draw.one_of([(), (), (3,), (2, 2)]) for _ in shapes]
    flips = [(draw.chance(2), draw.chance(2)) for _ in shapes]
    As = [
        draw.array(*b, *((k, m) if flip else (m, k)))
        for (m, _, k), b, (flip, _) in zip(shapes, batch, flips, strict=True)
    ]
    Bs = [
        draw.array(*b, *((n, k) if flip else (k, n)))
        for (_, n, k), b, (_, flip) in zip(shapes, batch, flips, strict=True)
    ]
    Cs = [draw.array(*b, m, n) for (m, n, _), b in zip(shapes, batch, strict=True)]
    biases = [draw.array(n) for _, n, _ in shapes]
    finishes, planner = draw.chance(2), draw.planner()
    activation = None if draw.is_complex or not finishes else draw.one_of((None, *ACTIVATIONS))
    epilogue = {"alpha": 2.0, "beta": -1.0, "bias": biases, "activation": activation} if finishes else {}
    options = {"transpose_a": [a for a, _ in flips], "transpose_b": [b for _, b in flips], "precision": draw.precision}
    call = jax.jit(lambda A, B, C: vb.batched_gemm(A, B, C, planner=planner, **epilogue, **options))
    on_device = jax.device_put((As, Bs, Cs if finishes else None))

    def compare(found: Any) -> list[Compared]:
        result = []
        for a, b, c, bias, (flip_a, flip_b), y in zip(As, Bs, Cs, biases, flips, found, strict=True):
            x, z = (np.swapaxes(wide(v), -1, -2) if flip else wide(v) for v, flip in ((a, flip_a), (b, flip_b)))
            product, size = x @ z, np.abs(x) @ np.abs(z)
            if finishes:
                product = activate(activation, 2 * product - wide(c) + wide(bias))
                size = 2 * size + np.abs(wide(c)) + np.abs(wide(bias))
            result.append(Compared(y, product, size))
        return result

    return Call(
        f"{shapes}, batches {batch}, {flips}, {epilogue.get('activation', 'plain')}, {planner}",
        lambda: call(*on_device),
        compare,
    )


def windows(draw: Draw) -> Call:
    """Windows of every width in buffers: results between guards, operands between NaN."""
    problems, views = [], []
    planner = draw.planner()
    buffers: list[np.ndarray] = []

    def window(rows: int, cols: int, fill: float, at_once: int) -> tuple[int, int, int, int]:
        step = draw.one_of((1, 8))
        pitch = -(-cols // step) * step + step * int(draw.rng.integers(0, 4))
        offset = step * int(draw.rng.integers(0, 4))
        matrix = max(rows - 1, 0) * pitch + cols + draw.one_of((0, step))
        size = offset + at_once * matrix + int(draw.rng.integers(0, 24)) + 1
        buffers.append(np.full(size, fill, draw.dtype))
        return len(buffers) - 1, pitch, offset, matrix

    for _ in range(int(draw.rng.integers(1, 4))):
        m, n, k = draw.shape()
        n = draw.one_of((n, int(draw.rng.integers(1, 25)), 256 + int(draw.rng.integers(1, 25))))
        k = draw.one_of((k, 8 * int(draw.rng.integers(0, 9)) + int(draw.rng.integers(1, 25))))
        m = draw.one_of((m, 1, 129))
        batch = draw.one_of((1, 1, 3))
        places = [window(m, k, np.nan, batch), window(k, n, np.nan, batch), window(m, n, PATTERN, batch)]
        for (buffer, pitch, offset, matrix), (rows, cols) in zip(places[:2], ((m, k), (k, n)), strict=True):
            for i in range(batch):
                at = np.lib.stride_tricks.as_strided(
                    buffers[buffer][offset + i * matrix :],
                    (rows, cols),
                    (pitch * draw.dtype.itemsize, draw.dtype.itemsize),
                )
                at[...] = draw.array(rows, cols)
        problems.append((m, n, k, batch))
        views.append(places)

    def layouts(
        which: int, shape: Callable[[int, int, int], tuple[int, int]]
    ) -> list[tuple[int, tuple[int, ...], tuple[int, ...], int]]:
        return [
            (places[which][0], (batch, *shape(m, n, k)), (places[which][3], places[which][1], 1), places[which][2])
            for (m, n, k, batch), places in zip(problems, views, strict=True)
        ]

    parts = [layouts(0, lambda m, n, k: (m, k)), layouts(1, lambda m, n, k: (k, n)), layouts(2, lambda m, n, k: (m, n))]

    @jax.jit
    def call(arrays: list[jax.Array]) -> list[jax.Array]:
        As, Bs, into = ([vb.View(arrays[i], *rest) for i, *rest in part] for part in parts)
        done = vb.batched_matmul(As, Bs, into=into, planner=planner, precision=draw.precision)
        return [view.buffer for view in done]

    on_device = jax.device_put(buffers)

    def compare(found: Any) -> list[Compared]:
        result = []
        for (a, b, c), y in zip(zip(*parts, strict=True), found, strict=True):
            x, z = (_window(wide(buffers[i]), *rest) for i, *rest in (a, b))
            expected, size = wide(buffers[c[0]]).copy(), np.zeros(buffers[c[0]].shape)
            _window(expected, *c[1:])[...] = x @ z
            _window(size, *c[1:])[...] = np.abs(x) @ np.abs(z)
            result.append(Compared(y, expected, size))
        return result

    return Call(
        f"(m, n, k, batch) {problems}, pitches {[p[2][1] for p in views]}, {planner}", lambda: call(on_device), compare
    )


def _window(buffer: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> np.ndarray:
    steps = tuple(stride * buffer.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(buffer[offset:], shape, steps)


def sums(draw: Draw) -> Call:
    """batched_matmul_sum: terms of different K."""
    results, terms = int(draw.rng.integers(1, 4)), int(draw.rng.integers(3, 9))
    out = [*range(results), *(int(i) for i in draw.rng.integers(results, size=max(terms - results, 0)))]
    shapes = [draw.shape()[:2] for _ in range(results)]
    depths = [draw.extent() for _ in out]
    As = [draw.array(shapes[i][0], k) for i, k in zip(out, depths, strict=True)]
    Bs = [draw.array(k, shapes[i][1]) for i, k in zip(out, depths, strict=True)]
    planner = draw.planner()
    call = jax.jit(lambda A, B: vb.batched_matmul_sum(A, B, out, planner=planner, precision=draw.precision))
    on_device = jax.device_put((As, Bs))

    def compare(found: Any) -> list[Compared]:
        compared = []
        for i, y in enumerate(found):
            pairs = [(wide(a), wide(b)) for a, b, j in zip(As, Bs, out, strict=True) if i == j]
            compared.append(Compared(y, sum(a @ b for a, b in pairs), sum(np.abs(a) @ np.abs(b) for a, b in pairs)))
        return compared

    return Call(f"{shapes}, out {out}, depths {depths}, {planner}", lambda: call(*on_device), compare)


def grams(draw: Draw) -> Call:
    """batched_gram: results that are symmetric."""
    Xs = [draw.array(*draw.shape()[:2]) for _ in range(int(draw.rng.integers(1, 5)))]
    transpose, planner = draw.chance(2), draw.one_of(PLANNERS)
    call = jax.jit(lambda X: vb.batched_gram(X, transpose=transpose, planner=planner, precision=draw.precision))
    on_device = jax.device_put(Xs)

    def compare(found: Any) -> list[Compared]:
        compared = []
        for x, y in zip(Xs, found, strict=True):
            w = wide(x).T if transpose else wide(x)
            compared.append(Compared(y, w @ w.T, np.abs(w) @ np.abs(w).T))
        return compared

    return Call(f"{[x.shape for x in Xs]}, transpose {transpose}, {planner}", lambda: call(on_device), compare)


FAMILIES = {
    "batches": batches,
    "windows": windows,
    "sums": sums,
    "grams": grams,
    "ragged": ragged,
    "ragged_lists": ragged_lists,
    "ragged_scaled": ragged_scaled,
    "ragged_wgrad": ragged_wgrad,
    "mixtures": mixtures,
    "copies": copies,
}  # fmt: skip
