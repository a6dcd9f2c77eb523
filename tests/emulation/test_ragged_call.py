"""The ragged custom call as GPUs get it, without a GPU: its checks, the walk over group sizes and the list of tiles."""

import ctypes

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import (
    CDNA,
    CSRC,
    PIPELINED,
    Builder,
    assert_passes,
    change,
    first_fault,
    some_files,
)

from jax_vbgemm import _core
from jax_vbgemm._src.epilogue import activation_number
from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.ragged.primitive import CALL, OPERANDS, REQUIRED

pytestmark = emulated_call.MARKS

KERNELS = [f"simt_{kind}:t128_light" for kind in ("f32", "f64", "c64", "c128", "bf16", "f16")]
TILES = {"small": ("small", 128), "medium": ("medium", 128), "on tensor or matrix cores": ("mma-32x32", 128)}
ROUNDING = {
    "float64": 1e-13,
    "complex128": 1e-13,
    "float32": 1e-5,
    "complex64": 1e-5,
    "bfloat16": 1e-2,
    "float16": 2e-3,
}


# The default run has waves of 64 only among the kernels' own tests: with them, all kernels are compiled again.
WAVES = [32, pytest.param(64, marks=pytest.mark.slow(turn="calls with waves of 64"))]


@pytest.fixture(scope="module", params=WAVES, ids=lambda wave: f"waves of {wave}")
def target(builder: Builder, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The name of the custom call by these kernels."""
    machine = CDNA if request.param == 64 else []
    kernels = [*KERNELS, "mfma_bf16:m128_light" if machine else "tensor_light_bf16:m128_light"]
    changed = tmp_path_factory.mktemp("ragged")
    library = builder.ragged_library(some_files(changed, kernels), jax.ffi.include_dir(), machine, changed)
    name = f"vbgemm_ragged_emulated_{request.param}"
    function = ctypes.CDLL(str(library)).vbgemm_ragged
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
    return name


def call(
    target, lhs, rhs, sizes, *, groups=None, contraction=False, transpose_rhs=False, bias=None, row_scale=None,
    offset=None, gather=None, activation=None, gated=False, out_dtype=None, tile="medium",
    missing_bytes=0, m=None, plan=None, **changes,
):  # fmt: skip
    m, k = m or len(lhs), lhs.shape[1]
    n = (rhs.shape[-2] if transpose_rhs else rhs.shape[-1]) // (2 if gated else 1)
    groups = groups or rhs.shape[-3]
    dtype = jnp.dtype(out_dtype or lhs.dtype)
    wide = jnp.float32 if lhs.dtype.itemsize == 2 else lhs.dtype
    shape = (groups, k, n) if contraction else (m, n)
    types = {"lhs": lhs.dtype, "rhs": rhs.dtype, "result": dtype, "accumulator": wide, "index": jnp.int32}
    given = {"bias": bias, "row_scale": row_scale, "group_offset": offset, "gather": gather}
    buffers = [
        jnp.zeros(0, types[OPERANDS[name].type]) if given.get(name) is None
        else jnp.asarray(given[name], types[OPERANDS[name].type])
        for name in CALL[len(REQUIRED) :]
    ]  # fmt: skip
    row = next(i for i, row in enumerate(COMPILED_TILES) if row.is_gpu and (row.name, row.threads) == TILES[tile])
    _, workspace = _core.ragged_list(m, k, n, groups, sizes.shape[-1], contraction, row)
    results = [jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct((workspace - missing_bytes,), jnp.uint8)]
    attributes = {
        "kind": np.int64(KINDS.index(lhs.dtype.name)),
        "contraction": np.bool_(contraction),
        "transpose_rhs": np.bool_(transpose_rhs),
        "activation": np.int64(activation_number(activation)),
        "gated": np.bool_(gated),
        "halves": np.int64(0),
        "fast_accumulation": np.bool_(False),
        "undefined_rest": np.bool_(False),
        "entries": np.int64(1),
        "shape": np.int64(0),
        "counted": np.bool_(False),
        "tile": np.int64(row),
        "catalogue": np.int64(_core.catalogue_hash()),
    }
    return jax.ffi.ffi_call(target, results)(lhs, rhs, sizes, *buffers, **attributes | changes | (plan or {}))[0]


def rows_of(sizes, m, groups, offset=0):
    """(matrix, begin, end) of each group that has a matrix."""
    begin = 0
    for group, size in enumerate(np.asarray(sizes).tolist()):
        end = min(begin + max(size, 0), m)
        if 0 <= group - offset < groups:
            yield group - offset, begin, end
        begin = end


def expected(lhs, rhs, sizes, groups, contraction=False, transpose_rhs=False, offset=0):
    lhs, rhs = oracle.wide(lhs), oracle.wide(rhs)
    shape = (groups, lhs.shape[1], rhs.shape[1]) if contraction else (len(lhs), rhs.shape[-2 if transpose_rhs else -1])
    out = np.zeros(shape, np.result_type(lhs, rhs))
    for matrix, begin, end in rows_of(sizes, len(lhs), groups, offset):
        if contraction:
            out[matrix] = lhs[begin:end].T @ rhs[begin:end]
        elif end > begin:
            out[begin:end] = lhs[begin:end] @ (rhs[matrix].T if transpose_rhs else rhs[matrix])
    return out


def assert_close(out, reference, dtype):
    np.testing.assert_allclose(oracle.wide(out), reference, rtol=0, atol=ROUNDING[dtype] * max(1, abs(reference).max()))


FORMS = pytest.mark.parametrize(
    ("contraction", "transpose_rhs"),
    [(False, False), (False, True), (True, False)],
    ids=["rows", "transposed", "contraction"],
)


@FORMS
@pytest.mark.parametrize("dtype", ROUNDING)
def test_values(target, dtype, contraction, transpose_rhs):
    m, k, n, sizes = 150, 37, 21, jnp.array([40, 0, 1, 65, 17], "int32")
    lhs = oracle.random((m, k), dtype, 1)
    rhs = oracle.random((m, n) if contraction else (5, n, k) if transpose_rhs else (5, k, n), dtype, 2)
    forms = {"contraction": contraction, "transpose_rhs": transpose_rhs}
    out = call(target, lhs, rhs, sizes, groups=5, **forms)
    assert_close(out, expected(lhs, rhs, sizes, 5, **forms), dtype)


SIZES = {
    "one group": [60],
    "empty": [0, 0, 0],
    "more than there are rows": [30, 2**31 - 1, 2**31 - 1, 5],
    "negative": [-3, 10, -(2**31), 20],
    "a chunk of the walk and one more": [1] * 129,
    "three chunks": [0] * 200 + [3] + [0] * 80 + [50, 1] + [0] * 20,
}


@FORMS
@pytest.mark.parametrize("size_type", ["int32", "int64"])
@pytest.mark.parametrize("case", SIZES)
def test_sizes(target, case, size_type, contraction, transpose_rhs):
    """Rows that belong to no group hold NaN, which must stay out of every result."""
    m, k, n, sizes = 60, 5, 7, SIZES[case]
    groups = len(sizes)
    covered = min(sum(max(size, 0) for size in sizes), m)
    rng = np.random.default_rng(3)
    lhs = rng.standard_normal((m, k))
    rhs = rng.standard_normal((m, n) if contraction else (groups, n, k) if transpose_rhs else (groups, k, n))
    forms = {"contraction": contraction, "transpose_rhs": transpose_rhs}
    reference = expected(lhs, rhs, sizes, groups, **forms)
    lhs[covered:] = np.nan
    if contraction:
        rhs[covered:] = np.nan
    else:
        rhs[[not size > 0 for size in sizes]] = np.nan
    out = call(target, jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(sizes, size_type), groups=groups, **forms)
    assert_close(out, reference, "float64")


@pytest.mark.parametrize("contraction", [False, True])
@pytest.mark.parametrize("offset", [-200, -2, 0, 3, 4, 6, 200])
def test_window_of_groups(target, offset, contraction):
    m, k, n, groups, sizes = 90, 9, 6, 3, [10, 20, 0, 30, 5, 15]
    lhs = oracle.random((m, k), "float64", 1)
    rhs = oracle.random((m, n) if contraction else (groups, k, n), "float64", 2)
    out = call(target, lhs, rhs, jnp.asarray(sizes), groups=groups, contraction=contraction, offset=offset)
    assert_close(out, expected(lhs, rhs, sizes, groups, contraction, offset=offset), "float64")


@FORMS
@pytest.mark.parametrize("tile", TILES)
def test_tiles(target, tile, contraction, transpose_rhs):
    m, k, n, sizes = 150, 37, 45, jnp.array([40, 0, 1, 65, 17], "int32")
    lhs = oracle.random((m, k), "bfloat16", 1)
    rhs = oracle.random((m, n) if contraction else (5, n, k) if transpose_rhs else (5, k, n), "bfloat16", 2)
    forms = {"contraction": contraction, "transpose_rhs": transpose_rhs}
    out = call(target, lhs, rhs, sizes, groups=5, tile=tile, **forms)
    assert_close(out, expected(lhs, rhs, sizes, 5, **forms), "bfloat16")


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_epilogue(target, out_dtype, has_bias):
    m, k, n, sizes = 70, 24, 17, jnp.array([30, 20, 10], "int32")
    lhs, rhs = oracle.random((m, k), "bfloat16", 1), oracle.random((3, k, n), "bfloat16", 2)
    bias = oracle.random((3, n), out_dtype, 3)
    given = {"bias": bias} if has_bias else {}
    out = call(target, lhs, rhs, sizes, activation="sigmoid", out_dtype=out_dtype, **given)
    reference = expected(lhs, rhs, sizes, 3)
    if has_bias:
        reference += np.repeat(oracle.wide(bias), [30, 20, 20], axis=0)
    reference = 1 / (1 + np.exp(-reference))
    reference[60:] = 0  # not sigmoid(0)
    assert out.dtype == out_dtype
    assert_close(out, reference, "bfloat16")


BAD_PLANS = {
    "an unknown shape": ({"shape": np.int64(4)}, "shape is 4"),
    "a tile that does not exist": ({"plan": {"tile": np.int64(999)}}, "tile is 999"),
    "a tile for the CPU": ({"plan": {"tile": np.int64(len(COMPILED_TILES) - 1)}}, "has no kernel"),
    "no kernel at all": ({"plan": {"tile": np.int64(-1)}}, "planned for another GPU"),
    "another catalogue": ({"catalogue": np.int64(5)}, "another version"),
}


@pytest.mark.parametrize("case", BAD_PLANS)
def test_bad_plans(target, case):
    changes, message = BAD_PLANS[case]
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(target, jnp.ones((6, 4)), jnp.ones((2, 4, 3)), jnp.array([2, 3], "int32"), **changes)


def test_a_workspace_that_is_too_small(target):
    with pytest.raises(jax.errors.JaxRuntimeError, match="workspace must have"):
        call(target, jnp.ones((6, 4)), jnp.ones((2, 4, 3)), jnp.array([2, 3], "int32"), missing_bytes=1)


ONLY_PIPELINED = {
    "row_scale": {"row_scale": jnp.ones(6)},
    "gates": {"gated": True, "activation": "silu"},
    "gather": {"gather": jnp.zeros(6, "int32")},
}


@pytest.mark.parametrize("given", ONLY_PIPELINED)
def test_only_the_pipelined_kernel_has(target, given):
    options = ONLY_PIPELINED[given]
    with pytest.raises(jax.errors.JaxRuntimeError, match="planned for another GPU"):
        call(target, jnp.ones((6, 4)), jnp.ones((2, 4, 4)), jnp.array([2, 3], "int32"), **options)


@pytest.mark.parametrize("shared", [None, "lhs", "rhs"])
@FORMS
def test_batches(target, contraction, transpose_rhs, shared):
    """Of 3 entries with 30 rows and 2 matrices each, between groups without weights."""
    entries, rows, k, n = 3, 30, 8, 5
    sizes = np.array([[1, 10, 15, 4], [0, 30, 0, 0], [3, 0, 5, 22]])
    of_lhs, of_rhs = (1 if shared == name else entries for name in ("lhs", "rhs"))
    lhs = oracle.random((of_lhs, rows, k), "float32", 1)
    rhs = oracle.random(
        (of_rhs, *((rows, n) if contraction else (2, n, k) if transpose_rhs else (2, k, n))), "float32", 2
    )
    forms = {"contraction": contraction, "transpose_rhs": transpose_rhs}
    flat = lhs.reshape(-1, k), rhs.reshape(-1, *rhs.shape[2:])
    options = {"groups": 2 * entries, "m": entries * rows, "entries": np.int64(entries)}
    flat_sizes = jnp.asarray(sizes.reshape(-1), "int32")
    if contraction and shared == "rhs":  # a contraction's rows are those of rhs
        with pytest.raises(jax.errors.JaxRuntimeError, match="must have rows of lhs for some number of entries"):
            call(target, *flat, flat_sizes, **options, **forms)
        return
    out = call(target, *flat, flat_sizes, **options, **forms)
    out = out.reshape(entries, -1, out.shape[-1])
    for i in range(entries):
        reference = expected(lhs[i % of_lhs], rhs[i % of_rhs], sizes[i], 2, **forms, offset=1)
        assert_close(out[i], reference.reshape(-1, n), "float32")


FEW_KERNELS = ["simt_f32:t128_light", "simt_c64:t128_light", "tensor_light_bf16:m128_light"]
OPTIONS = ["--kinds", "float32", "complex64", "bfloat16", "--calls", "30"]


@pytest.mark.slow(turn="random ragged calls")
@pytest.mark.parametrize("seed", range(10))
def test_random_calls(builder: Builder, tmp_path, seed):
    kernels = some_files(tmp_path, FEW_KERNELS)
    executable = builder.ragged_executable(kernels, ["-O2"], tmp_path, unchanged=PIPELINED)
    assert_passes(executable, *OPTIONS, "--seed", str(seed), common=[])


MISTAKES = {
    "rows of lhs that do not repeat": ("tile.row % sizes.lhs_rows", "tile.row"),
    "rows of a contraction's lhs that do not repeat": ("tile.k_begin % sizes.lhs_rows", "tile.k_begin"),
    "matrices of rhs that do not repeat": ("tile.matrix % sizes.rhs_groups", "tile.matrix"),
    "zeros with an activation": ("if (has_matrix) epilogue.activation", "epilogue.activation"),
    "the first matrix's bias for all": ("{0, columns}", "{0, columns - columns}"),
    "columns of a transposed matrix taken for its rows": ("(of_rhs * n + tile.col) * k", "of_rhs * n * k + tile.col"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_can_be_made(tmp_path, mistake):
    """The sources still have each text that a mistake of the slow tests replaces."""
    change(tmp_path, CSRC / "gpu/ragged/tile_list.h", *MISTAKES[mistake])


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_the_list_are_caught(builder: Builder, tmp_path, mistake):
    change(tmp_path, CSRC / "gpu/ragged/tile_list.h", *MISTAKES[mistake])
    kernels = some_files(tmp_path, FEW_KERNELS[:1])
    executable = builder.ragged_executable(kernels, ["-O2"], tmp_path, unchanged=PIPELINED)
    options = ["--kinds", "float32", "--calls", "60", "--seed"]
    assert any(first_fault(executable, *options, str(seed), common=[]) for seed in range(3))
