"""DeviceSpec: the description of a GPU or CPU that planners use. The entries are data: devices/NAME/device.toml."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from jax_vbgemm._src.native.arithmetic import FLOAT8, accumulator_of
from jax_vbgemm._src.planner.tables.rules import (
    CallCosts,
    CollectiveRate,
    CoreRules,
    DotRates,
    MeshRules,
    RaggedRules,
    Rules,
)

# The dtype whose rate is an upper bound for an accumulator without a rate of its own. (By data sheets, the rate of
# integers is that of float32 or half of it.)
_MULTIPLIED_AS = {"complex64": "float32", "complex128": "float64", "int32": "float32"}

# Arithmetics that have the tensor-core rate of another one; those that are not listed have a rate of their own.
_TENSOR_RATES = {"float16": "bfloat16"} | dict.fromkeys(FLOAT8, "float8")


@dataclass(frozen=True)
class DeviceSpec:
    """A device as planners see it. Sizes are in bytes, rates in FLOP/s or byte/s of the whole device, times in seconds.

    A unit is a streaming multiprocessor, a CDNA compute unit or a CPU core, and a wave is a warp (on AMD a wavefront).
    A CPU core has one block, of one wave, at a time. `resources` names the architecture whose compiler report
    (resources.csv) the device uses, its own or that of a similar one. The package has an entry for each device that it
    knows, and every `device=` takes its name, such as "h100"; `dataclasses.replace` makes a variant of an entry.
    """

    name: str
    platform: Literal["cpu", "cuda", "rocm"]  # JAX's name for the platform
    resources: str | None  # None: registers and shared memory do not limit occupancy
    # the device whose calibration.csv the cost model uses; None: the formula without measurements
    calibration: str | None

    # Occupancy (Zhang 2025, Eq. 5-9), per unit unless it says otherwise.
    units: int
    wave_size: int  # threads
    max_waves: int
    max_blocks: int
    max_threads: int
    simds: int
    registers: int  # 32-bit, vector
    register_granule: int  # registers per thread are allocated in multiples of this
    scalar_registers: int  # 0: no limit
    shared_bytes: int
    shared_block_bytes: int  # maximum of one block
    shared_granule: int
    shared_reserved: int  # bytes that each block takes in addition to its kernel's

    # Cost model.
    peak_rates: tuple[tuple[str, float], ...]  # FLOP/s of ordinary (not matrix) units, by dtype
    tensor_rates: tuple[tuple[str, float], ...]  # of tensor cores, by the arithmetics that have kernels, or "float8"
    bandwidth: float  # device memory
    cache_bandwidth: float  # last cache shared by the units
    shared_bandwidth: float  # shared memory of all units together
    step_latency: float  # lower bound of one K step: load, barrier, first product
    block_latency: float  # prologue and epilogue of a block; on a CPU of each of its tiles
    launch_seconds: float  # per additional kernel of a call, or per additional call on the CPU
    call_seconds: float  # per call, besides its kernels: waiting for earlier work to end
    vector_bytes: int  # edge tiles are computed in whole vectors of this size; 0: always as whole tiles

    # Parameters of the papers' planners.
    tlp_threshold: int  # threads, `coordinated`
    theta: int  # sum of K of a block, `coordinated`
    load_balanced_threshold: int  # threads, `load_balanced`
    split_factor: int  # blocks per unit, `sort_split`: SIMDs / waves of a block of 128 threads
    product_latency: float  # from a multiply-add to one that needs its result, `tall_skinny`
    setup_registers: int  # registers per thread besides operands and results, `tall_skinny`

    # Each tile shape of a launch beyond the first: its instructions are fetched from memory.
    further_tile_latency: float
    split_latency: float  # of a split-K call: the kernel that reduces the partial sums
    # More than one wave of blocks has a tail, because the blocks don't end together: it costs this fraction of an
    # average block.
    tail: float

    # Measured rules; None: nothing was measured.
    rules: Rules | None = None
    ragged_rules: RaggedRules | None = None
    mesh_rules: MeshRules | None = None
    core_rules: CoreRules | None = None
    dots: DotRates | None = None
    calls: CallCosts | None = None
    collectives: tuple[tuple[str, CollectiveRate], ...] = ()  # by jax.lax's name, those that were measured

    note: str = ""  # note for its plans: nothing is built for it, or it differs from the live device

    def __hash__(self) -> int:
        # Plans are cached by device; devices that differ only in fields that are not hashed are rare.
        return hash((self.name, self.units, self.note))

    @property
    def device_type(self) -> Literal["gpu", "cpu"]:
        """Whether the device is a GPU or a CPU."""
        return "cpu" if self.platform == "cpu" else "gpu"

    def waves_of(self, threads: int) -> int:
        """Waves of a block of `threads` threads."""
        return -(-threads // self.wave_size)

    def peak_rate(self, dtype: str) -> float:
        """FLOP/s of real multiply-adds in the dtype that `dtype` accumulates in."""
        accumulator = accumulator_of(dtype)
        return dict(self.peak_rates)[_MULTIPLIED_AS.get(accumulator, accumulator)]

    def tensor_rate(self, kind: str) -> float:
        """FLOP/s of an arithmetic on tensor cores; infinite if the device has none for it."""
        return dict(self.tensor_rates).get(_TENSOR_RATES.get(kind, kind), math.inf)

    def ragged_rate(self, kind: str) -> float | None:
        """FLOP/s of an 8-bit arithmetic by the pipelined kernel of ragged products; None if it was not measured."""
        rates = () if self.ragged_rules is None else self.ragged_rules.rates
        return dict(rates).get(_TENSOR_RATES.get(kind, kind))

    def has_tensor(self, kind: str) -> bool:
        """Whether the device has tensor cores (AMD: matrix cores) for this arithmetic."""
        return math.isfinite(self.tensor_rate(kind))

    def with_units(self, units: int) -> "DeviceSpec":
        """The same device with another number of units; figures of the whole device are scaled."""
        if units == self.units:
            return self
        scale = units / self.units
        return replace(
            self,
            units=units,
            peak_rates=tuple((dtype, rate * scale) for dtype, rate in self.peak_rates),
            tensor_rates=tuple((kind, rate * scale) for kind, rate in self.tensor_rates),
            cache_bandwidth=self.cache_bandwidth * scale,
            shared_bandwidth=self.shared_bandwidth * scale,
            tlp_threshold=round(self.tlp_threshold * scale),
            load_balanced_threshold=round(self.load_balanced_threshold * scale),
        )
