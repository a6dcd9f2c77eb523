// float16, accumulated in float32, on CDNA's matrix units.
#include "kernels.h"
#include "mfma_tile.h"
#include "tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, f16)
VBGEMM_TENSOR_KERNELS_16(DEFINE, float16)
