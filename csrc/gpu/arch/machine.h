// What the shape of a machine decides about the kernels, beyond the size of its waves.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"

namespace vbgemm {

inline constexpr bool kCdna = kWaveSize == 64;

// On CDNA a copy to shared memory passes through registers and is waited for where it is made: stages beyond the second would hide nothing,
// and shorter steps leave room for more blocks in the 64 KB of a unit, whose waves hide each other's latencies.
inline constexpr int kMostStages = kCdna ? 2 : 6;
inline constexpr int kStepShare = kCdna ? 2 : 1;  // a step along K is the catalogue's, divided by this

inline constexpr int kMostParameterBytes = most_parameter_bytes(kCdna);

}  // namespace vbgemm
