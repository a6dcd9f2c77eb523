// Ragged products of bfloat16 whose rows are gathered, accumulated in float32.
#include "gpu/ragged/ragged_kernels.h"
#include "gpu/ragged/ragged_tile.h"

VBGEMM_EVERY_GATHERING_KERNEL(VBGEMM_DEFINE_RAGGED_KERNEL, bf16)
