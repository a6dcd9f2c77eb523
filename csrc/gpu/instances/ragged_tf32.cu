// Ragged products of float32 by TF32, accumulated in float32, with matrices that are contiguous along K: TMA copies and warpgroup products.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, tf32)
