// Ragged products of bfloat16, accumulated in float32: TMA copies and wgmma.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_RAGGED_KERNEL(VBGEMM_DEFINE_GROUP_KERNEL, bf16)
