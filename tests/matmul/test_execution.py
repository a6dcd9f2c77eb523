"""Execution of calls: deterministic, concurrent, with donation, on several devices, after a restart."""

import concurrent.futures
import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import oracle
import pytest
import random_calls
import random_draw
import random_families

import jax_vbgemm as vb


def ragged(count, low, high, dtype="float32", seed=0):
    sizes = np.random.default_rng(seed).integers(low, high, (count, 3))
    As = [oracle.random((m, k), dtype, i) for i, (m, _, k) in enumerate(sizes)]
    Bs = [oracle.random((k, n), dtype, 500 + i) for i, (_, n, k) in enumerate(sizes)]
    return As, Bs


@pytest.mark.parametrize("family", random_families.FAMILIES)
def test_random_calls(family):
    """Some of the calls that tools/gpu_check.sh makes for minutes."""
    assert random_calls.run(1, 60, 2, (family,), random_draw.DTYPES) == (2, 0)


@pytest.mark.parametrize("planner", ["auto", "load_balanced"])
def test_odd_shapes_in_every_dtype_both_layouts_and_an_epilogue(planner):
    """One program. Shapes end just before and after a tile does."""
    sizes = [(1, 1, 1), (17, 33, 65), (0, 4, 3), (31, 63, 0), (64, 16, 32), (129, 127, 37)]
    As = [oracle.random((m, k), dtype, i) for dtype in oracle.DTYPES for i, (m, _, k) in enumerate(sizes)]
    Bs = [oracle.random((k, n), dtype, i + 9) for dtype in oracle.DTYPES for i, (_, n, k) in enumerate(sizes)]

    @jax.jit
    def f(As, Bs):
        flipped = [x.swapaxes(0, 1) for x in As], [x.swapaxes(0, 1) for x in Bs]
        plain = vb.batched_matmul(As, Bs, planner=planner)
        both = vb.batched_matmul(*flipped, transpose_a=True, transpose_b=True, planner=planner)
        return plain, both, vb.batched_gemm(As, Bs, plain, alpha=2, beta=-1, planner=planner)

    for Cs in f(As, Bs):
        oracle.check(Cs, As, Bs)


@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_fifty_runs_give_the_same_bits(dtype):
    As, Bs = ragged(20, 1, 150, dtype)
    f = jax.jit(vb.batched_matmul)
    first = [np.asarray(c).tobytes() for c in f(As, Bs)]
    for _ in range(49):
        assert [np.asarray(c).tobytes() for c in f(As, Bs)] == first


def test_concurrent_calls():
    """32 threads, more than the pool has: no call waits for a helper that never starts."""
    As, Bs = ragged(24, 1, 100)
    f = jax.jit(vb.batched_matmul)
    expected = [np.asarray(c) for c in f(As, Bs)]

    def work(_):
        for _ in range(20):
            for c, e in zip(f(As, Bs), expected, strict=True):
                np.testing.assert_array_equal(c, e)

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))


def test_several_calls_in_one_program():
    As, Bs = ragged(8, 1, 60)

    @jax.jit
    def f(As, Bs):
        return [vb.batched_matmul([a * i for a in As], Bs) for i in range(6)]

    for i, Cs in enumerate(f(As, Bs)):
        oracle.check(Cs, [a * i for a in As], Bs)


def test_a_call_sees_what_the_one_before_it_wrote():
    """Forty calls in a row, each of which a GPU may start before the one before has ended; permutations are exact."""
    rng = np.random.default_rng(3)
    sizes = [1, 7, 33, 64, 100, 127, 250, 257, 384]
    orders = [rng.permutation(size) for size in sizes]
    swaps = [np.eye(size, dtype="float32")[order] for size, order in zip(sizes, orders, strict=True)]

    @jax.jit
    def forty(xs, swaps):
        for _ in range(40):
            xs = vb.batched_matmul(swaps, xs)
        return xs

    xs = [rng.integers(-8, 8, (size, 50)).astype("float32") for size in sizes]
    for _ in range(3):
        expected = xs
        for _ in range(40):
            expected = [x[order] for x, order in zip(expected, orders, strict=True)]
        xs = jax.device_get(forty(xs, swaps))
        for found, x in zip(xs, expected, strict=True):
            np.testing.assert_array_equal(found, x)


def test_donated_operands():
    As, Bs = ragged(6, 16, 17)
    expected = vb.batched_matmul(As, Bs)
    f = jax.jit(lambda As, Bs: vb.batched_matmul(As, Bs), donate_argnums=0)
    for c, e in zip(f([a.copy() for a in As], Bs), expected, strict=True):
        np.testing.assert_array_equal(c, e)


@pytest.mark.multidevice(2)
def test_on_each_device():
    As, Bs = ragged(5, 1, 40)
    for device in jax.devices()[:3]:
        Cs = vb.batched_matmul(*jax.device_put((As, Bs), device))
        assert {c.devices().pop() for c in Cs} == {device}
        oracle.check(Cs, As, Bs)


@pytest.mark.slow
def test_persistent_compilation_cache(tmp_path):
    """A second process finds the program in the cache and gets the same bits."""
    script = textwrap.dedent("""
        import jax, numpy as np, jax_vbgemm as vb
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        hits = []
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
        A, B = np.ones((5, 7), np.float32), np.arange(21, dtype=np.float32).reshape(7, 3)
        (c,) = jax.jit(vb.batched_matmul)([A], [B])
        print(float(c.sum()), sum("cache_hits" in event for event in hits) > 0)
    """)
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "XLA_FLAGS": ""}
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert [run[0] for run in runs] == ["1050.0", "1050.0"]
    assert runs[1][1] == "True"


@pytest.mark.gpu
def test_command_buffers_replay_with_new_addresses():
    """In a separate process, as XLA reads its flags once; the flag makes every program a CUDA graph."""
    script = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np, jax_vbgemm as vb
        rng = np.random.default_rng(3)
        sizes = rng.integers(1, 90, (12, 3))
        f = jax.jit(lambda As, Bs: jax.tree.map(jnp.sin, vb.batched_matmul(As, Bs, precision="highest")))
        kept = []  # what lives keeps its address, so that the next call has others
        for _ in range(6):
            As = jax.device_put([rng.uniform(-1, 1, (m, k)).astype(np.float32) for m, _, k in sizes])
            Bs = jax.device_put([rng.uniform(-1, 1, (k, n)).astype(np.float32) for _, n, k in sizes])
            kept.append((f(As, Bs), As, Bs))
        for c, a, b in (triple for batch in kept for triple in zip(*batch)):
            np.testing.assert_allclose(c, np.sin(np.float64(a) @ np.float64(b)), atol=1e-5)
    """)
    environment = os.environ | {"XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1300, 1400, 3000])
def test_more_pointers_than_a_launch_can_carry(count):
    As, Bs = ragged(count, 1, 9)
    oracle.check(jax.jit(vb.batched_matmul)(As, Bs), As, Bs)


@pytest.mark.rocm
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_kernels_on_an_amd_gpu(dtype):
    shapes = [(1, 1, 1), (5, 7, 3), (64, 48, 80), (130, 33, 257), (16, 16, 20_000)]
    As = [oracle.random((m, k), dtype, m) for m, _, k in shapes]
    Bs = [oracle.random((k, n), dtype, n) for _, n, k in shapes]
    oracle.check(vb.batched_matmul(As, Bs, precision="highest", implementation="kernel"), As, Bs)
