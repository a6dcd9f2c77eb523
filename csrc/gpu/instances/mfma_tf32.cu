// float32 with its factors rounded to tf32, on CDNA 3's matrix cores (CDNA 2 has no tf32 and multiplies in float32).
#include "gpu/mfma/mfma_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, tf32)
VBGEMM_TENSOR_LIGHT_KERNELS(DEFINE, tf32)
VBGEMM_TENSOR_KERNELS(DEFINE, tf32)
