"""The device table: what a planner knows of a GPU or CPU. Sources stand beside the figures, short names are spelled
out here.

  CUDA guide     NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities", technical specifications
  CUDA occupancy NVIDIA, CUDA Occupancy Calculator / cuda_occupancy.h: allocation granules, memory reserved per block
  V100 paper     NVIDIA, Tesla V100 GPU Architecture whitepaper (WP-08608), Table 1
  A100 paper     NVIDIA, A100 Tensor Core GPU Architecture whitepaper, Tables 1 and 4
  H100 paper     NVIDIA, H100 Tensor Core GPU Architecture whitepaper, Tables 2 and 3
  H200 sheet     NVIDIA, H200 Tensor Core GPU datasheet
  K40 sheet      NVIDIA, Tesla K40 GPU Active Accelerator board specification (BD-06902)
  M40 sheet      NVIDIA, Tesla M40 datasheet and product brief (PB-07541)
  P100 sheet     NVIDIA, Tesla P100 datasheet, PCIe, 16 GB
  Jia            Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking, arXiv:1804.06826
  MI50 sheet     AMD, Radeon Instinct MI50 datasheet; "Vega" 7nm Instruction Set Architecture
  CDNA paper     AMD, Introducing AMD CDNA Architecture whitepaper; MI100 brochure
  CDNA2 paper    AMD, Introducing AMD CDNA 2 Architecture whitepaper; MI200 series datasheets
  CDNA3 paper    AMD, AMD CDNA 3 Architecture whitepaper; MI300X datasheet
  CDNA ISA       AMD, "AMD Instinct MI100/MI200/MI300 Instruction Set Architecture" and LLVM's AMDGPU user guide
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from jax_vbgemm._src.arithmetic import accumulator_of

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
    calibration: str | None  # the device whose rows of calibration.csv the cost model takes; None: its own formula

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
    block_latency: float  # prologue and epilogue of a block
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
    further_tile_latency: float = 0.0
    split_latency: float = 5.5e-6  # of a call that splits K: its shares are added up by a kernel of their own

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


V100 = DeviceSpec(
    name="v100", platform="cuda", calibration=None,
    resources="sm_80",  # borrowed: CUDA 13 no longer compiles for sm_70
    units=80,  # V100 paper
    wave_size=32, max_waves=64, max_blocks=32, max_threads=2048,  # CUDA guide, 7.0
    simds=4, registers=65536, register_granule=8, scalar_registers=0,  # CUDA guide; CUDA occupancy: 256 a warp
    shared_bytes=96 << 10, shared_block_bytes=96 << 10,  # CUDA guide, 7.0
    shared_granule=256, shared_reserved=0,  # CUDA occupancy
    peak_rates=(("float32", 15.7e12), ("float64", 7.8e12)),  # V100 paper, SXM2
    tensor_rates=(),  # its tensor cores know float16 only
    bandwidth=900e9,  # V100 paper
    cache_bandwidth=3.1e12,  # A100 paper: 2048 B a clock, at 1.53 GHz
    shared_bandwidth=15.7e12,  # CUDA guide: 128 B a clock and SM, beside 64 multiply-adds
    step_latency=0.4e-6, block_latency=2e-6, launch_seconds=0.8e-6,  # to be calibrated; the launch is the H100's
    vector_bytes=0,
    tlp_threshold=65536, theta=256,  # Li 2019, section 7
    load_balanced_threshold=81920,  # half of the device's threads; to be found offline
    split_factor=1,
    product_latency=2.6e-9,  # CUDA guide, 7.0: 4 clocks, at 1.53 GHz
    setup_registers=32,  # assumed; to be read off the compiler's report, as for every device below
)  # fmt: skip

# Thresholds of all other devices: Li's is the V100's, scaled by units * max_threads (40% of the threads a device
# holds). Zhang's is half of those threads: more than one class of tiles can have active, as otherwise Eq. 4-9 would
# make the plans of Eq. 3. Both are a start, to be found offline as Li 2019, section 4.2.3, describes.
A100 = replace(
    V100, name="a100", resources="sm_80",
    units=108,  # A100 paper
    shared_bytes=164 << 10, shared_block_bytes=163 << 10, shared_granule=128, shared_reserved=1024,  # CUDA guide, 8.0
    peak_rates=(("float32", 19.5e12), ("float64", 9.7e12)),  # A100 paper
    tensor_rates=(("tf32", 156e12), ("tf32x3", 52e12), ("bfloat16", 312e12), ("float64", 19.5e12)),  # A100 paper
    bandwidth=2039e9,  # A100 80GB SXM datasheet
    cache_bandwidth=7.2e12,  # A100 paper: 5120 B a clock, at 1.41 GHz
    shared_bandwidth=19.5e12,
    tlp_threshold=88474, load_balanced_threshold=110592,
)  # fmt: skip

H100 = replace(
    A100, name="h100", resources="sm_90a", calibration="h100",
    units=132,  # H100 paper, SXM5
    shared_bytes=228 << 10, shared_block_bytes=227 << 10,  # CUDA guide, 9.0; granule and reserve as 8.0
    peak_rates=(("float32", 66.9e12), ("float64", 33.5e12)),  # H100 paper
    tensor_rates=(("tf32", 495e12), ("tf32x3", 165e12), ("bfloat16", 989e12), ("float64", 66.9e12)),  # H100 paper
    bandwidth=3000e9,  # measured: a copy, read and written; 3352e9 in the H100 paper
    cache_bandwidth=9.0e12,  # as the A100, 5120 B a clock, at 1.755 GHz
    shared_bandwidth=33.5e12,  # CUDA guide: 128 B a clock and SM, beside 128 multiply-adds
    block_latency=0.0,  # calibrated: part of each tile
    launch_seconds=0.8e-6,  # measured: one more kernel in a graph
    split_latency=3.0e-6,  # measured, launches overlapping
    further_tile_latency=0.8e-6,  # measured: plans of four tiles 2-3 us more than predicted, of one 0-1 (docs/design, L7)
    tlp_threshold=405504, theta=256, split_factor=16,  # by trial, as the papers (docs/design, R4)
    load_balanced_threshold=202752,  # three quarters: of those above its classes' active threads the best by the model
)  # fmt: skip

# GPUs that the papers report; no kernels are built for them. Latencies in clocks are Jia's.
P100 = replace(
    V100, name="p100",
    units=56,  # P100 sheet
    shared_bytes=64 << 10, shared_block_bytes=48 << 10,  # CUDA guide, 6.0
    peak_rates=(("float32", 9.3e12), ("float64", 4.7e12)),  # P100 sheet
    bandwidth=732e9,  # P100 sheet
    cache_bandwidth=1.6e12,  # Jia
    shared_bandwidth=9.3e12,  # CUDA guide: 128 B a clock and SM, beside 64 multiply-adds
    tlp_threshold=45875, load_balanced_threshold=57344,
    product_latency=4.6e-9,  # 6 clocks, at 1.30 GHz
)  # fmt: skip

M40 = replace(
    P100, name="m40",
    units=24,  # M40 sheet
    shared_bytes=96 << 10,  # CUDA guide, 5.2
    peak_rates=(("float32", 6.84e12), ("float64", 0.213e12)),  # M40 sheet: 3072 cores at 1.11 GHz, and a 32nd of them
    bandwidth=288e9,  # M40 sheet
    cache_bandwidth=0.57e12,  # assumed: 512 B a clock
    shared_bandwidth=3.4e12,  # CUDA guide: 128 B a clock and SM
    tlp_threshold=19661, load_balanced_threshold=24576,
    product_latency=5.4e-9,  # 6 clocks, at 1.11 GHz
)  # fmt: skip

K40C = replace(
    P100, name="k40c",
    units=15,  # K40 sheet
    max_blocks=16,  # CUDA guide, 3.5
    shared_bytes=48 << 10,  # CUDA guide, 3.5
    peak_rates=(("float32", 4.29e12), ("float64", 1.43e12)),  # K40 sheet
    bandwidth=288e9,  # K40 sheet
    cache_bandwidth=0.38e12,  # assumed: 512 B a clock, at 745 MHz
    shared_bandwidth=2.9e12,  # CUDA guide, 3.5: 32 banks of 8 B a clock and SM
    tlp_threshold=12288, load_balanced_threshold=15360,
    product_latency=12e-9,  # 9 clocks, at 745 MHz
)  # fmt: skip

MI210 = DeviceSpec(
    name="mi210", platform="rocm", calibration=None,
    resources="gfx90a",
    units=104,  # MI210 datasheet
    wave_size=64, max_waves=32, max_blocks=16, max_threads=2048,  # CDNA ISA; Zhang 2025, Eq. 5
    simds=4, registers=131072, register_granule=8,  # CDNA ISA: 512 a lane, VGPRs and AGPRs unified
    scalar_registers=3200,  # CDNA ISA: 800 a SIMD
    shared_bytes=64 << 10, shared_block_bytes=64 << 10, shared_granule=512, shared_reserved=0,  # CDNA ISA
    peak_rates=(("float32", 22.6e12), ("float64", 22.6e12)),  # MI210 datasheet, vector
    tensor_rates=(("float32", 45.3e12), ("bfloat16", 181e12), ("float64", 45.3e12)),  # MI210 datasheet, matrix
    bandwidth=1638e9,  # MI210 datasheet
    cache_bandwidth=7.0e12,  # CDNA2 paper: 128 B a clock and channel, 32 channels, at 1.7 GHz
    shared_bandwidth=22.6e12,  # CDNA2 paper: 128 B a clock and CU, beside 64 multiply-adds
    step_latency=0.5e-6, block_latency=3e-6, launch_seconds=2e-6,  # to be calibrated
    vector_bytes=0,
    tlp_threshold=85197, theta=256, load_balanced_threshold=106496,
    split_factor=2,
    product_latency=4.7e-9,  # assumed: 8 clocks, at 1.7 GHz
    setup_registers=32,
)  # fmt: skip

MI100 = replace(
    MI210, name="mi100", resources="gfx908",  # for plans only: the backend is not built for it
    units=120,  # CDNA paper
    max_waves=40, max_threads=2560,  # CDNA ISA: 10 waves a SIMD
    registers=65536, register_granule=4,  # CDNA ISA: 256 a lane, the AGPRs are a file of their own
    peak_rates=(("float32", 23.1e12), ("float64", 11.5e12)),  # MI100 brochure
    tensor_rates=(),  # no kernels for its matrix units
    bandwidth=1229e9,  # MI100 brochure
    cache_bandwidth=3.1e12,  # CDNA paper: 64 B a clock and channel, 32 channels, at 1.5 GHz
    shared_bandwidth=23.1e12,
    tlp_threshold=122880, load_balanced_threshold=153600,
)  # fmt: skip

MI50 = replace(
    MI100, name="mi50",  # borrows the MI100's registers, whose ordinary instructions it has
    units=60,  # MI50 sheet
    peak_rates=(("float32", 13.3e12), ("float64", 6.6e12)),  # MI50 sheet
    bandwidth=1024e9,  # MI50 sheet
    cache_bandwidth=1.8e12,  # CDNA paper, of the generation before: 64 B a clock and channel; 16 channels, at 1.73 GHz
    shared_bandwidth=13.3e12,
    tlp_threshold=61440, load_balanced_threshold=76800,
)  # fmt: skip

MI250X = replace(
    MI210, name="mi250x",  # one of its two dies: HIP shows each as a device
    units=110,  # MI250X datasheet: 220 on two dies
    peak_rates=(("float32", 23.9e12), ("float64", 23.9e12)),  # MI250X datasheet, half of 47.9
    tensor_rates=(("float32", 47.9e12), ("bfloat16", 191.5e12), ("float64", 47.9e12)),  # half of the same, matrix
    shared_bandwidth=23.9e12,
    tlp_threshold=90112, load_balanced_threshold=112640,
)  # fmt: skip

MI300X = replace(
    MI210, name="mi300x", resources="gfx942",
    units=304,  # MI300X datasheet
    peak_rates=(("float32", 163.4e12), ("float64", 81.7e12)),  # MI300X datasheet, vector
    # The same, matrix; tf32 is its xf32.
    tensor_rates=(("float32", 163.4e12), ("tf32", 653.7e12), ("bfloat16", 1307.4e12), ("float64", 163.4e12)),
    bandwidth=5300e9,  # MI300X datasheet
    cache_bandwidth=34e12,  # CDNA3 paper: L2, 2 KB a clock and die, 8 dies, at 2.1 GHz
    shared_bandwidth=81.7e12,  # CDNA3 paper: 128 B a clock and CU, beside 128 multiply-adds
    tlp_threshold=249037, load_balanced_threshold=311296,
)  # fmt: skip

CPU = DeviceSpec(
    name="cpu", platform="cpu", resources=None, calibration=None,
    units=2,  # cores; the live device brings its own number
    # A core walks a block from end to end, whatever threads the block's tile names: one wave, one block.
    wave_size=256, max_waves=1, max_blocks=1, max_threads=256,
    simds=1, registers=0, register_granule=1, scalar_registers=0,
    shared_bytes=0, shared_block_bytes=0, shared_granule=1, shared_reserved=0,
    # Measured on two Zen 5 cores with AVX-512: peers/cpu.md.
    peak_rates=(("float32", 540e9), ("float64", 270e9)),
    tensor_rates=(),
    bandwidth=48e9,
    # Fitted to every tile on 23 workloads on Zen 3 with AVX2, one core (peak 104e9, 100e9 byte/s, 0.08 us a block), and
    # scaled to the peak above: for a choice of tiles only their ratio counts.
    cache_bandwidth=500e9,
    shared_bandwidth=0.0, step_latency=0.0,  # a GPU's
    block_latency=0.1e-6, launch_seconds=5e-6,  # a call of the thread pool took 4.7 us
    vector_bytes=64,
    tlp_threshold=2048, theta=256, load_balanced_threshold=512,  # four blocks and one block a core; to be found offline
    split_factor=1,
    product_latency=0.0, setup_registers=0,  # a GPU's
)  # fmt: skip

DEVICES: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        V100,
        A100,
        replace(A100, name="a800"),  # an A100 with a slower NVLink
        H100,
        replace(H100, name="h200", bandwidth=4800e9),  # H200 sheet: an H100 with other memory
        P100,
        M40,
        K40C,
        MI50,
        MI100,
        MI210,
        MI250X,
        MI300X,
        CPU,
    )
}


def device_spec(device: str | DeviceSpec) -> DeviceSpec:
    """The table's entry of that name, or the spec itself. An unknown name is a ValueError that lists the known ones."""
    if isinstance(device, DeviceSpec):
        return device
    if not isinstance(device, str):
        raise TypeError(f"device: expected a DeviceSpec or a name, got {device!r}")
    if device.lower() not in DEVICES:
        raise ValueError(f"device: unknown name {device!r}; known are {', '.join(DEVICES)}")
    return DEVICES[device.lower()]


def match_device(device_kind: str, units: int | None = None) -> DeviceSpec:
    """The spec of a live device, from what it calls itself ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "cpu").

    `units`: its number of units where known, else the table's. A GPU that isn't in the table gets the A100's entry
    (NVIDIA) or the MI210's (AMD) and a note that says so.
    """
    words = re.split(r"[^a-z0-9]+", device_kind.lower())
    name = next((name for name in DEVICES if name in words), None)
    if name is not None:
        spec = DEVICES[name]
    elif {"amd", "radeon", "instinct"} & set(words) or any(word.startswith("gfx") for word in words):
        spec = replace(MI210, note=f"{device_kind} is not in the device table: planned as mi210")
    elif "tpu" in words:
        raise ValueError(f"device: there are no kernels for {device_kind!r}")
    else:
        # Every one from compute capability 8.0 on lets a block have this much shared memory (CUDA guide).
        note = f"{device_kind} is not in the device table: planned as a100"
        spec = replace(A100, shared_block_bytes=99 << 10, note=note)
    return spec if units is None else spec.with_units(units)
