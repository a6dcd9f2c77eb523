// float32, its factors rounded to tf32, on CDNA 3's matrix units (in float32 on CDNA 2's, which know no tf32).
#include "gpu/mfma/mfma_tile.h"
#include "gpu/tile/kernels.h"
#include "gpu/tile/tile_kernel.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_MFMA_KERNEL(kernel, kind, tf32)
VBGEMM_TENSOR_LIGHT_KERNELS(DEFINE, tf32)
VBGEMM_TENSOR_KERNELS(DEFINE, tf32)
