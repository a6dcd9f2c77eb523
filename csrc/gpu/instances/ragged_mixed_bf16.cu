// Ragged products of bfloat16 with weights of 8 or 4 bits, accumulated in float32: TMA copies and wgmma.
#include "gpu/sm90/kernel_groups.h"

VBGEMM_EVERY_MIXED_KERNEL(VBGEMM_DEFINE_MIXED_KERNEL, bf16)
