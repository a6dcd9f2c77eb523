// Includes the header of the GPU vendor that this build is for. Each vendor's header provides what the kernels need under the same names.
//
// A build that runs kernels on the CPU (tests/native/emulation) names its own header in VBGEMM_GPU_VENDOR_HEADER. A wave is NVIDIA's warp
// or AMD's wavefront; each header defines its number of lanes as VBGEMM_WAVE_SIZE: 32 on NVIDIA GPUs, 64 on AMD's CDNA. Other sizes are
// not supported.
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
