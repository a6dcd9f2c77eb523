"""TSM2's and ISM2's performance model: formulas worked by hand, and properties of the predicted times."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jax_vbgemm._src.planner import DEVICES, device_spec
from jax_vbgemm._src.planner.model.tall_skinny_model import (
    Gpu,
    best_parameters,
    bound,
    compute_utilisation,
    memory_utilisation,
    occupancy,
    predicted_seconds,
    steady_seconds,
    t2_threshold,
    thread_registers,
)

from .tall_skinny_gpus import BYTES, H100, K40C, ROUND, V100, columns, dtypes, gpus, problems, tiles

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


@pytest.mark.parametrize("name", [name for name, spec in DEVICES.items() if spec.device_type == "gpu"])
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
    assert t2 / t2_threshold(gpu, dtype) == pytest.approx(time_comp / time_mem)
    assert bound(gpu, dtype, t2) == ("compute" if time_comp > time_mem else "memory")


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
    with pytest.raises(ValueError, match="tall_skinny: device 'cpu' is a cpu: the model is for GPUs"):
        Gpu.of(device_spec("cpu"))
