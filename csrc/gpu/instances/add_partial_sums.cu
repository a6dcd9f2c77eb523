// The kernels that reduce split-K partial sums, one for each element type.
#include "gpu/tile/add_partial_sums.h"
#include "gpu/tile/kernels.h"

#define VBGEMM_DEFINE_ADD_PARTIAL_SUMS(kind, element)                                                               \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kAddThreads, vbgemm::AddPartialSums<element>::kMinBlocks) \
      vbgemm_add_partial_sums_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                     \
    VBGEMM_READ_PARAMETERS(vbgemm::KernelParameters, parameters);                                                   \
    VBGEMM_SHARED(vbgemm::AddPartialSums<element>::Shared, shared);                                                 \
    vbgemm::AddPartialSums<element>::run(parameters, shared);                                                       \
  }

#define DTYPE(id, name, ...) VBGEMM_DEFINE_ADD_PARTIAL_SUMS(name, vbgemm::Element<vbgemm::DType::id>)
#define OTHER_DTYPE(...)
#define ARITHMETIC(...)
#include "dtypes.def"
