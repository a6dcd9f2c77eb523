// Tiles of float16 with aligned rows, accumulated in float32, on tensor cores.
#include "gpu/tensor/aligned_tile.h"
#include "gpu/tile/kernels.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_ALIGNED_KERNEL(kernel, kind, f16)
VBGEMM_ALIGNED_KERNELS(DEFINE, float16)
