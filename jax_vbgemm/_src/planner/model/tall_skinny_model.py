"""The performance model of TSM2 and ISM2: Rivera et al., "ISM2: Optimizing irregular-shaped matrix-matrix
multiplication on GPUs", section 3.6 and Algorithm 5.

C = A B, where A is m x k, B is k x n and C is m x n, all of one dtype. A block of t1 threads takes t1 rows of A, one
a thread, and t1 x t2 elements of B at a time; a thread computes t2 columns of C at once and loads t3 elements of A at
once; with tcf > 1 (ISM2) it walks tcf rows of A. A problem with m small is given as its mirror image.

All functions are pure; t2 and t3 may be arrays, which broadcast. Times are seconds, rates are per second.

Where this implementation differs from the paper:
- Section 3.6.2 puts no limit on Util_mem and Util_comp; here they are at most 1.
- The paper's Util_mem has elements in the numerator and bytes in the denominator; here both are bytes.
- r and t2_threshold count a multiply-add as one operation at the peak rate, line 7 of Algorithm 5 as two. `bound`
  follows r. The predicted seconds count two operations, so that arithmetic limits them from half of t2_threshold on.
- Algorithm 5 compares the memory time for t2 below the threshold with the arithmetic time for t2 above it. On the M40
  that would not give the reported t2 = 8. Here the larger of both times is compared for every t2.
- Lines 9 and 12 print k and n where n and m, k are meant: t2 divides the columns of C.
- Util_mem belongs to the loads of A (section 3.6.2). Algorithm 5 leaves out the writes of C; here they count at the
  full bandwidth, so that among memory-bound kernels the time orders t2 and t3 as lines 2-4 do.
- Algorithm 5 divides by t2 as by a real number. Here passes over A are whole, and in the last pass a thread computes
  all t2 columns.
- Section 4.4 reports t2 = 4 for 16 columns on the P100; by section 3.6 that reads A four times without any gain.
- The paper profiles t1 and tcf offline. Here the caller gives t1; for tcf see `predicted_seconds`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jax_vbgemm._src.planner.model.tall_skinny_shape import SKINNY
from jax_vbgemm._src.planner.tables.catalogue import ELEMENT_BYTES
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.util.integers import is_integer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Number = int | Ints

THREADS = 128  # the default t1: the paper's choice on the K40c and the P100, and its code's on the V100
MOST_REGISTERS = 255  # maximum of a thread (CUDA guide, compute capability 3.5 and later); AMD GPUs have 256
MOST_ROWS = 64  # largest tcf: up to here the paper measures no loss, with 10**7 rows (section 5.2)


@dataclass(frozen=True)
class Gpu:
    """The figures of a GPU that the model uses. A unit is a streaming multiprocessor or a compute unit."""

    name: str
    units: int
    peak_rates: tuple[tuple[str, float], ...]  # FLOP/s of the whole device, by real dtype: Peak Perf.
    bandwidth: float  # byte/s of the whole device: Peak Band.
    memory_latency: float  # seconds from a load to its use: latency_mem
    product_latency: float  # seconds from a multiply-add to the next that needs it: latency_comp
    max_threads: int  # a unit: HW_MAX
    registers: int  # 32-bit, a unit: R_SM
    shared_bytes: int  # a unit: S_SM
    setup_registers: int  # a thread: C

    @classmethod
    def of(cls, device: DeviceSpec) -> "Gpu":
        """The figures of an entry of the device table. Raises ValueError for a device that is not a GPU."""
        if device.device_type != "gpu":
            raise ValueError(f"tall_skinny: device {device.name!r} is a {device.device_type}: the model is for GPUs")
        return cls(
            name=device.name,
            units=device.units,
            peak_rates=device.peak_rates,
            bandwidth=device.bandwidth,
            # load, barrier and first product: the latency that a prefetch has to hide
            memory_latency=device.step_latency,
            product_latency=device.product_latency,
            max_threads=device.max_threads,
            registers=device.registers,
            shared_bytes=device.shared_bytes,
            setup_registers=device.setup_registers,
        )

    @property
    def unit_bandwidth(self) -> float:
        """Throughput_max_mem of section 3.6.2, in byte/s of a unit rather than bytes a clock."""
        return self.bandwidth / self.units

    def peak_rate(self, dtype: str) -> float:
        """FLOP/s in the real dtype that `dtype` accumulates in."""
        return dict(self.peak_rates)["float64" if dtype in ("float64", "complex128") else "float32"]


@dataclass(frozen=True)
class Parameters:
    """The kernel parameters for a problem, and the seconds predicted with them (`predicted_seconds`)."""

    t1: int
    t2: int
    t3: int
    tcf: int
    seconds: float


def thread_registers(gpu: Gpu, dtype: str, t2: Number, t3: Number) -> Ints:
    """R_thread = (3 t2 + 2 t3) bytes/4 + C (section 3.6.2): current and next elements of B, those of C, and current and
    next elements of A.

    An element narrower than a register takes a whole one.
    """
    elements = 3 * np.asarray(t2, np.int64) + 2 * np.asarray(t3, np.int64)
    registers: Ints = elements * _element_registers(dtype) + gpu.setup_registers
    return registers


def occupancy(gpu: Gpu, dtype: str, t2: Number, t3: Number, t1: int = 1) -> Ints:
    """MaxOccup_SM = min(HW_MAX, R_SM / R_thread, S_SM / S_thread) threads a unit, S_thread = t2 bytes (section 3.6.2).

    Rounded down to whole blocks of `t1` threads; none where a thread would need more than 255 registers.
    """
    needed = thread_registers(gpu, dtype, t2, t3)
    by_shared_memory = gpu.shared_bytes // (np.asarray(t2, np.int64) * _bytes(dtype))
    threads = np.minimum(np.minimum(gpu.registers // needed, by_shared_memory), gpu.max_threads) // t1 * t1
    return np.where(needed <= MOST_REGISTERS, threads, 0)


def memory_utilisation(gpu: Gpu, dtype: str, threads: Number | Floats, t3: Number) -> Floats:
    """Util_mem = min(1, threads t3 bytes / (latency_mem bandwidth)) of a unit with `threads` active (section 3.6.2).

    By Little's law: the bytes of A in flight, divided by the bytes in flight that saturate the memory.
    """
    in_flight = np.asarray(threads, np.float64) * t3 * _bytes(dtype)
    utilisation: Floats = np.minimum(1.0, in_flight / (gpu.memory_latency * gpu.unit_bandwidth))
    return utilisation


def compute_utilisation(gpu: Gpu, dtype: str, threads: Number | Floats, t2: Number, t3: Number) -> Floats:
    """Util_comp = min(1, threads t2 t3 FLOP / (latency_comp peak)) of a unit with `threads` active (section 3.6.2)."""
    in_flight = np.asarray(threads, np.float64) * t2 * t3 * _flops(dtype)
    utilisation: Floats = np.minimum(1.0, in_flight / (gpu.product_latency * gpu.peak_rate(dtype) / gpu.units))
    return utilisation


def t2_threshold(gpu: Gpu, dtype: str) -> float:
    """t2_threshold = peak/bandwidth bytes (section 3.6.2): the t2, or n, at which the times of arithmetic and memory
    are equal. A complex multiply-add counts as its four real ones."""
    return gpu.peak_rate(dtype) / gpu.bandwidth * _bytes(dtype) / (_flops(dtype) / 2)


def bound(gpu: Gpu, dtype: str, t2: int) -> Literal["memory", "compute"]:
    """Whether memory or arithmetic limits a kernel with t2 columns; with t2 = n, the whole problem (section 3.6.3)."""
    return "compute" if t2 > t2_threshold(gpu, dtype) else "memory"


def steady_seconds(
    gpu: Gpu, dtype: str, m: int, n: int, k: int, *, t2: Number, t3: Number, t1: int = THREADS, tcf: int = 1,
    batch: int = 1,
) -> Floats:  # fmt: skip
    """The time of Algorithm 5, which `best_parameters` minimises: the memory time or the arithmetic time, if longer.

    Memory: A is read ceil(n / t2) times and C is written once; where n and k are small, both take similar times. The
    active threads are at most the launched ones. The time is infinite if no block fits a unit.
    """
    problem = _Problem.of(dtype, m, n, k, batch, t1)
    _check_tiles(t2, t3, tcf)
    return _steady(gpu, problem, occupancy(gpu, dtype, t2, t3, t1) * gpu.units, t2, t3, tcf)


def predicted_seconds(
    gpu: Gpu, dtype: str, m: int, n: int, k: int, *, t2: Number, t3: Number, t1: int = THREADS, tcf: Number = 1,
    batch: int = 1,
) -> Floats:  # fmt: skip
    """The seconds of TSM2 (tcf = 1) or ISM2 (tcf rows a thread): `steady_seconds` and the cost of starting threads.

    A round is the set of threads that a device holds at once. Each round waits for its first loads, one memory latency,
    and the last round may have fewer threads. With a small k, many short rounds are therefore slow (section 5.1). A
    larger tcf makes fewer rounds, and a tcf that is too large leaves units idle (section 5.2). The paper has no formula
    for this cost.
    """
    problem = _Problem.of(dtype, m, n, k, batch, t1)
    _check_tiles(t2, t3, tcf)
    return _predicted(gpu, problem, occupancy(gpu, dtype, t2, t3, t1) * gpu.units, t2, t3, tcf)


def best_parameters(
    gpu: Gpu, dtype: str, m: int, n: int, k: int, *, batch: int = 1, t1: int = THREADS,
    t2: Iterable[int] | None = None, t3: Iterable[int] | None = None,
) -> Parameters:  # fmt: skip
    """Algorithm 5 by exhaustive search: t2 and t3 with the least `steady_seconds`, then tcf for them.

    t2 <= n and t3 <= min(k, t1), as far as a thread's registers allow. `t2`, `t3`: the values to choose from, where
    kernels exist for some values only; the smallest t2 above n, which reads A once, is then a choice too, and so is the
    smallest t3. Of equal times, a t2 on the same side of t2_threshold as n is taken, which section 3.6.3 tries first,
    then the smallest t3, then the smallest t2. tcf is 1 unless k is small. Then tcf is the power of two up to 64 with
    the least `predicted_seconds`, and the smallest of equals.

    Raises:
      ValueError: a size, t1, t2 or t3 is not positive, or no t2 and t3 leave a block of t1 threads room on a unit.
    """
    problem = _Problem.of(dtype, m, n, k, batch, t1)
    most = (MOST_REGISTERS - gpu.setup_registers) // _element_registers(dtype)  # elements a thread can hold
    t2s = _choices("t2", t2, n, (most - 2) // 3)
    t3s = _choices("t3", t3, min(k, t1), (most - 3) // 2)
    t2s = t2s[: np.searchsorted(t2s, n) + 1]
    t3s = t3s[: max(1, np.searchsorted(t3s, min(k, t1), side="right"))]
    slots = occupancy(gpu, dtype, t2s[:, None], t3s, t1) * gpu.units
    if not slots.any():
        raise ValueError(
            f"tall_skinny: no t2 in {t2s.tolist()} and t3 in {t3s.tolist()} leave room for a block of t1 = {t1} "
            f"threads on {gpu.name} in {dtype}"
        )
    seconds = _steady(gpu, problem, slots, t2s[:, None], t3s, 1)
    row, column = np.nonzero(seconds <= seconds.min() * (1 + 1e-12))  # equal but for rounding
    threshold = t2_threshold(gpu, dtype)
    other_side = (n > threshold) & (t2s[row] < threshold)
    first = np.lexsort((t2s[row], t3s[column], other_side))[0]
    best = row[first], column[first]
    best2, best3 = int(t2s[best[0]]), int(t3s[best[1]])
    tcfs = 1 << np.arange(MOST_ROWS.bit_length() if k <= SKINNY else 1)
    times = _predicted(gpu, problem, slots[best], best2, best3, tcfs)
    fastest = int(np.argmin(times))
    return Parameters(t1, best2, best3, int(tcfs[fastest]), float(times[fastest]))


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel with its t1, t2, t3 and tcf.

    `threads` is MaxOccup_SM from the registers and shared memory that the compiler reports, which the formula R_thread
    = (3 t2 + 2 t3) bytes/4 + C only approximates. `peak_rate` is that of the units (ordinary or tensor cores) it uses.
    """

    t1: int
    t2: int
    t3: int
    tcf: int
    threads: int
    peak_rate: float


def best_kernel(
    gpu: Gpu, dtype: str, m: int, n: int, k: int, kernels: Sequence[Kernel], *, batch: int = 1
) -> tuple[int, float]:
    """The index of the kernel with the smallest predicted time for a problem, and that time.

    1. t2 and t3 are chosen as by `best_parameters`: the least time of Algorithm 5. Ties are decided by the fewest reads
       of A (if n is above t2_threshold: by a t2 that reaches it), then by the smallest t2.
    2. Kernels with this t2 remain, and of these the ones that leave the fewest units without a block, because Util_mem
       assumes evenly spread threads.
    3. The kernel with the least `predicted_seconds`, which depends on tcf, is taken. Ties are decided by the highest
       peak rate, the smallest t3 and the fewest rows, in this order.

    Raises:
      ValueError: a size is not positive, or there is no kernel that fits a unit.
    """
    if not any(kernel.threads for kernel in kernels):
        raise ValueError(f"tall_skinny: none of {len(kernels)} kernels fits a unit of {gpu.name}")
    steady, predicted = [], []
    for kernel in kernels:
        problem = _Problem.of(dtype, m, n, k, batch, kernel.t1)
        own = replace(gpu, peak_rates=(("float32", kernel.peak_rate), ("float64", kernel.peak_rate)))
        slots = np.asarray(kernel.threads * gpu.units)
        steady.append(float(_steady(own, problem, slots, kernel.t2, kernel.t3, 1)))
        predicted.append(float(_predicted(own, problem, slots, kernel.t2, kernel.t3, kernel.tcf)))
    threshold = t2_threshold(gpu, dtype)
    least = min(steady) * (1 + 1e-12)  # equal but for rounding
    fastest = [kernel for kernel, time in zip(kernels, steady, strict=True) if time <= least]
    if n <= threshold:
        width = min((-(-n // kernel.t2), kernel.t2) for kernel in fastest)[1]
    else:
        width = min((kernel.t2 < threshold, kernel.t2) for kernel in fastest)[1]

    def rank(index: int) -> tuple[int, float, float, int, int]:
        kernel = kernels[index]
        rows = kernel.t1 * kernel.tcf
        idle = max(gpu.units - batch * -(-m // rows), 0)
        return idle, predicted[index], -kernel.peak_rate, kernel.t3, rows

    best = min((index for index, kernel in enumerate(kernels) if kernel.t2 == width), key=rank)
    return best, predicted[best]


@dataclass(frozen=True)
class _Problem:
    """A checked problem, and the threads of its blocks."""

    dtype: str
    m: int
    n: int
    k: int
    batch: int
    t1: int

    @classmethod
    def of(cls, dtype: str, m: int, n: int, k: int, batch: int, t1: int) -> "_Problem":
        for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch), ("t1", t1)):
            _check_positive(name, value)
        _bytes(dtype)
        return cls(dtype, int(m), int(n), int(k), int(batch), int(t1))


def _steady(gpu: Gpu, problem: _Problem, slots: Ints, t2: Number, t3: Number, tcf: int) -> Floats:
    return _seconds(gpu, problem, t2, t3, np.minimum(slots, problem.batch * -(-problem.m // tcf)))


def _predicted(gpu: Gpu, problem: _Problem, slots: Ints, t2: Number, t3: Number, tcf: Number) -> Floats:
    threads = problem.batch * -(-problem.m // np.asarray(tcf, np.int64))
    full = threads // np.maximum(slots, 1)
    rest = threads - full * slots
    rounds = full + (rest > 0)
    in_full_rounds = _seconds(gpu, problem, t2, t3, np.maximum(slots, 1)) * (full * slots / threads)
    last_wave_seconds = _seconds(gpu, problem, t2, t3, np.maximum(rest, 1)) * (rest / threads)
    return np.where(slots > 0, in_full_rounds + last_wave_seconds + rounds * gpu.memory_latency, np.inf)


def _seconds(gpu: Gpu, problem: _Problem, t2: Number, t3: Number, threads: Ints) -> Floats:
    """Seconds of the whole problem with `threads` active threads on the whole device."""
    dtype, n, k = problem.dtype, problem.n, problem.k
    passes = -(-n // np.asarray(t2, np.int64))
    rows = float(problem.batch) * problem.m
    read, written = rows * k * passes * _bytes(dtype), rows * n * _bytes(dtype)
    flops = rows * k * passes * t2 * _flops(dtype)
    busy_units = np.minimum(threads / problem.t1, gpu.units)  # units that hold a block
    with np.errstate(divide="ignore", invalid="ignore"):
        loading = memory_utilisation(gpu, dtype, threads / gpu.units, t3)
        memory = (read / loading + written) / gpu.bandwidth
        utilisation = compute_utilisation(gpu, dtype, threads / busy_units, t2, t3)
        arithmetic = flops / (gpu.peak_rate(dtype) / gpu.units * busy_units * utilisation)
        longer = np.where(threads > 0, np.maximum(memory, arithmetic), np.inf)
    return longer


def _bytes(dtype: str) -> int:
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype: unknown name {dtype!r}; known are {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[dtype]


def _element_registers(dtype: str) -> int:
    return -(-_bytes(dtype) // 4)


def _flops(dtype: str) -> int:
    """Real operations of a multiply-add."""
    return 8 if dtype.startswith("complex") else 2


def _check_positive(name: str, value: Any) -> None:
    if not is_integer(value) or value < 1:
        raise ValueError(f"tall_skinny: {name} = {value!r} must be a positive integer")


def _check_tiles(t2: Number, t3: Number, tcf: Number) -> None:
    for name, values in (("t2", t2), ("t3", t3), ("tcf", tcf)):
        values = np.asarray(values)
        if values.dtype.kind not in "iu" or (values < 1).any():
            raise ValueError(f"tall_skinny: {name} = {values.tolist()} must be positive integers")


def _choices(name: str, given: Iterable[int] | None, largest: int, by_registers: int) -> Ints:
    """The given values in ascending order, or all values up to the largest useful one that registers allow."""
    if given is None:
        return np.arange(1, max(1, min(largest, by_registers)) + 1)
    values = list(given)
    for value in values:
        _check_positive(name, value)
    if not values:
        raise ValueError(f"tall_skinny: {name} has no values to choose from")
    return np.unique(np.array(values, np.int64))
