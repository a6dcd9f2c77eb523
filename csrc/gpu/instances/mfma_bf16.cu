// bfloat16, accumulated in float32, on CDNA's matrix cores.
#include "gpu/mfma/mfma_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, bf16)
VBGEMM_TENSOR_LIGHT_KERNELS(DEFINE, bfloat16)
VBGEMM_TENSOR_KERNELS_16(DEFINE, bfloat16)
