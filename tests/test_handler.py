"""The FFI handler: hand-made calls whose table doesn't fit their buffers get an error and write nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src import backends
from jax_vbgemm._src.matmul.addresses import address
from jax_vbgemm._src.matmul.descriptors import pack, problem_table
from jax_vbgemm._src.matmul.layout import Layout
from jax_vbgemm._src.matmul.primitive import Into, Term, Window, contract, sizes_of
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
    tampered = np.concatenate((table.view(np.int32), descriptors.words[table.nbytes // 4 :]))
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
        ("k", -1, "problem 0: negative size"),
        ("batch", 2, "the result overlaps itself"),
        ("a.offset", 1, "left operand reaches past"),
        ("a.offset", -1, "left operand reaches past"),
        ("b.row_stride", 2**40, "right operand reaches past"),
        ("b.row_stride", -40, "right operand reaches past"),
        ("c.offset", 1, "the result reaches past its buffer"),
        ("c.row_stride", 0, "the result overlaps itself"),
        ("a.buffer", 2, "names a buffer that the call does not have"),
        ("c.buffer", 1, "names a buffer that the call does not have"),
        ("c.buffer", 7, "names a buffer that the call does not have"),
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
        ({"num_runs": np.int64(5), "num_tiles": np.int64(5), "num_blocks": np.int64(5)}, "descriptor constant"),
        ({"num_tiles": np.int64(-1)}, "malformed"),
        ({"problems": np.zeros(20, np.int64)}, "malformed problem table"),
        ({"launches": np.array([99, 0, 1], np.int32)}, "launch 0"),
        ({"launches": np.array([0, 0, 10**6], np.int32)}, "launch 0"),
    ],
)
def test_inconsistent_attributes(changes, message):
    with pytest.raises(Exception, match=message):
        call(A, B, (20, 40), **changes).block_until_ready()


def test_wrong_dtypes():
    with pytest.raises(Exception, match="buffer 1: expected float32, got float64"):
        call(A, B.astype("float64"), (20, 40)).block_until_ready()
    with pytest.raises(Exception, match="no kernel for these"):
        call(A, B, (20, 40), "float64").block_until_ready()
    with pytest.raises(Exception, match="no kernel for these"):
        call(A.astype("int32"), B.astype("int32"), (20, 40)).block_until_ready()


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
    options = {"precision": None, "planner": resolve_planner("auto"), "implementation": "kernel"}
    x, w, base = (oracle.random((size,), "float32", size) for size in (60, 15, 40))
    operands = [vb.View.with_layout(x, read), w.reshape(5, 3)]
    into = Into([Window(0, write)], [base.shape], [base])
    return contract(operands, [Term(0, 1, 0)], [x.dtype], into=into, **options)[0], (x, w, base)


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
