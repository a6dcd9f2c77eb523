// Tiles of float32 with aligned rows, as TF32 on tensor cores.
#include "gpu/tensor/aligned_tile.h"
#include "gpu/tile/kernels.h"

#define DEFINE(kernel, kind) VBGEMM_DEFINE_ALIGNED_KERNEL(kernel, kind, tf32)
VBGEMM_ALIGNED_KERNELS(DEFINE, tf32)
