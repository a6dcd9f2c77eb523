"""TSM2's and ISM2's performance model: the paper's figures, worked by hand, and a search element by element."""

import dataclasses
import itertools
import math
import timeit

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jax_vbgemm._src.planner import DEVICES, device_spec
from jax_vbgemm._src.planner.model.tall_skinny_model import (
    Gpu,
    Kernel,
    best_kernel,
    best_parameters,
    bound,
    compute_to_memory_ratio,
    compute_utilisation,
    memory_utilisation,
    occupancy,
    predicted_seconds,
    steady_seconds,
    t2_threshold,
    thread_registers,
)

# The paper's GPUs, by the device table. It prints neither latencies nor C.
V100, K40C, M40, P100 = (Gpu.of(device_spec(name)) for name in ("v100", "k40c", "m40", "p100"))
H100 = Gpu.of(device_spec("h100"))
BYTES = {"float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "bfloat16": 2, "float16": 2}

# Ten units; a unit has 1000 byte/s and needs 1000 bytes in flight, 200 FLOP/s and 20 in flight.
ROUND = Gpu(
    name="round", units=10, peak_rates=(("float32", 2000.0), ("float64", 2000.0)), bandwidth=10000.0,
    memory_latency=1.0, product_latency=0.1, max_threads=1000, registers=10000, shared_bytes=10000, setup_registers=10,
)  # fmt: skip

gpus = st.sampled_from((K40C, M40, P100, V100, H100, Gpu.of(device_spec("mi300x"))))
dtypes = st.sampled_from(tuple(BYTES))
tiles = st.integers(1, 40)
rows = st.sampled_from((1, 100, 1024, 10240, 30720, 10**6))
columns = st.integers(1, 40)
depths = st.sampled_from((1, 8, 16, 300, 10240))
problems = st.tuples(rows, columns, depths)


# The paper's figures.


@pytest.mark.parametrize(
    ("gpu", "worked", "reported"),
    [
        (K40C, 1430 / 288 * 8, 40),  # section 4.2
        (M40, 213 / 288 * 8, 6),  # section 4.4
        (P100, 4700 / 732 * 8, 50),  # section 4.4; with its own 4600 GFLOP/s and 720 GB/s 51.1: to the nearest ten
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_thresholds(gpu, worked, reported):
    threshold = t2_threshold(gpu, "float64")
    assert threshold == pytest.approx(worked)
    assert threshold == pytest.approx(reported, rel=0.03)
    assert compute_to_memory_ratio(gpu, "float64", threshold) == pytest.approx(1)


@pytest.mark.parametrize(
    ("gpu", "verdict"), [(K40C, "memory"), (M40, "compute"), (P100, "memory"), (V100, "memory")], ids=str
)
def test_verdicts_on_sixteen_columns_of_float64(gpu, verdict):
    assert bound(gpu, "float64", 16) == verdict
    assert (compute_to_memory_ratio(gpu, "float64", 16) > 1) == (verdict == "compute")


def test_the_m40_is_memory_bound_below_its_threshold():
    assert [bound(M40, "float64", n) for n in (2, 4, 5, 6, 8)] == ["memory", "memory", "memory", "compute", "compute"]
    assert bound(M40, "float32", 16) == "memory"  # only its float64 is slow


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [10240, 15360, 20480, 25600, 30720])
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_parameters_of_the_k40c(n, m, dtype):
    """Section 4.2: t2 = n, t3 = 4, t1 = 128. t2 follows from the model; t3 = 4 is one of the fastest, not the least."""
    best = best_parameters(K40C, dtype, m, n, m)
    assert (best.t1, best.t2, best.tcf) == (128, n, 1)
    assert best.t3 <= 4
    reported = steady_seconds(K40C, dtype, m, n, m, t2=n, t3=4)
    assert reported == steady_seconds(K40C, dtype, m, n, m, t2=n, t3=best.t3)


@pytest.mark.parametrize("m", [10240, 20480, 30720])
def test_parameters_of_the_m40(m):
    """Section 4.4: t2 = 8, t3 = 4, t1 = 256, for n = 16 in float64. t2 follows from the model, t3 = 4 is as fast."""
    best = best_parameters(M40, "float64", m, 16, m, t1=256)
    assert (best.t2, best.t3) == (8, 1)
    times = steady_seconds(M40, "float64", m, 16, m, t2=np.array([8, 16, 4, 6, 2]), t3=4, t1=256)
    assert times[0] == times[1] == times[2]  # the tie goes to the compute-bound side, and there to the smallest
    assert times[0] == steady_seconds(M40, "float64", m, 16, m, t2=8, t3=1, t1=256)
    assert (times[3:] > times[0]).all()


@pytest.mark.parametrize("m", [10240, 20480, 30720])
def test_parameters_of_the_p100_are_not_the_models(m):
    """Section 4.4 says t2 = 4, t3 = 4 for n = 16 in float64; the model reads A four times then, and says t2 = 16."""
    assert best_parameters(P100, "float64", m, 16, m).t2 == 16
    reported, best = steady_seconds(P100, "float64", m, 16, m, t2=np.array([4, 16]), t3=4)
    assert reported == pytest.approx(4 * best, rel=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 4, 6, 8, 16])
def test_columns_on_the_v100(n, dtype):
    """The authors' code for the V100 takes t1 = 128 and t2 = n; its t3, 12 to 32, were found by trying all."""
    assert best_parameters(V100, dtype, 15360, n, 15360).t2 == n


def test_a_short_inner_dimension_leaves_bandwidth_unused():
    """Figure 11, m = 15360, n = 16, float64 on the V100: the less k, the less of the bandwidth TSM2 uses."""
    depth = (1, 2, 4, 8, 16, 64, 256, 1024, 15360)
    share = []
    for k in depth:
        seconds = predicted_seconds(V100, "float64", 15360, 16, k, t2=16, t3=8)
        share.append(8 * 15360 * (k + 16) / (seconds * V100.bandwidth))
    assert share == sorted(share)
    assert share[-1] > 0.99 > 0.9 > share[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [8, 16])
def test_rows_a_thread_on_the_v100(size, dtype):
    """Section 6: tcf = 1 for 10^4 rows. For 10^7, 8 (float32) and 4 (float64), profiled, are within 3% of the best."""
    assert best_parameters(V100, dtype, 10**4, size, size).tcf == 1
    best = best_parameters(V100, dtype, 10**7, size, size)
    assert 1 < best.tcf <= 64
    reported = {"float32": 8, "float64": 4}[dtype]
    seconds = predicted_seconds(V100, dtype, 10**7, size, size, t2=best.t2, t3=best.t3, tcf=reported)
    assert seconds < 1.03 * best.seconds


def test_threads_may_become_a_64th_of_the_rows():
    """Figure 12, m = 10^7, n = 16 on the V100: little is lost up to there, and much when the device stands empty."""
    seconds = predicted_seconds(V100, "float64", 10**7, 16, 16, t2=16, t3=4, tcf=2 ** np.arange(13))
    assert (seconds[:7] < 1.15 * seconds.min()).all()
    assert seconds[12] > 2 * seconds.min()


# Worked by hand.


@pytest.mark.parametrize(
    ("dtype", "t2", "t3", "registers"),
    [
        ("float32", 16, 4, 56 + 32),
        ("float64", 16, 4, 112 + 32),
        ("complex64", 2, 1, 16 + 32),
        ("complex128", 1, 1, 20 + 32),
        ("bfloat16", 16, 4, 56 + 32),  # a register an element: it accumulates in float32
        ("float16", 1, 1, 5 + 32),
    ],
)
def test_registers(dtype, t2, t3, registers):
    assert thread_registers(V100, dtype, t2, t3) == registers


@pytest.mark.parametrize(
    ("gpu", "dtype", "t2", "t3", "t1", "threads"),
    [
        (V100, "float32", 1, 1, 1, 65536 // 37),
        (V100, "float32", 1, 1, 128, 1664),  # 13 blocks of 1771 threads
        (V100, "float64", 16, 4, 128, 384),  # registers: 65536 // 144 = 455
        (K40C, "float64", 16, 4, 128, 384),  # shared memory: 49152 // 128 = 384
        (K40C, "float64", 16, 4, 256, 256),
        (K40C, "float64", 4, 1, 1, 1092),  # registers 65536 // 60, shared memory 1536
        (dataclasses.replace(V100, setup_registers=10), "float32", 1, 1, 128, 2048),  # the unit's own limit
        (V100, "float64", 36, 1, 128, 256),  # 252 registers: 260 threads
        (V100, "float64", 37, 1, 1, 0),  # 258 are more than a thread has
    ],
)
def test_occupancy(gpu, dtype, t2, t3, t1, threads):
    assert occupancy(gpu, dtype, t2, t3, t1) == threads


def test_utilisations():
    # 1000 bytes in flight fill a unit's memory: 25 threads with two loads of float64 are 400 of them.
    assert memory_utilisation(ROUND, "float64", 25, 2) == pytest.approx(0.4)
    assert memory_utilisation(ROUND, "float64", 62.5, 2) == memory_utilisation(ROUND, "float64", 1000, 4) == 1
    # 20 operations fill its arithmetic: a thread with 1 x 3 multiply-adds has 6, or 24 if they are complex.
    assert compute_utilisation(ROUND, "float32", 1, 1, 3) == pytest.approx(0.3)
    assert compute_utilisation(ROUND, "float32", 2, 3, 1) == pytest.approx(0.6)
    assert compute_utilisation(ROUND, "complex64", 1, 1, 3) == 1


def test_complex_multiply_adds_count_four_times():
    for real, number in (("float32", "complex64"), ("float64", "complex128")):
        assert t2_threshold(H100, number) == pytest.approx(t2_threshold(H100, real) / 2)  # twice the bytes


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        # 100 threads on ten units with one load of 4 bytes: 400 of 10000 in flight. A is 4000 bytes, C 1200.
        ({"m": 100, "n": 3, "k": 10, "t2": 3, "t3": 1}, 4000 / 400 + 0.12),
        # Three times the loads in flight.
        ({"m": 100, "n": 3, "k": 10, "t2": 3, "t3": 3}, 4000 / 1200 + 0.12),
        # Two passes over A.
        ({"m": 100, "n": 3, "k": 10, "t2": 2, "t3": 1}, 8000 / 400 + 0.12),
        # Half the threads, two rows each.
        ({"m": 100, "n": 3, "k": 10, "t2": 3, "t3": 1, "tcf": 2}, 4000 / 200 + 0.12),
        # Two such products at once.
        ({"m": 50, "n": 3, "k": 10, "t2": 3, "t3": 1, "batch": 2}, 4000 / 400 + 0.12),
        # The memory is full; 2 m n k operations at 2000 a second are more.
        ({"m": 5000, "n": 8, "k": 10, "t2": 8, "t3": 8}, 800000 / 2000),
        # Three passes of three columns: nine are computed.
        ({"m": 5000, "n": 8, "k": 10, "t2": 3, "t3": 8}, 900000 / 2000),
    ],
)
def test_steady_seconds(arguments, seconds):
    assert steady_seconds(ROUND, "float32", t1=10, **arguments) == pytest.approx(seconds)


def test_predicted_seconds_are_rounds():
    gpu = dataclasses.replace(ROUND, max_threads=20)  # 200 threads at once, 200 of 2500 that fill the memory
    common = {"n": 1, "k": 9, "t2": 1, "t3": 1, "t1": 10}
    full = 200 * 9 * 4 / 800 + 200 * 4 / 10000  # seconds of A and C in a full round
    assert predicted_seconds(gpu, "float32", 200, **common) == pytest.approx(full + 1)
    # A second round of one row takes as long as one of 200, and its own start.
    assert predicted_seconds(gpu, "float32", 201, **common) == pytest.approx(2 * full + 2, rel=0.01)
    # Three rows a thread: one round of 200 threads, one latency.
    assert predicted_seconds(gpu, "float32", 600, **common) == pytest.approx(3 * full + 3)
    assert predicted_seconds(gpu, "float32", 600, tcf=3, **common) == pytest.approx(3 * full + 1)
    # Six rows a thread: half of the threads are missing, and half of the loads of A.
    emptier = 600 * 9 * 4 / 400 + 600 * 4 / 10000
    assert predicted_seconds(gpu, "float32", 600, tcf=6, **common) == pytest.approx(emptier + 1)
    assert predicted_seconds(gpu, "float32", 600, tcf=np.array([3, 6]), **common).shape == (2,)


@pytest.mark.parametrize("name", [name for name, spec in DEVICES.items() if spec.kind == "gpu"])
def test_figures_come_from_the_device_table(name):
    spec, gpu = device_spec(name), Gpu.of(device_spec(name))
    for field in dataclasses.fields(Gpu):
        if field.name != "memory_latency":
            assert getattr(gpu, field.name) == getattr(spec, field.name), field.name
    assert gpu.memory_latency == spec.step_latency > 0
    assert gpu.unit_bandwidth * spec.units == pytest.approx(spec.bandwidth)
    for dtype in BYTES:
        assert gpu.peak_rate(dtype) == spec.peak_rate(dtype)
    assert gpu.product_latency > 0
    assert gpu.setup_registers > 0


# The search.


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


# What must grow or shrink.


@given(gpus, dtypes, tiles, tiles, st.sampled_from((1, 32, 128)))
def test_more_elements_a_thread_never_leave_room_for_more_threads(gpu, dtype, t2, t3, t1):
    here = occupancy(gpu, dtype, t2, t3, t1)
    assert here % t1 == 0
    assert 0 <= here <= gpu.max_threads
    assert here >= occupancy(gpu, dtype, t2 + 1, t3, t1)
    assert here >= occupancy(gpu, dtype, t2, t3 + 1, t1)


@given(gpus, dtypes, st.integers(1, 3000), tiles, tiles)
def test_utilisations_grow_with_what_is_in_flight(gpu, dtype, threads, t2, t3):
    memory, compute = memory_utilisation(gpu, dtype, threads, t3), compute_utilisation(gpu, dtype, threads, t2, t3)
    assert 0 < memory <= 1
    assert 0 < compute <= 1
    for more in ((threads + 1, t2, t3), (threads, t2, t3 + 1)):
        assert memory <= memory_utilisation(gpu, dtype, more[0], more[2])
        assert compute <= compute_utilisation(gpu, dtype, *more)
    assert compute <= compute_utilisation(gpu, dtype, threads, t2 + 1, t3)


@given(gpus, dtypes, problems, tiles, tiles, st.integers(1, 64), st.integers(1, 3))
def test_more_work_takes_longer_and_a_better_device_does_not(gpu, dtype, problem, t2, t3, tcf, batch):
    m, n, k = problem
    m *= tcf  # else some threads have a row less than others
    options = {"t2": t2, "t3": t3, "tcf": tcf}
    assume(occupancy(gpu, dtype, t2, t3, 128) > 0)
    quicker = dataclasses.replace(gpu, bandwidth=2 * gpu.bandwidth, memory_latency=gpu.memory_latency / 2)
    for seconds in (steady_seconds, predicted_seconds):
        here = seconds(gpu, dtype, m, n, k, batch=batch, **options) * (1 - 1e-12)
        assert here <= seconds(gpu, dtype, m + tcf, n, k, batch=batch, **options)
        assert here <= seconds(gpu, dtype, m, n + 1, k, batch=batch, **options)
        assert here <= seconds(gpu, dtype, m, n, k + 1, batch=batch, **options)
        assert here <= seconds(gpu, dtype, m, n, k, batch=batch + 1, **options)
        assert seconds(quicker, dtype, m, n, k, batch=batch, **options) <= here * (1 + 1e-9)
    limit = batch * m * n * k * 2 / gpu.peak_rate(dtype), batch * m * k * BYTES[dtype] / gpu.bandwidth
    steady = steady_seconds(gpu, dtype, m, n, k, batch=batch, **options)
    assert max(limit) * (1 - 1e-12) <= steady
    predicted = predicted_seconds(gpu, dtype, m, n, k, batch=batch, **options)
    assert steady + gpu.memory_latency <= predicted * (1 + 1e-12)


@given(gpus, dtypes, columns)
def test_the_ratio_is_that_of_the_times(gpu, dtype, t2):
    # Section 3.6.2: time_comp / time_mem of t3 elements of A, a multiply-add counted once.
    time_comp = t2 * (4 if dtype.startswith("complex") else 1) / gpu.peak_rate(dtype)
    time_mem = BYTES[dtype] / gpu.bandwidth
    assert compute_to_memory_ratio(gpu, dtype, t2) == pytest.approx(time_comp / time_mem)
    assert bound(gpu, dtype, t2) == ("compute" if time_comp > time_mem else "memory")


# Kernels that exist.


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


# Errors.


@pytest.mark.parametrize("name", ["m", "n", "k", "batch", "t1"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_sizes_must_be_positive(name, value):
    sizes = {"m": 1000, "n": 8, "k": 1000, "batch": 1, "t1": 128, name: value}
    with pytest.raises(ValueError, match=rf"tall_skinny: {name} = {value} must be a positive integer"):
        best_parameters(H100, "float32", **sizes)
    with pytest.raises(ValueError, match=rf"tall_skinny: {name} = "):
        predicted_seconds(H100, "float32", t2=1, t3=1, **sizes)


@pytest.mark.parametrize("name", ["t2", "t3", "tcf"])
@pytest.mark.parametrize("value", [0, 1.5, np.array([1, -2])], ids=str)
@pytest.mark.parametrize("seconds", [steady_seconds, predicted_seconds])
def test_tiles_must_be_positive(seconds, name, value):
    with pytest.raises(ValueError, match=rf"tall_skinny: {name} = .* must be positive integers"):
        seconds(H100, "float32", 1000, 8, 1000, **{"t2": 1, "t3": 1, name: value})


@pytest.mark.parametrize("name", ["t2", "t3"])
def test_choices_must_be_positive_integers_and_some(name):
    with pytest.raises(ValueError, match=f"tall_skinny: {name} has no values to choose from"):
        best_parameters(H100, "float32", 1000, 8, 1000, **{name: ()})
    with pytest.raises(ValueError, match=f"tall_skinny: {name} = 0 must be a positive integer"):
        best_parameters(H100, "float32", 1000, 8, 1000, **{name: (4, 0)})


def test_what_fits_no_unit_is_named():
    with pytest.raises(
        ValueError, match=r"no t2 in \[64\] and t3 in \[4\] leave room for .* t1 = 128 .* h100 in float64"
    ):
        best_parameters(H100, "float64", 1000, 64, 1000, t2=(64,), t3=(4,))
    assert steady_seconds(H100, "float64", 1000, 64, 1000, t2=64, t3=4) == math.inf
    assert predicted_seconds(H100, "float64", 1000, 64, 1000, t2=64, t3=4) == math.inf


def test_unknown_dtypes_and_devices_are_named():
    with pytest.raises(ValueError, match="dtype: unknown name 'int16'; known are float32, "):
        best_parameters(H100, "int16", 1000, 8, 1000)
    with pytest.raises(ValueError, match="tall_skinny: device 'cpu' is a cpu: the model is one of GPUs"):
        Gpu.of(device_spec("cpu"))
