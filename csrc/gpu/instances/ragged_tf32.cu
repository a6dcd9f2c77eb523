// Ragged products of float32 by TF32, accumulated in float32, with K-major matrices: TMA copies and wgmma.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_TRANSPOSED_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, tf32)
