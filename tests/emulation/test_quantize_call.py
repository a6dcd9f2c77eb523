"""quantize's custom call from end to end without a GPU: its handler's checks and its kernel, emulated, under XLA."""

from functools import partial

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import Builder

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.scaled import blocks

pytestmark = emulated_call.MARKS

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(scope="module", autouse=True)
def emulated(builder: Builder):
    with emulated_call.emulated(
        builder, blocks.quantize_p, blocks, backends.QUANTIZE_TARGET_NAME, "quantize", "quantize", "vbgemm_quantize"
    ):
        yield


def compiled(f, *operands):
    program = jax.jit(f).lower(*operands).compile()
    assert program.as_text().count('custom_call_target="vbgemm_quantize_v2"') == 1
    return program(*operands)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(*(np.asarray(x.astype(jnp.float32)) for x in (one, other)))


def odd(shape, dtype):
    """Numbers of many magnitudes, with blocks of zeros, of tiny numbers, and with a NaN and an infinity."""
    x = np.array(oracle.random(shape, "float32")) * np.exp2(np.arange(shape[-1]) % 20 - 10, dtype=np.float32)
    x[0, :2] = 0
    x[0, -1, -1], x[-1, -1, 0] = np.nan, np.inf
    x[-1, 0, :8] = 1e-41 if dtype == "float32" else 1e-6
    return jnp.asarray(x, dtype)


OUTPUTS = [
    {"of_rows": True}, {}, {"in_columns": True}, {"in_rows": False, "in_columns": True},
    {"of_rows": True, "in_columns": True},
]  # fmt: skip


def both(operands, **how):
    """What the kernel and the definition find."""
    names = tuple(operands)

    def ours(*values):
        found = blocks.quantized(**how, **dict(zip(names, values, strict=True)))
        return [result for result in found if result is not None]

    last = sorted(names, key=lambda name: name in ("x", "sums"))
    values = [operands[name] for name in last]
    definition = blocks.Quantization(given=tuple(last), **how)
    found = compiled(ours, *operands.values())
    return found, jax.jit(partial(blocks._xla_form, quantization=definition))(*values), definition.wanted


@pytest.mark.parametrize("kind", FLOAT8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_and_blocks_are_those_of_the_definition(dtype, kind):
    x = odd((2, 144, 272), dtype)
    for outputs in OUTPUTS:
        found, expected, _ = both({"x": x}, dtype=kind, **outputs)
        assert_equal(found, expected)


def places():
    """40 rows in 144 places: rows by index, and where each goes, which only some of the places have."""
    rng = np.random.default_rng(0)
    index, place = rng.integers(-1, 40, 144, dtype=np.int32), np.full(144, -1, np.int32)
    index[::128] = 3
    place[rng.permutation(144)[:40]] = rng.permutation(40)
    return index, place


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_rows_by_index(outputs):
    index, place = places()
    operands = {"x": odd((1, 40, 136), "float32"), "index": index}
    if outputs.get("of_rows"):
        operands["place"], outputs = place, outputs | {"value_rows": 40}
    found, expected, _ = both(operands, dtype="float8_e4m3fn", **outputs)
    assert_equal(found, expected)


def close(found, expected, wanted):
    """Equal but for roundings of the gate, after which a number may be rounded to another one of 8 bits."""
    kinds = [name for name, yes in zip(wanted._fields, wanted, strict=True) if yes]
    for name, one, other in zip(kinds, found, expected, strict=True):
        one, other = (np.asarray(x.astype(jnp.float32)) for x in (one, other))
        if name in ("values", "transposed"):
            assert (one != other).mean() < 1e-3
            np.testing.assert_allclose(one, other, rtol=0.25, atol=1e-3 * np.abs(other).max())
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gates_and_their_gradients(dtype, activation):
    index, place = places()
    sums, x = oracle.random((1, 40, 256), dtype, 1), oracle.random((1, 40, 128), dtype, 2)
    scale = oracle.random((40,), "float32", 3)
    every = {"sums": sums, "row_scale": scale, "index": index, "place": place}
    how = {"dtype": "float8_e5m2", "activation": activation, "of_rows": True, "in_columns": True, "value_rows": 40}
    close(*both(every, form="gated", **how))
    close(*both(every | {"x": x}, form="gated_gradient", **how))
    close(*both({"sums": sums[:, :, :208]}, dtype="float8_e4m3fn", form="gated", activation=activation))
    how = {"dtype": "float8_e4m3fn", "activation": activation, "in_rows": False, "in_columns": True}
    close(*both({"sums": sums[:, :32], "x": x[:, :32]}, form="gated_gradient", **how))


def test_quantize_is_the_kernel():
    x = oracle.random((3, 5, 264), "bfloat16")
    for block in ((1, 128), (128,), (128, 128)):
        found = compiled(partial(vb.quantize, block=block), x)
        whole = (1,) * (3 - len(block)) + block
        scales = blocks.scales_of(x, "float8_e4m3fn", whole)
        assert_equal((found.values, found.scales), (blocks.values_of(x, "float8_e4m3fn", whole, scales), scales))


X, INDEX = np.ones((1, 16, 32), np.float32), np.zeros(32, np.int32)
OPERANDS = {"x": X, "sums": X[0, 0, :0], "index": INDEX[:0], "place": INDEX[:0], "row_scale": X[0, 0, :0]}
RESULTS = {
    "values": ((1, 16, 32), "float8_e4m3fn"), "transposed": ((1, 32, 16), "float8_e4m3fn"),
    "row_scales": ((0,), "float32"),
    "block_scales": ((1, 1, 1), "float32"), "partials": ((0,), "float32"),
}  # fmt: skip
GATED = {"form": 1, "activation": 3, "x": X[0, 0, :0], "sums": X, "values": ((1, 16, 16), "float8_e4m3fn"),
         "transposed": ((1, 16, 16), "float8_e4m3fn")}  # fmt: skip


def call(form=0, activation=0, of_rows=False, **changes):
    given, results = (
        {name: changes.get(name, value) for name, value in those.items()} for those in (OPERANDS, RESULTS)
    )
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results.values()]
    f = jax.ffi.ffi_call(backends.QUANTIZE_TARGET_NAME, shapes)
    attributes = {"form": np.int64(form), "activation": np.int64(activation), "of_rows": np.bool_(of_rows)}
    return jax.block_until_ready(jax.jit(partial(f, **attributes))(*given.values()))


def test_untampered_calls_are_right():
    values, transposed, _, scales, _ = call()
    assert float(scales[0, 0, 0]) == np.float32(1 / 448)
    for result in (values, transposed):
        np.testing.assert_array_equal(result.astype(jnp.float32), 448)
    np.testing.assert_allclose(call(**GATED)[3][0, 0, 0], 1 / (1 + np.exp(-1)) / 448, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"form": 3}, "form 3 does not exist"),
        ({"activation": 9}, "activation"),
        (GATED | {"activation": 1}, "a gate must be silu or gelu"),
        (GATED | {"x": X}, "x is not for this form"),
        (GATED | {"sums": np.ones((2, 8, 16), np.float32)}, "gated forms have one matrix"),
        ({"sums": X}, "sums is not for this form"),
        ({"row_scale": X[0, :, 0]}, "row_scale is not for this form"),
        ({"partials": ((8, 1), "float32")}, "partials is not for this form"),
        ({"x": X.astype("int32")}, "operands must be float32, bfloat16 or float16"),
        ({"x": X[0]}, "x and sums must have three dimensions"),
        ({"index": INDEX[:, None]}, r"index must be int32 \(16\)"),
        ({"index": INDEX}, r"values must be \(1, 32, 32\)"),
        ({"place": INDEX[:16]}, "place is not for this form"),
        ({"index": INDEX[:16], "place": INDEX[:16]}, "rows are placed where values have scales of their own"),
        ({"values": ((0,), "float8_e4m3fn"), "transposed": ((0,), "float8_e4m3fn")}, "values or transposed must be"),
        ({"values": ((1, 16, 32), "int8")}, "the results must be float8_e4m3fn or"),
        ({"transposed": ((1, 32, 16), "float8_e5m2")}, r"transposed must be \(1, 32, 16\)"),
        ({"of_rows": True}, r"row_scales must be float32 \(1, 16, 1\)"),
        ({"x": X[..., :9], "values": ((1, 16, 9), "float8_e4m3fn")}, "columns must be a multiple of 8"),
        ({"x": X[:, :8], "values": ((1, 8, 32), "float8_e4m3fn")}, "rows of transposed must be a multiple of 16"),
        ({"block_scales": ((1, 2, 1), "float32")}, r"block_scales must be float32 \(1, 1, 1\)"),
        ({"form": 2, "activation": 3, "sums": np.ones((1, 8, 32), np.float32)}, "halves must be multiples of 128"),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit(changes, message):
    with pytest.raises(Exception, match=message):
        call(**changes)
