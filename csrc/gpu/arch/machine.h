// Properties of the vendor's hardware that the kernels depend on, beyond the number of lanes in a wave.
#pragma once
#include "gpu/arch/gpu_vendor.h"
#include "gpu/limits.h"

namespace vbgemm {

inline constexpr bool kCdna = kWaveSize == 64;

// Maximum pipeline depth. On CDNA, a copy to shared memory passes through registers and is synchronous: more than two stages would hide
// nothing, and shorter K steps (k_step, gpu/vendor_tiles.h) leave room for more thread blocks in the 64 KB of a compute unit, whose waves
// hide each other's latencies.
inline constexpr int kMaxStages = kCdna ? 2 : 6;

inline constexpr int kMaxParameterBytes = max_parameter_bytes(kCdna);

}  // namespace vbgemm
