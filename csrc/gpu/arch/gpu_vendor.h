// The GPU that this build is for: what the kernels need of it, by the same names for each vendor.
//
// A build that runs kernels on the CPU (csrc/emulation) names its own header in VBGEMM_GPU_VENDOR_HEADER. Each header says how many lanes a
// wave has, in VBGEMM_WAVE_SIZE: 32 are NVIDIA's, 64 those of AMD's CDNA, and no other machine is known here.
#pragma once

#ifdef VBGEMM_GPU_VENDOR_HEADER
#include VBGEMM_GPU_VENDOR_HEADER
#elif defined(__HIP_PLATFORM_AMD__)
#include "gpu/arch/hip_vendor.h"
#else
#include "gpu/arch/cuda_vendor.h"
#endif

namespace vbgemm {
inline constexpr int kWaveSize = VBGEMM_WAVE_SIZE;
}
