"""The custom call of packed rows as GPUs get it, without a GPU: its checks, and the list of tiles."""

import re

import emulated_call
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from emulated_check import CSRC, Builder, change
from test_ragged_call import KERNELS, ROUNDING, TILES, WAVES, registered, with_waves

from jax_vbgemm import _core
from jax_vbgemm._src.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.matmul.descriptors import KINDS

pytestmark = emulated_call.MARKS

FORMS = pytest.mark.parametrize("form", ["rows", "transposed", "contraction"])


@pytest.fixture(scope="module", params=WAVES, ids=lambda wave: f"waves of {wave}")
def target(builder: Builder, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return with_waves(request.param, builder, "packed", tmp_path_factory.mktemp("packed"))


def call(
    target, x, sizes, rest, shapes, rows, y_size, form="rows", tile_name="medium", entries=1, shared=None,
    missing_bytes=0, table=None, **changes,
):  # fmt: skip
    """The results; `rest`: the weights, or y of a contraction."""
    flat = np.array(shapes, np.int64).ravel()
    contraction = form == "contraction"
    row = next(i for i, row in enumerate(COMPILED_TILES) if row.is_gpu and (row.name, row.threads) == TILES[tile_name])
    workspace = _core.packed_list(rows, y_size, flat.tolist(), contraction, row)[1] - missing_bytes
    leading = (entries,) if entries > 1 else ()
    results = [(*leading, *shape) for shape in shapes] if contraction else [(*leading, y_size)]
    types = [jax.ShapeDtypeStruct(shape, x.dtype) for shape in results]
    attributes = {
        "kind": np.int64(KINDS.index(x.dtype.name)),
        "contraction": np.int64(contraction),
        "transpose_rhs": np.int64(form == "transposed"),
        "sizes": np.array([rows, x.shape[-1], y_size, entries], np.int64),
        "shapes": flat,
        "shared": np.array(shared or [1] * (2 + len(rest)), np.int64),
        "tile": np.int64(row),
        "catalogue": np.int64(_core.catalogue_hash()),
    }
    table = jnp.array(shapes, jnp.int32).reshape(-1, 2) if table is None else table
    types.append(jax.ShapeDtypeStruct((workspace,), jnp.uint8))
    return jax.ffi.ffi_call(target, types)(x, sizes, *rest, table, **attributes | changes)[:-1]


def expected(x, sizes, rest, shapes, rows, y_size, form="rows"):
    """The same in float64, group by group and row by row."""
    x, rest = oracle.wide(x), [oracle.wide(b) for b in rest]
    out = np.zeros(y_size, x.dtype)
    sums = [np.zeros(shape, x.dtype) for shape in shapes]
    row = at_x = at_y = 0
    for group, (k, n) in enumerate(shapes):
        for _ in range(min(max(int(sizes[group]), 0), rows - row)):
            if at_x + k <= x.size and at_y + n <= y_size:
                of_x = x[at_x : at_x + k]
                if form == "contraction":
                    sums[group] += np.outer(of_x, rest[0][at_y : at_y + n])
                else:
                    out[at_y : at_y + n] = of_x @ (rest[group].T if form == "transposed" else rest[group])
            row, at_x, at_y = row + 1, at_x + k, at_y + n
    return sums if form == "contraction" else [out]


def operands(shapes, rows, form, dtype, seed=0, x_size=None):
    """x, the weights or y, and the size of y: room for `rows` rows of the widest group."""
    y_size = rows * max(n for _, n in shapes)
    x = oracle.random((rows * max(k for k, _ in shapes) if x_size is None else x_size,), dtype, seed)
    if form == "contraction":
        return x, [oracle.random((y_size,), dtype, seed + 1)], y_size
    weights = [shape[::-1] if form == "transposed" else shape for shape in shapes]
    return x, [oracle.random(shape, dtype, seed + 2 + i) for i, shape in enumerate(weights)], y_size


def assert_close(out, reference, dtype):
    for found, right in zip(out, reference, strict=True):
        scale = max(1, abs(right).max(initial=0))
        np.testing.assert_allclose(oracle.wide(found), right, rtol=0, atol=ROUNDING[dtype] * scale)


SHAPES = [(37, 5), (8, 70), (1, 1), (64, 33)]


@FORMS
@pytest.mark.parametrize("dtype", ROUNDING)
def test_values(target, form, dtype):
    sizes = jnp.array([40, 0, 1, 50], "int32")
    x, rest, y_size = operands(SHAPES, 100, form, dtype)
    out = call(target, x, sizes, rest, SHAPES, 100, y_size, form)
    assert_close(out, expected(x, sizes, rest, SHAPES, 100, y_size, form), dtype)


@FORMS
@pytest.mark.parametrize(("tile", "dtype"), [("small", "float32"), ("on tensor or matrix cores", "bfloat16")])
def test_tiles(target, form, tile, dtype):
    sizes = jnp.array([17, 33, 0, 16], "int64")
    x, rest, y_size = operands(SHAPES, 80, form, dtype, 3)
    out = call(target, x, sizes, rest, SHAPES, 80, y_size, form, tile)
    assert_close(out, expected(x, sizes, rest, SHAPES, 80, y_size, form), dtype)


@FORMS
@pytest.mark.parametrize("seed", range(6))
def test_any_sizes(target, form, seed):
    """Sizes that are negative or too large, rows that do not lie in x, and shapes with a 0."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.choice([0, 1, 3, 16, 31, 40], 2).tolist()) for _ in range(rng.integers(1, 7))] + [(3, 2)]
    sizes = jnp.array(rng.choice([-(2**31), -1, 0, 1, 5, 15, 16, 33, 2**31 - 1], len(shapes)), "int32")
    rows = int(rng.integers(1, 60))
    x_size = int(rng.integers(1, rows * 40))
    x, rest, y_size = operands(shapes, rows, form, "float32", seed, x_size)
    if form != "contraction":
        y_size = max(1, y_size - int(rng.integers(0, 40)))
    out = call(target, x, sizes, rest, shapes, rows, y_size, form)
    assert_close(out, expected(x, sizes, rest, shapes, rows, y_size, form), "float32")


@FORMS
def test_each_entry_of_a_batch_has_its_own_operands(target, form):
    shapes, rows = [(5, 7), (20, 3)], 30
    parts = [operands(shapes, rows, form, "float32", 10 * i) for i in range(3)]
    x, y_size = jnp.stack([x for x, _, _ in parts]), parts[0][2]
    rest = [jnp.stack(arrays) for arrays in zip(*(rest for _, rest, _ in parts), strict=True)]
    rest[-1] = rest[-1][0]  # which all entries share
    sizes = jnp.array([[20, 10], [0, 30], [7, 7]], "int32")
    shared = [0, 0, *[0] * (len(rest) - 1), 1]
    out = call(target, x, sizes, rest, shapes, rows, y_size, form, entries=3, shared=shared)
    for i in range(3):
        of_entry = [*(b[i] for b in rest[:-1]), rest[-1]]
        right = expected(x[i], sizes[i], of_entry, shapes, rows, y_size, form)
        assert_close([values[i] for values in out], right, "float32")


def test_no_row_reaches_another_group(target):
    """NaN in one group's rows, in its weights, and behind the last row."""
    shapes, rows = [(9, 4), (6, 4), (9, 4)], 30
    x, rest, y_size = operands(shapes, rows, "rows", "float32")
    sizes = jnp.array([10, 5, 8], "int32")
    x = x.at[90:120].set(jnp.nan).at[90 + 30 + 72 :].set(jnp.nan)
    (out,) = call(target, x, sizes, [rest[0], rest[1] * jnp.nan, rest[2]], shapes, rows, y_size)
    finite = np.isfinite(np.asarray(out).reshape(rows, 4)).all(1)
    np.testing.assert_array_equal(finite, [not 10 <= row < 15 for row in range(rows)])
    assert not np.asarray(out)[23 * 4 :].any()


def test_many_groups(target):
    """More buffers than the launch parameters hold, and lists longer than a warp."""
    shapes = [(1 + i % 3, 1 + i % 2) for i in range(1100)]
    x, rest, y_size = operands(shapes, 2000, "rows", "float32")
    sizes = jnp.arange(1100, dtype="int32") % 3
    out = call(target, x, sizes, rest, shapes, 2000, y_size)
    assert_close(out, expected(x, sizes, rest, shapes, 2000, y_size), "float32")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"catalogue": np.int64(1)}, "planned with another version"),
        ({"tile": np.int64(-1)}, "the tile"),
        ({"missing_bytes": 1}, "the workspace must have"),
        ({"table": jnp.zeros((3, 2), jnp.int32)}, "must hold two int32 for each group"),
        ({"table": jnp.zeros((2, 2), jnp.float32)}, "must hold two int32 for each group"),
    ],
)
def test_calls_that_break_a_rule_say_which(target, changes, message):
    shapes = [(5, 7), (20, 3)]
    x, rest, y_size = operands(shapes, 30, "rows", "float32")
    with pytest.raises(Exception, match=re.escape(message)):
        jax.block_until_ready(call(target, x, jnp.array([20, 10], "int32"), rest, shapes, 30, y_size, **changes))


MISTAKES = {
    "as many rows as all groups together": ("int64_t{0}), p.rows - row)", "int64_t{0}), p.rows - 0 * row)"),
    "rows that do not lie in x": ("(size - begin) / width", "(size - 0 * begin) / width"),
    "no zeros behind whole rows": ("index == down && last > 0", "false"),
    "columns of a transposed matrix taken for its rows": ("Part{col * k, 1, k", "Part{col, 1, k"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_the_list_are_caught(builder: Builder, tmp_path, mistake):
    change(tmp_path, CSRC / "gpu/ragged/packed_list.h", *MISTAKES[mistake])
    target = registered(builder, "packed", f"packed_{mistake}", KERNELS[:1], [], tmp_path)
    caught = 0
    for form in ("rows", "transposed"):
        for seed in range(3):
            shapes, rows = [(13, 40), (2, 3), (40, 21)], 50
            x, rest, y_size = operands(shapes, rows, form, "float32", seed, [900, None, 560][seed])
            sizes = jnp.array([20 * seed, 7, 2**31 - 1], "int32")
            right = expected(x, sizes, rest, shapes, rows, y_size, form)
            try:
                assert_close(call(target, x, sizes, rest, shapes, rows, y_size, form), right, "float32")
            except (AssertionError, jax.errors.JaxRuntimeError):
                caught += 1
    assert caught
