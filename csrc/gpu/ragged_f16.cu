// Ragged products of float16, accumulated in float32, by the copy engine and whole warpgroups.
#include "ragged_kernels.h"
#include "ragged_tile.h"

VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_DEFINE_RAGGED_KERNEL, f16)
