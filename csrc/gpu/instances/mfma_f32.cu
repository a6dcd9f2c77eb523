// float32 on CDNA's matrix cores.
#include "gpu/mfma/mfma_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, f32)
VBGEMM_TENSOR_LIGHT_KERNELS(DEFINE, float32)
VBGEMM_TENSOR_KERNELS(DEFINE, float32)
