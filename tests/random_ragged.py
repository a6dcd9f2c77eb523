"""The families of random calls of ragged products and of mixtures of experts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from random_draw import Call, Compared, Draw, activate, wide

import jax_vbgemm as vb
from jax_vbgemm._src.epilogue import ACTIVATIONS
from jax_vbgemm._src.ragged import select_rows
from jax_vbgemm._src.ragged.aligned_groups import aligned_groups, quantized_contraction
from jax_vbgemm._src.scaled.blocks import quantized


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
    options["undefined_rest"] = draw.chance(3)
    differentiates = plain and not gathers
    cotangent = draw.array(rows, n)
    cotangent[parts[-1].stop :] = np.nan

    def product(lhs: Any, rhs: Any, given: Any) -> jax.Array:
        weights = tuple(jax.numpy.split(rhs, 2, axis=-2 if transpose else -1)) if paired else rhs
        return vb.ragged_dot(lhs, weights, jax.numpy.asarray(sizes), **given, **options)

    def defined(y: jax.Array) -> jax.Array:
        return jax.numpy.where(np.arange(rows)[:, None] < parts[-1].stop, y, 0) if options["undefined_rest"] else y

    @jax.jit
    def call(lhs: Any, rhs: Any, given: Any, cotangent: Any) -> list[jax.Array]:
        if not differentiates:
            return [defined(product(lhs, rhs, given))]
        y, transposed = jax.vjp(lambda a, b: product(a, b, given), lhs, rhs)
        of_lhs, of_rhs = transposed(cotangent)
        return [defined(y), defined(of_lhs), of_rhs]

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
    """ragged_dot of two factors of 8 bits with scales, or of rows of 16 bits with weights of 8 or 4."""
    groups, rows = draw.one_of((1, 2, 8, 33)), draw.one_of((1, 63, 129, 500, 1000))
    k, n = (16 * int(draw.rng.integers(1, 30)) for _ in range(2))
    sizes = group_sizes(draw, groups, rows)
    gated, step = draw.chance(3), 128
    n = -(-n // step) * step if gated and draw.chance(2) else n
    columns = 2 * n if gated else n
    mixed, integers = draw.chance(2), draw.chance(2)
    of_rows, of_weights = ("bfloat16", "float16"), ("int8", "int4", "float8_e4m3fn")
    narrow = ("int8",) if integers else ("float8_e4m3fn", "float8_e5m2")
    types = [jax.numpy.dtype(draw.one_of(names)) for names in ((of_rows, of_weights) if mixed else (narrow, narrow))]
    units = {jax.numpy.dtype("int8"): 40, jax.numpy.dtype("int4"): 2}
    x, w = (
        np.clip(np.round(units[type_] * values), jax.numpy.iinfo(type_).min, jax.numpy.iinfo(type_).max).astype(type_)
        if type_ in units
        else values.astype(type_)
        for values, type_ in zip(
            (draw.array(*shape, dtype=np.float32) for shape in ((rows, k), (groups, columns, k))), types, strict=True
        )
    )
    least_columns = draw.one_of((1, step))
    blocks = [
        tuple(size if draw.chance(2) else least for size, least in zip(shape, most, strict=True))
        for shape, most in (((1, k), (1, step)), ((1, columns, k), (1, least_columns, step)))
    ]

    if not mixed and blocks[1][1] == 1:
        blocks[1] = (1, 1, k)

    def scaled(values: np.ndarray, block: tuple[int, ...]) -> tuple[vb.Scaled, np.ndarray]:
        counts = [-(-size // each) for size, each in zip(values.shape, block, strict=True)]
        scales = draw.rng.uniform(0.5, 2, counts).astype(np.float32) / units.get(values.dtype, 1)
        spread = scales
        for axis, each in enumerate(block):
            spread = np.repeat(spread, each, axis=axis).take(range(values.shape[axis]), axis=axis)
        return vb.Scaled(jax.device_put(values), jax.device_put(scales), block), wide(values) * wide(spread)

    (lhs, x), (rhs, w) = (jax.device_put(x), wide(x)) if mixed else scaled(x, blocks[0]), scaled(w, blocks[1])
    dtype = draw.one_of((types[0].name if mixed else "bfloat16", "float32"))
    options = {"gated": gated, "activation": "silu" if gated else None, "precision": "highest"}
    fast = not mixed and not integers and draw.chance(3)
    if fast:
        options["precision"] = "ANY_F8_ANY_F8_F32_FAST_ACCUM"
    if mixed:
        options["group_size_hint"] = draw.one_of((1, 1000))  # weights stay narrow, or are widened

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
        # Widened weights, and a gate's factors then, are rounded. The tensor cores add 128 products of 8-bit floats
        # with about 14 bits, those of int8 exactly.
        error = 2.0**-7 if mixed else 2.0**-17 if integers else 2.0**-9 if fast else 2.0**-11
        return [Compared(found, y, size * error / draw.rounding())]

    text = f"m {rows}, k {k}, n {n}, {types}, {blocks}, {options}, {dtype}, sizes {sizes.tolist()[:10]}"
    return Call(text, lambda: call(lhs, rhs), compare)


def ragged_wgrad(draw: Draw) -> Call:
    """The gradient of weights by 8-bit floats, and the quantization of its rows."""
    groups, rows = draw.one_of((1, 2, 8, 33)), draw.one_of((1, 63, 129, 500, 1000))
    sizes = group_sizes(draw, groups, rows)
    tokens = int(draw.rng.integers(1, 2 * rows + 1))
    index = draw.rng.integers(0, tokens, rows).astype(np.int32)
    columns = [8 * int(draw.rng.integers(1, 60)) for _ in range(2)]
    kinds = [draw.one_of(("float8_e4m3fn", "float8_e5m2")) for _ in range(2)]
    of_lhs = draw.one_of(("bfloat16", "float16", "float32"))
    x = draw.array(tokens, columns[0], dtype=jax.numpy.dtype(of_lhs))
    y = draw.array(rows, columns[1], dtype=jax.numpy.dtype("bfloat16"))
    dtype = draw.one_of(("bfloat16", "float32"))

    @jax.jit
    def call(x: jax.Array, y: jax.Array) -> Any:
        exact, places = aligned_groups(jax.numpy.asarray(sizes), rows)
        tokens = jax.numpy.where(places < 0, -1, jax.numpy.asarray(index)[places])
        factors = [
            quantized(kind, x=x[None], index=rows, place=places, value_rows=y.shape[0], of_rows=True, in_columns=True)
            for kind, x, rows in zip(kinds, (x, y), (tokens, places), strict=True)
        ]
        there = jax.numpy.repeat(places[::128] >= 0, 128)[:, None]  # nothing is written of blocks without rows
        rounded = [
            jax.numpy.where(
                there, vb.Scaled(factor.transposed[0], factor.block_scales[0], (128, 128)).mT.dequantized(), 0
            )
            for factor in factors
        ]
        return quantized_contraction(*factors, exact, dtype, None), places, rounded

    def compare(found: Any) -> list[Compared]:
        gradient, places, (lhs, rhs) = found
        lhs, rhs, places = wide(lhs), wide(rhs), np.asarray(places)
        results = []
        for given, source, kind in ((lhs, wide(x)[index], kinds[0]), (rhs, wide(y), kinds[1])):
            exact = np.where(places[:, None] < 0, 0, source[places])
            unit = 2.0 ** (-4 if kind == "float8_e4m3fn" else -3)  # half of one, at the largest numbers of a block
            largest = np.abs(exact).max(initial=0)
            results.append(Compared(given, exact, (np.abs(exact) + largest * 2.0**-9) * unit / draw.rounding()))
        product, size, begin = np.zeros(gradient.shape), np.zeros(gradient.shape), 0
        for group, part in enumerate(segments(sizes, rows)):
            own = slice(begin, begin + part.stop - part.start)
            product[group], size[group] = lhs[own].T @ rhs[own], np.abs(lhs[own]).T @ np.abs(rhs[own]) + 1e-3
            begin += -(-(part.stop - part.start) // 128) * 128
        rounding = 2.0**-10 + (2.0**-8 if dtype == "bfloat16" else 0)
        return [Compared(gradient, product, size * rounding / draw.rounding()), *results]

    text = f"rows {rows} of {tokens}, columns {columns}, {kinds}, {of_lhs}, {dtype}, sizes {sizes.tolist()[:10]}"
    on_device = jax.device_put((x, y))
    return Call(text, lambda: call(*on_device), compare)


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


def copies(draw: Draw) -> Call:
    """select_rows: copies of rows of several matrices in any order, some of them zeros, and the sums of cotangents."""
    if draw.is_complex:
        draw.dtype, draw.is_complex = np.dtype("float32"), False
    matrices, rows, times = draw.one_of((1, 1, 3)), draw.one_of((1, 2, 63, 129, 500)), draw.one_of((1, 2, 8))
    columns = draw.one_of((1, 16 // draw.dtype.itemsize)) * int(draw.rng.integers(1, 70))
    count, fills = rows * times, draw.chance(2)
    index = np.stack([draw.rng.permutation(count) % rows for _ in range(matrices)]).astype(np.int32)
    back = np.argsort(index, axis=1, kind="stable").reshape(matrices, rows, times).astype(np.int32)
    if fills:
        missing = draw.rng.random(index.shape) < 0.3
        index = np.where(missing, rows, index)
        back = np.where(np.take_along_axis(missing, back.reshape(matrices, -1), 1).reshape(back.shape), count, back)
    x, cotangent = draw.array(matrices, rows, columns), draw.array(matrices, count, columns)

    @jax.jit
    def call(x: Any, cotangent: Any) -> list[jax.Array]:
        form = jax.vmap(lambda x, index, back: select_rows.select_rows(x, index[:, None], back, fills=fills))
        y, transposed = jax.vjp(lambda x: form(x, jax.numpy.asarray(index), jax.numpy.asarray(back)), x)
        return [y, *transposed(cotangent)]

    on_device = jax.device_put((x, cotangent))

    def compare(found: Any) -> list[Compared]:
        y, (of_x, size) = np.zeros(cotangent.shape), np.zeros((2, *x.shape))
        for i, named in enumerate(index):
            exists = named < rows
            y[i][exists] = wide(x[i])[named[exists]]
            np.add.at(of_x[i], named[exists], wide(cotangent[i])[exists])
            np.add.at(size[i], named[exists], np.abs(wide(cotangent[i]))[exists])
        return [Compared(found[0], y, np.zeros(y.shape)), Compared(found[1], of_x, size)]

    return Call(f"{matrices} x {rows} x {columns}, {times} times, fills {fills}", lambda: call(*on_device), compare)
