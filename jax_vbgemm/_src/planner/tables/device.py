"""DeviceSpec: what a planner knows of a GPU or CPU. The entries are data: devices/NAME/device.toml."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from jax_vbgemm._src.arithmetic import accumulator_of
from jax_vbgemm._src.planner.tables.rules import CoreRules, DotRates, Rules

# What accumulators without a rate of their own are multiplied and added as fast as, at the most: a data sheet's integer
# rate is that of float32 or half of it.
_MULTIPLIED_AS = {"complex64": "float32", "complex128": "float64", "int32": "float32"}


@dataclass(frozen=True)
class DeviceSpec:
    """A device as planners see it. Sizes in bytes, rates in FLOP/s and byte/s of the whole device, times in seconds.

    A unit is a streaming multiprocessor, a CDNA compute unit or a CPU core. `resources` names the architecture whose
    compiler figures (resources.csv) the device uses, its own or a borrowed one. A unit of the CPU walks one block at a
    time: one wave.
    """

    name: str
    platform: Literal["cpu", "cuda", "rocm"]  # whose programs run there, by JAX's name for it
    resources: str | None  # None: tiles take no registers or shared memory worth counting
    calibration: str | None  # the device whose calibration.csv the cost model takes; None: its own formula

    # Occupancy (Zhang 2025, Eq. 5-9), per unit unless it says otherwise.
    units: int
    wave_size: int  # threads
    max_waves: int
    max_blocks: int
    max_threads: int
    simds: int
    registers: int  # 32-bit, vector
    register_granule: int  # registers a thread are allocated in multiples of this
    scalar_registers: int  # 0: no limit
    shared_bytes: int
    shared_block_bytes: int  # the most that one block may use
    shared_granule: int
    shared_reserved: int  # what each block takes beyond what its kernel asks for

    # Cost model.
    peak_rates: tuple[tuple[str, float], ...]  # FLOP/s of ordinary (not matrix) units, by dtype
    tensor_rates: tuple[tuple[str, float], ...]  # FLOP/s of tensor cores, by the kinds for which we have such kernels
    bandwidth: float  # device memory
    cache_bandwidth: float  # last cache shared by the units
    shared_bandwidth: float  # shared memory of all units together
    step_latency: float  # one K step can't be faster: load, barrier, first product
    block_latency: float  # prologue and epilogue of a block; on a CPU of each of its tiles
    launch_seconds: float  # one more kernel in a graph, or one more call on the CPU
    vector_bytes: int  # edge tiles are computed as far as they reach, in whole vectors of this; 0: always whole

    # What the papers' planners take as given.
    tlp_threshold: int  # threads, `coordinated`
    theta: int  # sum of K of a block, `coordinated`
    load_balanced_threshold: int  # threads, `load_balanced`
    split_factor: int  # blocks a unit, `sort_split`: SIMDs / waves of a block of 128 threads
    product_latency: float  # a multiply-add waits for the one before it, `tall_skinny`
    setup_registers: int  # of a thread, beside operands and results, `tall_skinny`

    # Of a launch, each tile shape beyond the first: its instructions have to come from memory, too.
    further_tile_latency: float
    split_latency: float  # of a call that splits K: its shares are added up by a kernel of their own
    # Blocks that are too many for one round don't end together: that costs this share of an average one.
    tail: float

    # What was measured; None: nothing.
    rules: Rules | None = None
    core_rules: CoreRules | None = None
    dots: DotRates | None = None

    note: str = ""  # how this entry differs from the device it is used for

    def __hash__(self) -> int:
        # Plans and figures are cached by device; two that differ in other fields only are rare.
        return hash((self.name, self.units, self.note))

    @property
    def kind(self) -> Literal["gpu", "cpu"]:
        return "cpu" if self.platform == "cpu" else "gpu"

    def waves_of(self, threads: int) -> int:
        """Waves of a block of `threads` threads."""
        return -(-threads // self.wave_size)

    def peak_rate(self, dtype: str) -> float:
        """FLOP/s of real multiply-adds in the dtype that `dtype` accumulates in."""
        accumulator = accumulator_of(dtype)
        return dict(self.peak_rates)[_MULTIPLIED_AS.get(accumulator, accumulator)]

    def tensor_rate(self, kind: str) -> float:
        """FLOP/s of a kind's products on tensor cores; infinite where it has none."""
        return dict(self.tensor_rates).get("bfloat16" if kind == "float16" else kind, math.inf)

    def has_tensor(self, kind: str) -> bool:
        """Whether it multiplies this kind on tensor cores (AMD: matrix units)."""
        return math.isfinite(self.tensor_rate(kind))

    def with_units(self, units: int) -> "DeviceSpec":
        """The same device with another number of units; what grows with the units is scaled."""
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
