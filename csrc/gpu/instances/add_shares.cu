// The kernels that reduce split-K partial sums, one for each element type.
#include "gpu/tile/add_shares.h"
#include "gpu/tile/kernels.h"

#define VBGEMM_DEFINE_ADD_SHARES(kind, element)                                                                \
  extern "C" __global__ void VBGEMM_LAUNCH_BOUNDS(vbgemm::kAddThreads, vbgemm::AddShares<element>::kMinBlocks) \
      vbgemm_add_shares_##kind(VBGEMM_PARAMETERS(vbgemm::KernelParameters, parameters)) {                      \
    VBGEMM_READ_PARAMETERS(vbgemm::KernelParameters, parameters);                                              \
    VBGEMM_SHARED(vbgemm::AddShares<element>::Shared, shared);                                                 \
    vbgemm::AddShares<element>::run(parameters, shared);                                                       \
  }

#define DTYPE(id, name, ...) VBGEMM_DEFINE_ADD_SHARES(name, vbgemm::Element<vbgemm::DType::id>)
#define SUM_DTYPE(...)
#define ARITHMETIC(...)
#include "dtypes.def"
