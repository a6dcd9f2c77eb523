"""The FFI handler: hand-made calls whose table doesn't fit their buffers get an error and write nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src.matmul.addresses import address
from jax_vbgemm._src.matmul.contract import contract
from jax_vbgemm._src.matmul.descriptors import pack, problem_table
from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.matmul.primitive import Batched, Target, Term, Window, sizes_of
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.native.records import EPILOGUE, READY_TILE
from jax_vbgemm._src.planner import plan_problems, resolve_planner

PLATFORM = backends.platform_of(jax.devices()[0])


def call(a, b, out_shape, out_dtype=None, tamper=lambda table: None, words=lambda words: words, **changes):
    """One product through the custom call, with its problem table tampered with."""
    term = Term(0, 1, 0)
    sizes = sizes_of(a.shape, b.shape, term)
    table = problem_table([address(a.shape, b.shape, term, sizes)], [(0, 1, 2)])
    device = backends.planning_device(PLATFORM)
    plan = plan_problems([vb.Problem(sizes.m, sizes.n, sizes.k)], "float32", device, "uniform")
    descriptors = pack(plan, table)
    tamper(table)
    tiles = 0 if descriptors.num_runs else descriptors.num_tiles * READY_TILE.itemsize // 4
    tampered = descriptors.words.copy()
    tampered[tiles : tiles + table.nbytes // 4] = table.view(np.int32)
    attributes = {
        "catalogue": np.int64(_core.catalogue_hash()), "kind": np.int64(0), "problems": table.view(np.int64),
        "epilogues": descriptors.epilogues,
        "launches": descriptors.launches,
        "num_factors": np.int64(2),
        "num_addends": np.int64(0),
        "num_runs": np.int64(descriptors.num_runs), "num_tiles": np.int64(descriptors.num_tiles),
        "num_blocks": np.int64(descriptors.num_blocks), "num_splits": np.int64(0), "num_sums": np.int64(0),
    } | changes  # fmt: skip
    result = jax.ShapeDtypeStruct(out_shape, out_dtype or a.dtype)

    def f(a, b):
        return jax.ffi.ffi_call(backends.TARGET_NAME, [result])(jnp.asarray(words(tampered)), a, b, **attributes)[0]

    return jax.jit(f)(a, b)


A, B = oracle.random((20, 30), "float32", 1), oracle.random((30, 40), "float32", 2)


def test_untampered_call_is_right():
    oracle.check([call(A, B, (20, 40))], [A], [B])


def field(name, value):
    def tamper(table):
        group, _, leaf = name.rpartition(".")
        (table[group] if group else table)[leaf] = value

    return tamper


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("m", 21, "problem 0: the left operand reaches past its buffer"),
        ("n", 41, "problem 0: the right operand reaches past its buffer"),
        ("k", 31, "problem 0: the left operand reaches past its buffer"),
        ("k", -1, "problem 0: negative size k = -1"),
        ("inner_batch", 0, "problem 0: inner_batch is 0, expected at least 1"),
        ("batch", 2, "the result overlaps itself"),
        ("a.offset", 1, "left operand reaches past"),
        ("a.offset", -1, "left operand reaches past"),
        ("b.row_stride", 2**40, "right operand reaches past"),
        ("b.row_stride", -40, "right operand reaches past"),
        ("c.offset", 1, "the result reaches past its buffer of 800 elements"),
        ("c.row_stride", 0, "the result overlaps itself"),
        ("a.buffer", 2, "problem 0: the left operand is buffer 2, expected one of the factors, 0 to 1"),
        ("b.buffer", -1, "problem 0: the right operand is buffer -1, expected one of the factors, 0 to 1"),
        ("c.buffer", 1, "problem 0: the result is buffer 1, expected one of the results, 2 to 2"),
        ("c.buffer", 7, "problem 0: the result is buffer 7, expected one of the results, 2 to 2"),
    ],
)
def test_tables_that_do_not_fit_the_buffers(name, value, message):
    with pytest.raises(Exception, match=message):
        call(A, B, (20, 40), tamper=field(name, value)).block_until_ready()


def test_batch_strides_beyond_the_buffer():
    def tamper(table):
        table["batch"] = table["inner_batch"] = 2
        table["a"]["batch_stride"] = table["c"]["batch_stride"] = (0, 600)

    with pytest.raises(Exception, match="left operand reaches past"):
        call(A, B, (20, 40), tamper=tamper).block_until_ready()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"catalogue": np.int64(1)}, "planned with another tile catalogue"),
        ({"kind": np.int64(99)}, "kind is 99, expected 0 to"),
        ({"num_factors": np.int64(3)}, "num_factors is 3, expected 1 to 2"),
        ({"num_addends": np.int64(1)}, "num_addends is 1, expected 0 to 0"),
        ({"num_runs": np.int64(5), "num_tiles": np.int64(5), "num_blocks": np.int64(5)}, "descriptor constant has"),
        ({"num_tiles": np.int64(-1)}, "num_tiles is -1, expected 0 to 2147483647"),
        ({"num_tiles": np.int64(7), "num_runs": np.int64(8)}, "num_runs is 8, expected 0 to 7"),
        ({"num_blocks": np.int64(10**6)}, "num_blocks is 1000000, expected 0 to"),
        ({"num_blocks": np.int64(-1)}, "num_blocks is -1, expected 0 to"),
        ({"num_splits": np.int64(10**6)}, "num_splits is 1000000, expected 0 to"),
        (
            {"num_tiles": np.int64(7), "num_runs": np.int64(7), "num_splits": np.int64(1)},
            "num_splits is 1, expected 0 to 0",
        ),
        ({"num_sums": np.int64(-1)}, "num_sums is -1, expected 0 to"),
        ({"problems": np.zeros(20, np.int64)}, "the problem table has 20 words, expected a multiple of 21"),
        ({"epilogues": np.zeros(42, np.int64)}, "the table of epilogues has 42 words, expected none or 21"),
        ({"launches": np.array([0, 0], np.int32)}, "the table of launches has 2 numbers, expected a multiple of 3"),
        ({"launches": np.array([99, 0, 1], np.int32)}, "launch 0: kernel 99 does not exist, expected 0 to 23"),
        ({"launches": np.array([0, 0, 10**6], np.int32)}, "launch 0: 1000000 blocks from block 0 on, but the plan has"),
    ],
)
def test_inconsistent_attributes(changes, message):
    with pytest.raises(Exception, match=message):
        call(A, B, (20, 40), **changes).block_until_ready()


def test_wrong_dtypes():
    with pytest.raises(Exception, match="buffer 1: expected float32, got float64"):
        call(A, B.astype("float64"), (20, 40)).block_until_ready()
    with pytest.raises(Exception, match="buffer 2: expected float32, got float64"):
        call(A, B, (20, 40), "float64").block_until_ready()
    with pytest.raises(Exception, match="buffer 0: expected float32, got a dtype without kernels"):
        call(A.astype("int16"), B, (20, 40), "float32").block_until_ready()
    with pytest.raises(Exception, match="the descriptor constant: expected int32, got float32"):
        call(A, B, (20, 40), words=lambda words: words.view(np.float32)).block_until_ready()


def epilogue(**changes):
    """A table of epilogues with one row, which changes nothing but for `changes`."""
    row = np.zeros((), EPILOGUE)
    for name in ("alpha", "beta", "source", "bias"):
        row[name]["buffer"] = -1
    for name, value in changes.items():
        field(name.replace("__", "."), value)(row)
    return row.reshape(1).view(np.int64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": 9}, "problem 0: activation 9 does not exist, expected 0 to 5"),
        ({"alpha__buffer": 0}, "problem 0: alpha is buffer 0, expected one of the scalars, of which the call has none"),
        (
            {"bias__buffer": 2},
            "problem 0: the bias is buffer 2, expected one of the addends, of which the call has none",
        ),
    ],
)
def test_epilogues_that_name_what_does_not_exist(changes, message):
    row = epilogue(**changes)

    def with_epilogue(words):
        return np.concatenate((words[:42], row.view(np.int32), words[42:]))

    with pytest.raises(Exception, match=message):
        call(A, B, (20, 40), words=with_epilogue, epilogues=row).block_until_ready()


@pytest.mark.parametrize("seed", range(20))
def test_insane_tiles_are_clamped(seed):
    """Kernels clamp tile descriptors: wrong descriptors give wrong results, but no access out of bounds."""
    rng = np.random.default_rng(seed)

    def garbage(words):
        runs = words[42:].copy()
        runs[rng.integers(0, len(runs), 8)] = rng.integers(-(2**31), 2**31 - 1, 8)
        return np.concatenate((words[:42], runs))

    assert call(A, B, (20, 40), words=garbage).shape == (20, 40)


def windowed(read, write):
    """A 4 x 5 matrix read in a buffer of 60 and multiplied by 5 x 3 into a buffer of 40, at layouts nobody checked."""
    options = {"planner": resolve_planner("auto"), "implementation": "kernel"}
    x, w, base = (oracle.random((size,), "float32", size) for size in (60, 15, 40))
    operands = [vb.View.with_layout(x, read), w.reshape(5, 3), base]
    places = {"writes": (Window(0, write),), "targets": (Target(base.shape, 2),)}
    return contract(operands, Batched((Term(0, 1, 0),), (x.dtype,), **places, **options))[0], (x, w, base)


READ, WRITE = Layout((((4, 12),), ((5, 2),)), 7), Layout((((4, 9),), ((3, 3),)), 4)


def test_windows_are_read_and_written_and_nothing_else():
    result, (x, w, base) = windowed(READ, WRITE)
    expected = WRITE.put(base, READ.take(x) @ w.reshape(5, 3))
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"read": READ._replace(offset=16)}, "left operand reaches past its buffer"),
        ({"read": READ._replace(offset=-1)}, "left operand reaches past its buffer"),
        ({"read": Layout((((4, 16),), ((5, 2),)), 7)}, "left operand reaches past its buffer"),
        ({"read": Layout((((4, 2**30),), ((5, 2**30),)), 7)}, "left operand reaches past its buffer"),
        ({"read": Layout((((4, -1),), ((5, 2),)), 7)}, "left operand reaches past its buffer"),
        ({"read": Layout((((2, 60), (2, 12)), ((5, 2),)), 0)}, "left operand reaches past its buffer"),
        ({"write": WRITE._replace(offset=7)}, "the result reaches past its buffer"),
        ({"write": WRITE._replace(offset=-1)}, "the result reaches past its buffer"),
        ({"write": Layout((((4, 9),), ((3, 9),)), 4)}, "the result reaches past its buffer"),
        ({"write": Layout((((4, 0),), ((3, 3),)), 4)}, "the result overlaps itself"),
    ],
)
def test_windows_that_reach_past_their_buffers(changes, message):
    with pytest.raises(Exception, match=message):
        windowed(**({"read": READ, "write": WRITE} | changes))[0].block_until_ready()
