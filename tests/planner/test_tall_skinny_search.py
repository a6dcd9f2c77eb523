"""TSM2's and ISM2's search for parameters and for a kernel, against a search element by element."""

import dataclasses
import itertools
import math
import timeit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_vbgemm._src.planner.model.tall_skinny_model import (
    Kernel,
    best_kernel,
    best_parameters,
    predicted_seconds,
    steady_seconds,
    t2_threshold,
    thread_registers,
)

from .tall_skinny_gpus import BYTES, H100, P100, ROUND, V100, dtypes, gpus, problems, rows, tiles


def slow_search(gpu, dtype, m, n, k, t1):
    """(t2, t3) of least time by trying all, one after another, and that time."""
    size, words, flops = BYTES[dtype], max(1, BYTES[dtype] // 4), 8 if dtype.startswith("complex") else 2
    peak = gpu.peak_rate(dtype)
    threshold = peak / gpu.bandwidth * size / (flops / 2)
    found = []
    for t2, t3 in itertools.product(range(1, n + 1), range(1, min(k, t1) + 1)):
        registers = (3 * t2 + 2 * t3) * words + gpu.setup_registers
        if registers > 255:
            continue
        resident = min(gpu.max_threads, gpu.registers // registers, gpu.shared_bytes // (t2 * size)) // t1 * t1
        if resident == 0:
            continue
        threads = min(resident * gpu.units, m)
        passes = math.ceil(n / t2)
        in_flight = threads * t3 * size / (gpu.memory_latency * gpu.bandwidth)
        memory = m * (k * passes / min(1, in_flight) + n) * size / gpu.bandwidth
        busy = min(threads / t1, gpu.units) / gpu.units
        in_flight = threads / busy * t2 * t3 * flops / (gpu.product_latency * peak)
        arithmetic = m * k * passes * t2 * flops / (peak * busy) / min(1, in_flight)
        found.append((max(memory, arithmetic), n > threshold > t2, t3, t2))
    least = min(found)[0]
    # Ties are those of exact arithmetic; here they are as good as equal.
    _, _, t3, t2 = min(found, key=lambda entry: (entry[0] > least * (1 + 1e-12), *entry[1:]))
    return t2, t3, least


@given(gpus, dtypes, rows, st.integers(1, 20), st.sampled_from((1, 3, 8, 33)), st.sampled_from((32, 128, 256)))
def test_the_search_is_exhaustive(gpu, dtype, m, n, k, t1):
    best = best_parameters(gpu, dtype, m, n, k, t1=t1)
    t2, t3, seconds = slow_search(gpu, dtype, m, n, k, t1)
    assert (best.t1, best.t2, best.t3) == (t1, t2, t3)
    assert steady_seconds(gpu, dtype, m, n, k, t2=t2, t3=t3, t1=t1) == pytest.approx(seconds)
    assert best.seconds == predicted_seconds(gpu, dtype, m, n, k, t2=t2, t3=t3, t1=t1, tcf=best.tcf)


@given(gpus, dtypes, problems, tiles, tiles)
def test_no_parameters_beat_the_best(gpu, dtype, problem, t2, t3):
    _, n, k = problem
    t2, t3 = min(t2, n), min(t3, k)
    best = best_parameters(gpu, dtype, *problem)
    times = steady_seconds(gpu, dtype, *problem, t2=np.array([best.t2, t2]), t3=np.array([best.t3, t3]))
    assert times[0] <= times[1] * (1 + 1e-12)
    assert best.seconds <= predicted_seconds(gpu, dtype, *problem, t2=best.t2, t3=best.t3)


@given(gpus, dtypes, problems, st.sampled_from((32, 64, 128, 256)))
def test_limits_are_respected(gpu, dtype, problem, t1):
    m, n, k = problem
    best = best_parameters(gpu, dtype, *problem, t1=t1)
    registers = thread_registers(gpu, dtype, best.t2, best.t3)
    assert registers <= 255
    assert registers * t1 <= gpu.registers
    assert best.t2 * BYTES[dtype] * t1 <= gpu.shared_bytes
    assert 1 <= best.t2 <= n
    assert 1 <= best.t3 <= min(k, t1)
    assert best.tcf in (1, 2, 4, 8, 16, 32, 64)
    assert best.tcf <= m
    assert 0 < best.seconds < math.inf


@given(gpus, dtypes, problems)
def test_kernels_that_exist_limit_the_search(gpu, dtype, problem):
    m, n, k = problem
    built2, built3 = (4, 1, 16), (2, 8)
    best = best_parameters(gpu, dtype, *problem, t2=built2, t3=built3)
    assert best.t2 in built2
    assert best.t3 in built3
    assert best.t2 < 4 or best.t2 // 4 < n  # 4 where n is 2 or 3, 16 where it is above 4
    free = best_parameters(gpu, dtype, m, max(n, best.t2), max(k, best.t3))
    assert steady_seconds(gpu, dtype, m, max(n, best.t2), max(k, best.t3), t2=free.t2, t3=free.t3) <= steady_seconds(
        gpu, dtype, m, max(n, best.t2), max(k, best.t3), t2=best.t2, t3=best.t3
    )


def test_the_next_wider_kernel_is_taken_where_it_saves_a_pass():
    built = (1, 2, 4, 8, 16, 32)
    assert best_parameters(H100, "float32", 10**5, 7, 10**3, t2=built).t2 == 8
    assert best_parameters(H100, "float32", 10**5, 8, 10**3, t2=built).t2 == 8
    assert best_parameters(H100, "float32", 10**5, 17, 10**3, t2=built).t2 == 32
    assert best_parameters(H100, "float32", 10**5, 33, 10**3, t2=built).t2 == 32
    # 32 complex128 columns need more registers than a thread has: two passes.
    assert best_parameters(H100, "complex128", 10**5, 32, 10**3, t2=built).t2 == 16


def test_ties_go_to_the_smallest_t3_then_to_the_smallest_t2():
    # All of sixteen columns take 2 m n k operations; sixteen threads a unit keep it busy with t2 t3 >= 10.
    gpu = dataclasses.replace(ROUND, bandwidth=1e12, memory_latency=1e-12, product_latency=1.6)
    some = {"t2": np.array([16, 8, 4, 2, 1]), "t3": np.array([1, 2, 3, 5, 10])}
    assert steady_seconds(gpu, "float32", 160, 16, 100, t1=16, **some) == pytest.approx(np.full(5, 256))
    best = best_parameters(gpu, "float32", 160, 16, 100, t1=16)
    assert (best.t2, best.t3) == (16, 1)
    # Two passes, with room for all threads whatever t2 is: 9 to 16 columns tie.
    best = best_parameters(dataclasses.replace(H100, max_threads=128), "float32", 10**5, 17, 10**3, t2=range(1, 17))
    assert best.t2 == 9


def test_the_search_reaches_the_limits_of_registers():
    # (3 * 17 + 2) * 4 + 32 = 244: seventeen columns of complex128 in one pass, eighteen in two.
    assert best_parameters(H100, "complex128", 10**5, 17, 10**3).t2 == 17
    assert best_parameters(H100, "complex128", 10**5, 18, 10**3).t2 == 9
    # A hundred threads have to load all they can: 3 + 2 * 110 + 32 = 255; or what there is, or what t1 allows.
    assert best_parameters(H100, "float32", 100, 1, 10**4).t3 == 110
    assert best_parameters(H100, "float32", 100, 1, 100).t3 == 100
    assert best_parameters(H100, "float32", 100, 1, 10**4, t1=64).t3 == 64


@pytest.mark.parametrize("dtype", BYTES)
def test_the_search_is_fast(dtype):
    seconds = min(timeit.repeat(lambda: best_parameters(H100, dtype, 20480, 32, 20480), number=1, repeat=30))
    assert seconds < 3e-3  # 0.6 ms on an idle core


# The choice among the kernels that exist.


def kernel(t2, *, t3=8, tcf=1, threads=512, peak_rate=33.5e12, t1=128):
    return Kernel(t1=t1, t2=t2, t3=t3, tcf=tcf, threads=threads, peak_rate=peak_rate)


def widths_by_algorithm_5(gpu, dtype, n, kernels):
    """Lines 1-5, with whole passes: the time of reading A with each kernel."""
    assert n <= t2_threshold(gpu, dtype)
    in_flight = [min(k.threads * k.t3 * BYTES[dtype] / (gpu.memory_latency * gpu.unit_bandwidth), 1) for k in kernels]
    times = [math.ceil(n / k.t2) / used for k, used in zip(kernels, in_flight, strict=True)]
    return {k.t2 for k, time in zip(kernels, times, strict=True) if time <= min(times) * (1 + 1e-9)}


@given(
    st.sampled_from((P100, V100, H100)),
    st.sampled_from(("float32", "float64")),
    st.integers(1, 32),
    st.sampled_from((1, 8, 25, 20480)),
    st.lists(
        st.builds(
            kernel,
            st.sampled_from((4, 8, 16, 32)),
            t3=st.sampled_from((1, 2, 8, 32)),
            threads=st.sampled_from((128, 256, 512)),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_the_width_is_that_of_lines_2_to_4(gpu, dtype, n, k, kernels):
    """With rows enough for any device: more than are at work at once."""
    best, seconds = best_kernel(gpu, dtype, 10**8, n, k, kernels)
    assert kernels[best].t2 in widths_by_algorithm_5(gpu, dtype, n, kernels)
    assert 0 < seconds < math.inf


def test_a_wide_kernel_with_few_threads_still_reads_a_once():
    """k and n small: what C's traffic takes is no reason to read A several times."""
    kernels = [kernel(8, threads=512), kernel(16, threads=512), kernel(32, t3=2, threads=256)]
    # 25 columns in 4, 2 or 1 passes, with 1, 1 and 0.45 of the bandwidth.
    best, _ = best_kernel(H100, "float64", 10**6, 25, 8, kernels)
    assert kernels[best].t2 == 16
    best, _ = best_kernel(H100, "float64", 10**6, 25, 8, [*kernels, kernel(32, t3=4, threads=256)])
    assert best == 3


def test_rows_a_thread_leave_no_unit_empty():
    kernels = [kernel(8, tcf=tcf) for tcf in (1, 2, 8, 16)]
    for m, tcf in ((10**6, 16), (10**5, 2), (10**4, 1)):
        assert kernels[best_kernel(H100, "float64", m, 8, 8, kernels)[0]].tcf == tcf
    # Ten thousand of them have rows enough, however few each has.
    assert kernels[best_kernel(H100, "float64", 2048, 8, 8, kernels, batch=10**4)[0]].tcf == 16


def test_of_equal_kernels_the_one_with_the_highest_rate():
    kernels = [kernel(16), kernel(16, peak_rate=66.9e12), kernel(16)]
    assert best_kernel(H100, "float64", 10**6, 16, 16, kernels)[0] == 1


@pytest.mark.parametrize("kernels", [[], [kernel(8, threads=0)]])
def test_kernels_that_no_unit_holds_are_an_error(kernels):
    with pytest.raises(ValueError, match=f"tall_skinny: none of {len(kernels)} kernels fits a unit of h100"):
        best_kernel(H100, "float64", 1000, 8, 8, kernels)
