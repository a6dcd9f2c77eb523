"""The families of random calls that random_calls.py makes: a call of a public function, and its result in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm._src.backends import default_device
from jax_vbgemm._src.epilogue import ACTIVATIONS
from jax_vbgemm._src.planner.tables.catalogue import catalogue_for, kind_of

DTYPES = ("float32", "bfloat16", "float16", "float64", "complex64", "complex128")
PLANNERS = ("auto", "uniform", "coordinated", "sort_split", "load_balanced", "tall_skinny")
PATTERN = 7.0


class Compared(NamedTuple):
    """A result, what it should be in float64, and the product of absolute values, which scales the tolerance."""

    found: Any
    expected: np.ndarray
    size: np.ndarray


class Call(NamedTuple):
    """A random call: `run` computes it on the device, and `compare` says what its results should be."""

    text: str
    run: Callable[[], Any]
    compare: Callable[[Any], list[Compared]]


class Draw:
    """Random numbers, shapes and options of one call."""

    def __init__(self, seed: int, dtypes: tuple[str, ...]) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(jax.numpy.dtype(self.one_of(dtypes)))
        self.precision = self.one_of(("highest", "high", "default"))
        self.is_complex = self.dtype.kind == "c"

    def one_of(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def chance(self, one_in: int) -> bool:
        return bool(self.rng.integers(one_in) == 0)

    def extent(self, large: bool = False) -> int:
        edge = self.one_of((8, 16, 32, 64, 128, 256)) + int(self.rng.integers(-1, 2))
        choices = [int(self.rng.integers(1, 25)), int(self.rng.integers(1, 200)), edge]
        if large:
            choices += [int(self.rng.integers(200, 700)), 8 * int(self.rng.integers(25, 100))]
        return 0 if self.chance(40) else self.one_of(choices)

    def shape(self) -> tuple[int, int, int]:
        large = self.chance(4)
        return self.extent(large), self.extent(large), self.extent(large)

    def array(self, *shape: int, dtype: Any = None) -> np.ndarray:
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        x = self.rng.uniform(-1, 1, shape)
        return (x + 1j * self.rng.uniform(-1, 1, shape) if dtype.kind == "c" else x).astype(dtype)

    def planner(self) -> Any:
        """A planner, or one tile for all problems: also the tiles that no planner would choose."""
        if not self.chance(3):
            return self.one_of(PLANNERS)
        device = default_device()
        kind = kind_of(self.dtype.name, self.precision if self.dtype == np.float32 else "highest", device)
        return vb.Uniform(tile=self.one_of(list(catalogue_for(kind, device))).key)

    def rounding(self) -> float:
        """The relative error of a product's factors and sums in this call's arithmetic."""
        if self.dtype.name in ("float32", "complex64"):
            if jax.default_backend() == "cpu" or self.precision == "highest" or self.is_complex:
                return 2.0**-18  # one accumulator may add a thousand products, one after the other
            return 2.0**-16 if self.precision == "high" else 2.0**-9
        return 2.0**-47 if self.dtype.itemsize >= 8 else 2.0**-16


def wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def activate(name: str | None, x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        if name == "relu":
            return np.maximum(x, 0)
        if name == "gelu":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        if name == "silu":
            return x / (1 + np.exp(-x))
        if name == "sigmoid":
            return 1 / (1 + np.exp(-x))
        return np.tanh(x) if name == "tanh" else x


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


def group_sizes(draw: Draw, groups: int, rows: int) -> np.ndarray:
    kinds = [
        draw.rng.multinomial(rows, draw.rng.dirichlet(np.full(groups, 0.3))),
        draw.rng.choice([0, 1, 63, 64, 65, 127, 128, 129, 255, 256, 257], groups),
        np.where(np.arange(groups) == draw.rng.integers(groups), rows, 0),
        draw.rng.integers(-5, max(2 * rows // groups, 2), groups),
        draw.rng.integers(0, 2, groups) * (2**31 - 1),
    ]
    return np.asarray(draw.one_of(kinds), np.int32)


def segments(sizes: np.ndarray, rows: int) -> list[slice]:
    ends = np.minimum(np.cumsum(np.maximum(sizes, 0).astype(np.int64)), rows)
    return [slice(int(begin), int(end)) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def ragged(draw: Draw) -> Call:
    """ragged_dot with its options, and the gradients of both operands."""
    narrow = draw.dtype.itemsize == 2
    step = draw.one_of((1, 16 // draw.dtype.itemsize or 1))
    groups, rows = draw.one_of((1, 2, 3, 8, 33, 129)), draw.one_of((1, 2, 63, 128, 129, 500, 1000))
    k, n = (step * int(draw.rng.integers(1, 40)) for _ in range(2))
    sizes = group_sizes(draw, groups, rows)
    parts = segments(sizes, rows)
    transpose, plain = draw.chance(2), draw.is_complex or draw.chance(2)
    gated = not plain and draw.chance(2)
    paired = draw.chance(3)  # rhs as two arrays
    if paired and not gated:
        n = 2 * draw.one_of((n, 64 * int(draw.rng.integers(1, 4))))
    columns = 2 * n if gated else n
    gathers = narrow and draw.chance(3)
    lhs_rows = int(draw.rng.integers(1, 2 * rows + 1)) if gathers else rows
    lhs, rhs = draw.array(lhs_rows, k), draw.array(groups, *((columns, k) if transpose else (k, columns)))
    given: dict[str, Any] = {}
    if gathers:
        given["gather"] = draw.rng.integers(-3, lhs_rows + 3, rows).astype(np.int32)
    else:
        lhs[parts[-1].stop :] = np.nan
    activation = None if plain else draw.one_of(ACTIVATIONS if gated else (None, *ACTIVATIONS))
    if not plain and draw.chance(2):
        given["bias"] = draw.array(groups, columns)
    if not plain and draw.chance(2):
        given["row_scale"] = draw.array(rows, dtype=np.float32 if narrow else draw.dtype)
    options = {"transpose_rhs": transpose, "activation": activation, "gated": gated, "precision": draw.precision}
    differentiates = plain and not gathers
    cotangent = draw.array(rows, n)
    cotangent[parts[-1].stop :] = np.nan

    def product(lhs: Any, rhs: Any, given: Any) -> jax.Array:
        weights = tuple(jax.numpy.split(rhs, 2, axis=-2 if transpose else -1)) if paired else rhs
        return vb.ragged_dot(lhs, weights, jax.numpy.asarray(sizes), **given, **options)

    @jax.jit
    def call(lhs: Any, rhs: Any, given: Any, cotangent: Any) -> list[jax.Array]:
        if not differentiates:
            return [product(lhs, rhs, given)]
        y, transposed = jax.vjp(lambda a, b: product(a, b, given), lhs, rhs)
        return [y, *transposed(cotangent)]

    on_device = jax.device_put((lhs, rhs, given, cotangent))

    def compare(found: Any) -> list[Compared]:
        x = wide(lhs)[np.clip(given["gather"], 0, lhs_rows - 1)] if gathers else wide(lhs)
        shape = (rows, n)
        type_ = np.complex128 if draw.is_complex else np.float64
        y, size = np.zeros(shape, type_), np.zeros(shape)
        of_lhs, of_rhs = (
            [np.zeros(x.shape, type_), np.zeros(x.shape)],
            [np.zeros(rhs.shape, type_), np.zeros(rhs.shape)],
        )
        for group, part in enumerate(parts):
            w = wide(rhs[group]).T if transpose else wide(rhs[group])
            z, scale = x[part] @ w, np.abs(x[part]) @ np.abs(w) + 1
            if "bias" in given:
                z, scale = z + wide(given["bias"][group]), scale + 1
            if gated:
                gate, up = np.split(z, 2, axis=1)
                first, second = np.split(scale, 2, axis=1)
                value = activate(activation, gate)
                # Where no kernel has the gate in its epilogue, both factors are rounded to the operands' type before.
                factor = 2 * float(jax.numpy.finfo(draw.dtype).eps) / draw.rounding()
                scale = first * np.abs(up) + second * np.abs(value)
                scale, z = scale + factor * (np.abs(gate) + np.abs(value)) * np.abs(up), value * up
            else:
                z = activate(activation, z)
            if "row_scale" in given:
                factor = wide(given["row_scale"])[part, None]
                z, scale = z * factor, scale * np.maximum(np.abs(factor), 1)
            y[part], size[part] = z, scale
            if differentiates:
                g = wide(cotangent)[part]
                of_lhs[0][part], of_lhs[1][part] = g @ w.T, np.abs(g) @ np.abs(w).T
                turn = (lambda m: m.T) if transpose else (lambda m: m)
                of_rhs[0][group], of_rhs[1][group] = turn(x[part].T @ g), turn(np.abs(x[part]).T @ np.abs(g))
        compared = [Compared(found[0], y, size)]
        return (
            compared + [Compared(f, *right) for f, right in zip(found[1:], (of_lhs, of_rhs), strict=True)]
            if differentiates
            else compared
        )

    text = f"m {rows}, k {k}, n {n}, pair {paired}, {options}, {sorted(given)}, lhs rows {lhs_rows}, "
    text += f"sizes {sizes.tolist()[:10]}"
    return Call(text, lambda: call(*on_device), compare)


def ragged_scaled(draw: Draw) -> Call:
    """ragged_dot of 8-bit floats with scales."""
    groups, rows = draw.one_of((1, 2, 8, 33)), draw.one_of((1, 63, 129, 500, 1000))
    k, n = (16 * int(draw.rng.integers(1, 30)) for _ in range(2))
    sizes = group_sizes(draw, groups, rows)
    gated, step = draw.chance(3), 128
    n = -(-n // step) * step if gated and draw.chance(2) else n
    columns = 2 * n if gated else n
    types = [jax.numpy.dtype(draw.one_of(("float8_e4m3fn", "float8_e5m2"))) for _ in range(2)]
    x, w = draw.array(rows, k, dtype=types[0]), draw.array(groups, columns, k, dtype=types[1])
    blocks = [
        tuple(size if draw.chance(2) else least for size, least in zip(shape, most, strict=True))
        for shape, most in (((1, k), (1, step)), ((1, columns, k), (1, step, step)))
    ]

    def scaled(values: np.ndarray, block: tuple[int, ...]) -> tuple[vb.Scaled, np.ndarray]:
        counts = [-(-size // each) for size, each in zip(values.shape, block, strict=True)]
        scales = draw.rng.uniform(0.5, 2, counts).astype(np.float32)
        spread = scales
        for axis, each in enumerate(block):
            spread = np.repeat(spread, each, axis=axis).take(range(values.shape[axis]), axis=axis)
        return vb.Scaled(jax.device_put(values), jax.device_put(scales), block), wide(values) * wide(spread)

    (lhs, x), (rhs, w) = scaled(x, blocks[0]), scaled(w, blocks[1])
    dtype = draw.one_of(("bfloat16", "float32"))
    options = {"gated": gated, "activation": "silu" if gated else None, "precision": "highest"}

    @jax.jit
    def call(lhs: Any, rhs: Any) -> jax.Array:
        return vb.ragged_dot(
            lhs, rhs, jax.numpy.asarray(sizes), transpose_rhs=True, preferred_element_type=dtype, **options
        )

    def compare(found: Any) -> list[Compared]:
        y, size = np.zeros((rows, n)), np.zeros((rows, n))
        for group, part in enumerate(segments(sizes, rows)):
            z, scale = x[part] @ w[group].T, np.abs(x[part]) @ np.abs(w[group]).T + 1
            if gated:
                gate, up = np.split(z, 2, axis=1)
                first, second = np.split(scale, 2, axis=1)
                value = activate("silu", gate)
                z, scale = value * up, first * np.abs(up) + second * np.abs(value) + first * second / 64
            y[part], size[part] = z, scale
        # The tensor cores add 128 products with some 14 bits.
        return [Compared(found, y, size * 2.0**-11 / draw.rounding())]

    text = f"m {rows}, k {k}, n {n}, {types}, {blocks}, {options}, {dtype}, sizes {sizes.tolist()[:10]}"
    return Call(text, lambda: call(lhs, rhs), compare)


def ragged_lists(draw: Draw) -> Call:
    """ragged_matmul: groups whose matrices have different shapes, and its gradients."""
    groups, rows = int(draw.rng.integers(1, 9)), draw.one_of((1, 3, 64, 129, 300))
    equal_k, transpose = draw.chance(2), draw.chance(2)
    depth = [draw.extent() or 1] * groups if equal_k else [draw.extent() or 1 for _ in range(groups)]
    width = [draw.extent() or 1] * groups if draw.chance(2) else [draw.extent() or 1 for _ in range(groups)]
    sizes = group_sizes(draw, groups, rows)
    parts = segments(sizes, rows)
    packed_k, packed_n = len(set(depth)) > 1, len(set(width)) > 1
    Bs = [draw.array(*((n, k) if transpose else (k, n))) for k, n in zip(depth, width, strict=True)]
    x = np.full(rows * max(depth), np.nan, draw.dtype)
    lines, at = [], 0
    for part, k in zip(parts, depth, strict=True):
        lines.append(draw.array(part.stop - part.start, k))
        x[at : at + lines[-1].size] = lines[-1].ravel()
        at += lines[-1].size
    operand = x if packed_k else x.reshape(rows, depth[0])
    call = jax.jit(
        lambda x, B: vb.ragged_matmul(
            x, B, jax.numpy.asarray(sizes), rows=rows, transpose_b=transpose, precision=draw.precision
        )
    )
    on_device = jax.device_put((operand, Bs))

    def compare(found: Any) -> list[Compared]:
        y = np.zeros(rows * max(width), np.complex128 if draw.is_complex else np.float64)
        size, at = np.zeros(y.shape), 0
        for line, b in zip(lines, Bs, strict=True):
            w = wide(b).T if transpose else wide(b)
            part = slice(at, at + len(line) * w.shape[1])
            y[part], size[part] = (wide(line) @ w).ravel(), (np.abs(wide(line)) @ np.abs(w)).ravel()
            at = part.stop
        shape = y.shape if packed_n else (rows, width[0])
        return [Compared(found, y.reshape(shape), size.reshape(shape))]

    return Call(
        f"rows {rows}, k {depth}, n {width}, transpose {transpose}, sizes {sizes.tolist()}",
        lambda: call(*on_device),
        compare,
    )


def mixtures(draw: Draw) -> Call:
    """A mixture of experts: route and expert_mlp against every expert for every token."""
    tokens, experts = int(draw.rng.integers(1, 200)), draw.one_of((1, 2, 5, 8, 33))
    k = int(draw.rng.integers(1, experts + 1))
    step = draw.one_of((1, 8))
    d, f = step * int(draw.rng.integers(1, 30)), step * int(draw.rng.integers(1, 30))
    real = np.dtype("float32") if draw.is_complex else draw.dtype
    draw.dtype, draw.is_complex = real, False
    x, gate_up, down = draw.array(tokens, d), draw.array(experts, d, 2 * f), draw.array(experts, f, d)
    logits = draw.array(tokens, experts, dtype="float64" if real == np.float64 else "float32")
    call = jax.jit(
        lambda x, g, w, z: vb.moe.expert_mlp(x, g, w, vb.moe.route(z, k, normalize=False), precision=draw.precision)
    )
    on_device = jax.device_put((x, gate_up, down, logits))

    def compare(found: Any) -> list[Compared]:
        scores = np.exp(wide(logits) - wide(logits).max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        weight = np.zeros(scores.shape)
        np.put_along_axis(weight, chosen, np.take_along_axis(scores, chosen, axis=1), axis=1)
        y, size = np.zeros((tokens, d)), np.zeros((tokens, d))
        for e in range(experts):
            gate, up = np.split(wide(x) @ wide(gate_up[e]), 2, axis=1)
            bound = np.abs(wide(x)) @ np.abs(wide(gate_up[e])) + 1
            hidden = activate("silu", gate) * up
            # Hidden values are rounded to the operands' type.
            error = bound[:, :f] * np.abs(up) + bound[:, f:] * np.abs(activate("silu", gate))
            error += np.abs(hidden) * float(jax.numpy.finfo(real).eps) / draw.rounding()
            y += weight[:, e, None] * (hidden @ wide(down[e]))
            size += weight[:, e, None] * (error @ np.abs(wide(down[e])))
        return [Compared(found, y, 2 * size)]

    return Call(f"tokens {tokens}, experts {experts}, k {k}, d {d}, f {f}", lambda: call(*on_device), compare)


FAMILIES = {
    "batches": batches,
    "windows": windows,
    "sums": sums,
    "grams": grams,
    "ragged": ragged,
    "ragged_lists": ragged_lists,
    "ragged_scaled": ragged_scaled,
    "mixtures": mixtures,
}  # fmt: skip
