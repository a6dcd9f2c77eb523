// The kernels that add up the shares of split K, one an element type.
#include "gpu/tile/add_shares.h"
#include "gpu/tile/kernels.h"

#define VBGEMM_DEFINE_ADD_SHARES(kind, element)                                                                \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kAddThreads, vbgemm::AddShares<element>::kMinBlocks) \
      vbgemm_add_shares_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                      \
    VBGEMM_READ_PARAMETERS(vbgemm::KernelParameters, parameters);                                              \
    VBGEMM_SHARED(vbgemm::AddShares<element>::Shared, shared);                                                 \
    vbgemm::AddShares<element>::run(parameters, shared);                                                       \
  }

VBGEMM_DEFINE_ADD_SHARES(float32, float)
VBGEMM_DEFINE_ADD_SHARES(float64, double)
VBGEMM_DEFINE_ADD_SHARES(complex64, vbgemm::Complex<float>)
VBGEMM_DEFINE_ADD_SHARES(complex128, vbgemm::Complex<double>)
VBGEMM_DEFINE_ADD_SHARES(bfloat16, vbgemm::BFloat16)
VBGEMM_DEFINE_ADD_SHARES(float16, vbgemm::Float16)
