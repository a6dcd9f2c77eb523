// float64 on CDNA's matrix cores.
#include "gpu/mfma/mfma_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, f64)
VBGEMM_TENSOR_LIGHT_KERNELS(DEFINE, float64)
VBGEMM_TENSOR_KERNELS_64(DEFINE, float64)
