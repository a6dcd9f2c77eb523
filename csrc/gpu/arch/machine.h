// What the shape of a machine decides about the kernels, beyond the size of its waves.
#pragma once
#include "gpu/arch/gpu_vendor.h"

namespace vbgemm {

inline constexpr bool kCdna = kWaveSize == 64;

// On CDNA a copy to shared memory passes through registers and is waited for where it is made: stages beyond the second would hide nothing,
// and shorter steps leave room for more blocks in the 64 KB of a unit, whose waves hide each other's latencies.
inline constexpr int kMostStages = kCdna ? 2 : 6;
inline constexpr int kStepShare = kCdna ? 2 : 1;  // a step along K is the catalogue's, divided by this

// A launch's parameters. HIP gives 4 KB. CUDA gives 32764 bytes from 12.1 on, but they reach the device with each launch from a stream,
// whatever is in them: on an H100 that takes 4 us beyond those of 8 KB, 1.3 us for 16 KB, 0 for less. Graphs have them there.
inline constexpr int kMostParameterBytes = kCdna ? 4096 : 16384;

}  // namespace vbgemm
