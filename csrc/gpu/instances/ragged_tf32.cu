// Ragged products of float32 by TF32, accumulated in float32, with matrices that are contiguous along K: TMA copies and warpgroup products.
#include "gpu/ragged/ragged_kernels.h"
#include "gpu/ragged/ragged_tile.h"

VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DEFINE_RAGGED_KERNEL, tf32)
