// Ragged products of bfloat16, accumulated in float32: TMA copies and warpgroup products.
#include "gpu/ragged/ragged_kernels.h"
#include "gpu/ragged/ragged_tile.h"

VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_DEFINE_RAGGED_KERNEL, bf16)
